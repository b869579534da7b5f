"""The planner for generated games, in Python: ALFWorld's domain as rules, without a compiled library.

`alfred.pddl` has an action for each name here. Operators and effects are those of the planner, except that `isOn`,
which no text and no goal reads, is left out. Only released games need the planner: their goals use more of PDDL.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from retroformer.environments.alfworld.planner import Operator, Translation
from retroformer.environments.alfworld.text_grammar import Bindings, Fact, Facts, Pattern, parse_query
from retroformer.errors import EnvironmentFailure

_SAME_LOCATION = "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)"
_CLOSED_RECEPTACLE = "not_opened(r:receptacle)"


class ActionRule(NamedTuple):
    """An action: the variables of its operators, when it is possible, and what it makes true."""

    action: str
    variables: str
    condition: str
    """Query of positive facts. Different variables are different entities, and `not_` facts are kept from the start."""
    effects: tuple[str, ...]
    unless: str = ""
    """Query that forbids it."""
    constant: str = ""
    """Entity that the condition names as such."""


_RULES = (
    ActionRule("help", "a", "atlocation(a:agent, l:location)", ("checked a",)),
    ActionRule("inventory", "a", "atlocation(a:agent, l:location)", ("checked a",)),
    ActionRule("look", "a l", "atlocation(a:agent, l:location)", ("checked l",)),
    ActionRule("examinereceptacle", "a r", _SAME_LOCATION, ("checked r",)),
    # The domain would also let one examine a thing in a place, but names a type there that no entity has.
    ActionRule("examineobject", "a o", "holds(a:agent, o:object)", ("checked o",)),
    ActionRule(
        "gotolocation",
        "a lstart lend r",
        "atlocation(a:agent, lstart:location) & receptacleatlocation(r:receptacle, lend:location)",
        ("not_atlocation a lstart", "atlocation a lend"),
    ),
    ActionRule("openobject", "a l r", f"{_SAME_LOCATION} & not_opened(r:receptacle)", ("opened r", "checked r")),
    ActionRule(
        "closeobject",
        "a l r",
        f"{_SAME_LOCATION} & openable(r:receptacle) & opened(r:receptacle)",
        ("not_opened r",),
    ),
    ActionRule(
        "pickupobject",
        "a l o r",
        f"not_holdsany(a:agent) & {_SAME_LOCATION} & inreceptacle(o:object, r:receptacle) & pickupable(o:object)",
        ("not_inreceptacle o r", "holds a o", "holdsany a", "not_objectatlocation o l"),
        _CLOSED_RECEPTACLE,
    ),
    ActionRule(
        "putobject",
        "a l o r ot rt",
        f"holds(a:agent, o:object) & {_SAME_LOCATION} & objecttype(o:object, ot:otype) "
        "& receptacletype(r:receptacle, rt:rtype) & cancontain(rt:rtype, ot:otype)",
        ("inreceptacle o r", "objectatlocation o l", "not_holds a o", "not_holdsany a"),
        _CLOSED_RECEPTACLE,
    ),
    *(
        ActionRule(
            f"{verb}object",
            "a l r o",
            f"holds(a:agent, o:object) & {verb}able(o:object) & {_SAME_LOCATION} "
            f"& receptacletype(r:receptacle, {place}:rtype)",
            effects,
            constant=place,
        )
        for verb, place, effects in (
            ("clean", "sinkbasintype", ("isclean o",)),
            ("heat", "microwavetype", ("ishot o", "not_iscool o")),
            ("cool", "fridgetype", ("iscool o", "not_ishot o")),
        )
    ),
    ActionRule(
        "toggleobject",
        "a l o r",
        f"toggleable(o:object) & {_SAME_LOCATION} & inreceptacle(o:object, r:receptacle)",
        ("istoggled o",),
    ),
    *(
        ActionRule(
            "sliceobject",
            "a l co ko",
            f"holds(a:agent, ko:object) & objecttype(ko:object, {knife}:otype) & atlocation(a:agent, l:location) "
            "& objectatlocation(co:object, l:location) & sliceable(co:object)",
            ("issliced co",),
            constant=knife,
        )
        for knife in ("knifetype", "butterknifetype")
    ),
)


class PythonPlanner:
    """State of one generated game, with the methods of the planner. Do not share it between concurrent games."""

    def __init__(self) -> None:
        self._possible: list[tuple[ActionRule, Bindings]] = []

    def translate(self, domain: str, problem: str) -> Translation:
        """Read a problem. Raises EnvironmentFailure if it is malformed."""
        try:
            parts = {part[0]: part[1:] for part in _parse(problem)[1:]}
            words = parts[":objects"]  # `a - agent b - object`
            types = {entity: kind for entity, _, kind in zip(words[::3], words[1::3], words[2::3], strict=True)}
            facts = [tuple(fact) for fact in parts[":init"]]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentFailure(f"This game's problem cannot be read: {error!r}.") from error
        return Translation(problem, facts, types, {rule.action: rule.variables.split() for rule in _RULES})

    def load(self, translation: Translation) -> None:
        """Go to the initial state of a problem."""
        facts, types = translation.facts, translation.types
        opened = {fact[1] for fact in facts if fact[0] == "opened"}
        closed = [("not_opened", fact[1]) for fact in facts if fact[0] == "openable" and fact[1] not in opened]
        empty_handed = [("not_holdsany", entity) for entity, kind in types.items() if kind == "agent"]
        self._facts = Facts([*facts, *closed, *empty_handed], types)
        (goal,) = (part[1] for part in _parse(translation.sas) if part[0] == ":goal")
        literals = list(_literals(goal))
        self._goal = tuple(
            Pattern(name, tuple(entity.strip("?") for entity in entities), ("object",) * len(entities))
            for name, *entities in literals
        )
        self._constants = {entity: entity for _, *entities in literals for entity in entities if entity[0] != "?"}

    def operators(self) -> Iterator[Operator]:
        """Yield the operators possible now."""
        self._possible = []
        for rule in _RULES:
            constants = {rule.constant: rule.constant} if rule.constant else {}
            for bindings in self._facts.matches(parse_query(rule.condition), constants):
                if rule.unless and next(self._facts.matches(parse_query(rule.unless), bindings), None) is not None:
                    continue
                self._possible.append((rule, bindings))
                name = " ".join((rule.action, *(bindings[variable] for variable in rule.variables.split())))
                yield Operator(len(self._possible) - 1, name, len(rule.effects))

    def apply(self, operator: Operator) -> Iterator[Fact]:
        """Go to the next state and yield the facts that change; a false one as `not_PREDICATE`."""
        rule, bindings = self._possible[operator.number]
        for effect in rule.effects:
            predicate, *variables = effect.split()
            fact = (predicate, *(bindings[variable] for variable in variables))
            self._facts.add(fact)
            yield fact

    def at_goal(self) -> bool:
        return next(self._facts.matches(self._goal, self._constants), None) is not None


def _parse(text: str) -> Any:
    """Return a PDDL text in lower case as nested lists."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text.lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    return stack[0][0]


def _literals(goal: list[Any]) -> Iterator[list[str]]:
    """Yield the facts of a conjunction under `exists`; different variables are different entities anyway."""
    head, *rest = goal
    if head in ("and", "exists"):
        for part in rest if head == "and" else rest[1:]:
            yield from _literals(part)
    elif head != "not":
        yield goal
