"""Test that a user's file is refused, with its place, if it is not regular, too large, too deep or not text."""

import gzip
import lzma
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from retroformer.errors import MissingInput
from retroformer.files.bounded import open_limited, open_regular, read_bytes, read_text, sha256, size, text_lines


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "questions.jsonl")
    with pytest.raises(MissingInput, match=r"questions\.jsonl' is a FIFO, not a regular file: name a regular file\."):
        open_regular(tmp_path / "questions.jsonl")


def test_a_file_that_is_not_regular_is_refused_with_its_kind(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="is a folder, not"):
        open_regular(tmp_path)
    with pytest.raises(MissingInput, match="'/dev/zero' is a device, not"):
        open_regular(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(MissingInput, match="s' cannot be opened"):
            open_regular(tmp_path / "s")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "file/below"])
def test_an_invalid_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingInput, match="cannot be opened"):
        open_regular(tmp_path / name)


def test_a_missing_file_is_reported_as_by_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as absent:
        open_regular(tmp_path / "absent")
    assert not isinstance(absent.value, MissingInput)


@pytest.mark.parametrize(("ending", "compress"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_the_limit_counts_what_a_file_decompresses_to(tmp_path: Path, ending: str, compress: Any) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(compress(b"x" * 5000))
    assert read_bytes(path, 5000) == b"x" * 5000
    with pytest.raises(MissingInput, match=r"a\.txt.* holds more than 4\.88184 KiB, the limit"):
        read_bytes(path, 4999)


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.xz"
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with open_limited(path, 1 << 20) as stream:
        assert stream.read(1 << 20) == bytes(1 << 20)
        with pytest.raises(MissingInput, match="holds more than 1 MiB"):
            stream.read(1)


def test_a_line_is_numbered_and_no_longer_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"1234\n\n \r\n12345\r\n12")
    assert list(text_lines(path, 7, 100)) == [(1, "1234"), (4, "12345"), (5, "12")]
    with pytest.raises(MissingInput, match=r"Line 4 of .*lines\.txt is longer than 6 bytes, the limit for a line"):
        list(text_lines(path, 6, 100))


def test_text_of_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("fine\nnaïve\n".encode("latin-1"))
    for reading in (lambda: read_text(path, 100), lambda: list(text_lines(path, 100, 100))):
        with pytest.raises(MissingInput, match=r"Line 2 of .*lines\.txt is not UTF-8: save the file"):
            reading()


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.xz"
    path.write_bytes(lzma.compress(b"1\n2\n3\n" * 5000)[:-30])
    with pytest.raises(MissingInput, match=r"rows\.jsonl\.xz is damaged \(.*\): get a fresh copy\."):
        list(text_lines(path, 100, 10**6))
    path.write_bytes(b"no archive")
    with pytest.raises(MissingInput, match=r"rows\.jsonl\.xz is damaged"):
        list(text_lines(path, 100, 10**6))


def test_a_digest_needs_no_more_memory_for_a_longer_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").hexdigest().startswith("ba7816bf8f01cfea414140de5dae2223")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(MissingInput, match="is a FIFO"):
        sha256(tmp_path / "fifo")


def test_sizes_are_formatted_with_units() -> None:
    assert [size(count) for count in (7, 1024, 64 << 20, 16 << 30)] == ["7 bytes", "1 KiB", "64 MiB", "16 GiB"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_text_may_begin_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes('{"naïve": 1}\r\n2\n'.encode(encoding))
    assert list(text_lines(path, 20, 100)) == [(1, '{"naïve": 1}'), (2, "2")]
    assert read_text(path, 100) == '{"naïve": 1}\r\n2\n'
    path.write_bytes("a".encode("utf-16") + b"\0")
    with pytest.raises(MissingInput, match=r"tasks\.jsonl is not UTF-16, as its mark says \(truncated data\)"):
        read_text(path, 100)


def test_a_bomb_is_refused_though_its_lines_are_short(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" * (25 << 20)))
    assert path.stat().st_size < 1 << 17
    with pytest.raises(MissingInput, match="holds more than 64 MiB, the limit"):
        for _ in text_lines(path, 100, 1 << 40):
            pass
