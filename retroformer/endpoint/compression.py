"""Decompresses bodies of HTTP messages up to a limit: a few kilobytes may hold gigabytes."""

import zlib
from typing import Any

ENCODINGS = ("gzip", "deflate")
"""Encodings that can be read. Others expand single bytes to megabytes, or need further packages."""


class UnreadableBody(Exception):
    """A body that is damaged, too large or in another encoding; the message goes on from the name of who sent it."""


class Decompressor:
    """Decompresses a body as it arrives."""

    def __init__(self, encoding: str, largest: int) -> None:
        """Read a body of at most `largest` bytes. Raises UnreadableBody."""
        encoding = encoding.strip().lower()
        if encoding not in (*ENCODINGS, "identity", ""):
            raise UnreadableBody(f"answered in the encoding {encoding[:80]!a}")
        # 32 lets zlib recognise gzip and zlib headers by itself.
        self._zlib: Any = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS) if encoding in ENCODINGS else None
        self._largest = self._left = largest

    def decompress(self, data: bytes) -> bytes:
        """Return the next part of the body. Raises UnreadableBody."""
        try:
            plain: bytes = data if self._zlib is None else self._zlib.decompress(data, self._left + 1)
        except zlib.error as error:
            raise UnreadableBody(f"answered with damaged data ({error})") from None
        self._left -= len(plain)
        if self._left < 0:
            raise UnreadableBody(f"answered with more than {self._largest:,} bytes")
        return plain

    @property
    def complete(self) -> bool:
        """True if nothing of the body is missing, and nothing follows it."""
        return self._zlib is None or (self._zlib.eof and not self._zlib.unused_data)
