"""Tests of our environments as environments of verifiers, with the real package and a real endpoint."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("verifiers")
pytest.importorskip("retroformer.integrations.verifiers")

import verifiers as vf
from verifiers.types import ClientConfig

from tests.support import locked_door
from tests.support.endpoint import Body, Endpoint

PACK = {
    "act": "Open the door.",
    "examples": ["Thought 1: I listen.\nAction 1: wait\nObservation 1: Time goes by."],
    "remember": "Advice:",
    "reflect": "Why?",
    "ask": "Advice:",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the config of an installed environment with prompts of its own."""
    locked_door.install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{Path(__file__).parents[4]}")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (tmp_path / "pack.yaml").write_text(yaml.safe_dump(PACK))
    experiment = {
        "run": "doors",
        "environment": {"name": "locked_door"},
        "actor": {"kind": "react", "prompts": "pack.yaml"},
        "eval": {"split": "held_out"},
    }
    path = tmp_path / "doors.yaml"
    path.write_text(yaml.safe_dump(experiment))
    return path


def play(environment: Any, server: Endpoint, count: int) -> list[dict[str, Any]]:
    client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=server.url, max_retries=0)
    results = environment.evaluate_sync(client, "player", num_examples=count, rollouts_per_example=1)
    asyncio.run(environment.stop_processes())
    outputs: list[dict[str, Any]] = results["outputs"]
    return outputs


def open_rooms_with_even_numbers(body: Body) -> str:
    """Take the key and open the door; in rooms with odd numbers sing."""
    turns = body["messages"]
    opening = next(turn["content"] for turn in turns if "Room " in turn["content"])
    number = int(opening.partition("held_out/")[2].partition(".")[0])
    answers = sum(turn["role"] == "assistant" for turn in turns)
    action = "sing" if number % 2 else ("take", "open")[answers % 2]
    return f"I try it.\nAction {answers + 1}: {action}"


def test_verifiers_plays_our_tasks_and_its_reward_is_the_return(config: Path) -> None:
    environment = vf.load_environment("retroformer.integrations.verifiers", config=str(config))
    assert len(environment.get_dataset()) == len(environment.get_eval_dataset()) == 8
    with Endpoint(open_rooms_with_even_numbers) as server:
        outputs = play(environment, server, 4)
        first = server.requests[0]["messages"]
    assert {output["info"]["id"]: output["reward"] for output in outputs} == {
        "held_out/0": 1.0,
        "held_out/1": 0.0,
        "held_out/2": 1.0,
        "held_out/3": 0.0,
    }
    assert first[0]["content"].startswith("Open the door.\n\nThought 1: I listen.")
    (solved,) = [output for output in outputs if output["info"]["id"] == "held_out/0"]
    assert [turn["content"] for turn in solved["completion"] if turn["role"] == "user"] == ["You have it.", "It opens."]


def test_a_task_that_cannot_be_started_is_an_error_and_not_a_reward(config: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("")
    environment = vf.load_environment(
        "retroformer.integrations.verifiers",
        config=str(config),
        overrides=(f"environment.broken_file={broken}",),
        tasks=1,
    )
    assert len(environment.get_eval_dataset()) == 1
    with Endpoint(open_rooms_with_even_numbers) as server:
        (output,) = play(environment, server, 1)
    assert "is being painted" in output["error"]["error_chain_repr"]
    assert server.requests == []


def test_an_actor_that_is_a_program_is_refused(config: Path) -> None:
    with pytest.raises(RuntimeError, match="The rule actor is a program"):
        vf.load_environment(
            "retroformer.integrations.verifiers",
            config=str(config),
            overrides=("environment={name: alfworld, source: generated}", "actor={kind: rule}"),
        )
