"""Evaluators that judge attempts without the true outcome (Reflexion, sections 3 and 4.1)."""

from dataclasses import dataclass

from retroformer.endpoint.model import LanguageModel
from retroformer.method.prompts import PromptPack, judge_prompt
from retroformer.method.protocols import Judgement
from retroformer.method.records import Ending, Trajectory, Transition

_FAILED_ENDINGS = frozenset({Ending.REPETITION, Ending.TOO_MANY_ACTIONS, Ending.STEP_LIMIT})
_ANSWER_TOKENS = 8


class HeuristicEvaluator:
    """Evaluator that counts an attempt as failed if it repeated itself or took too long, else as solved."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """Judge the attempt by its ending."""
        return Judgement(solved=attempt.ending not in _FAILED_ENDINGS)


class TestsEvaluator:
    """Evaluator for which a program is correct if it passed the agent's own tests; without tests none is."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """Judge the attempt by the tests of the last transition."""
        return Judgement(solved=bool(last.tests_passed))


@dataclass(frozen=True)
class ModelEvaluator:
    """Evaluator that asks a language model whether the attempt solved the task."""

    model: LanguageModel
    pack: PromptPack
    characters: int
    """Largest number of characters of an attempt in the prompt."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """Count the attempt as solved if the answer begins with yes. Raises EndpointFailure."""
        prompt = judge_prompt(self.pack, self.characters, attempt)
        answer = await self.model.complete(prompt, temperature=0.0, max_new_tokens=_ANSWER_TOKENS)
        words = answer.text.strip().strip("*\"'`").lower()
        return Judgement(solved=words.startswith("yes"), usage=answer.usage)
