"""Replay of the failed attempts that a prompt pack shows to the reflector, each in its environment."""

import asyncio
import re
from collections.abc import Iterator

from retroformer.config.sections.base import Loop
from retroformer.method.prompts import PromptPack, reflection_prompt
from retroformer.method.protocols import Agent, Environment, Evaluator, Move, Scene
from retroformer.method.records import Memory, Task, Trajectory, Transition
from retroformer.method.rollout import rollout
from tests.support.characters import Teacher

_LABEL = re.compile(r"^(Thought|Action|Observation) \d+:[ \n]", re.MULTILINE)
_CHARACTERS = 100_000
"""Length that no example reaches, so nothing is shortened."""


def replayed(example: str, environment: Environment, task: Task, evaluator: Evaluator | None = None) -> Trajectory:
    """Play the thoughts and actions of an example, and return the attempt as the trial loop would record it."""
    agent = Agent(_ActorByHeart(example), Teacher(), evaluator)
    return asyncio.run(rollout(task, _Direct(environment, task), agent, Memory(), Loop()))


def advice_after(pack: PromptPack, example: str, attempt: Trajectory) -> str:
    """Return the advice of an example, whose text before it must be what the reflector sees of this attempt.

    Blanks at line ends do not count, as the packs leave them out.
    """
    shown = reflection_prompt(pack, _CHARACTERS, attempt, Memory())[1].content
    before, ask, advice = example.partition(pack.ask.strip())
    assert _stripped(f"{before}{ask}") == _stripped(shown)
    return advice.strip()


class _ActorByHeart:
    """Actor that repeats the thoughts and actions of an example."""

    def __init__(self, example: str) -> None:
        self._moves = _moves(example)

    async def act(self, scene: Scene) -> Move:
        move = next(self._moves, None)
        assert move is not None, "the attempt goes on after the last action of the example"
        return move


class _Direct:
    """Episode of an environment in this process."""

    def __init__(self, environment: Environment, task: Task) -> None:
        self._environment, self._task = environment, task

    async def reset(self) -> Transition:
        return self._environment.reset(self._task)

    async def step(self, action: str) -> Transition:
        return self._environment.step(action)


def _moves(example: str) -> Iterator[Move]:
    _, *parts = _LABEL.split(example)
    thought = ""
    for label, text in zip(parts[::2], parts[1::2], strict=True):
        if label == "Thought":
            thought = text.strip()
        elif label == "Action":
            # A program may begin with blanks.
            yield Move(thought=thought, action=text.rstrip())
            thought = ""


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())
