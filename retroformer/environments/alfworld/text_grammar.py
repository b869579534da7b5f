"""Facts that hold in a game, queries over them, and the interpreter of the text grammar in ALFWorld's games.

A grammar is a TextWorld `.twl2` text: productions in JSON, and one template and feedback rule for each PDDL action. A
rule's text mixes `#rule#`, `{expression}`, `{expression | query}` (once per match) and `[{...}]` (a list in words). The
texts equal TextWorld's.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from retroformer.errors import EnvironmentFailure

Fact = tuple[str, ...]
"""Predicate and its entities."""

Bindings = Mapping[str, str]
"""Variable -> the entity bound to it."""

_QUERY_PATTERN = re.compile(r"([\w-]+)\(([^()]*)\)")


class Pattern(NamedTuple):
    """Predicate over typed variables, such as `holds(a: agent, o: object)`."""

    predicate: str
    variables: tuple[str, ...]
    types: tuple[str, ...]


@lru_cache(maxsize=4096)
def parse_query(query: str) -> tuple[Pattern, ...]:
    """Return the patterns of `p(x:t) & q(x:t, y:u)`; none for an empty query."""
    patterns = []
    for predicate, arguments in _QUERY_PATTERN.findall(query):
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
            if type_ not in ("object", self._types[entity]) or extended.get(variable, entity) != entity:
                return None
            if variable not in extended and entity in extended.values():
                return None
            extended[variable] = entity
        return extended


_ACTION = re.compile(
    r'\baction\s+(?P<name>\w+)\s*\{\s*template\s*::\s*"(?P<template>[^"]*)"\s*;\s*feedback\s*::\s*"(?P<feedback>[^"]*)"'
    r'\s*;\s*(?:pddl\s*::\s*""".*?"""\s*;\s*)?(?:grammar\s*::\s*"""(?P<grammar>.*?)"""\s*;\s*)?\}',
    re.DOTALL,
)
_GRAMMAR = re.compile(r'\A\s*grammar\s*::\s*"""(?P<grammar>.*?)"""\s*;', re.DOTALL)
_SYMBOL = re.compile(r"\[\{(?P<list>[^{}]*)\}\]|\{(?P<value>[^{}]*)\}|#(?P<rule>[^#\n]+)#")
_TERM = re.compile(r"'(?P<literal>[^']*)'|(?P<variable>\w+)(?:\.(?P<attribute>name|id|definite|indefinite))?\Z")

_MOST_SYMBOLS = 100_000
"""Maximum number of symbols in one text; released games need under 100, and mutually recursive rules run for hours."""


class Production(NamedTuple):
    """One expansion of a name; it applies if its condition matches."""

    condition: tuple[Pattern, ...]
    text: str


class ActionTexts(NamedTuple):
    template: str
    """Command of an action."""
    feedback: str
    """Text of its effect."""


class Symbol(NamedTuple):
    """Piece of a rule's text: plain `text`, or an expression of one `kind` under an optional query."""

    kind: str
    text: str
    query: tuple[Pattern, ...] = ()


class Grammar:
    """Text grammar of one game."""

    def __init__(self, source: str) -> None:
        """Parse a `.twl2` text. Raises EnvironmentFailure if it is malformed."""
        self.actions: dict[str, ActionTexts] = {}
        self._rules: dict[str, list[Production]] = {}
        try:
            common = _GRAMMAR.search(source)
            if common:
                self._add_rules(common["grammar"])
            for action in _ACTION.finditer(source):
                self.actions[action["name"].lower()] = ActionTexts(action["template"], action["feedback"])
                self._add_rules(action["grammar"] or "{}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise EnvironmentFailure(f"The game's grammar cannot be read: {error}.") from None

    def _add_rules(self, productions: str) -> None:
        lines = (line for line in productions.split("\n") if not line.lstrip().startswith("#"))
        for name, rules in json.loads("\n".join(lines)).items():
            self._rules[name] = [Production(parse_query(rule.get("condition", "")), rule["rhs"]) for rule in rules]

    def write(self, text: str, facts: Facts, names: Mapping[str, str], bindings: Bindings) -> str:
        """Return `text` expanded in a state, given the entities' names and the entities of the action's variables."""
        try:
            return _Writer(self._rules, facts, names).expand(text, bindings)
        except RecursionError:
            raise EnvironmentFailure(
                "The game's grammar has a rule that needs itself: download the game again."
            ) from None


class _Writer:
    """State of one expansion: the rules, the facts and the names."""

    def __init__(self, rules: Mapping[str, list[Production]], facts: Facts, names: Mapping[str, str]) -> None:
        self._rules, self._facts, self._names, self._left = rules, facts, names, _MOST_SYMBOLS

    def expand(self, text: str, bindings: Bindings) -> str:
        return "".join(self._symbol(symbol, bindings) for symbol in _symbols(text))

    def _symbol(self, symbol: Symbol, bindings: Bindings) -> str:
        self._left -= 1
        if self._left < 0:
            raise EnvironmentFailure(
                f"The game's grammar writes more than {_MOST_SYMBOLS} symbols at once, which is the limit: "
                "download the game again."
            )
        if symbol.kind == "text":
            return symbol.text
        if symbol.kind == "rule":
            return self._rule(symbol.text, bindings)
        matches = self._facts.matches(symbol.query, bindings) if symbol.query else iter((bindings,))
        write = self._rule if symbol.text.startswith("#") else self._value
        parts = [write(symbol.text.strip("#"), match) for match in matches]
        return self._in_words(parts, bindings) if symbol.kind == "list" else "".join(parts)

    def _rule(self, name: str, bindings: Bindings) -> str:
        for rule in self._rules.get(name, ()):
            if not rule.condition or next(self._facts.matches(rule.condition, bindings), None) is not None:
                return self.expand(rule.text, bindings)
        raise EnvironmentFailure(f"The game's grammar has no rule for {name!r}.")

    def _in_words(self, parts: list[str], bindings: Bindings) -> str:
        if not parts:
            return self._rule("list_empty", bindings)
        if len(parts) == 1:
            return parts[0]
        comma, last = self._rule("list_separator", bindings), self._rule("list_last_separator", bindings)
        return comma.join(parts[:-1]) + last + parts[-1]

    def _value(self, expression: str, bindings: Bindings) -> str:
        """Evaluate `a or b` (the first non-empty one), `a + b` (joined), `'text'`, `variable` or `variable.name`."""
        for alternative in expression.split(" or "):
            value = "".join(self._term(term.strip(), bindings) for term in alternative.split(" + "))
            if value:
                return value
        return ""

    def _term(self, term: str, bindings: Bindings) -> str:
        parts = _TERM.match(term)
        if parts is None or (parts["variable"] and parts["variable"] not in bindings):
            raise EnvironmentFailure(f"The game's grammar asks for {term!r}, which is not known.")
        if parts["literal"] is not None:
            return parts["literal"]
        entity = bindings[parts["variable"]]
        constant = {"id": entity, "definite": "the", "indefinite": "a"}
        return constant.get(parts["attribute"] or "name") or self._names[entity]


@lru_cache(maxsize=4096)
def _symbols(text: str) -> tuple[Symbol, ...]:
    symbols, end = [], 0
    # TextWorld's parser skips blank space at the start of a text; the answer to `help` shows this.
    text = text.lstrip()
    for match in _SYMBOL.finditer(text):
        if match.start() > end:
            symbols.append(Symbol("text", text[end : match.start()]))
        end = match.end()
        kind = match.lastgroup or "text"
        expression, _, query = match[kind].partition("|")
        symbols.append(Symbol(kind, expression.strip(), parse_query(query)))
    if end < len(text):
        symbols.append(Symbol("text", text[end:]))
    return tuple(symbols)
