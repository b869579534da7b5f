"""Who says whether an attempt failed where the true outcome is not told (Reflexion, sections 3 and 4.1)."""

from retroformer.llm import LanguageModel
from retroformer.prompts import Pack, judge_prompt
from retroformer.protocols import Judgement
from retroformer.records import Ending, Trajectory, Transition

_GAVE_UP = frozenset({Ending.REPETITION, Ending.TOO_MANY_ACTIONS, Ending.STEP_LIMIT})
_ANSWER_TOKENS = 8


class HeuristicEvaluator:
    """An attempt failed if it went in circles or for too long; whatever else ended it counts as solved."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """By how the attempt ended."""
        return Judgement(solved=attempt.ending not in _GAVE_UP)


class TestsEvaluator:
    """A program is taken for right if it passed the tests that the agent wrote itself; without tests nothing is."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """By the tests of the last transition."""
        return Judgement(solved=bool(last.tests_passed))


class ModelEvaluator:
    """A language model reads the attempt and says yes or no."""

    def __init__(self, model: LanguageModel, pack: Pack, characters: int) -> None:
        self._model, self._pack, self._characters = model, pack, characters

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """Solved where the answer begins with a yes; anything else is a no. Raises EndpointFailure."""
        prompt = judge_prompt(self._pack, self._characters, attempt)
        answer = await self._model.complete(prompt, temperature=0.0, max_new_tokens=_ANSWER_TOKENS)
        words = answer.text.strip().strip("*\"'`").lower()
        return Judgement(solved=words.startswith("yes"), usage=answer.usage)
