"""Messages between processes that do not trust each other: plain data by value, everything else by reference.

A reader gets exact built-in types whatever the writer sent, so no `__eq__` of the other side is ever called. No message
can make the reader import or call anything, or allocate more than a small multiple of the message's size.
"""

import select
import struct
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from socket import socket
from time import monotonic
from typing import Any

MAXIMUM_DEPTH = 150
"""Maximum nesting of a value that a solution returns."""
GET, SET, CALL = "<get>", "<set>", "<call>"
"""Operations, besides function calls, on an object of the solution, sent in place of a function's name."""

_LENGTH = struct.Struct(">I")
_FLOAT, _COMPLEX = struct.Struct(">d"), struct.Struct(">dd")
_UTF_8 = ("utf-8", "surrogatepass")
_TICK = timedelta(microseconds=1)
_SEQUENCES: tuple[tuple[bytes, Any], ...] = (
    (b"l", list),
    (b"t", tuple),
    (b"S", set),
    (b"Z", frozenset),
    (b"q", deque),
)


class Unreadable(Exception):
    """Error: the other side sent an invalid message."""


class Unsendable(Exception):
    """Error: a value cannot be sent."""


class Reference:
    """Object that stays where it is; equal only to itself."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return "<an object of the solution's own class>"


class Named:
    """Function that the other side looks up by its name."""

    def __init__(self, name: str) -> None:
        self.name = name


Refer = Callable[[object], int]
Resolve = Callable[[int], Any]


def _refuse(value: object) -> int:
    raise Unsendable(f"a value of type {type(value).__name__} cannot be passed to the solution")


def encode(value: object, refer: Refer = _refuse, depth: int = MAXIMUM_DEPTH) -> bytes:
    """Return the bytes of a value; `refer` numbers objects that are not plain data. Raises Unsendable, RecursionError.

    depth: maximum nesting of the value.
    """
    parts: list[bytes] = []
    try:
        _write(value, parts.append, refer, depth)
    except _TooDeep:
        raise Unsendable(f"a value is nested more than {depth} deep") from None
    return b"".join(parts)


class _TooDeep(Exception):
    pass


def _write(value: Any, put: Callable[[bytes], None], refer: Refer, depth: int) -> None:
    """Write one value; `depth` is the number of levels still allowed below it."""
    if depth < 0:
        raise _TooDeep
    if value is None or value is True or value is False:
        put({None: b"N", True: b"T", False: b"F"}[value])
        return
    for kind, tag, data, _ in _ATOMS:
        if isinstance(value, kind):
            put(tag + _sized(data(value)))
            return
    for kind, tag, items in _COLLECTIONS:
        if isinstance(value, kind):
            parts = items(value)
            put(tag + _LENGTH.pack(len(parts)))
            for part in parts:
                _write(part, put, refer, depth - 1)
            return
    put(b"O" + _LENGTH.pack(value.index if isinstance(value, Reference) else refer(value)))


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


_ATOMS: tuple[tuple[type, bytes, Callable[[Any], bytes], Callable[[bytes], Any]], ...] = (
    (int, b"i", lambda value: format(int(value), "x").encode(), lambda data: int(data, 16)),
    (float, b"f", _FLOAT.pack, lambda data: _FLOAT.unpack(data)[0]),
    (complex, b"c", lambda value: _COMPLEX.pack(value.real, value.imag), lambda data: complex(*_COMPLEX.unpack(data))),
    (str, b"s", lambda value: value.encode(*_UTF_8), lambda data: data.decode(*_UTF_8)),
    (bytes, b"b", bytes, bytes),
    (bytearray, b"B", bytes, bytearray),
    (Named, b"n", lambda value: value.name.encode(), lambda data: Named(data.decode())),
    (Decimal, b"D", lambda value: str(value).encode(), lambda data: Decimal(data.decode())),
    (Fraction, b"R", lambda value: str(value).encode(), lambda data: Fraction(*map(int, data.split(b"/")))),
    (datetime, b"e", lambda value: value.isoformat().encode(), lambda data: datetime.fromisoformat(data.decode())),
    (date, b"a", lambda value: value.isoformat().encode(), lambda data: date.fromisoformat(data.decode())),
    (time, b"h", lambda value: value.isoformat().encode(), lambda data: time.fromisoformat(data.decode())),
    (timedelta, b"p", lambda value: b"%d" % (value // _TICK), lambda data: int(data) * _TICK),
)
_COLLECTIONS: tuple[tuple[Any, bytes, Callable[[Any], list[Any]]], ...] = (
    *((kind, tag, list) for tag, kind in _SEQUENCES),
    (Mapping, b"d", lambda value: [part for pair in value.items() for part in pair]),
    (range, b"r", lambda value: [value.start, value.stop, value.step]),
    (KeysView, b"S", list),
    ((Iterator, ItemsView, ValuesView), b"I", list),
)


def decode(data: bytes, resolve: Resolve = Reference, depth: int = MAXIMUM_DEPTH) -> Any:
    """Return the value of `encode`'s bytes: exact built-in types, Nameds, and results of `resolve` for references.

    Raises Unreadable.
    """
    reader = _Decoder(data, resolve)
    try:
        value = reader.value(depth + 2)
    except (ValueError, TypeError, ArithmeticError, IndexError, RecursionError, struct.error) as error:
        raise Unreadable(str(error)) from error
    if reader.rest():
        raise Unreadable("there is more than one value")
    return value


class _Decoder:
    def __init__(self, data: bytes, resolve: Resolve) -> None:
        self._data, self._at, self._resolve = data, 0, resolve

    def rest(self) -> int:
        return len(self._data) - self._at

    def _take(self, count: int) -> bytes:
        if count > self.rest():
            raise Unreadable("a message ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self) -> int:
        number: int = _LENGTH.unpack(self._take(4))[0]
        return number

    def value(self, depth: int) -> Any:
        if depth < 0:
            raise Unreadable("a value is nested too deep")
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"O":
            return self._resolve(self._number())
        if tag in _FROM_BYTES:
            return _FROM_BYTES[tag](self._take(self._number()))
        if tag in _FROM_ITEMS:
            count = self._number()
            if count > self.rest():
                raise Unreadable("a message ends too early")
            return _FROM_ITEMS[tag]([self.value(depth - 1) for _ in range(count)])
        raise Unreadable(f"there is no kind {tag!r}")


_CONSTANTS: dict[bytes, bool | None] = {b"N": None, b"T": True, b"F": False}
_FROM_BYTES = {tag: read for _, tag, _, read in _ATOMS}
_FROM_ITEMS: dict[bytes, Callable[[list[Any]], Any]] = {
    **dict(_SEQUENCES),
    b"d": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    b"r": lambda items: range(*items),
    b"I": iter,
}


def send(channel: socket, value: object, refer: Refer = _refuse, depth: int = MAXIMUM_DEPTH) -> None:
    """Send one message. Raises OSError if nobody listens, Unsendable."""
    channel.sendall(_sized(encode(value, refer, depth)))


def receive(
    channel: socket, limit: int, resolve: Resolve = Reference, depth: int = MAXIMUM_DEPTH, *, end: float | None = None
) -> Any:
    """Receive one message of at most `limit` bytes. Raises EOFError at the end, Unreadable.

    end: monotonic time until which it waits. Raises TimeoutError then; the channel cannot be read any more, since a
    part of the message may be lost.
    """
    length: int = _LENGTH.unpack(_exactly(channel, _LENGTH.size, end))[0]
    if length > limit:
        raise Unreadable(f"a value of {length} bytes is larger than the {limit} allowed")
    return decode(_exactly(channel, length, end), resolve, depth)


def _exactly(channel: socket, count: int, end: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        if end is not None and not select.select([channel], [], [], max(0.0, end - monotonic()))[0]:
            raise TimeoutError
        try:
            part = channel.recv(min(count, 1 << 20))
        except ConnectionError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
