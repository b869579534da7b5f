"""Packs of games: a split of the release as one `SPLIT.tar.zst`.

A pack can only be read from its start, so on first use its games are copied into the cache: a JSON line with the
position of each game, then the games, each compressed separately with the first game as dictionary. Listing the games
or reading one takes milliseconds, and all 3,200 games of train take 16 MB instead of 290.
"""

import errno
import hashlib
import json
import logging
import tarfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from retroformer.environments.alfworld.planner import write_atomically
from retroformer.errors import MissingInput
from retroformer.files.bounded import GIB, MIB, LimitedStream, open_regular, size
from retroformer.files.cache import cache_folder

_FORMAT = "1"
"""Format version of the copy; a change invalidates old copies."""

_WINDOW = 2**27
"""Decompression window: packs are made with `zstd --long=27`."""

MOST_GAME_BYTES = 4 * MIB
"""Maximum size of one game, in a pack or in a folder. The largest released game has 138 kB."""
_MOST_BYTES = 2 * GIB
"""Maximum decompressed size of a pack. The largest split of the release, train, has 279 MB."""
_MOST_BYTES_BETWEEN = 64 * MIB
"""Maximum size between two members: tarfile holds a whole header in memory, and a pack is 11,000 small files."""

_log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """Index of a copy; its first game is not compressed."""

    path: Path
    games: dict[str, tuple[int, int]]
    """Offset and length of each game."""

    @property
    def first(self) -> str:
        return next(iter(self.games))

    def read(self, task_id: str) -> bytes:
        # Opened for every read: forked processes would share the position of an open file.
        offset, length = self.games[task_id]
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(length)


class GamePack:
    """Games of one split, from a pack."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ids(self) -> Sequence[str]:
        return tuple(self._copy.games)

    def files(self) -> dict[str, Path]:
        """Return the pack file itself, which holds all games."""
        return {self._path.name: self._path}

    def read(self, task_id: str) -> bytes | None:
        """Return the content of a game file, or None if there is none."""
        if task_id not in self._copy.games:
            return None
        content = self._copy.read(task_id)
        return content if task_id == self._copy.first else self._decompressor.decompress(content)

    @cached_property
    def _decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(dict_data=_likeness(self._copy.read(self._copy.first)))

    @cached_property
    def _copy(self) -> _Copy:
        status = self._path.stat()
        identity = (_FORMAT, str(self._path.resolve()), status.st_size, status.st_mtime_ns)
        key = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        path = cache_folder() / "alfworld" / "packs" / f"{self._path.name.removesuffix('.tar.zst')}-{key}"
        if not path.is_file():
            self._write_copy(path)
        try:
            return _open_copy(path)
        except ValueError as error:
            _log.warning("The copied games %s cannot be read (%s) and are made again.", path, error)
            self._write_copy(path)
            return _open_copy(path)

    def _write_copy(self, path: Path) -> None:
        try:
            contents = dict(self._compressed_games())
            if not contents:
                raise MissingInput(f"The pack {str(self._path)!r} holds no game: copy it again.")
            lengths = {task_id: len(content) for task_id, content in contents.items()}
            write_atomically(path, json.dumps(lengths).encode() + b"\n" + b"".join(contents.values()))
        except (zstandard.ZstdError, tarfile.TarError) as error:
            raise MissingInput(f"The pack {str(self._path)!r} is broken ({error}): copy it again.") from None
        except MissingInput:
            raise
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
        """Yield id and content of each game, in pack order."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        with (
            open_regular(self._path) as packed,
            decompressor.stream_reader(packed) as unpacked,
            _PackStream(unpacked, self._path) as limited,
            tarfile.open(fileobj=limited, mode="r|") as tree,
        ):
            for member in tree:
                limited.next_member()
                *_, task, trial, name = ("", "", *member.name.split("/"))
                content = tree.extractfile(member) if name == "game.tw-pddl" and member.isreg() else None
                if content is None:
                    continue
                if member.size > MOST_GAME_BYTES:
                    raise MissingInput(
                        f"The game {member.name!r} in the pack {str(self._path)!r} is larger than "
                        f"{size(MOST_GAME_BYTES)}, the limit for a game: leave it out, or copy the pack again."
                    )
                yield f"{task}/{trial}", content.read()


class _PackStream(LimitedStream):
    """Decompressed stream of a pack, limited in total size and between two members."""

    def __init__(self, stream: Any, path: Path) -> None:
        what = f"The pack {str(path)!r} decompresses to more than {size(_MOST_BYTES)}, the limit for a split"
        super().__init__(stream, _MOST_BYTES, f"{what}: copy it again, or split it.")
        self._path, self._left_between = path, _MOST_BYTES_BETWEEN

    def next_member(self) -> None:
        self._left_between = _MOST_BYTES_BETWEEN

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer. Raises MissingInput if a limit is exceeded."""
        count = super().readinto(buffer)
        self._left_between -= count
        if self._left_between < 0:
            raise MissingInput(
                f"The pack {str(self._path)!r} has a member of more than {size(_MOST_BYTES_BETWEEN)}, which no file "
                "of a game needs: copy it again."
            )
        return count


def _open_copy(path: Path) -> _Copy:
    """Open a copy. Raises ValueError if the file is not a copy."""
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
