"""Engine of ALFWorld games: the planner, or rules of our own, hold the state, and the game's own grammar words it.

Commands, observations and admissible commands are those of TextWorld's PddlEnv with ALFWorld's names. This engine is
faster: it translates a problem once, words a command once per game, and parses nothing again.

There are two grammars of actions. `move`: `move mug 1 to desk 1`, alfworld >= 0.4 and its games (release 2.1.2).
`put`: `put mug 1 in/on desk 1`, the games of the ReAct, Reflexion and ExpeL papers (release 2.1.1). Its arrivals name
a location, and it has no command `help`.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.planner import Operator, Planner
from retroformer.environments.alfworld.python_planner import PythonPlanner
from retroformer.environments.alfworld.text_grammar import Bindings, Facts, Grammar

INVALID = "Nothing happens."
"""Answer to a command that is not possible now."""


class Game(NamedTuple):
    """Texts that define a game."""

    domain: str
    grammar: str
    problem: str
    walkthrough: tuple[str, ...]
    """Commands that win."""


class GameEngine:
    """Engine that plays one game after another, with the planner or, for generated games only, the rules in Python."""

    def __init__(self, planner: Planner | PythonPlanner) -> None:
        self._planner = planner
        self._game: Game | None = None

    def start(self, game: Game) -> str:
        """Start a game and return its opening. Raises EnvironmentFailure."""
        if game != self._game:
            # A game that cannot be read must leave the engine unchanged.
            grammar, translation = Grammar(game.grammar), self._planner.translate(game.domain, game.problem)
            self._grammar, self._translation, self._game = grammar, translation, game
            self._names = names({entity for fact in translation.facts for entity in fact[1:]})
            self._worded = dict[str, tuple[str, Bindings]]()
        self._planner.load(self._translation)
        self._facts = Facts(self._translation.facts, self._translation.types)
        self._look_around()
        return self._write("#intro#", {})

    def do(self, command: str) -> str:
        """Execute a command and return what happened; an impossible command changes nothing."""
        operator = self._possible.get(command.strip())
        if operator is None:
            return INVALID
        for fact in self._planner.apply(operator):
            self._facts.add(fact)
        self._look_around()
        action = operator.name.split()[0]
        return self._write(self._grammar.actions[action].feedback, self._worded[operator.name][1])

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands possible now, sorted."""
        return tuple(sorted(self._possible))

    @property
    def won(self) -> bool:
        return self._planner.at_goal()

    def _look_around(self) -> None:
        self._possible = dict[str, Operator]()
        for operator in self._planner.operators():
            if operator.name.partition(" ")[0] in self._grammar.actions:
                self._possible.setdefault(self._word(operator), operator)

    def _word(self, operator: Operator) -> str:
        """Return the command of an operator; it depends only on the operator's entities, so it is cached."""
        if operator.name not in self._worded:
            action, *entities = operator.name.split()
            bindings = dict(zip(self._translation.parameters[action], entities, strict=False))
            command = self._write(self._grammar.actions[action].template, bindings)
            self._worded[operator.name] = command, bindings
        return self._worded[operator.name][0]

    def _write(self, text: str, bindings: Bindings) -> str:
        return self._grammar.write(text, self._facts, self._names, bindings)


def names(entities: Iterable[str]) -> dict[str, str]:
    """Return the displayed name of each entity: its kind and a number; the alphabetically last entity gets 1.

    An entity is written `Kind_bar_ANYTHING`; the basin of a sink is a separate kind. Other entities keep their name and
    get a trailing blank, as in ALFWorld.
    """
    named, counts = dict[str, str](), Counter[str]()
    for entity in sorted(entities, reverse=True):
        kind, numbered, _ = entity.partition("_bar_")
        if not numbered:
            for mark, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
                kind = kind.replace(mark, sign)
            named[entity] = f"{kind} "
            continue
        kind += "basin" * ("basin" in entity)
        counts[kind] += 1
        named[entity] = f"{kind} {counts[kind]}"
    return named


_PAPER_TEXTS = (
    ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ("move {o} to {r}", "put {o} in/on {r}"),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
)
_HELP = "\naction help {"


def in_grammar(game: Game, grammar: compact.Grammar) -> Game:
    """Return a game of release 2.1.2 in the given grammar."""
    if grammar == "move":
        return game
    texts, _, _ = game.grammar.partition(_HELP)
    for new, old in _PAPER_TEXTS:
        texts = texts.replace(new, old)
    walkthrough = tuple(compact.in_grammar(action, grammar) for action in game.walkthrough)
    return game._replace(grammar=texts, walkthrough=walkthrough)
