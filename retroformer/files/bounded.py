"""Reads files that a user names, within limits: no input may hang a command, fill the memory or end in a traceback.

The limit of a compressed file (`.xz`, `.gz`) applies to its decompressed size. A text may begin with a byte order mark:
programs of Windows write one, and some of them UTF-16. No text may hold an unpaired surrogate, which no store, file or
terminal accepts. Every refusal is one `MissingInput` sentence; faults of YAML are yaml.YAMLErrors.
"""

import codecs
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from retroformer.errors import MissingInput
from retroformer.files.text import has_surrogate, json_value, surrogate_in_json

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MOST_LEVELS = 50
"""Largest number of nested brackets. The deepest file in use has 5 (WebShop's products); Python fails at about
1,000."""
MOST_VALUES = 100_000
"""Largest number of values in YAML, aliases expanded. The largest shipped config has 310."""
_MOST_EXPANSION, _SMALL_BYTES = 300, 64 * MIB
"""Times by which a file may grow when it is decompressed, unless it stays small: logs grow 30 times, bombs 1,000."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MOST_UTF_16_BYTES = 256 * MIB
"""Largest text in UTF-16, which is converted as a whole."""
_MOST_YAML_BYTES = MIB
"""Largest YAML file. The largest shipped file, a prompt pack, has 38 KiB."""

_DECOMPRESSORS: dict[str, Callable[[io.BufferedReader], io.BufferedIOBase]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
}
_DAMAGE = (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)
_SYSTEM_FAILURES = (errno.ENOENT, errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)
"""System errors that `open` raises, too, and that are raised unchanged."""
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_TAG_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""Exceptions of PyYAML's constructors for `!!int abc`, `!!bool x`, `!!int ''`, `!!timestamp x` and the like."""

Row = TypeVar("Row")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read its bytes. Raises MissingInput, or what `open` raises."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer; regular files ignore the flag.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        if number in _SYSTEM_FAILURES:
            raise
        reason = os.strerror(number) if number else str(error)
        raise MissingInput(f"{str(path)!r} cannot be opened ({reason}): name a regular file.") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise MissingInput(f"{str(path)!r} is {kind}, not a regular file: name a regular file.")
    return os.fdopen(handle, "rb")


class LimitedStream(io.RawIOBase):
    """Byte stream that raises MissingInput after `most_bytes`."""

    def __init__(self, stream: io.BufferedIOBase, most_bytes: int, refusal: str) -> None:
        self._stream, self._left, self._refusal = stream, most_bytes, refusal

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`. Raises MissingInput beyond the limit."""
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        self._left -= len(content)
        if self._left < 0:
            raise MissingInput(self._refusal)
        return len(content)


@contextmanager
def open_limited(path: Path, most_bytes: int) -> Iterator[io.BufferedReader]:
    """Open the decompressed bytes of a regular file, which may be plain or end in `.xz` or `.gz`.

    Raises MissingInput if it is not regular, damaged, or holds more than `most_bytes`, or what `open` raises.
    """
    decompressor = _DECOMPRESSORS.get(path.suffix)
    with open_regular(path) as file, decompressor(file) if decompressor else file as stream:
        if decompressor is not None:
            most_bytes = min(most_bytes, most_decompressed(os.fstat(file.fileno()).st_size))
        refusal = f"{path} holds more than {size(most_bytes)}, the limit for such a file: name a smaller one."
        try:
            yield io.BufferedReader(LimitedStream(stream, most_bytes, refusal), 64 * KIB)
        except _DAMAGE as error:
            raise MissingInput(f"{path} is damaged ({error}): get a fresh copy.") from error


def most_decompressed(compressed_bytes: int) -> int:
    """Return the largest size, in bytes, that so many compressed bytes may have: more is a bomb."""
    return max(_SMALL_BYTES, _MOST_EXPANSION * compressed_bytes)


@contextmanager
def _open_text(path: Path, most_bytes: int) -> Iterator[io.BufferedIOBase]:
    """Open a text in UTF-8 after its byte order mark. Raises as `open_limited` does."""
    with open_limited(path, most_bytes) as stream:
        mark = stream.peek(len(codecs.BOM_UTF8))
        if mark.startswith(_UTF_16):
            content = stream.read(_MOST_UTF_16_BYTES + 1)
            if len(content) > _MOST_UTF_16_BYTES:
                limit = f"{size(_MOST_UTF_16_BYTES)}, the limit for UTF-16"
                raise MissingInput(f"{path} holds more than {limit}: save it as UTF-8.")
            try:
                content = content.decode("utf-16").encode("utf-8")
            except UnicodeDecodeError as error:
                raise MissingInput(
                    f"{path} is not UTF-16, as its mark says ({error.reason}): save it as UTF-8."
                ) from None
            yield io.BytesIO(content)
            return
        if mark.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        yield stream


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Read a whole decompressed file. Raises as `open_limited` does."""
    with open_limited(path, most_bytes) as stream:
        return stream.read()


def read_text(path: Path, most_bytes: int) -> str:
    """Read a whole decompressed text. Raises as `open_limited` does."""
    with _open_text(path, most_bytes) as stream:
        content = stream.read()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_utf_8(path, content.count(b"\n", 0, error.start) + 1) from None


def text_lines(path: Path, line_bytes: int, most_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a text with their numbers from 1, without their ends. Raises as `open_limited`."""
    number = 0
    with _open_text(path, most_bytes) as stream:
        try:
            while line := stream.readline(line_bytes + 1):
                number += 1
                if len(line) > line_bytes:
                    limit = f"{size(line_bytes)}, the limit for a line"
                    raise MissingInput(f"Line {number} of {path} is longer than {limit}: shorten it.")
                if not line.isspace():
                    yield number, line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise _no_utf_8(path, number) from None


def _no_utf_8(path: Path, line: int) -> MissingInput:
    return MissingInput(f"Line {line} of {path} is not UTF-8: save the file in that encoding.")


def sha256(path: Path) -> "hashlib._Hash":
    """Return the digest of a regular file of any length, read in pieces. Raises as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256")


def size(count: int) -> str:
    """Format a number of bytes with its unit, such as `64 MiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} bytes"


def json_rows(
    path: Path, read: Callable[[Any], Row], wanted: str, *, line_bytes: int, most_bytes: int
) -> Iterator[tuple[str, Row]]:
    """Yield the place of each line of a JSON lines file, and what `read_row` returns for it. Raises as `text_lines`."""
    for number, line in text_lines(path, line_bytes, most_bytes):
        where = f"Line {number} of {path}"
        yield where, read_row(parse_json(line, where), read, wanted, where)


def read_row(value: Any, read: Callable[[Any], Row], wanted: str, where: str) -> Row:
    """Return the result of `read` for a row of JSON; `wanted` describes a correct one in messages.

    A field that is null is absent: `datasets` writes all fields of the table into every row. `read` may raise any
    exception for data of another shape (MissingInput).
    """
    if isinstance(value, dict):
        value = {name: field for name, field in value.items() if field is not None}
    try:
        return read(value)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        why = first_fault(error) if isinstance(error, ValidationError) else " ".join(why.split())
        raise MissingInput(f"{where} is JSON of another shape ({why}): {wanted}.") from error


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON text. `where` names it at the beginning of an error. Raises MissingInput."""
    value = decode_json(text, where)
    if (fault := json_fault(value, text)) is not None:
        raise MissingInput(f"{where} {fault}: correct it, or get a fresh copy.")
    return value


def decode_json(text: str, where: str) -> Any:
    """Parse a JSON text that `json_fault` has still to check, as a whole or in parts. Raises MissingInput."""
    try:
        return json_value(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        fault = f"is not JSON ({error.msg.removesuffix(' at')} at {place})"
    except RecursionError:
        fault = _TOO_DEEP
    except ValueError as error:
        # For example, a number with more digits than Python converts, or a field that an object has twice.
        fault = f"is not JSON ({error})"
    raise MissingInput(f"{where} {fault}: correct it, or get a fresh copy.")


_TOO_DEEP = f"is nested deeper than {MOST_LEVELS} levels"


def json_fault(value: Any, text: str) -> str | None:
    """Describe what makes a value parsed from `text` unusable, as the end of a sentence; None if it is usable."""
    # Counting brackets is a hundred times faster than walking the value, and is enough for nearly every value.
    if text.count("[") + text.count("{") > MOST_LEVELS:
        level: list[Any] = [value]
        for _ in range(MOST_LEVELS):
            level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        if level:
            return _TOO_DEEP
    if surrogate_in_json(value, text) is not None:
        return "holds half of a surrogate pair, which is not a character"
    return None


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_TOO_MANY_LEVELS = f"more than {MOST_LEVELS} levels of nesting, which is the limit"


class YamlLimitError(yaml.MarkedYAMLError):
    """Error for YAML that exceeds the limits on nesting or values."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader with limits, which refuses duplicate keys; every error is a yaml.YAMLError with its line.

    Aliases make a small text large: ten lines can expand to 10^9 values, which parse instantly and take hours to
    validate. So the values are counted with every alias expanded, before any object is built.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_levels = 0
        self._measures: dict[yaml.Node, tuple[int, int]] = {}
        """Levels and values of each finished node, with its aliases expanded."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node. Raises YamlLimitError if it is too deep, has too many values or refers to itself."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._open_levels > MOST_LEVELS:
            raise _exceeded(_TOO_MANY_LEVELS, event.start_mark)
        self._open_levels += 1
        node = super().compose_node(parent, index)
        self._open_levels -= 1
        if node is not None and node not in self._measures:
            if isinstance(event, yaml.AliasEvent):
                raise _exceeded("an alias stands inside what it refers to", event.start_mark)
            self._measures[node] = self._measure(node)
        return node

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            if has_surrogate(node.value):
                problem = "half of a surrogate pair is not a character"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return 0, 1
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
            names = set[str]()
            for key, _ in node.value:
                if str(key.value) in names:  # YAML would silently drop the first.
                    problem = f"the key {str(key.value)!r} comes twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                names.add(str(key.value))
        measures = [self._measures[part] for part in parts]
        levels = 1 + max((levels for levels, _ in measures), default=0)
        values = 1 + sum(values for _, values in measures)
        if levels > MOST_LEVELS:
            raise _exceeded(_TOO_MANY_LEVELS, node.start_mark)
        if values > MOST_VALUES:
            raise _exceeded(f"more than {MOST_VALUES} values, aliases expanded, which is the limit", node.start_mark)
        return levels, values

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build the value of a node. Raises yaml.YAMLError if its text does not fit its type or tag."""
        try:
            return super().construct_object(node, deep)
        except _TAG_ERRORS as error:
            shown = repr(node.value[:80]) if isinstance(node, yaml.ScalarNode) else "this"
            problem = f"{shown} is no {node.tag.rpartition(':')[2]} ({error})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def _exceeded(problem: str, mark: Any) -> YamlLimitError:
    return YamlLimitError(None, None, problem, mark)


def parse_yaml(text: str) -> Any:
    """Parse a YAML text. Raises yaml.YAMLError if it is not YAML, or exceeds the limits (YamlLimitError)."""
    parser = _Loader(text)
    try:
        return parser.get_single_data()
    finally:
        parser.dispose()


def read_yaml(path: Path) -> Any:
    """Parse a YAML file of at most 1 MiB. Raises as `read_text` and `parse_yaml` do."""
    return parse_yaml(read_text(path, _MOST_YAML_BYTES))


def first_fault(error: ValidationError) -> str:
    """Return the first fault with its field, such as `metrics.exact: Input should be a valid number`."""
    fault = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}"
