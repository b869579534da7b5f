"""Packs of games: a split of the release as one `SPLIT.tar.zst`.

A pack can only be read from its start, so on first use its games are copied into the cache: a line of JSON with the
place of each game, then the games, each compressed on its own against the first one, which they resemble. So the list
of games and any single game are there in milliseconds, and all 3,200 of train take 16 MB instead of 290.
"""

import errno
import hashlib
import json
import logging
import tarfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import zstandard

from retroformer.cache import cache_folder
from retroformer.environments.alfworld.planner import write_in_one_stroke
from retroformer.errors import MissingInput

_FORMAT = "1"
"""Of the copy; a change makes old ones unused."""

_WINDOW = 2**27
"""Packs are made with `zstd --long=27`."""

_log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """Where everything is in a copy; the first game is not compressed."""

    path: Path
    games: dict[str, tuple[int, int]]
    """Offset and length of each game."""

    def read(self, task_id: str) -> bytes:
        # Opened anew each time: forked processes would share the position of an open file.
        offset, length = self.games[task_id]
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(length)


class Pack:
    """The games of one split, from a pack."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ids(self) -> Sequence[str]:
        return tuple(self._copy.games)

    def files(self) -> dict[str, Path]:
        """The pack itself, which holds all games."""
        return {self._path.name: self._path}

    def read(self, task_id: str) -> bytes | None:
        """The content of a game file; None where there is none."""
        if task_id not in self._copy.games:
            return None
        content = self._copy.read(task_id)
        return content if task_id == self._first else self._decompressor.decompress(content)

    @property
    def _first(self) -> str:
        return next(iter(self._copy.games))

    @cached_property
    def _decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(dict_data=_likeness(self._copy.read(self._first)))

    @cached_property
    def _copy(self) -> _Copy:
        path = self._copy_path()
        if not path.is_file():
            self._write_copy(path)
        try:
            return _open_copy(path)
        except ValueError as error:
            _log.warning("The copied games %s cannot be read (%s) and are made again.", path, error)
            self._write_copy(path)
            return _open_copy(path)

    def _copy_path(self) -> Path:
        status = self._path.stat()
        identity = (_FORMAT, str(self._path.resolve()), status.st_size, status.st_mtime_ns)
        key = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        return cache_folder() / "alfworld" / "packs" / f"{self._path.name.removesuffix('.tar.zst')}-{key}"

    def _write_copy(self, path: Path) -> None:
        try:
            contents = dict(self._compressed_games())
            lengths = {task_id: len(content) for task_id, content in contents.items()}
            write_in_one_stroke(path, json.dumps(lengths).encode() + b"\n" + b"".join(contents.values()))
        except (zstandard.ZstdError, tarfile.TarError) as error:
            raise MissingInput(f"The pack {str(self._path)!r} is broken ({error}): copy it again.") from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise MissingInput(
                f"The pack {str(self._path)!r} cannot be copied to {str(path.parent)!r} ({error}): "
                "set RETROFORMER_CACHE to a folder that can be written."
            ) from error

    def _compressed_games(self) -> Iterator[tuple[str, bytes]]:
        compressor = None
        for task_id, content in self._games():
            yield task_id, compressor.compress(content) if compressor else content
            compressor = compressor or zstandard.ZstdCompressor(level=3, dict_data=_likeness(content))

    def _games(self) -> Iterator[tuple[str, bytes]]:
        """Id and content of each game, in the order of the pack."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        with (
            self._path.open("rb") as packed,
            decompressor.stream_reader(packed) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as tree,
        ):
            for member in tree:
                *_, task, trial, name = ("", "", *member.name.split("/"))
                content = tree.extractfile(member) if name == "game.tw-pddl" else None
                if content is not None:
                    yield f"{task}/{trial}", content.read()


def _open_copy(path: Path) -> _Copy:
    """Raises ValueError where the file is not a copy."""
    with path.open("rb") as file:
        first_line = file.readline()
    games, offset = {}, len(first_line)
    for task_id, length in json.loads(first_line).items():
        games[task_id] = (offset, length)
        offset += length
    if not games or offset != path.stat().st_size:
        raise ValueError(f"{path.stat().st_size} bytes instead of {offset}")
    return _Copy(path, games)


def _likeness(content: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
