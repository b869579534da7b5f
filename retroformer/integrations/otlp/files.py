"""Reads OTLP trace data from files, as the OpenTelemetry Collector's file exporter and our own listener write them.

JSON: one export request a line. Protobuf: one export request, or several, each after its length in four bytes (big
endian). All files of a folder are read, in the order of their names.
"""

from collections.abc import Iterator
from pathlib import Path

from retroformer.errors import MissingInput
from retroformer.files.bounded import GIB, MIB, open_limited, parse_json, size, text_lines
from retroformer.integrations.otlp.wire import Span, json_of_protobuf, spans_of_json

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
PROTOBUF_SUFFIXES = (".pb", ".binpb")
MESSAGE_BYTES = 64 * MIB
"""Largest size of one export request."""
_FILE_BYTES = 16 * GIB
_COMPRESSED = (".gz", ".xz")
_TRACE_DATA = b"\x0a"
"""First byte of trace data that is not empty; as the first byte of a length it would mean 160 MiB."""


def read_spans(path: Path) -> Iterator[Span]:
    """Yield the spans of a file, or of all files in a folder.

    Raises:
        MissingInput: there is no such file, or a line or field of it is malformed.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and _suffix(file))
        if not files:
            wanted = ", ".join((*JSON_SUFFIXES, *PROTOBUF_SUFFIXES))
            raise MissingInput(f"The folder {path} has no trace files ({wanted}): name a folder that has.")
    elif path.is_file():
        files = [path]
    else:
        raise MissingInput(f"There is no file or folder {path}: name the one with the traces.")
    for file in files:
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[Span]:
    suffix = _suffix(path)
    if suffix in JSON_SUFFIXES:
        for number, line in text_lines(path, MESSAGE_BYTES, _FILE_BYTES):
            where = f"Line {number} of {path}"
            yield from spans_of_json(parse_json(line, where), where)
    elif suffix in PROTOBUF_SUFFIXES:
        for number, content in enumerate(_messages(path), start=1):
            where = f"Message {number} of {path}"
            yield from spans_of_json(json_of_protobuf(content, where), where)
    else:
        raise MissingInput(
            f"{path} does not have the extension of a trace file: use {', '.join(JSON_SUFFIXES)} for JSON or "
            f"{', '.join(PROTOBUF_SUFFIXES)} for protobuf, optionally followed by .gz or .xz."
        )


def _suffix(path: Path) -> str:
    """Return the ending that tells the encoding; empty if the file is not a trace file."""
    name = path.with_suffix("") if path.suffix in _COMPRESSED else path
    return name.suffix if name.suffix in (*JSON_SUFFIXES, *PROTOBUF_SUFFIXES) else ""


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a protobuf file. Raises MissingInput if one is cut short or too large."""
    with open_limited(path, _FILE_BYTES) as stream:
        if stream.peek(1)[:1] == _TRACE_DATA:
            content = stream.read(MESSAGE_BYTES + 1)
            _check_size(len(content), f"Message 1 of {path}")
            yield content
            return
        number = 0
        while head := stream.read(4):
            number += 1
            where = f"Message {number} of {path}"
            length = int.from_bytes(head)
            _check_size(length, where)
            content = stream.read(length)
            if len(head) < 4 or len(content) < length:
                raise MissingInput(f"{where} is cut short: get a fresh copy, or remove the end of the file.")
            yield content


def _check_size(length: int, where: str) -> None:
    if length > MESSAGE_BYTES:
        raise MissingInput(f"{where} is larger than {size(MESSAGE_BYTES)}, the limit for a request: split it.")
