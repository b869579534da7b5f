"""WebShop in text: search, pages, options and purchases in a shop of any size, without Java or a browser."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from retroformer.environments.extras import Extras
from retroformer.environments.webshop import data
from retroformer.environments.webshop.environment import GOALS_PER_PRODUCT, Webshop, WebshopEnvironment
from retroformer.environments.webshop.goals import Goals
from retroformer.environments.webshop.shop import Shop
from retroformer.errors import MissingInput, UnknownTask
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


# The graded return of WebShop is the reward of the purchase (eq. 7 of its paper), as stored.
extras = Extras(returns={"shaped": lambda section, seed: lambda attempt: attempt.episode_return}, choices=_choices)


_SPLITS = {"test": (0, 500), "validation": (500, 1500), "train": (1500, None), "all": (0, None)}
"""WebShop's own splits, by index after the shuffle."""


class WebshopTaskset:
    """Goals of one split; all its environments share one open shop."""

    def __init__(self, section: Webshop) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        """Return all goals of the split in order; a task's id is the goal's index among all goals, goal_idx.

        The split train has at most `GOALS_PER_PRODUCT` goals of a product, its first ones.

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

    def _places(self, split: str) -> Iterator[int]:
        if split not in _SPLITS:
            raise UnknownTask(f"No split {split!r} of WebShop: choose one of {', '.join(_SPLITS)}.")
        start, end = _SPLITS[split]
        limit = GOALS_PER_PRODUCT if split == "train" else None
        kept = Counter[str]()
        for place, asin in list(enumerate(self._goals.asins()))[start:end]:
            kept[asin] += 1
            if limit is None or kept[asin] <= limit:
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
