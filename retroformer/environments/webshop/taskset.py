"""The goals that a section of the experiment page describes."""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from retroformer.environments.sections import Webshop
from retroformer.environments.webshop import files
from retroformer.environments.webshop.environment import WebshopEnvironment
from retroformer.environments.webshop.goals import Goals
from retroformer.environments.webshop.shop import Shop
from retroformer.errors import MissingInput, UnknownTask
from retroformer.provenance import files_sha256
from retroformer.records import Task

_SPLITS = {"test": (0, 500), "validation": (500, 1500), "train": (1500, None), "all": (0, None)}
"""WebShop's own, by place after the shuffle."""


class WebshopTaskset:
    """Goals of one split; all its environments share one open shop."""

    def __init__(self, section: Webshop) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        """All goals of the split in their order; a task's id is the goal's place among all goals, goal_idx.

        Of the split train, at most `per_product` goals of a product, its first ones.

        Raises:
            MissingInput: the data are not there.
            UnknownTask: there is no such split; the message names those that exist.
        """
        split = self._section.split
        return tuple(Task(id=str(idx), environment="webshop", split=split) for idx in self._places(split))

    def fingerprint(self) -> str:
        """The sha256 of WebShop's files. Raises MissingInput."""
        needed = [files.require(self._folder, names) for names in (files.PRODUCTS, files.ATTRIBUTES)]
        optional = (files.HUMAN_INSTRUCTIONS, files.PRICES, files.TITLE_NOUNS, files.goals_of(self._section.goals))
        present = [path for names in optional if (path := files.find(self._folder, names))]
        return files_sha256({path.name: path for path in needed + present})

    def environment(self) -> WebshopEnvironment:
        """An environment that can play any goal of the data. The first one on a machine builds the index.

        Raises:
            MissingInput: the data are not there.
        """
        return WebshopEnvironment(self._shop, self._goals, self._section.text, self._section.max_steps)

    def _places(self, split: str) -> Iterator[int]:
        if split not in _SPLITS:
            raise UnknownTask(f"No split {split!r} of WebShop: known are {', '.join(_SPLITS)}.")
        start, end = _SPLITS[split]
        limit = self._section.per_product if split == "train" else None
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
            raise MissingInput("WebShop's data have no place that is known: set environment.data to their folder.")
        return self._section.data

    @cached_property
    def _goals(self) -> Goals:
        return self._shop.goals(self._section.goals)


def taskset(section: Webshop, seed: int = 0) -> WebshopTaskset:
    """The goals that a section describes. There is nothing to draw by `seed`: the order is WebShop's."""
    return WebshopTaskset(section)
