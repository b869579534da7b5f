"""Generated games: unlimited homes of our own, in ALFWorld's domain, grammar and vocabulary.

A game is a function of the seed, the split, its index and the number of places; it depends on no other game. An id such
as `generated/train/pick-mug-shelf-000017` contains the task's kind, thing and destination (or lamp), which follow from
seed, split and index. Splits draw from disjoint streams. The package's own `alfred.pddl` and `alfred.twl2` define the
possible actions and their wording.
"""

import difflib
import importlib.util
import re
from functools import cache, lru_cache
from itertools import chain, count, islice
from pathlib import Path
from random import Random

from retroformer.environments.alfworld.engine import Game, in_grammar
from retroformer.environments.alfworld.environment import Alfworld, AlfworldEnvironment
from retroformer.environments.alfworld.rooms import KINDS, Kind
from retroformer.environments.alfworld.rules import Home
from retroformer.environments.alfworld.worlds import Wish, draw_wish, draw_world, problem, walkthrough
from retroformer.errors import MissingInput, UnknownTask
from retroformer.method.records import Task

SPLITS = ("train", "held_out")
LISTED = 2000
"""Number of games that `tasks` lists; later games can be played by id."""
_ID = re.compile(r"generated/(?P<split>\w+)/(?P<wish>[a-z]+-[a-z]+-[a-z]+)-(?P<index>\d{6,9})")


class GeneratedGames:
    """Games of one split; games of the other split can be played by id."""

    def __init__(self, section: Alfworld, seed: int) -> None:
        self._section, self._seed = section, seed

    def tasks(self) -> tuple[Task, ...]:
        """Return the first games of the split and of the configured types, by index. Raises UnknownTask."""
        _check_split(self._section.split)
        return _listed(self._seed, self._section.split, tuple(self._section.task_types or KINDS))

    def task(self, task_id: str) -> Task:
        """Return a game by id, of either split. Raises UnknownTask."""
        split, index = self._locate(task_id)
        return _task(self._seed, split, index)

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return winning commands, known by construction, in the configured grammar. Raises UnknownTask."""
        return self.game(task).walkthrough

    def environment(self) -> AlfworldEnvironment:
        return AlfworldEnvironment(self.game, self._section.max_steps, Home())

    def game(self, task: Task) -> Game:
        """Return the texts of a game in the configured grammar. Raises UnknownTask, MissingInput."""
        split, index = self._locate(task.id)
        random = _random(self._seed, "world", split, index)
        world = draw_world(_wish(self._seed, split, index), self._section.receptacles, random)
        domain, texts = _alfworld_logic()
        texts = texts.replace("UNKNOWN GOAL", world.sentence)
        return in_grammar(Game(domain, texts, problem(world), walkthrough(world)), self._section.grammar)

    def _locate(self, task_id: str) -> tuple[str, int]:
        """Return split and index of an id. Raises UnknownTask if the id does not match the game at its index."""
        parts = _ID.fullmatch(task_id)
        if parts is None:
            raise UnknownTask(
                f"{task_id!r} is not the id of a generated game: they look like {_task(self._seed, 'train', 17).id!r}."
            )
        split, index = parts["split"], int(parts["index"])
        _check_split(split)
        real = _task(self._seed, split, index).id
        if real != task_id:
            raise UnknownTask(f"No generated game {task_id!r} with seed {self._seed}. Did you mean {real!r}?")
        return split, index


@lru_cache(maxsize=8)
def _listed(seed: int, split: str, wanted: tuple[Kind, ...]) -> tuple[Task, ...]:
    """Return the first games of these types, cached: a stage needs them several times, and drawing takes 0.1 s."""
    kinds = (_kinds(seed, split, block) for block in count())
    indices = (index for index, kind in enumerate(chain.from_iterable(kinds)) if kind in wanted)
    return tuple(_task(seed, split, index) for index in islice(indices, LISTED))


def _task(seed: int, split: str, index: int) -> Task:
    wish = _wish(seed, split, index)
    name = f"{wish.kind}-{wish.thing.lower()}-{wish.place.lower()}-{index:06d}"
    return Task(id=f"generated/{split}/{name}", environment="alfworld", split=split)


def _wish(seed: int, split: str, index: int) -> Wish:
    block, position = divmod(index, len(KINDS))
    return draw_wish(_kinds(seed, split, block)[position], _random(seed, "wish", split, index))


@lru_cache(maxsize=1024)
def _kinds(seed: int, split: str, block: int) -> tuple[Kind, ...]:
    """Return the kinds of a block of six consecutive games, each of a different kind."""
    return tuple(_random(seed, "kinds", split, block).sample(KINDS, len(KINDS)))


def _random(seed: int, purpose: str, split: str, index: int) -> Random:
    return Random(f"retroformer/{seed}/{split}/{index}/{purpose}")


def _check_split(split: str) -> None:
    if split not in SPLITS:
        close = difflib.get_close_matches(split, SPLITS, n=1, cutoff=0.4) or SPLITS
        raise UnknownTask(f"No split {split!r} of generated games. Did you mean {' or '.join(map(repr, close))}?")


@cache
def _alfworld_logic() -> tuple[str, str]:
    """Read ALFWorld's domain and grammar from the package without importing it (its import creates folders)."""
    package = importlib.util.find_spec("alfworld")
    if package is None or package.origin is None:
        raise MissingInput("ALFWorld words generated games: run pip install --no-deps alfworld==0.4.2.")
    data = Path(package.origin).parent / "data"
    return (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()
