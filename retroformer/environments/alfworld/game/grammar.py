"""Grammars of ALFWorld's actions, and the check that prompts and games use the same one.

`move`: `move mug 1 to desk 1`, alfworld >= 0.4 and its games (release 2.1.2).
`put`: `put mug 1 in/on desk 1`, the games of the ReAct, Reflexion and ExpeL papers (release 2.1.1). Its arrivals name
a location, and it has no command `help`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from retroformer.environments.alfworld.game.engine import Game
from retroformer.errors import ConfigError
from retroformer.protocols import Environment
from retroformer.records import Task

Name = Literal["put", "move"]

_MOVE = re.compile(r"move (?P<object>.+) to (?P<receptacle>.+)")
_PUT = re.compile(r"put (?P<object>.+) in/on (?P<receptacle>.+)")
_PAPER_TEXTS = (
    ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ("move {o} to {r}", "put {o} in/on {r}"),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
)
_HELP = "\naction help {"


class Expert(Protocol):
    """Taskset with a winning walkthrough for each task."""

    def tasks(self) -> tuple[Task, ...]: ...

    def environment(self) -> Environment: ...

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return actions that win."""
        ...


def in_grammar(game: Game, grammar: Name) -> Game:
    """Return a game of release 2.1.2 in the given grammar."""
    if grammar == "move":
        return game
    texts, _, _ = game.grammar.partition(_HELP)
    for new, old in _PAPER_TEXTS:
        texts = texts.replace(new, old)
    walkthrough = tuple(_MOVE.sub(r"put \g<object> in/on \g<receptacle>", action) for action in game.walkthrough)
    return game._replace(grammar=texts, walkthrough=walkthrough)


def grammar_of(actions: Iterable[str]) -> Name | None:
    """Return the grammar of the action strings; None if no action shows it."""
    for action in actions:
        if _PUT.fullmatch(action.strip()):
            return "put"
        if _MOVE.fullmatch(action.strip()):
            return "move"
    return None


def check_grammar(taskset: Expert, example_actions: Sequence[str]) -> None:
    """Check before a run that the expert wins a game and that the prompts' actions match the games' grammar.

    Args:
        taskset: source of the games.
        example_actions: actions shown in the actor's prompts, such as `put mug 1 in/on desk 1`.

    Raises:
        ConfigError: the expert does not win, or an example action is of the other grammar.
    """
    tasks = taskset.tasks()
    if not tasks:
        raise ConfigError("There is no ALFWorld game to play: check environment.split and environment.task_types.")
    # A game that can be won without putting anything down does not show its grammar.
    telling = (task for task in tasks if grammar_of(taskset.walkthrough(task)))
    task = next(telling, tasks[0])
    played = grammar_of(taskset.walkthrough(task))
    _replay(taskset, task)
    for action in example_actions:
        shown = grammar_of([action])
        if shown and played and shown != played:
            raise ConfigError(
                f"The actor's prompts say {action!r}, but these games are played in the grammar {played!r}: "
                f"set environment.grammar={shown} or choose prompts written in {played!r}."
            )


def _replay(taskset: Expert, task: Task) -> None:
    environment = taskset.environment()
    answer = environment.reset(task)
    action = ""
    for action in taskset.walkthrough(task):
        answer = environment.step(action)
    if not answer.success:
        raise ConfigError(
            f"The expert's actions do not win {task.id!r}; the last, {action!r}, was answered "
            f"{answer.observation!r}: check environment.grammar, environment.max_steps and the game files."
        )
