"""ReAct (Yao et al. 2023) over any OpenAI-compatible endpoint: one thought and one action a call."""

import re

from retroformer.llm import LanguageModel
from retroformer.prompts import Pack, react_prompt
from retroformer.protocols import Move, Scene

_STOP = ("\nObservation",)
_ACTION = re.compile(r"^\s*\**action\b[^:\n]*:\**[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_NEXT_STEP = re.compile(r"^\s*\**(observation|thought|question)\b[^:\n]*:", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(r"^\s*\**thought\b[^:\n]*:\**", re.IGNORECASE)
_CALL = re.compile(r"\b(search|lookup|finish|click|think)\s*\[", re.IGNORECASE)


class ReactActor:
    """A frozen language model that thinks, then acts."""

    def __init__(self, model: LanguageModel, pack: Pack, temperature: float, max_new_tokens: int) -> None:
        self._model, self._pack = model, pack
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """The next thought and action. Raises EndpointFailure."""
        completion = await self._model.complete(
            react_prompt(self._pack, scene),
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            stop=_STOP,
            seed=scene.seed if self._temperature else None,
        )
        thought, action = parse(completion.text)
        return Move(thought=thought, action=action, usage=completion.usage)


def parse(text: str) -> tuple[str, str]:
    """The first thought and the first action of what a model wrote.

    Chat models write several steps at once, bold their labels, leave labels out or invent the observation; what comes
    after the first action is not theirs to say and is dropped. Where there is no action at all, the last line is
    taken for one: the environment answers what makes no sense.
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
