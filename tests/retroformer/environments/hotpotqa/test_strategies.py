"""Tests of Reflexion's strategies on HotPotQA (section 4.2) with the real loop, actor, reflector and environment."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from retroformer.config.parts import Parts, chosen_tasks, parts
from retroformer.method.prompts import load_pack
from retroformer.method.records import Memory, Outcome, Reflection, Trajectory
from retroformer.method.rollout import improve, rollout
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import open_config

QUESTION = "Where was the director of Harrow born?"
FACTS = [["Harrow (film)", 0], ["Ada Lind", 0]]
PAGES = {"Harrow (film)": "Harrow is a film by Ada Lind.", "Ada Lind": "Ada Lind was born in Bergen."}
CONTEXT = "Context: Harrow is a film by Ada Lind.\nAda Lind was born in Bergen.\n"
STRATEGIES: dict[str, Any] = {
    "react": {"prompts": "default", "environment": {"max_steps": 6}},
    "cot": {"prompts": "cot", "environment": {"max_steps": 1}},
    "cot-context": {"prompts": "cot-context", "environment": {"max_steps": 1, "context": True}},
}


def student(body: Body) -> str:
    """Answer Oslo at first, Voss if the prompt shows that Oslo was wrong, and Bergen if it has advice."""
    prompt = prompt_of(body)
    if "Advice for the next attempt" in prompt:
        return "It is Bergen."
    attempt = prompt.rpartition("finished examples.")[2]
    wrong = "Finish[Oslo]\nObservation 1: Answer is INCORRECT"
    answer = "Bergen" if "It is Bergen." in attempt else "Voss" if wrong in attempt else "Oslo"
    return f" I think so.\nAction 1: Finish[{answer}]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    row = {"id": "born", "question": QUESTION, "answer": "Bergen", "supporting_facts": FACTS}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row))
    pages = [json.dumps({"title": title, "sentences": [text]}) for title, text in PAGES.items()]
    (tmp_path / "docstore.jsonl").write_text("\n".join(pages))
    return tmp_path


def write_strategy(folder: Path, url: str, strategy: str, last_attempt: bool) -> Path:
    knobs = STRATEGIES[strategy]
    model = {"base_url": url, "model": "student"}
    config = {
        "run": "toy",
        "environment": {"name": "hotpotqa", "data": str(folder), "split": "all", "reward": "em"} | knobs["environment"],
        "loop": {"trials": 2, "last_attempt": last_attempt},
        "actor": {"kind": "react", "prompts": knobs["prompts"], "endpoint": model},
        "reflector": {"endpoint": model},
    }
    path = folder / "page.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


async def trials_of(made: Parts, is_advised: bool) -> list[Trajectory]:
    """Return the attempts at the only question; a reflection precedes the second if there is one."""
    (task,) = chosen_tasks(made.experiment, None)
    agent = made.agent(made.reflector(made.experiment.reflector.endpoint.named("student"), 0.0))
    attempts = list[Trajectory]()

    async def attempt(memory: Memory, trial: int, candidate: int) -> Trajectory:
        async with made.pool.episode(task) as episode:
            attempts.append(await rollout(task, episode, agent, memory, made.experiment.loop))
        return attempts[-1]

    async def advise(failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int) -> Reflection:
        written = await agent.reflector.reflect(failure, memory, 0)
        return written if is_advised else written.model_copy(update={"text": ""})

    await improve(attempt, advise, made.experiment.loop)
    return attempts


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("is_advised", "last_attempt", "second"),
    [(False, False, "Oslo"), (False, True, "Voss"), (True, False, "Bergen"), (True, True, "Bergen")],
    ids=["no memory", "last attempt", "reflections", "both"],
)
def test_a_second_attempt_sees_the_content_of_its_memory(
    folder: Path, strategy: str, is_advised: bool, last_attempt: bool, second: str
) -> None:
    async def play(url: str) -> list[Trajectory]:
        config = open_config(write_strategy(folder, url, strategy, last_attempt))
        async with parts(config, asks_reflector=True) as made:
            return await trials_of(made, is_advised)

    with Endpoint(student) as server:
        first, retry = asyncio.run(play(server.url))
    assert (first.steps[0].action, first.outcome) == ("Finish[Oslo]", Outcome.FAILURE)
    assert retry.steps[0].action == f"Finish[{second}]"
    assert (retry.outcome, retry.episode_return) == ((Outcome.SUCCESS, 1) if is_advised else (Outcome.FAILURE, 0))
    assert first.opening == (CONTEXT if strategy == "cot-context" else "") + f"Question: {QUESTION}"
    acting, looking_back, _ = [prompt_of(body) for body in server.requests]
    pack = load_pack(STRATEGIES[strategy]["prompts"], "hotpotqa")
    assert pack.act in acting + "\n"
    assert acting.endswith(f"{first.opening}\nThought 1:")
    assert pack.reflect.strip() in looking_back
    assert first.opening in looking_back
