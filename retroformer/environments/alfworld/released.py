"""Official games, from a folder as ALFWORLD_DATA names it or from packs.

A folder holds `json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl` as `alfworld-download` leaves it; a pack is that tree for one
split as `SPLIT.tar.zst`. A task's id is `TASK/TRIAL`.

**Order.** The official code shuffles a list in file system order, so its order differs between machines. Here ids are
sorted, the same everywhere.

**Choice.** As in the official environment: no movable receptacles, no sliced objects, only trials with a game file.
Every game file of the release is marked solvable; a custom file that is not is refused when played, because listing
opens no game.
"""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from retroformer.environments.alfworld.archives import MOST_GAME_BYTES, GamePack
from retroformer.environments.alfworld.engine import Game, in_grammar
from retroformer.environments.alfworld.environment import Alfworld, AlfworldEnvironment
from retroformer.environments.alfworld.planner import Planner
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.files.bounded import parse_json, read_bytes
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

_DOWNLOADED = "~/.cache/alfworld"
"""Default folder of `alfworld-download`."""

_HOW_TO_GET_THEM = (
    "run `alfworld-download`, or set environment.data or $ALFWORLD_DATA to a folder of them, "
    "or play environment.source=generated."
)


class ReleasedGames:
    """Games of one split of the release; games of other splits can be played by id."""

    def __init__(self, section: Alfworld) -> None:
        self._section = section
        self._splits: dict[str, _Folder | GamePack] = {}

    def tasks(self) -> tuple[Task, ...]:
        """Return the games of the split and the configured types, sorted by id. Raises MissingInput, UnknownTask."""
        split = self._section.split
        wanted = tuple(f"{TYPES[type_]}-" for type_ in self._section.task_types or TYPES)
        ids = sorted(id_ for id_ in self._open(split).ids() if id_.startswith(wanted) and _is_playable(id_))
        if not ids:
            chosen = f" of type {' or '.join(self._section.task_types)}" if self._section.task_types else ""
            raise MissingInput(f"No games{chosen} in {split!r} of {str(self._data())!r}: {_HOW_TO_GET_THEM}")
        return tuple(Task(id=id_, environment="alfworld", split=split) for id_ in ids)

    def fingerprint(self) -> str:
        """Return the sha256 of the games of the split. Raises MissingInput, UnknownTask."""
        return files_sha256(self._open(self._section.split).files())

    def task(self, task_id: str) -> Task:
        """Return a game by id. Raises UnknownTask, which names similar ids."""
        split = self._section.split
        ids = [id_ for id_ in self._open(split).ids() if _is_playable(id_)]
        if task_id not in ids:
            raise UnknownTask(f"No ALFWorld game {task_id!r} in split {split!r}. {_close(task_id, ids)}")
        return Task(id=task_id, environment="alfworld", split=split)

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return the planner's winning commands from the game file, in the configured grammar."""
        return self.game(task).walkthrough

    def environment(self) -> AlfworldEnvironment:
        return AlfworldEnvironment(self.game, self._section.max_steps, Planner())

    def game(self, task: Task) -> Game:
        """Return the texts of a game in the configured grammar.

        Raises MissingInput, UnknownTask, EnvironmentFailure.
        """
        content = self._open(task.split).read(task.id)
        if content is None:
            ids = self._open(task.split).ids()
            raise UnknownTask(f"No ALFWorld game {task.id!r} in split {task.split!r}. {_close(task.id, ids)}")
        try:
            fields = parse_json(content.decode("utf-8"), "The game file")
            solvable = fields["solvable"]
            game = Game(fields["pddl_domain"], fields["grammar"], fields["pddl_problem"], tuple(fields["walkthrough"]))
            if not all(isinstance(text, str) for text in (*game[:3], *game.walkthrough)):
                raise TypeError("a text of the game is not a string")
        except MissingInput as error:
            raise EnvironmentFailure(f"The game file of {task.id!r} is broken: {error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailure(f"The game file of {task.id!r} is broken: {error!r}; download it again.") from None
        if not solvable:
            raise EnvironmentFailure(f"The game {task.id!r} is marked unsolvable: leave it out of the data folder.")
        return in_grammar(game, self._section.grammar)

    def _open(self, split: str) -> "_Folder | GamePack":
        if split not in self._splits:
            self._splits[split] = _find(self._data(), split)
        return self._splits[split]

    def _data(self) -> Path:
        named = self._section.data or os.environ.get("ALFWORLD_DATA")
        folder = Path(named or _DOWNLOADED).expanduser()
        if not folder.is_dir():
            raise MissingInput(f"The folder of ALFWorld games {str(folder)!r} is not there: {_HOW_TO_GET_THEM}")
        return folder


class _Folder:
    """Split as a tree of files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ids: list[str] | None = None

    def ids(self) -> Sequence[str]:
        if self._ids is None:
            self._ids = [
                f"{task.name}/{trial.name}"
                for task in os.scandir(self._root)
                if task.is_dir()
                for trial in os.scandir(task)
                if Path(trial, "game.tw-pddl").is_file()
            ]
        return self._ids

    def files(self) -> dict[str, Path]:
        """Return the game files by task id."""
        return {task_id: Path(self._root, task_id, "game.tw-pddl") for task_id in self.ids()}

    def read(self, task_id: str) -> bytes | None:
        """Return the content of a game file, or None if there is none. Raises EnvironmentFailure."""
        # Only listed ids: an id must not lead out of the folder.
        file = Path(self._root, task_id, "game.tw-pddl")
        if task_id not in self.ids():
            return None
        try:
            return read_bytes(file, MOST_GAME_BYTES)
        except MissingInput as error:
            raise EnvironmentFailure(f"The game file of {task_id!r} is broken: {error}") from None


def _find(data: Path, split: str) -> _Folder | GamePack:
    roots = [data, *sorted(data.glob("json_2.1.*"), reverse=True)]
    for root in roots:
        if (root / split).is_dir():
            return _Folder(root / split)
    if (data / f"{split}.tar.zst").is_file():
        return GamePack(data / f"{split}.tar.zst")
    packs = (path.name.removesuffix(".tar.zst") for path in data.glob("*.tar.zst"))
    present = sorted({*packs, *(name for name in SPLITS for root in roots if (root / name).is_dir())})
    summary = f"{str(data)!r} has {', '.join(present) if present else 'no games'}"
    if split in SPLITS:
        raise MissingInput(f"There are no ALFWorld games of split {split!r} ({summary}): {_HOW_TO_GET_THEM}")
    raise UnknownTask(f"No split {split!r} of ALFWorld ({summary}). {_close(split, present or SPLITS)}")


def _is_playable(task_id: str) -> bool:
    return "movable" not in task_id and "Sliced" not in task_id


def _close(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not close:
        return "`--list` prints the ids."
    return f"Did you mean {' or '.join(map(repr, close))}?"
