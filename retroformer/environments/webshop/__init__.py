"""WebShop in text: search, pages, options and purchases in a shop of any size, without Java or a browser."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from retroformer.agents.reflector import WrittenReflector
from retroformer.environments.extras import ActorKind, Demonstration, Extras, LessonParts
from retroformer.environments.section import Wording
from retroformer.environments.webshop import compact, data, scripted_play
from retroformer.environments.webshop.actors import PurchaseOracleArm, RequestRuleArm, RuleShopper, ShoppingActor
from retroformer.environments.webshop.environment import GOALS_PER_PRODUCT, Webshop, WebshopEnvironment
from retroformer.environments.webshop.goals import Goals
from retroformer.environments.webshop.shop import Shop
from retroformer.errors import ConfigError, MissingInput, UnknownTask
from retroformer.method.protocols import Scene
from retroformer.method.records import Task
from retroformer.run.provenance import files_sha256

__all__ = ["Section", "WebshopTaskset", "extras", "taskset"]

Section = Webshop
_REQUEST = re.compile(r"Instruction:\s*(.+?) *\n")


def _choices(scene: Scene) -> tuple[str, ...]:
    """Return what can be clicked; where nothing can, a search for the request itself, as a query may be any text."""
    request = _REQUEST.search(scene.opening)
    # The site shows nothing after a search with one of these signs.
    query = re.sub("[#?/]", " ", request[1] if request else scene.opening)
    return scene.choices or (f"search[{' '.join(query.split())}]",)


def _mixed_lessons(parts: LessonParts) -> WrittenReflector:
    return scripted_play.writer(
        "mixed", parts.render, lambda failure, request, random: scripted_play.mixed_advice(request, random)
    )


def _demonstrations(section: Webshop, count: int, actions: int, seed: int, obeyed: Wording) -> Iterator[Demonstration]:
    if obeyed != "either":
        raise ConfigError("The scripted shopper obeys advice in any words: leave train.actor.obeys out.")
    goals = WebshopTaskset(section)
    played = scripted_play.demonstrations
    return played(goals.environment(), goals.tasks(), goals.walkthrough, count, actions, seed)


# The graded return of WebShop is the reward of the purchase (Retroformer, eq. 7), as stored.
extras = Extras(
    returns={"shaped": lambda section, seed: lambda attempt: attempt.episode_return},
    choices=_choices,
    actors={
        "rule": ActorKind(
            lambda parts: RuleShopper(),
            asks_model=False,
            reading="It searches for the words that the advice names, opens the product and chooses the options.",
            reads_pack=False,
            reads_last_attempt=False,
        ),
        "shopping": ActorKind(
            lambda parts: ShoppingActor(parts.model(), parts.settings.temperature),
            reads_pack=False,
            reads_last_attempt=False,
        ),
    },
    arms=(RequestRuleArm, PurchaseOracleArm),
    lessons={"mixed": _mixed_lessons},
    views={"compact": compact.compact_reflection_prompt},
    demonstrations=_demonstrations,
)


class _Split(NamedTuple):
    """Goals of a split by index after the shuffle, and by the place of their product among four."""

    start: int = 0
    end: int | None = None
    goals_per_product: int | None = None
    quarters: Sequence[int] = range(4)


_SPLITS = {
    "test": _Split(0, 500),
    "validation": _Split(500, 1500),
    "train": _Split(1500, None, GOALS_PER_PRODUCT),
    "all": _Split(),
    "products_train": _Split(goals_per_product=GOALS_PER_PRODUCT, quarters=(0, 1)),
    "products_validation": _Split(goals_per_product=1, quarters=(2,)),
    "products_test": _Split(goals_per_product=1, quarters=(3,)),
}
"""WebShop's own splits, then splits without a common product."""
_ORACLE_WORDS = (3, 4, 5, 6, 8, 10, 14)
"""Numbers of words of a title that a walkthrough tries as a search."""


class WebshopTaskset:
    """Goals of one split; all its environments share one open shop."""

    def __init__(self, section: Webshop) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        """Return all goals of the split in order; a task's id is the goal's index among all goals, goal_idx.

        Some splits have only the first goals of each product, train `GOALS_PER_PRODUCT`.

        Raises MissingInput, UnknownTask.
        """
        split, kind = self._section.split, self._section.goals
        tasks = tuple(Task(id=str(idx), environment="webshop", split=split) for idx in self._places(split))
        if not tasks:
            raise MissingInput(
                f"{self._folder} has {len(self._goals.asins())} {kind} goals, none of them in split {split!r}, as the "
                "first 500 are in test and the next 1,000 in validation: set environment.goals or environment.data to "
                "another."
            )
        return tasks

    def fingerprint(self) -> str:
        """Return the sha256 of WebShop's files. Raises MissingInput."""
        needed = [data.require(self._folder, names) for names in (data.PRODUCTS, data.ATTRIBUTES)]
        optional = (data.HUMAN_INSTRUCTIONS, data.PRICES, data.TITLE_NOUNS, data.goals_of(self._section.goals))
        present = [path for names in optional if (path := data.find(self._folder, names))]
        return files_sha256({path.name: path for path in needed + present})

    def environment(self) -> WebshopEnvironment:
        """Return an environment that can play any goal of the data. The first one on a machine builds the index.

        Raises MissingInput.
        """
        return WebshopEnvironment(self._shop, self._goals, self._section.max_steps)

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return actions that buy the wanted product with its options. Raises UnknownTask."""
        goal = self._goals.goal(task.id)
        product, _ = self._shop.product(goal.asin)
        words = re.findall(r"[\w'&-]+", product.title)
        queries = [" ".join(words[:count]) for count in (*_ORACLE_WORDS, len(words))]
        query = next((query for query in queries if self._shop.search(query)[:1] == (goal.asin,)), queries[-1])
        options = [option if isinstance(option, str) else option[1] for option in goal.options]
        return (f"search[{query}]", *(f"click[{name}]" for name in (goal.asin, *options, "Buy Now")))

    def _places(self, split: str) -> Iterator[int]:
        if split not in _SPLITS:
            raise UnknownTask(f"No split {split!r} of WebShop: choose one of {', '.join(_SPLITS)}.")
        start, end, limit, quarters = _SPLITS[split]
        asins = self._goals.asins()
        number, kept = {asin: number for number, asin in enumerate(sorted(set(asins)))}, Counter[str]()
        for place, asin in list(enumerate(asins))[start:end]:
            kept[asin] += 1
            if number[asin] % 4 in quarters and (limit is None or kept[asin] <= limit):
                yield place

    @cached_property
    def _shop(self) -> Shop:
        return Shop(self._folder)

    @property
    def _folder(self) -> Path:
        if self._section.data is None:
            raise MissingInput("The folder of WebShop's data is not configured: set environment.data.")
        return self._section.data

    @cached_property
    def _goals(self) -> Goals:
        return self._shop.goals(self._section.goals)


def taskset(section: Webshop, seed: int = 0) -> WebshopTaskset:
    """Return the goals that a section describes; `seed` is unused, since the order is WebShop's."""
    return WebshopTaskset(section)
