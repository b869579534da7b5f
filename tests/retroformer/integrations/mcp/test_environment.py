"""Tests of an MCP server as an environment, with the real client and servers: its faults are never the agent's."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retroformer.environments.registry import section_of, taskset
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.method.records import Task, Transition
from tests.support.runs import ROOT
from tests.support.waiting import becomes_true

pytest.importorskip("mcp")
environment_module = pytest.importorskip("retroformer.integrations.mcp.environment")

SERVER = str(ROOT / "tests/support/vault_server.py")
TASK = Task(id="vault", environment="mcp", split="train")
RULES = """
def is_known(task, answer):
    return 1.0 if task["code"] in answer else 0.5

def broken(task, answer):
    raise KeyError("rule")
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Start a server over HTTP for the tests that need none of their own."""
    with subprocess.Popen([sys.executable, SERVER, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "vault_rules.py").write_text(RULES)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "vault", "input": "Open the vault.", "code": "4711"}))
    yield
    sys.modules.pop("vault_rules", None)


class Play:
    """Environment of a section, whose server is stopped at the end of the test."""

    def __init__(self, **section: Any) -> None:
        command = {"command": [sys.executable, SERVER]}
        plain = {"name": "mcp", "data": "tasks.jsonl", "server": command, "score_tool": "grade"}
        self.section = section_of(plain | section)
        self.environment: Any = taskset(self.section).environment()

    def __enter__(self) -> "Play":
        return self

    def __exit__(self, *_: object) -> None:
        self.environment._close()

    def start(self) -> Transition:
        transition: Transition = self.environment.reset(TASK)
        return transition

    def do(self, name: str, **arguments: Any) -> Transition:
        return self.answer(f"{name}({json.dumps(arguments)})")

    def answer(self, text: str) -> Transition:
        transition: Transition = self.environment.step(text)
        return transition


def test_an_attempt_has_a_server_of_its_own_and_ends_with_the_answer() -> None:
    with Play() as play:
        first = play.start()
        assert first.observation == "Open the vault."
        assert first.tools is not None
        enter = next(tool for tool in first.tools if tool.name == "enter")
        assert enter.description == "Enter a code at the vault."
        assert enter.parameters["required"] == ["code"]
        assert "grade" not in {tool.name for tool in first.tools}
        assert play.do("enter", code="1").observation == "You have entered 1 codes. A note says 4711."
        play.start()
        seen = play.do("enter", code="4711")
        assert seen.observation == "You have entered 1 codes. A note says 4711."
        assert seen.tools is None
        assert not seen.over
        done = play.answer("It is open.")
        assert (done.observation, done.reward, done.terminated, done.success) == ("Score: 1", 1.0, True, True)
        with pytest.raises(EnvironmentFailure, match="No task was shown yet"):
            play.answer("Again.")


def test_an_error_of_a_tool_is_an_observation_for_the_agent(url: str) -> None:
    with Play(server={"url": url}) as play:
        play.start()
        play.do("enter", code="0")
        assert "the handle is stuck" in play.do("fail").observation
        assert "Field required" in play.do("enter").observation
        assert play.do("picture").observation == "[image]"
        long = play.do("say", length=200_000).observation
        assert (len(long), long[-12:]) == (100_012, " [shortened]")
        done = play.answer("enter the code")
        assert (done.reward, done.terminated, done.success) == (0.0, True, False)


def test_tools_that_appear_are_listed_with_the_transition(url: str) -> None:
    with Play(server={"url": url}) as play:
        play.start()
        tools = play.do("find_lever").tools
        assert tools is not None
        assert "pull" in {tool.name for tool in tools}
        assert play.do("pull").observation == "It moves."


def test_the_last_call_truncates_an_attempt_without_a_score(url: str) -> None:
    with Play(server={"url": url}, max_steps=2) as play:
        play.start()
        assert not play.do("enter", code="1").over
        last = play.do("enter", code="4711")
        assert (last.truncated, last.terminated, last.reward) == (True, False, 0.0)


def test_a_function_rates_the_answer(url: str) -> None:
    server = {"url": url, "api_key_env": "A_KEY_THAT_IS_NOT_SET"}
    with Play(server=server, score="vault_rules:is_known", score_tool=None) as play:
        play.start()
        assert (play.answer("It is 4711.").reward, play.start().observation) == (1.0, "Open the vault.")
        assert play.answer("No idea.").reward == 0.5


@pytest.mark.parametrize(
    ("section", "name", "words"),
    [
        ({}, "crash", r"The MCP server did not answer the call of crash: .*\(out of power\)\."),
        pytest.param(
            {"timeout_seconds": 15.0},
            "hang",
            r"The MCP server did not answer the call of hang within 15 s\.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_server_that_dies_or_hangs_makes_the_attempt_invalid(section: dict[str, Any], name: str, words: str) -> None:
    with Play(**section) as play:
        play.start()
        with pytest.raises(EnvironmentFailure, match=words):
            play.do(name)
        assert "1 codes" in (play.start(), play.do("enter", code="1"))[1].observation


def test_a_server_that_writes_much_to_standard_error_takes_no_memory() -> None:
    with Play() as play:
        play.start()
        tracemalloc.start()
        with pytest.raises(EnvironmentFailure, match=r"\(out of power\)"):
            play.do("chatter")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("section", "answer", "words"),
    [
        ({}, "cheat", "The attempt cannot be rated: ValueError: .*no cheating"),
        ({"score_tool": "enter"}, "x", "The attempt cannot be rated: ValueError"),
        ({"score_tool": None, "score": "vault_rules:broken"}, "x", "The attempt cannot be rated: KeyError: 'rule'"),
    ],
)
def test_a_score_that_fails_makes_the_attempt_invalid(
    section: dict[str, Any], answer: str, words: str, url: str
) -> None:
    with Play(server={"url": url}, **section) as play:
        play.start()
        with pytest.raises(EnvironmentFailure, match=words):
            play.answer(answer)


@pytest.mark.parametrize(
    ("program", "seconds", "words"),
    [
        ("import sys; sys.exit('no licence')", 100.0, r"The MCP server did not start: .*\(no licence\)"),
        ("import time; time.sleep(10**6)", 1.0, "The MCP server did not start within 1 s"),
    ],
)
def test_a_server_that_does_not_start_makes_the_attempt_invalid(program: str, seconds: float, words: str) -> None:
    play = Play(server={"command": [sys.executable, "-c", program]}, timeout_seconds=seconds)
    with pytest.raises(EnvironmentFailure, match=words):
        play.start()


def test_a_running_server_is_reached_by_its_address_and_a_silent_address_is_invalid() -> None:
    with subprocess.Popen([sys.executable, SERVER, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with Play(server={"url": url}) as play:
            play.start()
            assert "A note says 4711" in play.do("enter", code="4711").observation
            assert play.answer("It is open.").success
            play.start()
            process.kill()
            process.wait()
            with pytest.raises(EnvironmentFailure, match="did not answer the call of enter"):
                play.do("enter", code="1")
            with pytest.raises(EnvironmentFailure, match="The MCP server did not start: ConnectError"):
                play.start()


def test_a_server_does_not_outlive_a_killed_environment(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom retroformer.integrations.mcp.connection import McpConnection, McpServer\n"
        "McpConnection(McpServer(command=(sys.executable, '-c', sys.argv[1], *sys.argv[2:])), 100.0)\n"
    )
    stubborn = (
        "import os, pathlib, runpy, signal, sys\npathlib.Path(sys.argv[1], f'pid-{os.getpid()}').touch()\n"
        "runpy.run_path(sys.argv[2], run_name='__main__')\nsignal.pause()\n"
    )
    words = [sys.executable, "-c", code + "time.sleep(10**6)", stubborn, str(tmp_path), SERVER]
    with subprocess.Popen(words, cwd=ROOT) as process:
        assert becomes_true(lambda: list(tmp_path.glob("pid-*")))
        process.kill()
    (pid,) = (path.name.removeprefix("pid-") for path in tmp_path.glob("pid-*"))
    assert becomes_true(lambda: not Path("/proc", pid).exists())


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"server": {"command": ["no-such-server"]}}, "There is no program 'no-such-server'"),
        ({"server": None}, "There is no MCP server to play with: name one in environment.server."),
        ({"score_tool": None}, "Nothing rates the attempts: set environment.score or environment.score_tool."),
        ({"score_tool": None, "score": "vault_rules:none"}, "The function vault_rules:none cannot be imported"),
    ],
)
def test_what_cannot_work_is_one_sentence_before_anything_is_played(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        environment_module.extras.require_machine(Play(**section).section)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"server": {}}, "name exactly one of command and url"),
        ({"server": {"command": ["a"], "url": "http://127.0.0.1:1/mcp"}}, "name exactly one of command and url"),
        ({"score": "rules:f"}, "name one of score and score_tool"),
    ],
)
def test_contradictory_keys_are_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Play(**section)


def test_the_files_of_the_server_and_of_the_score_are_conditions() -> None:
    versions = environment_module.extras.tool_versions
    section = Play(score_tool=None, score="vault_rules:is_known").section
    before = versions(section)
    rules = Path("vault_rules.py")
    rules.write_text(rules.read_text() + "\n# Edited.\n")
    assert versions(section)["server"] != before["server"]
