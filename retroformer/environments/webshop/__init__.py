"""WebShop in text: search, pages, options and purchases in a shop of any size, without Java or a browser."""

import re
from typing import Any

from retroformer.environments.extras import Extras
from retroformer.environments.webshop.section import Webshop
from retroformer.environments.webshop.taskset import WebshopTaskset, taskset
from retroformer.protocols import ReturnOf, Scene
from retroformer.records import Trajectory

__all__ = ["Section", "WebshopTaskset", "extras", "taskset"]

Section = Webshop
_REQUEST = re.compile(r"Instruction:\s*(.+?) *\n")


def _shaped(section: Any, seed: int) -> ReturnOf:
    """Return the graded return of WebShop, which is the reward of the purchase (eq. 7 of its paper), as stored."""
    return _reward_of_purchase


def _reward_of_purchase(attempt: Trajectory) -> float:
    return attempt.episode_return


def _choices(scene: Scene) -> tuple[str, ...]:
    """Return what can be clicked; where nothing can, a search for the request itself, as a query may be any text."""
    request = _REQUEST.search(scene.opening)
    # The site shows nothing after a search with one of these signs.
    query = re.sub("[#?/]", " ", request[1] if request else scene.opening)
    return scene.choices or (f"search[{' '.join(query.split())}]",)


extras = Extras(returns={"shaped": _shaped}, choices=_choices)
