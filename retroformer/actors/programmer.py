"""Writes tests, then a program (Reflexion, section 4.3): one call for each, over any OpenAI-compatible endpoint."""

import re

from retroformer.environments.programming.environment import TESTS
from retroformer.llm import LanguageModel
from retroformer.prompts import Pack, program_prompt, tests_prompt
from retroformer.protocols import Move, Scene
from retroformer.records import Message

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class ProgrammingActor:
    """A frozen language model that programs. The tests of the first attempt stay those of the later ones."""

    def __init__(
        self, model: LanguageModel, pack: Pack, temperature: float, max_new_tokens: int, *, writes_tests: bool
    ) -> None:
        self._model, self._pack, self._writes_tests = model, pack, writes_tests
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """Tests as the first action, where there are to be any, then the program. Raises EndpointFailure."""
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
    """What stands in the first fence, closed or not; all of the text where there is none."""
    fenced = _FENCED.search(text)
    return (fenced[1] if fenced else text).rstrip()
