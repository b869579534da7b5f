"""An ALFWorld player that is a small language model, taught to play on the compact text and to heed a line of advice.

It continues plain text, so its endpoint must serve completions, not chat. `free`, it may write anything, and an action
that makes no sense is answered by the environment. `admissible`, it chooses among the actions that are possible now,
which only the experiment's own server can hold it to.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from retroformer.environments.alfworld import compact
from retroformer.llm import Completion
from retroformer.protocols import Move, Scene

ACTION_TOKENS = 20
"""Longer than the longest action the model was taught."""

Choice = Literal["free", "admissible"]

_NEVER_OFFERED = frozenset({"look", "inventory", "help", "close", "slice"})
"""First words of commands that are always possible and that no task of ALFWorld needs."""

_NO_ACTION = "look"
"""Sent where the model wrote an empty line."""


class Writer(Protocol):
    """A model that continues a text."""

    async def complete(
        self,
        prompt: str,
        *,
        temperature: float,
        max_new_tokens: int,
        stop: Sequence[str] = ...,
        seed: int | None = ...,
        choices: Sequence[str] | None = ...,
    ) -> Completion:
        """What comes next, up to a stop string; one of the choices where they are given. Raises EndpointFailure."""
        ...


class HouseholdActor:
    """Asks the model for one line of the compact text."""

    def __init__(
        self,
        model: Writer,
        temperature: float = 0.0,
        grammar: compact.Grammar = "move",
        choice: Choice = "free",
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.choice: Choice = choice
        self.grammar: compact.Grammar = grammar
        """Spoken where the choices of a scene do not show which grammar is asked for."""

    async def act(self, scene: Scene) -> Move:
        """The next action, in the grammar of the environment. Raises EndpointFailure."""
        completion = await self.model.complete(
            household_prompt(scene),
            temperature=self.temperature,
            max_new_tokens=ACTION_TOKENS,
            stop=["\n"],
            seed=scene.seed if self.temperature else None,
            choices=[f" {command}\n" for command in offered(scene)] if self.choice == "admissible" else None,
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


def offered(scene: Scene) -> tuple[str, ...]:
    """What an admissible actor may choose among, in the compact text and in alphabetical order.

    The possible actions without looking around, help, closing and slicing, and without examining things. Places can be
    examined: one that shares its spot with another cannot be gone to from there. To go is offered for every place of
    the room, also where it is not possible.
    """
    places = compact.read_opening(scene.opening).places
    commands = {compact.command(choice) for choice in scene.choices}
    return tuple(sorted({f"go to {place}" for place in places} | {one for one in commands if _leads_on(one, places)}))


def _leads_on(command: str, places: Sequence[str]) -> bool:
    verb, _, thing = command.partition(" ")
    return thing in places if verb == "examine" else verb not in _NEVER_OFFERED


def _one_line(text: str) -> str:
    lines = [line.strip().removeprefix(">").strip() for line in text.split("\n")]
    return next(filter(None, lines), _NO_ACTION)
