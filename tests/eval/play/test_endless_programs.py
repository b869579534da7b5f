"""Tests of all of `eval` on programs that never end: each is a failed attempt, and none is missing."""

import json
from pathlib import Path

import pytest
import yaml

from retroformer.method.records import Outcome
from retroformer.run.arm_names import FIRST_TRIAL
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.killing import finish
from tests.support.runs import facts, open_config

ENDLESS = "```python\ndef f(x):\n    while True: pass\n```"
TASKS = 3


def reply(body: Body) -> str:
    return "assert f(2) == 2" if "You write tests" in prompt_of(body) else ENDLESS


@pytest.mark.slow
def test_endless_programs_in_one_environment_process_leave_no_task_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = {"prompt": "def f(x):\n", "entry_point": "f", "tests": ["assert f(1) == 1"]}
    lines = [json.dumps(problem | {"id": f"endless {number}"}) for number in range(TASKS)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    with Endpoint(reply) as server:
        content = {
            "run": "endless",
            "environment": {"name": "programming", "data": str(tmp_path), "split": "own.jsonl"},
            "loop": {
                "trials": 1,
                "concurrency": TASKS,
                "retries": 0,
            },
            "actor": {"kind": "programmer", "endpoint": {"base_url": server.url, "model": "big"}},
            "evaluator": {"kind": "tests"},
            "reflector": {"endpoint": {"base_url": server.url, "model": "big"}},
            "eval": {"tasks": TASKS, "arms": {"alone": {"kind": "none"}}},
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        finish(tmp_path, "eval", ["config.yaml"])

    monkeypatch.chdir(tmp_path)
    config = open_config(tmp_path / "config.yaml")
    stored = [facts(config, arm) for arm in (FIRST_TRIAL, "eval/alone")]
    attempts = [attempt for arm_facts in stored for attempt in arm_facts.trajectories.values()]
    assert sum(arm_facts.invalid for arm_facts in stored) == 0
    assert [attempt.outcome for attempt in attempts] == [Outcome.FAILURE] * TASKS
    assert all("no answer within 10 s" in attempt.steps[-1].observation for attempt in attempts)
