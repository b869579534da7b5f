"""Environment for shopping by instruction (WebShop, Yao et al. 2022), with the texts of ReAct and Reflexion."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from retroformer.environments.section import EnvironmentSection
from retroformer.environments.webshop.goals import Goals, ShoppingGoal
from retroformer.environments.webshop.reward import PurchaseReward, reward, type_match
from retroformer.environments.webshop.shop import Shop
from retroformer.environments.webshop.site import ReactSite
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.experiment.sections.base import Positive
from retroformer.records import Task, Transition

GOALS_PER_PRODUCT = 5
"""Maximum number of goals per product in the split train: some products have hundreds of nearly equal goals, and a
reflector should not be trained on one product. The split `all` has every goal."""


class Webshop(EnvironmentSection):
    success: ClassVar[str] = "a reward of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("rapidfuzz",)
    name: Literal["webshop"] = "webshop"
    data: Path | None = None
    """Folder with WebShop's files: items_shuffle*.json, items_ins_v2*.json and optional others, each also as .xz."""
    split: str = "train"
    """Split: test (the first 500 goals), validation (the next 1,000), train (the others), or `all`."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Kind of instructions: made from products' attributes and options, or written by people."""
    max_steps: Positive = 15
    """Actions after which an episode is truncated."""


EPISODE_OVER = "The episode is over."


class WebshopEnvironment:
    """Episodes with one goal each, in the same shop."""

    def __init__(self, shop: Shop, goals: Goals, max_steps: int) -> None:
        self._shop, self._goals = shop, goals
        self._max_steps = max_steps
        self._site: ReactSite | None = None
        self._last = Transition(observation="")
        self._steps = 0

    def reset(self, task: Task) -> Transition:
        """Open the search page with this goal's instruction. The task's id is the goal's index, goal_idx.

        Raises UnknownTask.
        """
        goal = self._goals.goal(int(task.id)) if task.id.isdecimal() and len(task.id) < 10 else None
        if goal is None:
            raise UnknownTask(f"No goal {task.id!r} in this WebShop data: --list prints the ids.")
        self._site = ReactSite(
            self._shop, goal.instruction, lambda asin, options: purchase(self._shop, goal, asin, options).total
        )
        self._steps = 0
        self._last = Transition(observation=self._site.show(), choices=self._site.choices())
        return self._last

    def step(self, action: str) -> Transition:
        """Execute one action; every action costs a step, including thoughts and invalid ones.

        Buying terminates with the reward of eq. 7, and is a success if the reward is 1. Otherwise the last of
        `max_steps` actions truncates.
        """
        if self._site is None:
            raise EnvironmentFailure("No goal was set yet: reset comes before the first step.")
        if self._last.over:
            return self._last.model_copy(update={"observation": EPISODE_OVER, "reward": 0.0})
        self._steps += 1
        answer = self._site.act(action)
        self._last = Transition(
            observation=answer.observation,
            reward=answer.reward,
            terminated=answer.bought,
            truncated=not answer.bought and self._steps >= self._max_steps,
            success=answer.reward == 1.0,
            choices=() if answer.bought else self._site.choices(),
        )
        return self._last


def purchase(shop: Shop, goal: ShoppingGoal, asin: str, options: Mapping[str, str]) -> PurchaseReward:
    """Return the reward of buying the product of an ASIN with these options, given this goal.

    Raises EnvironmentFailure.
    """
    bought, wanted = shop.product(asin), shop.product(goal.asin)
    if bought is None or wanted is None:
        raise EnvironmentFailure(f"No product {asin if bought is None else goal.asin!r} in this shop.")
    (product, price), (target, _) = bought, wanted
    match = type_match(product, shop.nouns(product), target, shop.nouns(target))
    return reward(product, price, options, goal, match)
