"""Graded return of a stored attempt at a household game, read from its text: the share of subgoals reached.

The subgoals follow from the task sentence, as in ALFRED (Shridhar et al., 2020, section 3). For each thing wanted they
are: take it; clean, heat or cool it, if the task says so; put it in its place. For a thing to be looked at they are:
take it; turn on the lamp; look at it in the light. The last one is reached by solving the task only.
"""

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.compact import type_of
from retroformer.environments.alfworld.text.reading import Goal, RoomKnowledge, read_goal
from retroformer.errors import ConfigError
from retroformer.records import Outcome, Trajectory

_LIT = "You turn on the "


def share_of_subgoals(attempt: Trajectory) -> float:
    """Return the share of the task's subgoals that the attempt reached: 1 if it is solved, else less.

    Taking and changing a thing count if they happened at any time; a thing counts as put if it lies in its place at the
    end, and as taken, too, if it lay there already.

    Raises:
        ConfigError: the attempt's opening is not ALFWorld's.
    """
    if attempt.outcome is Outcome.SUCCESS:
        return 1.0
    goal = read_goal(compact.read_opening(attempt.opening).task)
    if not goal.thing:
        raise ConfigError(
            f"train.rated_by=shaped: the opening of the stored attempt at {attempt.task.id!r} names no goal of "
            "ALFWorld's, so its progress cannot be read; take train.rated_by=success."
        )
    total = 3 if goal.lamp else goal.count * (3 if goal.deed else 2)
    return min(_reached(attempt, goal), total - 1) / total


def _reached(attempt: Trajectory, goal: Goal) -> int:
    """Return the number of subgoals reached; a third one of a lamp is left to success."""
    room, taken, lit = RoomKnowledge(), set[str](), False
    for step in attempt.steps:
        action = compact.command(step.action)
        answer = compact.observation(action, step.observation)
        room.watch(action, answer)
        if type_of(room.holding) == goal.thing:
            taken.add(room.holding)
        lit = lit or (answer.startswith(_LIT) and type_of(answer.removeprefix(_LIT).rstrip(".")) == goal.lamp)
    if goal.lamp:
        return bool(taken) + lit
    changed = {thing for deed, thing in room.deeds if deed == goal.deed and type_of(thing) == goal.thing}
    put = {
        thing
        for thing, place in room.whereabouts.items()
        if type_of(thing) == goal.thing and type_of(place) == goal.target and (not goal.deed or thing in changed)
    }
    return sum(min(len(things), goal.count) for things in (taken | put, changed if goal.deed else (), put))
