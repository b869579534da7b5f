"""Tests that an agent of any form is collected on, advised and evaluated, and that its faults are invalid outcomes."""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collect.rate import rate_reflections
from eval.report.report import compare_arms
from retroformer.cases.export_cases import export_cases
from retroformer.cases.import_cases import import_cases
from retroformer.coach.stories.runs import open_runs
from retroformer.coach.stories.show import show_lines
from retroformer.environments.agent.callers import Program
from retroformer.environments.registry import taskset
from retroformer.errors import ConfigError, EnvironmentFailure, InfrastructureFailure, MissingInput
from retroformer.method.rating import ratings
from retroformer.method.records import Key, Outcome, Step
from retroformer.run.store import open_store
from tests.support.endpoint import Endpoint
from tests.support.raw_server import RawServer, Request, Write, http
from tests.support.runs import facts, open_config
from tests.support.vault import advise, write_vault
from tests.support.waiting import becomes_true
from train.data.inputs import positive_reflections

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
FUNCTION = {"python": "vault:open_vault"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("vault", None)


@pytest.fixture
def reflector() -> Iterator[Endpoint]:
    with Endpoint(advise) as server:
        yield server


def collect(folder: Path, agent: dict[str, Any], url: str, **environment: Any) -> str:
    return asyncio.run(rate_reflections(open_config(write_vault(folder, agent, url, **environment))))


def cause(folder: Path, agent: dict[str, Any], url: str, **environment: Any) -> str:
    """Return the cause of the invalid attempts of a run in which every attempt is invalid."""
    with pytest.raises(MissingInput, match="None of 3 tasks could be played") as error:
        collect(folder, agent, url, **environment)
    return str(error.value).partition("The last cause: ")[2]


@pytest.mark.parametrize(
    "agent",
    [
        FUNCTION,
        {"python": "vault:open_vault_later"},
        {"command": [sys.executable, "program.py"]},
        pytest.param({"command": ["node", "agent.js"]}, marks=needs_node),
    ],
    ids=str,
)
def test_advice_turns_every_failure_of_an_agent_into_a_success(
    tmp_path: Path, reflector: Endpoint, agent: dict[str, Any]
) -> None:
    collect(tmp_path, agent, reflector.url)
    config = open_config(tmp_path / "vaults.yaml")
    made = facts(config)
    with closing(open_store(config.experiment)) as store:
        rated = list(ratings(store, "collect", records=True))
    assert [reflection.rating for reflection in rated] == [1.0] * 6
    failure = made.trajectories[Key(arm="collect", task_id="train-vault-1")]
    assert failure.opening == "Open vault 1."
    (step,) = failure.steps
    assert "0" in step.action
    assert step.observation == "It stays shut. A note says 4712."
    success = made.trajectories[Key(arm="collect", task_id="train-vault-1", trial=1)]
    assert (success.outcome, success.episode_return) == (Outcome.SUCCESS, 1.0)


def test_an_agent_behind_an_address_gets_task_and_advice_in_one_request_per_attempt(
    tmp_path: Path, reflector: Endpoint
) -> None:
    def answer(request: Request, write: Write) -> None:
        asked = json.loads(request.body)
        opened = asked["task"]["code"] in asked["advice"]
        output = "open" if opened else f"shut; the note says {asked['task']['code']}"
        usage = {"calls": 2, "prompt_tokens": 100, "completion_tokens": 10}
        write(http("200 OK", json.dumps({"output": output, "score": int(opened), "usage": usage}).encode()))

    with RawServer(answer) as service:
        summary = collect(tmp_path, {"url": f"{service.url}/attempt"}, reflector.url)
        assert {request.path for request in service.requests} == {"/v1/attempt"}
        assert len(service.requests) == 3 + 6
    assert "6 rated: 6 positive" in summary
    # 9 attempts of 2 calls with 100 tokens, and 6 reflections of 7.
    assert "942 prompt, 108 completion in 24 calls" in summary


def test_a_function_rates_the_answer_of_an_agent_that_gives_no_score(tmp_path: Path, reflector: Endpoint) -> None:
    summary = collect(tmp_path, {"python": "vault:answer"}, reflector.url, score="vault:is_right")
    assert "6 rated: 6 positive" in summary
    failure = facts(open_config(tmp_path / "vaults.yaml")).trajectories[Key(arm="collect", task_id="train-vault-0")]
    assert failure.steps == (Step(action="unknown; the note says 4711", observation=""),)


def test_all_arms_are_evaluated_on_the_held_out_tasks_of_an_agent(tmp_path: Path, reflector: Endpoint) -> None:
    config = open_config(write_vault(tmp_path, FUNCTION, reflector.url))
    asyncio.run(compare_arms(config))
    with closing(open_store(config.experiment)) as store:
        solved = {
            arm: sum(
                attempt.outcome is Outcome.SUCCESS
                for key, attempt in store.stream_trajectories(f"eval/{arm}")
                if key.trial == 1
            )
            for arm in ("no reflection", "reflector", "placebo")
        }
    report = Path("runs/vaults/eval/report.md").read_text()
    assert "The actor is an agent (kind `agent`) that plays each attempt by itself and reads advice as text." in report
    assert "samples nothing" not in report
    assert "ends it after" not in report
    # The placebo is the code of another vault.
    assert solved == {"no reflection": 0, "reflector": 3, "placebo": 0}


FAULTS = {
    "raises": (
        "def agent(task, advice=''):\n    return find({})\n\ndef find(keys):\n    return keys['nope']",
        "The agent raised KeyError: 'nope'.\nTraceback (most recent call last):\n"
        '  File "{folder}/faulty.py", line 2, in agent'
        '\n    return find({{}})\n           ^^^^^^^^\n  File "{folder}/faulty.py", line 5, in find\n',
    ),
    "exits": ("import sys\ndef agent(task, advice=''):\n    sys.exit(3)", "The agent raised SystemExit: 3"),
    "dies": ("import os\ndef agent(task, advice=''):\n    os._exit(3)", "The environment process ended with status 3."),
    "reads standard input": (
        "import subprocess\ndef agent(task, advice=''):\n    subprocess.run(['cat'], check=True)\n    input()",
        "The agent raised EOFError",
    ),
    "answers too much": (
        "def agent(task, advice=''):\n    return {'score': 0, 'output': '\\u4e2d' * (12 << 20)}",
        "it answered more than 128 MiB, the limit",
    ),
    "hangs": (
        "import time\n"
        "def agent(task, advice=''):\n    while True:\n        try: time.sleep(40)\n        except Exception: pass",
        "The agent gave no answer within 2 s.",
    ),
    "hangs later": (
        "import asyncio\nasync def agent(task, advice=''):\n    await asyncio.sleep(40)",
        "The agent gave no answer within 2 s.",
    ),
    "returns nothing": ("def agent(task, advice=''):\n    pass", "the agent returned NoneType"),
    "returns no score": ("def agent(task, advice=''):\n    return 'done'", "score is missing"),
    "scores too high": ("def agent(task, advice=''):\n    return {'score': 1.5}", "score is 1.5: it must be a number"),
    "scores nan": ("def agent(task, advice=''):\n    return {'score': float('nan')}", "score is nan: it must be"),
    "scores in words": ("def agent(task, advice=''):\n    return {'score': 'good'}", "score is 'good': it must be"),
    "steps of another form": (
        "def agent(task, advice=''):\n    return {'score': 0, 'steps': [{'did': 1}]}",
        "steps.0.action: Field required",
    ),
    "messages of another form": (
        "def agent(task, advice=''):\n    return {'score': 0, 'messages': [{'content': 'x'}]}",
        "messages[0] has no role",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_function_is_an_invalid_outcome_with_its_cause(
    tmp_path: Path, reflector: Endpoint, fault: str
) -> None:
    source, words = FAULTS[fault]
    (tmp_path / "faulty.py").write_text(source)
    path = write_vault(tmp_path, {"python": "faulty:agent"}, reflector.url, timeout_seconds=2.0)
    with pytest.raises(MissingInput) as error:
        asyncio.run(rate_reflections(open_config(path, "collect.tasks=1")))
    sys.modules.pop("faulty", None)
    assert words.format(folder=tmp_path) in str(error.value)
    assert facts(open_config(path)).trajectories == {}
    if fault == "raises":
        with open_runs(tmp_path / "runs" / "vaults") as runs, pytest.raises(MissingInput, match="line 5, in find"):
            list(show_lines(runs, None, None, as_json=False))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('out of ink')", "The agent ended with status 1 before it answered: out of ink"),
        ("import os; os.kill(os.getpid(), 9)", "The agent was killed by signal 9 before it answered"),
        ("input(); print('Hello!', flush=True); input()", "The agent answered something that is not JSON: 'Hello!'"),
        pytest.param("import time; time.sleep(10**6)", "The agent gave no answer within 3 s.", marks=pytest.mark.slow),
        ("input(); print('[1', end='', flush=True)", "The agent answered something that is not JSON: '[1'"),
        ("input()", "The agent ended with status 0 before it answered: no word"),
        ("input(); print('{\"score\": 2}', flush=True); input()", "score is 2: it must be a number from 0 to 1"),
    ],
)
def test_a_fault_of_a_program_is_an_invalid_outcome_with_its_cause(
    tmp_path: Path, reflector: Endpoint, program: str, words: str
) -> None:
    agent = {"command": [sys.executable, "-c", program]}
    assert words in cause(tmp_path, agent, reflector.url, timeout_seconds=3.0 if "time" in program else 120.0)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("500 Oops", b"no paper", "The agent answered 500: no paper"),
        ("200 OK", b"<html>", "The agent answered something that is not JSON: '<html>'"),
        ("200 OK", b'{"score": 0, "score": 1}', "('score' appears twice in one object)"),
        ("200 OK", b'{"score": -1}', "score is -1: it must be a number from 0 to 1"),
        ("200 OK", b"[]", "score is missing"),
    ],
)
def test_a_fault_of_a_service_is_an_invalid_outcome_with_its_cause(
    tmp_path: Path, reflector: Endpoint, status: str, body: bytes, words: str
) -> None:
    with RawServer(lambda request, write: write(http(status, body))) as service:
        assert words in cause(tmp_path, {"url": service.url}, reflector.url)


@pytest.mark.parametrize("agent", ["service", "program"])
def test_a_report_of_an_error_is_an_invalid_outcome_and_no_wrong_answer(
    tmp_path: Path, reflector: Endpoint, agent: str
) -> None:
    report = '{"error": "the backend is down"}'
    program = {"command": [sys.executable, "-c", f"import sys\nfor line in sys.stdin: print({report!r}, flush=True)"]}
    with RawServer(lambda request, write: write(http("200 OK", report.encode()))) as service:
        source = {"url": service.url} if agent == "service" else program
        assert "there is no answer to rate" in cause(tmp_path, source, reflector.url, score="vault:is_right")


def test_an_address_without_a_service_is_an_invalid_outcome(tmp_path: Path, reflector: Endpoint) -> None:
    assert "The agent cannot be reached: ConnectError" in cause(tmp_path, {"url": "http://127.0.0.1:1/"}, reflector.url)


def test_a_program_that_fails_once_is_started_again_and_the_run_goes_on(tmp_path: Path, reflector: Endpoint) -> None:
    (tmp_path / "moody.py").write_text(
        "import os, sys\n"
        "if not os.path.exists('was-here'):\n    open('was-here', 'w').close()\n    sys.exit('not today')\n"
        "import runpy\nrunpy.run_path('program.py')\n"
    )
    path = write_vault(tmp_path, {"command": [sys.executable, "moody.py"]}, reflector.url)
    one_at_a_time = ("loop.concurrency=1", "collect.candidates=1")
    with pytest.raises(InfrastructureFailure, match=r"1 of 3 tasks are left unfinished(.|\n)*not today"):
        asyncio.run(rate_reflections(open_config(path, *one_at_a_time)))
    assert "3 rated: 3 positive" in asyncio.run(rate_reflections(open_config(path, *one_at_a_time)))


def test_a_line_too_many_never_becomes_the_answer_to_another_task(tmp_path: Path, reflector: Endpoint) -> None:
    twice = 'import sys\nfor line in sys.stdin:\n    print(\'{"score": 0}\\n{"score": 1}\', flush=True)\n'
    path = write_vault(tmp_path, {"command": [sys.executable, "-c", twice]}, reflector.url)
    with pytest.raises(InfrastructureFailure, match="The agent wrote more than one line for an attempt"):
        asyncio.run(rate_reflections(open_config(path, "loop.concurrency=1", "collect.candidates=1")))
    assert {attempt.episode_return for attempt in facts(open_config(path)).trajectories.values()} == {0.0}


def test_a_late_answer_with_its_name_is_not_taken_for_the_next_attempt() -> None:
    late = (
        "import json, sys\nbefore = 'own'\nfor line in sys.stdin:\n    name = json.loads(line)['attempt']\n"
        "    print(json.dumps({'attempt': before}), flush=True)\n    before = name\n"
    )
    program = Program((sys.executable, "-c", late), timeout_seconds=120.0)
    assert program({}, "") == {"attempt": "own"}, "a program may have such a field of its own"
    with pytest.raises(EnvironmentFailure, match="The agent gave the answer to an earlier attempt, too late"):
        program({}, "")
    assert program({}, "") == {"attempt": "own"}


def test_the_late_answer_to_a_failed_attempt_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    late = (
        f"import json, pathlib, sys\nspool = pathlib.Path({str(tmp_path / 'spool')!r})\n"
        "name = json.loads(input())['attempt']\n"
        "if not spool.exists():\n    spool.write_text(name)\n    sys.exit(3)\n"
        "print(json.dumps({'attempt': spool.read_text()}))\n"
    )
    program = Program((sys.executable, "-c", late), timeout_seconds=120.0)
    with pytest.raises(EnvironmentFailure, match="The agent ended with status 3 before it answered"):
        program({}, "")
    with pytest.raises(EnvironmentFailure, match="The agent gave the answer to an earlier attempt, too late"):
        program({}, "")


def test_blank_lines_between_the_answers_of_a_program_are_skipped() -> None:
    spaced = "import sys\nfor number, line in enumerate(sys.stdin):\n    print(f'\\n {number}\\r\\n\\n', flush=True)\n"
    program = Program((sys.executable, "-c", spaced), timeout_seconds=120.0)
    assert [program({}, "") for _ in range(3)] == [0, 1, 2]


def test_a_line_without_an_end_is_cut_off_at_a_limit() -> None:
    endless = Program((sys.executable, "-c", "while True: print('x' * 10**6, end='')"), timeout_seconds=120.0)
    with pytest.raises(EnvironmentFailure, match="a line longer than 64 MiB, the limit"):
        endless({}, "")


def test_blank_lines_without_an_end_are_no_answer() -> None:
    blank = Program((sys.executable, "-c", "while True: print()"), timeout_seconds=1.0)
    with pytest.raises(EnvironmentFailure, match="no answer within 1 s"):
        blank({}, "")


def test_a_program_that_writes_many_errors_fills_no_disk() -> None:
    chatty = (
        "import os, sys\n"
        "for line in sys.stdin:\n"
        "    sys.stderr.write('x' * 2**24 + 'y')\n"
        "    sys.stderr.flush()\n"
        "    print(os.fstat(2).st_size, flush=True)\n"
    )
    program = Program((sys.executable, "-c", chatty), timeout_seconds=120.0)
    sizes = [program({}, "") for _ in range(4)]
    assert all(2**24 < size < 2**25 for size in sizes), sizes


def test_a_program_may_end_after_every_attempt(tmp_path: Path, reflector: Endpoint) -> None:
    once = "import json, sys\nfrom vault import open_vault\nasked = json.loads(input())\n"
    once += "sys.stdout.write(json.dumps(open_vault(asked['task'], asked['advice'])))"
    (tmp_path / "once.py").write_text(once)
    assert "6 rated: 6 positive" in collect(tmp_path, {"command": [sys.executable, "once.py"]}, reflector.url)


def test_a_program_that_reads_nothing_is_stopped_in_time(tmp_path: Path, reflector: Endpoint) -> None:
    agent = {"command": [sys.executable, "-c", "import time; time.sleep(10**6)"]}
    path = write_vault(tmp_path, agent, reflector.url, timeout_seconds=2.0)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "long", "input": "x" * 10**6}))
    with pytest.raises(MissingInput, match="The agent gave no answer within 2 s"):
        asyncio.run(rate_reflections(open_config(path)))


def test_an_asynchronous_agent_keeps_its_event_loop(tmp_path: Path, reflector: Endpoint) -> None:
    (tmp_path / "kept.py").write_text(
        "import asyncio\nfrom vault import open_vault\n"
        "async def agent(task, advice=''):\n"
        "    loop = globals().setdefault('loop', asyncio.get_running_loop())\n"
        "    assert loop is asyncio.get_running_loop()\n"
        "    return open_vault(task, advice)\n"
    )
    assert "6 rated: 6 positive" in collect(tmp_path, {"python": "kept:agent"}, reflector.url)
    sys.modules.pop("kept", None)


def test_no_program_outlives_the_run(tmp_path: Path, reflector: Endpoint) -> None:
    (tmp_path / "noted.py").write_text(
        "import os\nopen(f'pid-{os.getpid()}', 'w').close()\nimport runpy\nrunpy.run_path('program.py')\n"
    )
    collect(tmp_path, {"command": [sys.executable, "noted.py"]}, reflector.url)
    pids = [path.name.removeprefix("pid-") for path in tmp_path.glob("pid-*")]
    assert pids
    assert becomes_true(lambda: not any(Path("/proc", pid).exists() for pid in pids))


def test_a_fact_depends_on_its_task_and_not_on_the_other_lines_of_the_file(tmp_path: Path, reflector: Endpoint) -> None:
    collect(tmp_path, FUNCTION, reflector.url)
    config, tasks, asked = open_config(tmp_path / "vaults.yaml"), tmp_path / "tasks.jsonl", len(reflector.requests)
    before, new = tasks.read_text(), {"id": "new", "input": "Open it.", "code": "1"}
    tasks.write_text(f"{json.dumps(new | {'split': 'held_out'})}\n{before}{json.dumps(new | {'id': 'newer'})}\n")
    asyncio.run(rate_reflections(config))
    assert facts(config).trajectories.keys() >= {
        Key(arm="collect", task_id=name) for name in ("newer", "train-vault-0")
    }
    assert len(reflector.requests) - asked == 2, "only the new task is played"
    tasks.write_text(before.replace("Open vault 1.", "Open the vault."))
    with pytest.raises(
        ConfigError, match="'train-vault-1' has changed since it was played in this run: give it another"
    ):
        asyncio.run(rate_reflections(config))
    source = taskset(config.experiment.environment)
    played = facts(config).trajectories[Key(arm="collect", task_id="train-vault-1")].task
    with pytest.raises(EnvironmentFailure, match="has changed since it was played"):
        source.environment().reset(played)
    moved = tmp_path / "all.jsonl"
    export_cases(config.experiment, moved, exact=True)
    other = open_config(tmp_path / "vaults.yaml", "run=other")
    import_cases(other.experiment, moved)
    with pytest.raises(ConfigError, match="'train-vault-1' has changed"):
        asyncio.run(rate_reflections(other))


def test_what_is_missing_for_training_names_what_an_agents_run_can_do(tmp_path: Path, reflector: Endpoint) -> None:
    (tmp_path / "failing.py").write_text("def agent(task, advice=''):\n    return {'output': 'x', 'score': 0}")
    collect(tmp_path, {"python": "failing:agent"}, reflector.url)
    with pytest.raises(MissingInput) as error:
        positive_reflections(open_config(tmp_path / "vaults.yaml").experiment)
    assert "(reflector.teacher) or use more collect.candidates, in another run=NAME, or collect more tasks" in str(
        error.value
    )
    assert "collect warm" not in str(error.value), "an agent of one's own has no advice written by rule"


def test_an_agent_that_was_edited_is_another_condition(tmp_path: Path, reflector: Endpoint) -> None:
    collect(tmp_path, FUNCTION, reflector.url)
    path = tmp_path / "vault.py"
    path.write_text(path.read_text().replace("I try.", "I try again."))
    with pytest.raises(ConfigError, match=r"versions\.agent="):
        asyncio.run(rate_reflections(open_config(tmp_path / "vaults.yaml", "collect.candidates=3")))


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"python": "vault.open_vault"}, "write it as package.module:function"),
        ({"python": "nowhere:agent"}, "The function nowhere:agent cannot be imported: No module named 'nowhere'"),
        ({"python": "vault:nothing"}, "The function vault:nothing cannot be imported"),
        ({"python": "vault:__name__"}, "vault:__name__ is a str: name a function"),
        (
            {"command": "python3 agent.py"},
            "agent.command: write it as a list: [python3, agent.py]",
        ),
        ({"url": "127.0.0.1:9000"}, "environment.agent.url: It must begin with http:// or https://."),
        ({"comand": ["x"]}, "environment.agent.comand: Extra inputs are not permitted. Did you mean `command`?"),
        (
            {"command": ["no-such-program"]},
            "There is no executable program 'no-such-program': correct environment.agent",
        ),
        ({}, "name exactly one of python, command and url"),
        (FUNCTION | {"url": "http://127.0.0.1:1"}, "name exactly one of python, command and url"),
    ],
)
def test_an_agent_that_does_not_exist_is_one_sentence_before_anything_is_played(
    tmp_path: Path, reflector: Endpoint, agent: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        collect(tmp_path, agent, reflector.url)
    assert words in str(error.value)
    assert not reflector.requests


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('{"input": "x"}', "Line 1 of tasks.jsonl is JSON of another shape (no 'id')"),
        ('{"id": "a"}\n{"id": "a", "n": 1}', "Line 2 of tasks.jsonl: Line 1 of tasks.jsonl has the id 'a', too"),
        ('{"id": "a"}\n["b"]', "Line 2 of tasks.jsonl is JSON of another shape (TypeError: not an object)"),
        ('{"id": "a", "split": 3}', "split is not a text"),
        ('{"id": "a", "split": "held_out"}', "Split 'train' has no tasks in tasks.jsonl: name 'held_out'."),
        ("", "tasks.jsonl holds no tasks: a task is an object such as"),
    ],
)
def test_tasks_that_cannot_be_used_are_one_sentence_with_the_line(
    tmp_path: Path, reflector: Endpoint, lines: str, words: str
) -> None:
    path = write_vault(tmp_path, FUNCTION, reflector.url)
    (tmp_path / "tasks.jsonl").write_text(lines)
    with pytest.raises(MissingInput) as error:
        asyncio.run(rate_reflections(open_config(path)))
    assert words in str(error.value)


def test_an_agent_that_changes_its_task_does_not_change_the_next_attempt(tmp_path: Path, reflector: Endpoint) -> None:
    (tmp_path / "greedy.py").write_text(
        "from vault import open_vault\n"
        "def agent(task, advice=''):\n    return open_vault({'code': task.pop('code')}, advice)\n"
    )
    assert "6 rated: 6 positive" in collect(tmp_path, {"python": "greedy:agent"}, reflector.url)
    sys.modules.pop("greedy", None)


def test_an_id_that_no_key_can_hold_is_refused_before_anything_is_played(tmp_path: Path, reflector: Endpoint) -> None:
    path = write_vault(tmp_path, FUNCTION, reflector.url)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "é" * 251, "code": "1"}))
    with pytest.raises(MissingInput, match=r"Line 1 of tasks\.jsonl.*it has 502 bytes: a name has at most 500"):
        asyncio.run(rate_reflections(open_config(path)))
