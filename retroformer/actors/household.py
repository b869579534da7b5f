"""An ALFWorld player that is a small language model, taught to play on the compact text and to heed a line of advice.

It continues plain text, so its endpoint must serve completions, not chat. Nothing limits what it writes: an action that
makes no sense is answered by the environment.
"""

from collections.abc import Sequence
from typing import Protocol

from retroformer.environments.alfworld import compact
from retroformer.llm import Completion
from retroformer.protocols import Move, Scene

ACTION_TOKENS = 20
"""Longer than the longest action the model was taught."""

_NO_ACTION = "look"
"""Sent where the model wrote an empty line."""


class Writer(Protocol):
    """A model that continues a text."""

    async def complete(
        self, prompt: str, *, temperature: float, max_new_tokens: int, stop: Sequence[str] = ...
    ) -> Completion:
        """What comes next. Raises EndpointFailure."""
        ...


class HouseholdActor:
    """Asks the model for one line of the compact text."""

    def __init__(self, model: Writer, temperature: float = 0.0, grammar: compact.Grammar = "move") -> None:
        self.model = model
        self.temperature = temperature
        self.grammar: compact.Grammar = grammar
        """Spoken where the choices of a scene do not show which grammar is asked for."""

    async def act(self, scene: Scene) -> Move:
        """The next action, in the grammar of the environment. Raises EndpointFailure."""
        completion = await self.model.complete(
            household_prompt(scene), temperature=self.temperature, max_new_tokens=ACTION_TOKENS, stop=["\n"]
        )
        grammar = compact.heard_grammar(scene.choices, self.grammar)
        return Move(action=compact.spoken(_one_line(completion.text), grammar), usage=completion.usage)


def household_prompt(scene: Scene) -> str:
    """The attempt so far in the compact text. It ends with `>`; the model writes a blank, an action and a line end."""
    lines = [compact.header(scene.task, scene.opening, scene.memory.reflections)]
    for step in scene.steps:
        action = compact.command(step.action)
        lines.append(f"> {action}\n{compact.observation(action, step.observation)}\n")
    return f"{''.join(lines)}>"


def _one_line(text: str) -> str:
    lines = [line.strip().removeprefix(">").strip() for line in text.split("\n")]
    return next(filter(None, lines), _NO_ACTION)
