"""Actor that writes tests, then a program (Reflexion, section 4.3): one call each, over any OpenAI-compatible API."""

import re

from retroformer.endpoint.model import LanguageModel
from retroformer.environments.programming.environment import TESTS
from retroformer.prompts import PromptPack, program_prompt, tests_prompt
from retroformer.protocols import Move, Scene
from retroformer.records import Message

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class ProgrammingActor:
    """Programming actor with a frozen language model. Later attempts keep the tests of the first attempt."""

    def __init__(
        self, model: LanguageModel, pack: PromptPack, temperature: float, max_new_tokens: int, *, writes_tests: bool
    ) -> None:
        self._model, self._pack, self._writes_tests = model, pack, writes_tests
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """Return tests as the first action, if any are allowed, then the program. Raises EndpointFailure."""
        if not self._writes_tests or scene.steps:
            return await self._write(scene, program_prompt(self._pack, scene))
        last = scene.memory.last_trajectory
        if last is not None and last.steps and last.steps[0].action.startswith(TESTS):
            return Move(action=last.steps[0].action)
        written = await self._write(scene, tests_prompt(self._pack, scene))
        return written.model_copy(update={"action": f"{TESTS}\n{written.action}"})

    async def _write(self, scene: Scene, prompt: tuple[Message, ...]) -> Move:
        completion = await self._model.complete(
            prompt,
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            seed=scene.seed if self._temperature else None,
        )
        return Move(action=code_in(completion.text), usage=completion.usage)


def code_in(text: str) -> str:
    """Return the content of the first code fence, closed or not; the whole text if there is none."""
    fenced = _FENCED.search(text)
    return (fenced[1] if fenced else text).rstrip()
