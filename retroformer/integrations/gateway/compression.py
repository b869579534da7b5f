"""Content encodings that the gateway can decode while forwarding. Others are forwarded but not recorded."""

import zlib
from typing import Any

LARGEST_BYTES = 64_000_000
"""Largest body that is read, decompressed."""
_COMPRESSED = ("gzip", "deflate")
_READABLE = (*_COMPRESSED, "identity")


def readable(accepted: str) -> str:
    """Return an Accept-Encoding header without the encodings that cannot be read on the side."""
    offered = [part.strip() for part in accepted.split(",")]
    return ", ".join(part for part in offered if part.partition(";")[0].strip().lower() in _READABLE)


def decoder(encoding: str) -> Any:
    """Return a decompressor for the encoding; None for a body that is not compressed."""
    # 32 lets zlib recognise gzip and zlib headers by itself.
    return zlib.decompressobj(wbits=32 + zlib.MAX_WBITS) if encoding.lower() in _COMPRESSED else None


def unpacked(body: bytes, encoding: str) -> bytes | None:
    """Return a body without its compression; None if it cannot be read, is cut short or is too large."""
    encoding = encoding.strip().lower()
    if encoding not in _COMPRESSED:
        return body if encoding in ("", "identity") else None
    unpack = decoder(encoding)
    try:
        plain: bytes = unpack.decompress(body, LARGEST_BYTES + 1)
    except zlib.error:
        return None
    return plain if unpack.eof and not unpack.unused_data else None
