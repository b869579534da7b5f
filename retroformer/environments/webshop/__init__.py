"""WebShop in text: search, pages, options and purchases in a shop of any size, without Java or a browser."""

from typing import Any

from retroformer.environments.extras import Extras
from retroformer.environments.webshop.section import Webshop
from retroformer.environments.webshop.taskset import WebshopTaskset, taskset
from retroformer.protocols import ReturnOf
from retroformer.records import Trajectory

__all__ = ["Section", "WebshopTaskset", "extras", "taskset"]

Section = Webshop


def _shaped(section: Any, seed: int) -> ReturnOf:
    """Return the graded return of WebShop, which is the reward of the purchase (eq. 7 of its paper), as stored."""
    return _reward_of_purchase


def _reward_of_purchase(attempt: Trajectory) -> float:
    return attempt.episode_return


extras = Extras(returns={"shaped": _shaped})
