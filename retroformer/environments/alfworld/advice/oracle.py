"""Advice from the solution of the game: an upper bound on what advice can do for this actor, not a competitor."""

from collections.abc import Callable, Sequence

from retroformer.environments.alfworld.advice.rule_reflector import signed
from retroformer.environments.alfworld.advice.wording import PLAIN, Manner, Voice, voice
from retroformer.environments.alfworld.game.solution import read_solution
from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import read_goal
from retroformer.prompts import Render
from retroformer.records import Memory, Reflection, Task, Trajectory


class OracleReflector:
    """Reflector that says where the needed things are, where to clean, heat or cool them, and where to put them."""

    def __init__(
        self, render: Render, walkthrough: Callable[[Task], Sequence[str]], manner: Manner = "demonstrated"
    ) -> None:
        self._render, self._walkthrough = render, walkthrough
        self._manner: Manner = manner

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return the same content for every failure. Raises EnvironmentFailure if the game cannot be opened."""
        walkthrough = self._walkthrough(trajectory.task)
        text = advice_from_solution(trajectory, walkthrough, voice(self._manner, trajectory.task, seed))
        return signed("walkthrough", text, self._render, trajectory, memory, seed)


def advice_from_solution(failure: Trajectory, walkthrough: Sequence[str], speaker: Voice = PLAIN) -> str:
    """Return advice such as `The mug 1 is in shelf 2. Then clean it with sinkbasin 1. Put it in countertop 1.`."""
    solution, goal = read_solution(walkthrough), read_goal(compact.read_opening(failure.opening).task)
    # A walkthrough may take the same thing twice; an attempt needs the place where it lay first.
    first: dict[str, str] = {}
    for thing, place in solution.things:
        first.setdefault(thing, place)
    sentences = [speaker.seen(thing, place) for thing, place in first.items()]
    if solution.appliance:
        sentences.append(speaker.deed(goal.deed, solution.appliance))
    if solution.target:
        sentences.append(speaker.target(solution.target))
    return " ".join(sentences)
