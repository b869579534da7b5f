"""ReAct (Yao et al. 2023) over any OpenAI-compatible endpoint: one thought and one action per call."""

import re

from retroformer.endpoint.model import LanguageModel
from retroformer.prompts import PromptPack, react_prompt
from retroformer.protocols import Move, Scene

_STOP = {"labelled": ("\nObservation",), "commands": ("\n",)}
"""Text at which the model stops writing, by the pack's layout."""
_ACTION = re.compile(r"^\s*\**action\b[^:\n]*:\**[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_NEXT_STEP = re.compile(r"^\s*\**(observation|thought|question)\b[^:\n]*:", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(r"^\s*\**thought\b[^:\n]*:\**", re.IGNORECASE)
_CALL = re.compile(r"\b(search|lookup|finish|click|think)\s*\[", re.IGNORECASE)


class ReactActor:
    """A frozen language model that thinks, then acts."""

    def __init__(self, model: LanguageModel, pack: PromptPack, temperature: float, max_new_tokens: int) -> None:
        self._model, self._pack = model, pack
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """Choose the next thought and action. Raises EndpointFailure."""
        completion = await self._model.complete(
            react_prompt(self._pack, scene),
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            stop=_STOP[self._pack.layout],
            seed=scene.seed if self._temperature else None,
        )
        thought, action = ("", command(completion.text)) if self._pack.layout == "commands" else parse(completion.text)
        return Move(thought=thought, action=action, usage=completion.usage)


def command(text: str) -> str:
    """Return the first line of a model's text as an action; a thought is the action `think: ...`."""
    lines = (line.strip().removeprefix(">").strip() for line in text.splitlines())
    return next((line.strip("`*") for line in lines if line), "")


def parse(text: str) -> tuple[str, str]:
    """Parse the first thought and the first action from a model's text.

    Chat models write several steps at once, bold their labels, leave labels out or invent the observation; everything
    after the first action is dropped. If there is no action, the last line is used as one: the environment answers
    actions that make no sense.
    """
    text = _LABEL.sub("", text.strip(), count=1).strip()
    if marked := _ACTION.search(text):
        thought, action = text[: marked.start()], marked.group(1)
        if not action.strip():
            action = next((line for line in text[marked.end() :].splitlines() if line.strip()), "")
    else:
        if later := _NEXT_STEP.search(text):
            text = text[: later.start()]
        lines = [line for line in text.splitlines() if line.strip()]
        calls = [line for line in lines if _CALL.search(line)]
        action = calls[0] if calls else lines[-1] if lines else ""
        thought = text.partition(action)[0] if action else ""
        if called := _CALL.search(action):
            thought, action = thought + action[: called.start()], action[called.start() :]
    return " ".join(thought.split()), action.strip().strip("`*").removeprefix(">").strip()
