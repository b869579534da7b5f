"""The programming actor over a real endpoint, through the loop: tests once, programs until they pass."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retroformer.agents.arms.baselines import NoReflector
from retroformer.agents.evaluators import TestsEvaluator
from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.config.sections.base import Loop, RetryPlan
from retroformer.endpoint.model import LanguageModel
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.programming import ProgrammingActor, code_in
from retroformer.environments.programming.environment import Programming
from retroformer.method.prompts import load_pack
from retroformer.method.protocols import Agent
from retroformer.method.records import Memory, Outcome, Reflection, Task, Trajectory
from retroformer.method.rollout import improve, rollout
from tests.support.characters import advice
from tests.support.endpoint import Body, Endpoint, prompt_of

TESTS = "The number may be negative.\n```python\nassert double(3) == 6\nassert double(-1) == -2\n```"
WRONG, RIGHT = "```python\ndef double(n):\n    return n * n\n```", "```\ndef double(n):\n    return 2 * n\n```"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1"),
        ("```rust\nfn f() {}\n", "fn f() {}"),
        ("    return 1\n", "    return 1"),
        ("```\na\n```\n```\nb\n```", "a"),
    ],
)
def test_the_program_is_the_content_of_the_first_code_fence(text: str, code: str) -> None:
    assert code_in(text) == code


def reply(body: Body) -> str:
    """Reply with tests if asked for tests, else with a wrong program, or the right one if the prompt has advice."""
    if "You write tests" in prompt_of(body):
        return TESTS
    return RIGHT if "Add, do not multiply." in prompt_of(body) else WRONG


def test_a_failed_program_is_tried_again_with_advice_and_the_same_tests(tmp_path: Path) -> None:
    problem = {
        "id": "double",
        "prompt": 'def double(n):\n    """Twice n."""\n',
        "entry_point": "double",
        "tests": ["assert double(4) == 8"],
    }
    (tmp_path / "own.jsonl").write_text(json.dumps(problem) + "\n")
    section = Programming(data=tmp_path, split="own.jsonl")
    made = list[Trajectory]()

    async def play(server: Endpoint) -> None:
        model = LanguageModel(EndpointSection(base_url=server.url), server.url)
        actor = ProgrammingActor(model, load_pack("default", "programming"), 0.0, 200, writes_tests=True)
        agent = Agent(actor, NoReflector(), TestsEvaluator())
        loop = Loop(trials=4, memory=1, last_attempt=True)
        task = Task(id="double", environment="programming", split="own.jsonl")

        async with EnvironmentPool(section, 0, 1, 60.0) as pool:

            async def attempt(memory: Memory, trial: int, candidate: int) -> Trajectory:
                async with pool.episode(task) as episode:
                    made.append(await rollout(task, episode, agent, memory, loop))
                return made[-1]

            async def advise(*_: Any) -> Reflection:
                return advice("Add, do not multiply.")

            await improve(attempt, advise, loop, RetryPlan(candidates=1))
        await model.close()

    with Endpoint(reply) as server:
        asyncio.run(play(server))
    assert [(attempt.outcome, attempt.judged) for attempt in made] == [
        (Outcome.FAILURE, False),
        (Outcome.SUCCESS, True),
    ]
    assert made[0].steps[0] == made[1].steps[0], "the tests of the first attempt stay"
    asked = [prompt_of(body) for body in server.requests]
    assert len(asked) == 3, "tests are written once"
    assert "return n * n" in asked[2]
    assert "assert double(3) == 6" in asked[2]
