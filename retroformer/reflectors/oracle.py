"""Advice from the solution of the game: how far advice can carry this actor. A yardstick, no competitor."""

from collections.abc import Callable, Sequence

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import read_goal
from retroformer.environments.alfworld.solution import read_solution
from retroformer.prompts import Render
from retroformer.records import Memory, Reflection, Task, Trajectory
from retroformer.reflectors.rule import signed
from retroformer.reflectors.wording import PLAIN, Manner, Voice, voice


class OracleReflector:
    """Says where the needed things are, where to do the deed, and where to put them."""

    def __init__(
        self, render: Render, walkthrough: Callable[[Task], Sequence[str]], manner: Manner = "demonstrated"
    ) -> None:
        self._render, self._walkthrough = render, walkthrough
        self._manner: Manner = manner

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """The same content for every failure. Raises EnvironmentFailure where the game cannot be opened."""
        walkthrough = self._walkthrough(trajectory.task)
        text = advice_from_solution(trajectory, walkthrough, voice(self._manner, trajectory.task, seed))
        return signed("walkthrough", text, self._render, trajectory, memory, seed)


def advice_from_solution(failure: Trajectory, walkthrough: Sequence[str], speaker: Voice = PLAIN) -> str:
    """Such as `The mug 1 is in shelf 2. Then clean it with sinkbasin 1. Put it in countertop 1.`, in this voice."""
    solution, goal = read_solution(walkthrough), read_goal(compact.read_opening(failure.opening).task)
    # A walkthrough may take the same thing twice; where it lay at first is what an attempt has to know.
    first: dict[str, str] = {}
    for thing, place in solution.things:
        first.setdefault(thing, place)
    sentences = [speaker.seen(thing, place) for thing, place in first.items()]
    if solution.appliance:
        sentences.append(speaker.deed(goal.deed, solution.appliance))
    if solution.target:
        sentences.append(speaker.target(solution.target))
    return " ".join(sentences)
