"""Generated games: unlimited homes of our own, in ALFWorld's domain, grammar and words.

A game is a function of the seed, the split, its index and the number of places; nothing else has to be made first. An
id such as `generated/train/pick-mug-shelf-000017` names the task's kind, thing and destination (or lamp), which follow
from seed, split and index. Splits draw from disjoint streams. The package's own `alfred.pddl` and `alfred.twl2` define
what can be done and how it is told.
"""

import difflib
import importlib.util
import re
from functools import cache
from itertools import count, islice
from pathlib import Path
from random import Random

from retroformer.environments.alfworld.engine import Game
from retroformer.environments.alfworld.environment import AlfworldEnvironment
from retroformer.environments.alfworld.grammar import in_grammar
from retroformer.environments.alfworld.problems import problem, walkthrough
from retroformer.environments.alfworld.rooms import KINDS, Kind
from retroformer.environments.alfworld.worlds import Wish, draw_wish, draw_world
from retroformer.environments.sections import Alfworld
from retroformer.errors import MissingInput, UnknownTask
from retroformer.records import Task

SPLITS = ("train", "held_out")

LISTED = 2000
"""How many games `tasks` names; games beyond can be played by id."""

_ID = re.compile(r"generated/(?P<split>\w+)/(?P<wish>[a-z]+-[a-z]+-[a-z]+)-(?P<index>\d{6,9})")


class GeneratedGames:
    """The games of one split; single games of the other can be played, too."""

    def __init__(self, section: Alfworld, seed: int) -> None:
        self._section = section
        self._seed = seed

    def tasks(self) -> tuple[Task, ...]:
        """The first games of the split that are of the wanted types, by index. Raises UnknownTask: no such split."""
        split = self._section.split
        _check_split(split)
        wanted = self._section.task_types or KINDS
        indices = (index for index in count() if self._kind(split, index) in wanted)
        return tuple(self._task(split, index) for index in islice(indices, LISTED))

    def task(self, task_id: str) -> Task:
        """One game by id, of either split. Raises UnknownTask."""
        split, index = self._locate(task_id)
        return self._task(split, index)

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Commands that win, by construction, in the configured grammar. Raises UnknownTask."""
        return self.game(task).walkthrough

    def environment(self) -> AlfworldEnvironment:
        return AlfworldEnvironment(self.game, self._section.max_steps)

    def game(self, task: Task) -> Game:
        """The texts of a game in the configured grammar. Raises UnknownTask, MissingInput."""
        split, index = self._locate(task.id)
        world = draw_world(self._wish(split, index), self._section.receptacles, self._random("world", split, index))
        domain, texts = _alfworld_logic()
        texts = texts.replace("UNKNOWN GOAL", world.sentence)
        return in_grammar(Game(domain, texts, problem(world), walkthrough(world)), self._section.grammar)

    def _task(self, split: str, index: int) -> Task:
        return Task(id=_id(split, index, self._wish(split, index)), environment="alfworld", split=split)

    def _locate(self, task_id: str) -> tuple[str, int]:
        """Split and index of an id. Raises UnknownTask where the id is not that of the game at its index."""
        parts = _ID.fullmatch(task_id)
        if parts is None:
            raise UnknownTask(
                f"{task_id!r} is not the id of a generated game: they look like {self._task('train', 17).id!r}."
            )
        split, index = parts["split"], int(parts["index"])
        _check_split(split)
        real = self._task(split, index).id
        if real != task_id:
            raise UnknownTask(f"No generated game {task_id!r} with seed {self._seed}. Did you mean {real!r}?")
        return split, index

    def _kind(self, split: str, index: int) -> Kind:
        # Each six games in a row are of six kinds.
        block, position = divmod(index, len(KINDS))
        return self._random("kinds", split, block).sample(KINDS, len(KINDS))[position]

    def _wish(self, split: str, index: int) -> Wish:
        return draw_wish(self._kind(split, index), self._random("wish", split, index))

    def _random(self, purpose: str, split: str, index: int) -> Random:
        return Random(f"retroformer/{self._seed}/{split}/{index}/{purpose}")


def _id(split: str, index: int, wish: Wish) -> str:
    return f"generated/{split}/{wish.kind}-{wish.thing.lower()}-{wish.place.lower()}-{index:06d}"


def _check_split(split: str) -> None:
    if split not in SPLITS:
        close = difflib.get_close_matches(split, SPLITS, n=1, cutoff=0.4) or SPLITS
        raise UnknownTask(f"No split {split!r} of generated games. Did you mean {' or '.join(map(repr, close))}?")


@cache
def _alfworld_logic() -> tuple[str, str]:
    """ALFWorld's domain and grammar, from the package without importing it (its import makes folders)."""
    package = importlib.util.find_spec("alfworld")
    if package is None or package.origin is None:
        raise MissingInput("ALFWorld is not installed: run pip install 'retroformer[alfworld]'.")
    data = Path(package.origin).parent / "data"
    return (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()
