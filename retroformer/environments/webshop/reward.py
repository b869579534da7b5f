"""The reward of a purchase (WebShop, eq. 7; Retroformer, appendix), in all its parts.

    r = r_type (|attributes found| + |options found| + [price <= limit]) / (|attributes| + |options| + 1)

As WebShop's code has it, which differs from the paper in two points:
1. An option of a synthetic goal is a pair of name and value, and it is compared as the text of that tuple. So a value
   that contains a colour is reduced to it on one side only, and a perfect purchase may have less than 1.
2. An attribute also counts where the product's own texts contain it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retroformer.environments.webshop.colors import normalized
from retroformer.environments.webshop.goals import Goal
from retroformer.environments.webshop.products import Product
from retroformer.environments.webshop.similarity import alike

_NO_NOUNS_SCORE = 0.2


class TypeMatch(NamedTuple):
    """How near the bought product is to the wanted one."""

    query_match: bool
    category_match: bool
    """At least two names of their categories are the same."""
    title_score: float
    """The share of the wanted title's nouns that the bought one has, too."""

    @property
    def reward(self) -> float:
        """r_type: 1, 0.5, 0.1 or 0."""
        if self.title_score == 0:
            return 0.0
        if self.title_score < 0.1:
            return 0.1
        return 1.0 if self.query_match or self.category_match or self.title_score > 0.2 else 0.5


class Reward(NamedTuple):
    """A purchase's reward with what it is made of."""

    type_match: TypeMatch
    attributes: int
    attributes_found: int
    options: int
    options_found: int
    price_met: bool

    @property
    def total(self) -> float:
        """r, from 0 to 1."""
        return (self.attributes_found + self.options_found + self.price_met) / self._parts * self.type_match.reward

    @property
    def attribute_share(self) -> float:
        """r_att."""
        return self.attributes_found / self.attributes

    @property
    def option_share(self) -> float | None:
        """r_option; None where no option is wanted."""
        return self.options_found / self.options if self.options else None

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of attributes, options and price."""
        return self.attributes / self._parts, self.options / self._parts, 1 / self._parts

    @property
    def _parts(self) -> int:
        return self.attributes + self.options + 1


def reward(bought: Product, price: float, options: Mapping[str, str], goal: Goal, type_match: TypeMatch) -> Reward:
    """What a product with these chosen options is worth to who has this goal."""
    return Reward(
        type_match=type_match,
        attributes=len(goal.attributes),
        attributes_found=sum(_has_attribute(bought, wanted) for wanted in goal.attributes),
        options=len(goal.options),
        options_found=_options_found(list(options.values()), goal),
        price_met=price <= goal.price_upper,
    )


def type_match(bought: Product, bought_nouns: Sequence[str], wanted: Product, wanted_nouns: Sequence[str]) -> TypeMatch:
    """How near two products are. Of the wanted title's nouns, a repeated one counts as often as it is there."""
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


def _options_found(chosen: Sequence[str], goal: Goal) -> int:
    chosen_values = [str(normalized(value)) for value in chosen]
    wanted_values = [str(normalized(option)) for option in goal.options]
    return sum(any(alike(value, wanted) for value in chosen_values) for wanted in wanted_values)
