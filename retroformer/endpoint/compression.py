"""Decompresses bodies of HTTP messages up to a limit: a few kilobytes may hold gigabytes."""

import zlib
from typing import Any

ENCODINGS = ("gzip", "deflate")
"""Encodings that can be read. Others expand single bytes to megabytes, or need further packages."""
_PIECE_BYTES = 16_384
_MEMBER_BYTES = 1000
"""What a member of a gzip file counts as besides its content: millions of empty ones would take minutes."""


class UnreadableBody(Exception):
    """A body that is damaged, too large or in another encoding; the message goes on from `was sent` or `answered`."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status
        """Status that refuses a request with this body."""


class Decompressor:
    """Decompresses a body as it arrives; a gzip file may have several members."""

    def __init__(self, encoding: str, largest: int) -> None:
        """Read a body of at most `largest` bytes. Raises UnreadableBody."""
        self._encoding = encoding.strip().lower()
        if self._encoding not in (*ENCODINGS, "identity", ""):
            raise UnreadableBody(415, f"in the encoding {self._encoding[:80]!a}")
        self._zlib: Any = _decompressor() if self._encoding in ENCODINGS else None
        self._largest = self._left = largest
        self._begun = False

    def decompress(self, data: bytes) -> bytes:
        """Return the next part of the body. Raises UnreadableBody."""
        self._begun |= bool(data)
        if self._zlib is None:
            return self._count(data)
        plain = bytearray()
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            while piece:
                plain += self._count(self._inflate(piece))
                piece = self._zlib.unused_data
        return bytes(plain)

    def end(self) -> None:
        """Raise UnreadableBody if some of the body is missing."""
        if self._begun and self._zlib is not None and not self._zlib.eof:
            raise UnreadableBody(400, "with data that is cut short")

    def _inflate(self, piece: bytes) -> bytes:
        if self._zlib.eof:
            self._left -= _MEMBER_BYTES
            self._zlib = _decompressor()
        try:
            plain: bytes = self._zlib.decompress(piece, max(self._left, 0) + 1)
        except zlib.error as error:
            raise UnreadableBody(400, f"with damaged data, not {self._encoding} ({error})") from None
        return plain

    def _count(self, plain: bytes) -> bytes:
        self._left -= len(plain)
        if self._left < 0:
            raise UnreadableBody(413, f"with more than {self._largest:,} bytes")
        return plain


def decompressed(body: bytes, encoding: str, largest: int) -> bytes:
    """Return a whole body of at most `largest` bytes. Raises UnreadableBody."""
    decompressor = Decompressor(encoding, largest)
    plain = decompressor.decompress(body)
    decompressor.end()
    return plain


def _decompressor() -> Any:
    return zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # 32 recognises the headers of gzip and zlib.
