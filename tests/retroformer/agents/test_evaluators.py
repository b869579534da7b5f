"""Tests of the evaluators that do not see the true outcome: by the ending, by the agent's tests, and by a model."""

import asyncio

import pytest

from retroformer.agents.evaluators import HeuristicEvaluator, ModelEvaluator, TestsEvaluator
from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.model import LanguageModel
from retroformer.method.prompts import load_pack
from retroformer.method.records import Ending, Transition
from tests.support.characters import attempt_at
from tests.support.endpoint import Endpoint

SEEN = Transition(observation="Noted.")


@pytest.mark.parametrize(
    ("ending", "solved"),
    [
        (Ending.SOLVED, True),
        (Ending.TERMINATED, True),
        (Ending.REPETITION, False),
        (Ending.TOO_MANY_ACTIONS, False),
        (Ending.STEP_LIMIT, False),
    ],
)
def test_the_heuristic_sees_only_how_an_attempt_ended(ending: Ending, solved: bool) -> None:
    attempt = attempt_at().model_copy(update={"ending": ending})
    assert asyncio.run(HeuristicEvaluator().judge(attempt, SEEN)).solved is solved


@pytest.mark.parametrize(("passed", "solved"), [(True, True), (False, False), (None, False)])
def test_a_program_is_right_for_its_author_if_it_passed_the_authors_tests(passed: bool | None, solved: bool) -> None:
    last = SEEN.model_copy(update={"tests_passed": passed})
    assert asyncio.run(TestsEvaluator().judge(attempt_at(), last)).solved is solved


@pytest.mark.parametrize(
    ("answer", "solved"),
    [(" Yes.", True), ("**YES**, it did", True), ("No.", False), ("The agent said yes.", False), ("", False)],
)
def test_a_models_verdict_is_yes_only_if_it_begins_with_yes(answer: str, solved: bool) -> None:
    with Endpoint(reply=lambda body: answer) as server:

        async def once() -> bool:
            model = LanguageModel(EndpointSection(base_url=server.url), server.url)
            try:
                judge = ModelEvaluator(model, load_pack("default", "hotpotqa"), 5000)
                judgement = await judge.judge(attempt_at(), SEEN)
                assert judgement.usage.calls == 1
                return judgement.solved
            finally:
                await model.close()

        assert asyncio.run(once()) is solved
        assert "What is it?" in server.requests[0]["messages"][1]["content"]
