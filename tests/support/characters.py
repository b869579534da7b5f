"""Small worlds and the characters in them: real parts with known behaviour, so that results can be worked by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from retroformer.errors import EndpointFailure, EnvironmentFailure
from retroformer.method.protocols import Move, Scene
from retroformer.method.records import (
    Author,
    Ending,
    Memory,
    Message,
    Outcome,
    Reflection,
    Sampling,
    Step,
    Task,
    Trajectory,
    Transition,
    Usage,
)

CAPITAL = Task(id="capital-of-france", environment="riddles", split="train")
PRICE = Usage(calls=1, prompt_tokens=100, completion_tokens=10, dollars=0.5)
"""Usage of every model call of these characters."""


def task(name: str) -> Task:
    return Task(id=name, environment="riddles", split="train")


def attempt_at(
    subject: Task = CAPITAL, rewards: Sequence[float] = (0.0,), outcome: Outcome = Outcome.FAILURE
) -> Trajectory:
    """Return an attempt with these rewards, one per step."""
    steps = tuple(Step(action=f"answer {i}", observation="Noted.", reward=reward) for i, reward in enumerate(rewards))
    ending = {Outcome.SUCCESS: Ending.SOLVED, Outcome.FAILURE: Ending.TERMINATED}.get(outcome, Ending.INFRASTRUCTURE)
    return Trajectory(task=subject, opening="What is it?", steps=steps, outcome=outcome, ending=ending, usage=PRICE)


def advice(text: str, model: str = "teacher") -> Reflection:
    """Return a reflection with this text."""
    prompt = (Message(role="user", content="The answer was wrong. What now?"),)
    author = Author(endpoint="http://localhost/v1", model=model)
    return Reflection(text=text, prompt=prompt, author=author, sampling=Sampling(seed=1), usage=PRICE)


class Riddle:
    """Environment that asks for a capital; Paris is right, anything else is wrong and ends the episode."""

    async def reset(self) -> Transition:
        return Transition(observation="What is the capital of France?")

    async def step(self, action: str) -> Transition:
        right = action == "Paris"
        return Transition(
            observation="Right." if right else "Wrong.", reward=float(right), terminated=True, success=right
        )


class Corridor:
    """Environment whose episodes end after `length` steps; the action `jump` makes it fail."""

    def __init__(self, length: int = 1000, rewards: Sequence[float] = ()) -> None:
        self._left, self._rewards = length, list(rewards)

    async def reset(self) -> Transition:
        return Transition(observation="A corridor.", choices=("walk", "wait", "jump"))

    async def step(self, action: str) -> Transition:
        if action == "jump":
            raise EnvironmentFailure("The corridor fell into the void.")
        self._left -= 1
        reward = self._rewards.pop(0) if self._rewards else 0.0
        seen = "Still here." if action == "wait" else f"{self._left} doors left."
        return Transition(observation=seen, reward=reward, truncated=self._left == 0)


class ActorThatNeedsAdvice:
    """Actor that says Lyon until its memory holds the word Paris."""

    async def act(self, scene: Scene) -> Move:
        advised = any("Paris" in text for text in scene.memory.reflections)
        return Move(action="Paris" if advised else "Lyon", usage=PRICE)


class ActorWithAPlan:
    """Actor that does these actions in turn and repeats the last one."""

    def __init__(self, *actions: str) -> None:
        self._actions = actions

    async def act(self, scene: Scene) -> Move:
        return Move(action=self._actions[min(len(scene.steps), len(self._actions) - 1)], usage=PRICE)


class ActorWithABadLine:
    """Actor whose model cannot be reached from the given step on."""

    def __init__(self, from_step: int) -> None:
        self._from_step = from_step

    async def act(self, scene: Scene) -> Move:
        if len(scene.steps) >= self._from_step:
            raise EndpointFailure("The model 'gone' at http://localhost/v1 answered 500.")
        return Move(action="walk", usage=PRICE)


class Teacher:
    """Reflector that writes the text that `words` returns for the number of earlier calls, and fails if it is None."""

    def __init__(self, words: Callable[[int], str | None] = lambda call: "Say Paris.") -> None:
        self._words, self.calls, self.seeds = words, 0, list[int]()

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        text = self._words(self.calls)
        self.calls += 1
        self.seeds.append(seed)
        await asyncio.sleep(0)
        if text is None:
            raise EndpointFailure("The model 'teacher' at http://localhost/v1 answered 429: slow down.")
        return advice(text)


class School:
    """Pool of riddle environments; the first `broken` episodes cannot be opened."""

    def __init__(self, broken: int = 0) -> None:
        self.opened, self.most_at_once, self._open, self._broken = 0, 0, 0, broken

    @asynccontextmanager
    async def episode(self, subject: Task) -> AsyncIterator[Riddle]:
        self.opened += 1
        if self.opened <= self._broken:
            raise EnvironmentFailure("The school is closed.")
        self._open += 1
        self.most_at_once = max(self.most_at_once, self._open)
        try:
            await asyncio.sleep(0)
            yield Riddle()
        finally:
            self._open -= 1
