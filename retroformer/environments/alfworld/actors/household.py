"""ALFWorld player that is a small language model, trained to play on the compact text and to follow a line of advice.

It continues plain text, so its endpoint must serve completions, not chat. With `free` it may write anything, and the
environment answers meaningless actions. With `admissible` it chooses among the actions possible now, which only the
experiment's own server can enforce.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from retroformer.endpoint.model import Completion
from retroformer.environments.alfworld.text import compact
from retroformer.protocols import Move, OfferedActions, Scene

ACTION_TOKENS = 20
"""Token limit of an action, longer than the longest action in training."""

Choice = Literal["free", "admissible"]

_NEVER_OFFERED = frozenset({"look", "inventory", "help", "close", "slice"})
"""First words of commands that are always possible and that no ALFWorld task needs."""

_NO_ACTION = "look"
"""Action sent if the model writes an empty line."""


class Writer(Protocol):
    """Model that continues a text."""

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
        """Return the continuation up to a stop string; one of `choices` if given. Raises EndpointFailure."""
        ...


class HouseholdActor:
    """Actor that asks the model for one line of the compact text."""

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
        """Grammar to use if the choices of a scene do not show it."""

    async def act(self, scene: Scene) -> Move:
        """Return the next action, in the grammar of the environment. Raises EndpointFailure."""
        completion = await self.model.complete(
            household_prompt(scene),
            temperature=self.temperature,
            max_new_tokens=ACTION_TOKENS,
            stop=["\n"],
            seed=scene.seed if self.temperature else None,
            choices=[_continuation(command) for command in offered(scene)] if self.choice == "admissible" else None,
        )
        grammar = compact.heard_grammar(scene.choices, self.grammar)
        return Move(action=compact.spoken(_one_line(completion.text), grammar), usage=completion.usage)


def household_prompt(scene: Scene) -> str:
    """Return the attempt so far in the compact text, ending with `>`; the model adds ` ACTION` and a newline."""
    lines = [compact.header(scene.task, scene.opening, scene.memory.reflections)]
    for step in scene.steps:
        action = compact.command(step.action)
        lines.append(f"> {action}\n{compact.observation(action, step.observation)}\n")
    return f"{''.join(lines)}>"


def offered_actions(scene: Scene, grammar: compact.Grammar) -> OfferedActions:
    """Return what an admissible actor may choose among; `grammar` counts if the choices of the scene do not show it."""
    commands, heard = offered(scene), compact.heard_grammar(scene.choices, grammar)
    return OfferedActions(
        household_prompt(scene),
        tuple(_continuation(command) for command in commands),
        tuple(compact.spoken(command, heard) for command in commands),
    )


def offered(scene: Scene) -> tuple[str, ...]:
    """Return what an admissible actor may choose among, in the compact text and in alphabetical order.

    These are the possible actions except looking around, inventory, help, closing and slicing, and except examining
    things. Places can be examined: a place that shares its spot with another cannot be gone to from there. `go to` is
    offered for every place of the room, even if it is not possible now.
    """
    places = compact.read_opening(scene.opening).places
    commands = {compact.command(choice) for choice in scene.choices}
    return tuple(
        sorted({f"go to {place}" for place in places} | {command for command in commands if _leads_on(command, places)})
    )


def _leads_on(command: str, places: Sequence[str]) -> bool:
    verb, _, thing = command.partition(" ")
    return thing in places if verb == "examine" else verb not in _NEVER_OFFERED


def _continuation(command: str) -> str:
    return f" {command}\n"


def _one_line(text: str) -> str:
    lines = [line.strip().removeprefix(">").strip() for line in text.split("\n")]
    return next(filter(None, lines), _NO_ACTION)
