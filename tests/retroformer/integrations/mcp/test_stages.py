"""Tests that the stages work with an MCP server, a model that calls its tools and a reflector, all real processes."""

import asyncio
import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.rate import rate_reflections
from eval.report.report import compare_arms
from retroformer.config.file import load
from retroformer.method.records import Key, Outcome
from retroformer.run.store import open_store
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import ROOT, facts, open_config
from tests.support.tool_model import called, tool_results
from tests.support.vault import advise

pytest.importorskip("mcp")
pytest.importorskip("retroformer.integrations.mcp.environment")


def agent(body: Body) -> Body | str:
    """Enter the code that the advice names, else 0; then answer."""
    if "tools" not in body:
        return advise(body)
    if tool_results(body):
        return "Done."
    code = re.findall(r"Enter (\d+)\.", prompt_of(body)) or ["0"]
    return called(("enter", {"code": code[-1]}), text="I try.")


def write_config(folder: Path, url: str) -> Path:
    rows = [
        {"id": f"{split}-{number}", "split": split, "input": "Open the vault.", "code": "4711"}
        for split in ("train", "held_out")
        for number in range(2)
    ]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    server: dict[str, Any] = {"command": [sys.executable, str(ROOT / "tests/support/vault_server.py")]}
    config = {
        "run": "vaults",
        "environment": {"name": "mcp", "data": "tasks.jsonl", "server": server, "score_tool": "grade"},
        "loop": {"trials": 2, "concurrency": 2, "retries": 0},
        "actor": {"endpoint": {"base_url": url, "model": "agent"}},
        "reflector": {"endpoint": {"base_url": url, "model": "reflector"}},
        "collect": {"candidates": 1},
        "eval": {
            "split": "held_out",
            "arms": {"no advice": {"kind": "none"}, "advice": {"kind": "model", "model": "r"}},
        },
    }
    (folder / "vaults.yaml").write_text(yaml.safe_dump(config))
    return folder / "vaults.yaml"


@pytest.mark.slow
def test_advice_turns_failures_with_the_tools_of_a_server_into_successes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Endpoint(agent) as server:
        config = open_config(write_config(tmp_path, server.url))
        assert "2 rated: 2 positive" in asyncio.run(rate_reflections(config))
        asyncio.run(compare_arms(config))
    made = facts(config)
    failure = made.trajectories[Key(arm="collect", task_id="train-0")]
    assert [(step.thought, step.action) for step in failure.steps] == [
        ("I try.", 'enter({"code": "0"})'),
        ("", "Done."),
    ]
    assert failure.steps[-1].observation == "Score: 0"
    with closing(open_store(config.experiment)) as store:
        solved = {
            arm: [attempt.outcome for key, attempt in store.stream_trajectories(f"eval/{arm}") if key.trial == 1]
            for arm in ("no advice", "advice")
        }
    assert solved == {"no advice": [Outcome.FAILURE] * 2, "advice": [Outcome.SUCCESS] * 2}


def test_the_config_of_the_documentation_describes_an_experiment(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(run: .*?)^```$", (ROOT / "docs/tools.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "config.yaml").write_text(block)
        assert load(tmp_path / "config.yaml").actor.kind == "tools"
