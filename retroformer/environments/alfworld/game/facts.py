"""Facts that hold in a game, and queries over them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

Fact = tuple[str, ...]
"""Predicate and its entities."""

Bindings = Mapping[str, str]
"""Variable -> the entity bound to it."""

_PATTERN = re.compile(r"([\w-]+)\(([^()]*)\)")


class Pattern(NamedTuple):
    """Predicate over typed variables, such as `holds(a: agent, o: object)`."""

    predicate: str
    variables: tuple[str, ...]
    types: tuple[str, ...]


@lru_cache(maxsize=4096)
def parse_query(query: str) -> tuple[Pattern, ...]:
    """Return the patterns of `p(x:t) & q(x:t, y:u)`; none for an empty query."""
    patterns = []
    for predicate, arguments in _PATTERN.findall(query):
        typed = [argument.partition(":") for argument in arguments.split(",") if argument.strip()]
        variables = tuple(variable.strip() for variable, _, _ in typed)
        patterns.append(Pattern(predicate, variables, tuple(type_.strip() for _, _, type_ in typed)))
    return tuple(patterns)


class Facts:
    """Set of facts. A negated effect is stored as the fact `not_PREDICATE`, as ALFWorld's grammar requires."""

    def __init__(self, facts: Iterable[Fact], types: Mapping[str, str]) -> None:
        self._types = types
        self._by_predicate: dict[str, set[Fact]] = {}
        for fact in facts:
            self._by_predicate.setdefault(fact[0], set()).add(fact)

    def add(self, fact: Fact) -> None:
        """Make a fact true and its opposite false."""
        predicate, *entities = fact
        opposite = predicate.removeprefix("not_") if predicate.startswith("not_") else f"not_{predicate}"
        self._by_predicate.get(opposite, set()).discard((opposite, *entities))
        self._by_predicate.setdefault(predicate, set()).add(fact)

    def matches(self, query: tuple[Pattern, ...], bindings: Bindings) -> Iterator[Bindings]:
        """Yield all bindings that satisfy the query, in fact order; different variables bind different entities."""
        if not query:
            yield bindings
            return
        for fact in sorted(self._by_predicate.get(query[0].predicate, ())):
            extended = self._extend(query[0], fact[1:], bindings)
            if extended is not None:
                yield from self.matches(query[1:], extended)

    def _extend(self, pattern: Pattern, entities: Fact, bindings: Bindings) -> Bindings | None:
        extended = dict(bindings)
        for variable, type_, entity in zip(pattern.variables, pattern.types, entities, strict=True):
            # `object` is both a type of the domain and PDDL's root type.
            if type_ not in ("object", self._types[entity]):
                return None
            if extended.get(variable, entity) != entity:
                return None
            if variable not in extended and entity in extended.values():
                return None
            extended[variable] = entity
        return extended
