"""ALFWorld's official games, from a folder as ALFWORLD_DATA names it or from packs.

A folder holds `json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl` as `alfworld-download` leaves it; a pack is that tree for one
split as `SPLIT.tar.zst`. A task's id is `TASK/TRIAL`. The official code shuffles a list in file system order, which
differs between machines; here ids are sorted. As in the official environment, there are no movable receptacles and no
sliced objects. TASK ends with the number of its room, by which the train games are split into rooms for training,
development and test.
"""

import difflib
import os
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import zstandard

from retroformer.environments.alfworld.engine import Game, in_grammar
from retroformer.environments.alfworld.environment import Alfworld, AlfworldEnvironment
from retroformer.environments.alfworld.planner import Planner
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.files.bounded import GIB, MIB, LimitedStream, open_regular, parse_json, read_bytes, size
from retroformer.files.cache import build_once, cache_folder, key_of, open_read_only
from retroformer.method.records import Task
from retroformer.run.provenance import files_sha256

TYPES = {
    "look": "look_at_obj_in_light",
    "pick": "pick_and_place_simple",
    "clean": "pick_clean_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
"""Short name of each of the six task types -> first word of its ids."""
SPLITS = ("train", "valid_seen", "valid_train", "valid_unseen")
ROOMS = {"train_rooms": range(1, 16), "dev_rooms": range(16, 21), "test_rooms": range(21, 31)}
"""Splits of the train games by room -> last two digits of the rooms' numbers: kitchens are 1 to 30, living rooms 201 to
230, bedrooms 301 to 330, and bathrooms 401 to 430. In AI2-THOR, too, models are not trained in rooms 21 to 30."""

_DOWNLOAD_FOLDER = "~/.cache/alfworld"
"""Default folder of `alfworld-download`."""
_GAME_FILE = "game.tw-pddl"
_DOWNLOAD_HINT = (
    "run `alfworld-download`, or set environment.data or $ALFWORLD_DATA to a folder of them, "
    "or play environment.source=generated."
)
_GAME_BYTES = 4 * MIB
"""Maximum size of one game, in a pack or in a folder. The largest released game has 138 kB."""
_PACK_BYTES = 2 * GIB
"""Maximum decompressed size of a pack. The largest split of the release, train, has 279 MB."""
_MEMBER_BYTES = 64 * MIB
"""Maximum size between two members: tarfile holds a whole header in memory, and a pack is 11,000 small files."""
_PACK_WINDOW = 2**27
"""Decompression window: packs are made with `zstd --long=27`."""


class ReleasedGames:
    """Games of one split of the release; games of other splits can be played by id."""

    def __init__(self, section: Alfworld) -> None:
        self._section = section
        self._splits: dict[str, GameFolder | GamePack] = {}

    def tasks(self) -> tuple[Task, ...]:
        """Return the games of the split and the configured types, sorted by id, or if split by room by their trials, so
        that the first ones are of all types and rooms. Raises MissingInput, UnknownTask.
        """
        split, types = self._section.split, self._section.task_types
        prefixes = tuple(f"{TYPES[type_]}-" for type_ in types or TYPES)
        ids = sorted(id_ for id_ in self._games(split).ids if id_.startswith(prefixes) and _is_in(id_, split))
        if split in ROOMS:
            ids.sort(key=lambda task_id: task_id.rpartition("/")[2])
        ids = [task_id for task_id in ids if "movable" not in task_id and "Sliced" not in task_id]
        if not ids:
            chosen = f" of type {' or '.join(types)}" if types else ""
            raise MissingInput(f"No games{chosen} in {split!r} of {str(self._data())!r}: {_DOWNLOAD_HINT}")
        return tuple(Task(id=task_id, environment="alfworld", split=split) for task_id in ids)

    def fingerprint(self) -> str:
        """Return the sha256 of the games of the split. Raises MissingInput, UnknownTask."""
        return files_sha256(self._games(self._section.split).files())

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return the planner's winning commands from the game file, in the configured grammar."""
        return self.game(task).walkthrough

    def environment(self) -> AlfworldEnvironment:
        return AlfworldEnvironment(self.game, self._section.max_steps, Planner())

    def game(self, task: Task) -> Game:
        """Return the texts of a game in the configured grammar.

        Raises MissingInput, UnknownTask, EnvironmentFailure.
        """
        games = self._games(task.split)
        if task.id not in games.ids or not _is_in(task.id, task.split):  # So an id does not lead out of the folder.
            close = _suggestion(task.id, [id_ for id_ in games.ids if _is_in(id_, task.split)])
            raise UnknownTask(f"No ALFWorld game {task.id!r} in split {task.split!r}. {close}")
        try:
            fields = parse_json(games.read(task.id).decode("utf-8"), "The game file")
            game = Game(fields["pddl_domain"], fields["grammar"], fields["pddl_problem"], tuple(fields["walkthrough"]))
            if not all(isinstance(text, str) for text in (*game[:3], *game.walkthrough)):
                raise TypeError("a text of the game is not a string")
            solvable = fields["solvable"]
        except MissingInput as error:
            raise EnvironmentFailure(f"The game file of {task.id!r} is broken: {error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailure(f"The game file of {task.id!r} is broken: {error!r}; download it again.") from None
        if not solvable:
            raise EnvironmentFailure(f"The game {task.id!r} is marked unsolvable: leave it out of the data folder.")
        return in_grammar(game, self._section.grammar)

    def _games(self, split: str) -> "GameFolder | GamePack":
        if split not in self._splits:
            self._splits[split] = _find(self._data(), "train" if split in ROOMS else split)
        return self._splits[split]

    def _data(self) -> Path:
        folder = Path(self._section.data or os.environ.get("ALFWORLD_DATA") or _DOWNLOAD_FOLDER).expanduser()
        if not folder.is_dir():
            raise MissingInput(f"The folder of ALFWorld games {str(folder)!r} is not there: {_DOWNLOAD_HINT}")
        return folder


def room_of(task_id: str) -> int:
    """Return the number of a game's room: 308 for `pick_and_place_simple-Mug-None-Desk-308/trial_...`.

    Raises MissingInput if the name of its folder has none.
    """
    folder = task_id.partition("/")[0]
    room = folder.rpartition("-")[2]
    if not room.isdecimal():
        raise MissingInput(
            f"The folder {folder!r} of ALFWorld games does not end with the number of a room, by which "
            f"{', '.join(ROOMS)} are chosen: rename it, or take it out of the data folder."
        )
    return int(room)


def _is_in(task_id: str, split: str) -> bool:
    """Return True if a game of the split's files belongs to the split: to its rooms, if it is one by room."""
    return split not in ROOMS or room_of(task_id) % 100 in ROOMS[split]


class GameFolder:
    """Split as a tree of files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def ids(self) -> Sequence[str]:
        return [str(file.parent.relative_to(self._root)) for file in self._root.glob(f"*/*/{_GAME_FILE}")]

    def files(self) -> dict[str, Path]:
        """Return the game files by task id."""
        return {task_id: self._root / task_id / _GAME_FILE for task_id in self.ids}

    def read(self, task_id: str) -> bytes:
        """Return the content of a game file. Raises MissingInput."""
        return read_bytes(self._root / task_id / _GAME_FILE, _GAME_BYTES)


class GamePack:
    """Split as a pack, which can only be read from its start: its games are copied into the cache once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def ids(self) -> Sequence[str]:
        with closing(open_read_only(self._copy)) as database:
            return [task_id for (task_id,) in database.execute("SELECT id FROM game")]

    def files(self) -> dict[str, Path]:
        """Return the pack itself, which holds all games."""
        return {self._path.name: self._path}

    def read(self, task_id: str) -> bytes:
        """Return the content of a game file."""
        with closing(open_read_only(self._copy)) as database:
            (content,) = database.execute("SELECT content FROM game WHERE id = ?", (task_id,)).fetchone()
        return zlib.decompress(content)

    @cached_property
    def _copy(self) -> Path:
        name = f"{self._path.stem}-{key_of([self._path])}.sqlite"
        return build_once(cache_folder() / "alfworld" / "packs" / name, self._write_copy)

    def _write_copy(self, database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE game(id TEXT PRIMARY KEY, content BLOB NOT NULL)")
        try:
            games = ((task_id, zlib.compress(content, 1)) for task_id, content in self._games())
            count = database.executemany("INSERT OR REPLACE INTO game VALUES (?, ?)", games).rowcount
        except (zstandard.ZstdError, tarfile.TarError) as error:
            raise MissingInput(f"The pack {str(self._path)!r} is broken ({error}): copy it again.") from None
        if count <= 0:
            raise MissingInput(f"The pack {str(self._path)!r} holds no game: copy it again.")

    def _games(self) -> Iterator[tuple[str, bytes]]:
        """Yield id and content of each game, in pack order."""
        decompressor = zstandard.ZstdDecompressor(max_window_size=_PACK_WINDOW)
        with (
            open_regular(self._path) as packed,
            decompressor.stream_reader(packed) as unpacked,
            _PackStream(unpacked, self._path) as limited,
            tarfile.open(fileobj=limited, mode="r|") as tree,
        ):
            for member in tree:
                limited.next_member()
                *_, task, trial, name = ("", "", *member.name.split("/"))
                content = tree.extractfile(member) if name == _GAME_FILE and member.isreg() else None
                if content is None:
                    continue
                if member.size > _GAME_BYTES:
                    raise MissingInput(
                        f"The game {member.name!r} in the pack {str(self._path)!r} is larger than "
                        f"{size(_GAME_BYTES)}, the limit for a game: leave it out, or copy the pack again."
                    )
                yield f"{task}/{trial}", content.read()


class _PackStream(LimitedStream):
    """Decompressed stream of a pack, limited in total size and between two members."""

    def __init__(self, stream: Any, path: Path) -> None:
        pack = f"The pack {str(path)!r} decompresses to more than {size(_PACK_BYTES)}, the limit for a split"
        super().__init__(stream, _PACK_BYTES, f"{pack}: copy it again, or split it.")
        self._path, self._member_left = path, _MEMBER_BYTES

    def next_member(self) -> None:
        self._member_left = _MEMBER_BYTES

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer. Raises MissingInput if a limit is exceeded."""
        count = super().readinto(buffer)
        self._member_left -= count
        if self._member_left < 0:
            raise MissingInput(
                f"The pack {str(self._path)!r} has a member of more than {size(_MEMBER_BYTES)}, which no file "
                "of a game needs: copy it again."
            )
        return count


def _find(data: Path, split: str) -> GameFolder | GamePack:
    roots = [data, *sorted(data.glob("json_2.1.*"), reverse=True)]
    for root in roots:
        if (root / split).is_dir():
            return GameFolder(root / split)
    if (data / f"{split}.tar.zst").is_file():
        return GamePack(data / f"{split}.tar.zst")
    packs = (path.name.removesuffix(".tar.zst") for path in data.glob("*.tar.zst"))
    present = sorted({*packs, *(name for name in SPLITS for root in roots if (root / name).is_dir())})
    content = f"{str(data)!r} has {', '.join(present) if present else 'no games'}"
    if split in SPLITS:
        raise MissingInput(f"There are no ALFWorld games of split {split!r} ({content}): {_DOWNLOAD_HINT}")
    raise UnknownTask(f"No split {split!r} of ALFWorld ({content}). {_suggestion(split, present or SPLITS)}")


def _suggestion(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else "`--list` prints the ids."
