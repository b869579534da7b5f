"""Several models as the actor: each plays every arm under its own name, and one table shows them all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.actors import with_actor
from eval.compare import compare_arms
from retroformer.config_file import load
from tests.support.endpoint import Endpoint, reply_to
from tests.support.runs import HOUSEHOLD, facts, open_page

ARMS = {
    "retry": {"kind": "none"},
    "advised": {"kind": "model", "model": "big"},
    "placebo": {"kind": "placebo", "of": "advised"},
}


def page_with_actors(folder: Path, url: str) -> Path:
    actors = {name: {"base_url": url, "model": name} for name in ("bold", "shy")}
    page = HOUSEHOLD | {
        "actor": {"kind": "react", "endpoint": {"base_url": url, "model": "unused"}, "max_new_tokens": 30},
        "reflector": {"view": "compact", "endpoint": {"model": "big", "base_url": url}},
        "eval": {"split": "held_out", "tasks": 3, "arms": ARMS, "reference": "retry", "actors": actors},
    }
    path = folder / "actors.yaml"
    path.write_text(yaml.safe_dump(page, sort_keys=False))
    return path


def test_an_actors_page_names_its_arms_after_it(tmp_path: Path) -> None:
    experiment = load(page_with_actors(tmp_path, "http://127.0.0.1:1/v1"))
    bold = with_actor(experiment, "bold")
    assert bold.actor.endpoint.model == "bold"
    assert list(bold.eval.arms) == ["bold/retry", "bold/advised", "bold/placebo"]
    assert bold.eval.arms["bold/placebo"].of == "bold/advised"
    assert bold.eval.reference == "bold/retry"


def test_each_actor_plays_every_arm_and_one_table_shows_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = set[str]()

    def reply(body: dict[str, Any]) -> str:
        models.add(body["model"])
        return "Action: look" if body["model"] == "shy" else reply_to(body)

    with Endpoint(reply) as server:
        page = open_page(page_with_actors(tmp_path, server.url), "loop.trials=2")
        asyncio.run(compare_arms(page))
    table = (page.experiment.folder / "eval" / "report.md").read_text()
    assert models == {"bold", "shy", "big"}
    for actor in ("bold", "shy"):
        assert len(facts(page, f"eval/{actor}/trial 0").trajectories) == 3
        for arm in ARMS:
            assert f"| {actor} | {arm} |" in table
        assert (tmp_path / "runs" / "toy" / "eval" / actor / "report.md").is_file()
    shy = facts(page, "eval/shy/trial 0").trajectories.values()
    assert {step.action for one in shy for step in one.steps} == {"look"}
