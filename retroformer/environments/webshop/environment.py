"""Environment for shopping by instruction (WebShop, Yao et al. 2022), with the texts of ReAct and Reflexion.

The reward of a purchase is (Retroformer, eq. 7):

    r = r_type (|attributes found| + |options found| + [price <= limit]) / (|attributes| + |options| + 1)

It follows WebShop's code, which differs from the paper in two points:

1. An option of a synthetic goal is a pair of name and value, and is compared as the text of that tuple. So a value
   that contains a colour is reduced to it on one side only, and a perfect purchase may get less than 1.
2. An attribute also counts if the product's own texts contain it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from retroformer.config.sections.base import Positive
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.tasksets import EPISODE_OVER, not_reset
from retroformer.environments.webshop.data import Product
from retroformer.environments.webshop.goals import Goals, ShoppingGoal
from retroformer.environments.webshop.shop import Shop
from retroformer.environments.webshop.site import ReactSite
from retroformer.method.records import Task, Transition

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
    """Split: test (the first 500 goals), validation (the next 1,000), train (the others), or `all`. Without a common
    product: products_train, products_validation and products_test."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Kind of instructions: made from products' attributes and options, or written by people."""
    max_steps: Positive = 15
    """Actions after which an episode is truncated."""


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
        goal = self._goals.goal(task.id)
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
            raise not_reset()
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


_NAMES = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
    camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry
    cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green
    grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot
    midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple
    rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan
    taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
COLORS = tuple(_NAMES.split())


def normalized(option: tuple[str, str] | str) -> tuple[str, str] | str:
    """Return the first colour in an option's value, or the option itself if there is none.

    A pair of name and value is a colour only if one of the two equals it: WebShop tests with `in`, which finds
    substrings in a string but whole members in a tuple.
    """
    return next((color for color in COLORS if color in option), option)


_LATIN_1 = dict.fromkeys(range(128, 256))
_ABOVE = 85


def alike(first: str, second: str) -> bool:
    """Return True if the token set ratio, rounded to a whole percentage, is above 85 (thefuzz 0.22, over RapidFuzz).

    Both texts are first cleaned: the letters U+0080 to U+00FF are dropped, every other character that is neither letter
    nor digit becomes a blank, and case is folded.
    """
    return round(token_set_ratio(_cleaned(first), _cleaned(second))) > _ABOVE


def _cleaned(text: str) -> str:
    return default_process(text.translate(_LATIN_1))


_NO_NOUNS_SCORE = 0.2


class TypeMatch(NamedTuple):
    """Similarity of the bought product to the wanted one."""

    query_match: bool
    category_match: bool
    """True if at least two names of their categories are equal."""
    title_score: float
    """Share of the wanted title's nouns that are also in the bought title."""

    @property
    def reward(self) -> float:
        """Factor r_type: 1, 0.5, 0.1 or 0."""
        if self.title_score == 0:
            return 0.0
        if self.title_score < 0.1:
            return 0.1
        return 1.0 if self.query_match or self.category_match or self.title_score > 0.2 else 0.5


class PurchaseReward(NamedTuple):
    """Reward of a purchase with its parts."""

    type_match: TypeMatch
    attributes: int
    attributes_found: int
    options: int
    options_found: int
    price_met: bool

    @property
    def total(self) -> float:
        """Reward r, in [0, 1]."""
        found = self.attributes_found + self.options_found + self.price_met
        return found / (self.attributes + self.options + 1) * self.type_match.reward


def reward(
    bought: Product, price: float, options: Mapping[str, str], goal: ShoppingGoal, type_match: TypeMatch
) -> PurchaseReward:
    """Return the reward of a product with these chosen options, given this goal."""
    chosen = [str(normalized(value)) for value in options.values()]
    wanted_options = [str(normalized(option)) for option in goal.options]
    return PurchaseReward(
        type_match=type_match,
        attributes=len(goal.attributes),
        attributes_found=sum(_has_attribute(bought, wanted) for wanted in goal.attributes),
        options=len(goal.options),
        options_found=sum(any(alike(value, wanted) for value in chosen) for wanted in wanted_options),
        price_met=price <= goal.price_upper,
    )


def type_match(bought: Product, bought_nouns: Sequence[str], wanted: Product, wanted_nouns: Sequence[str]) -> TypeMatch:
    """Return the similarity of two products. A noun repeated in the wanted title counts each time."""
    common = set(bought_nouns) & set(wanted_nouns)
    return TypeMatch(
        query_match=bought.query == wanted.query,
        category_match=len(bought.categories & wanted.categories) >= 2,
        title_score=len(common) / len(wanted_nouns) if wanted_nouns else _NO_NOUNS_SCORE,
    )


def _has_attribute(bought: Product, wanted: str) -> bool:
    if any(alike(attribute, wanted) for attribute in bought.attributes):
        return True
    texts = (bought.title, " ".join(bought.bullets), bought.description)
    return any(wanted in text.lower() for text in texts)


def purchase(shop: Shop, goal: ShoppingGoal, asin: str, options: Mapping[str, str]) -> PurchaseReward:
    """Return the reward of buying the product of an ASIN with these options, given this goal."""
    (product, price), (target, _) = shop.product(asin), shop.product(goal.asin)
    match = type_match(product, shop.nouns(product), target, shop.nouns(target))
    return reward(product, price, options, goal, match)
