"""Tests of the actor with native tool calling: real environments, a real server, and everything a model may answer."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from retroformer.config.parts import chosen_tasks, parts
from retroformer.errors import ConfigError
from retroformer.method.records import Memory, Outcome, Trajectory
from retroformer.method.rollout import rollout
from tests.support.endpoint import Behaviour, Body, Endpoint, prompt_of
from tests.support.runs import open_config
from tests.support.tool_model import called, tool_results

PAGES = {"Harrow (film)": "Harrow is a film by Ada Lind.", "Ada Lind": "Ada Lind was born in Bergen."}
DIRECTOR = ("Search", {"title": "Harrow (film)"})
BIRTHPLACE = ("Search", {"title": "Ada Lind"})
ANSWER = ("Finish", {"answer": "Bergen"})


def write_questions(folder: Path) -> None:
    question = {
        "id": "q1",
        "question": "Where was the director of Harrow born?",
        "answer": "Bergen",
        "supporting_facts": [[title, 0] for title in PAGES],
    }
    (folder / "questions.jsonl").write_text(json.dumps(question) + "\n")
    rows = [{"title": title, "sentences": [text]} for title, text in PAGES.items()]
    (folder / "docstore.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_config(folder: Path, url: str | None, environment: dict[str, Any], **actor: Any) -> Path:
    endpoint = {"model": "caller", "timeout_seconds": 20.0} | ({"base_url": url} if url else {})
    config = {
        "run": "tools",
        "environment": environment,
        "loop": {"concurrency": 1, "retries": 0, "actions": 8},
        "actor": {"kind": "tools", "endpoint": endpoint} | actor,
    }
    (folder / "tools.yaml").write_text(yaml.safe_dump(config))
    return folder / "tools.yaml"


def attempt(path: Path, memory: Memory | None = None) -> Trajectory:
    """Play the first task of a config once, without a reflector."""

    async def play() -> Trajectory:
        config = open_config(path)
        (task,) = chosen_tasks(config.experiment, 1)
        async with parts(config, asks_reflector=False) as made, made.pool.episode(task) as episode:
            agent = made.agent(None)  # type: ignore[arg-type]  # Nobody reflects here.
            return await rollout(task, episode, agent, memory or Memory(), config.experiment.loop)

    return asyncio.run(play())


def ask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answers: Sequence[str | Body] | Callable[[Body], str | Body]
) -> tuple[Trajectory, Endpoint]:
    """Return an attempt at the question by a model with these answers, and its server."""
    monkeypatch.setenv("RETROFORMER_CACHE", str(folder / "cache"))
    write_questions(folder)
    rest = iter(()) if callable(answers) else iter(answers)
    with Endpoint(answers if callable(answers) else lambda body: next(rest)) as server:
        environment = {"name": "hotpotqa", "data": str(folder), "split": "all", "max_steps": 6}
        return attempt(write_config(folder, server.url, environment)), server


def test_calls_of_tools_are_the_actions_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [called(DIRECTOR, text="Who directed it?"), called(BIRTHPLACE), called(ANSWER)]
    made, server = ask(tmp_path, monkeypatch, answers)
    assert [(step.thought, step.action) for step in made.steps] == [
        ("Who directed it?", "Search[Harrow (film)]"),
        ("", "Search[Ada Lind]"),
        ("", "Finish[Bergen]"),
    ]
    assert (made.outcome, made.usage.calls) == (Outcome.SUCCESS, 3)
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["Search", "Lookup", "Finish"]
    assert tool_results(server.requests[-1]) == list(PAGES.values())


def test_several_calls_of_one_answer_are_done_in_turn_and_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, server = ask(tmp_path, monkeypatch, [called(DIRECTOR, BIRTHPLACE, text="Both."), called(ANSWER, DIRECTOR)])
    assert [step.thought for step in made.steps] == ["Both.", "", ""]
    assert [step.action for step in made.steps][1:] == ["Search[Ada Lind]", "Finish[Bergen]"]
    assert made.outcome is Outcome.SUCCESS
    assert made.usage.calls == len(server.requests) == 2
    assert tool_results(server.requests[-1]) == list(PAGES.values())


@pytest.mark.parametrize(
    ("faulty", "action", "words"),
    [
        (called(("Search", '{"title": ')), 'Search({"title": )', "The arguments of Search are not JSON"),
        (called(("Search", "[1]")), "Search([1])", "The arguments of Search are not a JSON object"),
        (called(("Search", {"page": "x"})), 'Search({"page": "x"})', "The call of Search lacks title"),
        (called(("Dance", {})), "Dance({})", "There is no tool 'Dance': call one of Search, Lookup, Finish."),
        ({"content": None, "tool_calls": [{"id": "x"}]}, "({})", "There is no tool ''"),
    ],
)
def test_a_call_that_cannot_be_done_is_the_agents_own_failure_and_it_reads_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: Body, action: str, words: str
) -> None:
    made, server = ask(tmp_path, monkeypatch, [faulty, called(ANSWER)])
    assert made.steps[0].action == action
    assert words in made.steps[0].observation
    assert made.outcome is Outcome.SUCCESS
    assert words in prompt_of(server.requests[1])


def test_an_answer_without_a_call_is_an_action_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = ask(tmp_path, monkeypatch, ["<think>Easy.</think>It is Bergen.", "Finish[Bergen]"])
    assert made.steps[0].action == "It is Bergen."
    assert made.outcome is Outcome.SUCCESS


def test_thinking_is_neither_thought_nor_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = called(ANSWER, text="<think>secret</think>") | {"reasoning_content": "secret"}
    made, server = ask(tmp_path, monkeypatch, [called(DIRECTOR, text="<think>secret</think>Look."), thinking])
    assert [step.thought for step in made.steps] == ["Look.", ""]
    assert "secret" not in prompt_of(server.requests[1])


def test_a_server_that_fails_makes_the_attempt_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_questions(tmp_path)
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    with Endpoint(lambda body: called(DIRECTOR)) as server:
        server.behaviour = Behaviour.NO_CHOICES
        environment = {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}
        made = attempt(write_config(tmp_path, server.url, environment))
    assert made.outcome is Outcome.INVALID
    assert "something that is not a completion" in made.cause


def test_text_actions_are_one_tool_whose_argument_is_a_possible_action(tmp_path: Path) -> None:
    def first_choice(body: Body) -> Body:
        (tool,) = body["tools"]
        return called(("act", {"action": tool["function"]["parameters"]["properties"]["action"]["enum"][0]}))

    with Endpoint(first_choice) as server:
        environment = {"name": "alfworld", "source": "generated", "split": "train", "receptacles": 8}
        memory = Memory(reflections=("Look in the fridge.",))
        made = attempt(write_config(tmp_path, server.url, environment), memory)
    assert made.steps
    assert all("Nothing happens" not in step.observation for step in made.steps)
    assert "Look in the fridge." in prompt_of(server.requests[0])
    assert made.opening.strip() in prompt_of(server.requests[0])


@pytest.mark.parametrize(
    ("environment", "actor", "words"),
    [
        ("hotpotqa", {}, "needs a chat endpoint with native tool calling, which our own server lacks"),
        (
            "hotpotqa",
            {"endpoint": {"base_url": "http://127.0.0.1:1/v1", "api": "completions"}},
            "needs a chat endpoint",
        ),
        ("programming", {}, "The tools actor does not play programming: set actor.kind to programmer."),
    ],
)
def test_what_cannot_call_tools_is_refused_with_one_sentence(
    tmp_path: Path, environment: str, actor: dict[str, Any], words: str
) -> None:
    from retroformer.config.parts import Connections, make_actor

    path = write_config(tmp_path, None, {"name": environment}, **actor)
    with pytest.raises(ConfigError) as refused:
        make_actor(open_config(path).experiment, Connections("http://127.0.0.1:1/v1", frozenset({"caller"})))
    assert words in str(refused.value)
