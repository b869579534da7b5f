"""Actor that chooses one of the possible actions: a language model that continues the attempt as plain text.

It plays every environment that lists what can be done, and `train sac` can train it. Its endpoint must serve
completions; only the experiment's own server can hold a model to listed texts.
"""

from collections.abc import Callable, Sequence

from retroformer.endpoint.model import LanguageModel
from retroformer.errors import ConfigError
from retroformer.protocols import Move, OfferedActions, Scene

Choices = Callable[[Scene], Sequence[str]]
"""Function that lists the possible actions of a scene."""


class Chooser:
    """Actor that asks its model for one of the actions that `choices` lists."""

    def __init__(self, model: LanguageModel, choices: Choices, temperature: float, max_new_tokens: int) -> None:
        self._model, self._choices = model, choices
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """Return the next action. Raises EndpointFailure, or ConfigError if none is listed."""
        offered = offered_among(self._choices, scene)
        completion = await self._model.complete(
            offered.prompt,
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            stop=["\n"],
            seed=scene.seed if self._temperature else None,
            choices=offered.continuations,
        )
        actions = dict(zip(offered.continuations, offered.actions, strict=True))
        # Without room for the whole choice its beginning is sent, and the environment answers that it is none.
        return Move(
            action=actions.get(f"{completion.text}\n", completion.text.strip() or "nothing"), usage=completion.usage
        )


def offered_among(choices: Choices, scene: Scene) -> OfferedActions:
    """Return the attempt so far, ending with `>`, and the actions that may follow. Raises ConfigError if none may."""
    listed = {f" {' '.join(action.split())}\n": action for action in choices(scene)}
    if not listed:
        raise ConfigError(
            "actor.kind=chooser needs an environment that lists the possible actions (departure 26), and a state of "
            f"{scene.task.environment} has none: set actor.kind or environment.name to another."
        )
    advice = "".join(f"Advice: {' '.join(text.split())}\n" for text in scene.memory.reflections)
    played = "".join(f"> {step.action}\n{step.observation}\n" for step in scene.steps)
    return OfferedActions(f"{advice}{scene.opening}\n{played}>", tuple(listed), tuple(listed.values()))
