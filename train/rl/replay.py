"""The replay buffer of SAC: every step that the actor has played, in memory and in the checkpoints."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..shared_prompt.group import Group


class PlayedStep(NamedTuple):
    """A state, the action chosen in it, and what followed."""

    state: Group
    embedding_H: Tensor
    """Embedding of the state, on the CPU."""
    action: int
    """Number of the chosen action among those of the state."""
    reward: float
    over: bool
    """True if the attempt ended with this action, for whatever reason."""


class Transitions(NamedTuple):
    """A batch of steps with the states that followed them."""

    steps: list[PlayedStep]
    following: list[PlayedStep]
    """The next step of the same attempt; at the end of an attempt the step itself, whose value is not used."""


class Replay:
    """All steps played so far, attempt after attempt. None is dropped: a run plays fewer steps than fit in memory."""

    def __init__(self, steps: Sequence[PlayedStep] = ()) -> None:
        self._steps = list(steps)

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, attempt: Sequence[PlayedStep]) -> None:
        """Add the steps of one finished attempt.

        Raises:
            ValueError: its last step is not marked as its end, so the next attempt would seem to continue it.
        """
        if not attempt or not attempt[-1].over:
            raise ValueError("The last step of an attempt must be over.")
        self._steps += attempt

    def draw(self, count: int) -> Transitions:
        """Draw transitions uniformly with replacement, from torch's random state."""
        numbers = torch.randint(len(self._steps), (count,)).tolist()
        steps = [self._steps[number] for number in numbers]
        following = [
            step if step.over else self._steps[number + 1] for number, step in zip(numbers, steps, strict=True)
        ]
        return Transitions(steps, following)

    def state(self) -> dict[str, Any]:
        """Return all steps in the plain types that a checkpoint may hold."""
        return {
            "prompts": [step.state.prompt for step in self._steps],
            "actions": [step.state.responses for step in self._steps],
            "embeddings": torch.stack([step.embedding_H for step in self._steps]) if self._steps else torch.empty(0),
            "chosen": [step.action for step in self._steps],
            "rewards": [step.reward for step in self._steps],
            "over": [step.over for step in self._steps],
        }

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Replay":
        """Return the buffer with this `state`."""
        tokens = [Group(prompt, actions) for prompt, actions in zip(state["prompts"], state["actions"], strict=True)]
        columns = (tokens, state["embeddings"].cpu(), state["chosen"], state["rewards"], state["over"])
        return cls([PlayedStep(*step) for step in zip(*columns, strict=True)])
