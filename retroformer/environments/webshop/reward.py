"""Reward of a purchase (WebShop, eq. 7; Retroformer, appendix), with all its parts.

    r = r_type (|attributes found| + |options found| + [price <= limit]) / (|attributes| + |options| + 1)

It follows WebShop's code, which differs from the paper in two points:

1. An option of a synthetic goal is a pair of name and value, and is compared as the text of that tuple. So a value
   that contains a colour is reduced to it on one side only, and a perfect purchase may get less than 1.
2. An attribute also counts if the product's own texts contain it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from retroformer.environments.webshop.data import Product
from retroformer.environments.webshop.goals import ShoppingGoal

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
    return PurchaseReward(
        type_match=type_match,
        attributes=len(goal.attributes),
        attributes_found=sum(_has_attribute(bought, wanted) for wanted in goal.attributes),
        options=len(goal.options),
        options_found=_options_found(list(options.values()), goal),
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


def _options_found(chosen: Sequence[str], goal: ShoppingGoal) -> int:
    chosen_values = [str(normalized(value)) for value in chosen]
    wanted_values = [str(normalized(option)) for option in goal.options]
    return sum(any(alike(value, wanted) for value in chosen_values) for wanted in wanted_values)
