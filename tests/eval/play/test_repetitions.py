"""Tests of several actors and of repeats: each plays every arm under its own name, and one table shows all.

With `eval.actors_reflect` each also writes the advice of its arms.
"""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from eval.play.preflight import with_actor
from eval.report.report import compare_arms
from retroformer.config.file import Config, load
from retroformer.errors import ConfigError
from retroformer.method.records import Outcome
from tests.support.endpoint import Endpoint, prompt_of, reply_to
from tests.support.runs import HOUSEHOLD, facts, open_config
from tests.support.scripted_model import walkthroughs_of

ARMS = {
    "retry": {"kind": "none"},
    "advised": {"kind": "model", "model": "big"},
    "placebo": {"kind": "placebo", "of": "advised"},
}


def config_with_actors(folder: Path, url: str) -> Path:
    actors = {name: {"base_url": url, "model": name} for name in ("bold", "shy")}
    config = HOUSEHOLD | {
        "actor": {"kind": "react", "endpoint": {"base_url": url, "model": "unused"}, "max_new_tokens": 30},
        "reflector": {"view": "compact", "endpoint": {"model": "big", "base_url": url}},
        "eval": {"split": "held_out", "tasks": 3, "arms": ARMS, "actors": actors},
    }
    path = folder / "actors.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def test_arms_are_named_after_the_actor(tmp_path: Path) -> None:
    experiment = load(config_with_actors(tmp_path, "http://127.0.0.1:1/v1"))
    bold = with_actor(experiment, "bold")
    assert bold.actor.endpoint.model == "bold"
    assert list(bold.eval.arms) == ["bold/retry", "bold/advised", "bold/placebo"]
    assert bold.eval.arms["bold/placebo"].of == "bold/advised"


@pytest.mark.slow
def test_each_actor_plays_every_arm_and_one_table_shows_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = set[str]()

    def reply(body: dict[str, Any]) -> str:
        models.add(body["model"])
        return "Action: look" if body["model"] == "shy" else reply_to(body)

    with Endpoint(reply) as server:
        planned = "eval.comparisons=[{first: advised, second: retry, trial: 1}]"
        config = open_config(config_with_actors(tmp_path, server.url), "loop.trials=2", planned)
        asyncio.run(compare_arms(config))
    table = (config.experiment.folder / "eval" / "report.md").read_text()
    assert models == {"bold", "shy", "big"}
    for actor in ("bold", "shy"):
        assert len(facts(config, f"eval/{actor}/trial 0").trajectories) == 3
        for arm in ARMS:
            assert f"| {actor} | {arm} |" in table
        report = (tmp_path / "runs" / "toy" / "eval" / actor / "report.md").read_text()
        assert f"| {actor}/advised | {actor}/retry | " in report.partition("## Planned comparisons")[2]
    shy = facts(config, "eval/shy/trial 0").trajectories.values()
    assert {step.action for trajectory in shy for step in trajectory.steps} == {"look"}


REFLECTING = {"retry": {"kind": "none"}, "advised": {"kind": "model"}, "placebo": {"kind": "placebo", "of": "advised"}}


def config_of_reflecting_actors(folder: Path, url: str, **section: Any) -> Path:
    """Return a config whose actors write their own advice; nothing answers at the reflector's own address."""
    path = config_with_actors(folder, url)
    config = yaml.safe_load(path.read_text())
    config["reflector"]["endpoint"] = {"model": "absent", "base_url": "http://127.0.0.1:1/v1"}
    config["eval"] |= {"arms": REFLECTING, "actors_reflect": True} | section
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


@pytest.mark.slow
def test_actors_that_reflect_write_the_advice_of_their_own_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def reply(body: dict[str, Any]) -> str:
        text = reply_to(body)
        return f"{body['model']} says: {text}" if text.startswith("Look in") else text

    with Endpoint(reply) as server:
        config = open_config(config_of_reflecting_actors(tmp_path, server.url), "loop.trials=2")
        asyncio.run(compare_arms(config))
    assert {body["model"] for body in server.requests} == {"bold", "shy"}
    for actor, other in (("bold", "shy"), ("shy", "bold")):
        advice = [piece.reflection.text for piece in facts(config, f"eval/{actor}/advised").reflections]
        assert advice
        assert all(text.startswith(f"{actor} says: Look in") for text in advice)
        dealt = {piece.reflection.text for piece in facts(config, f"eval/{actor}/placebo").reflections}
        assert not any(text.startswith(other) for text in dealt)
        report = (config.experiment.folder / "eval" / actor / "report.md").read_text()
        assert f"| {actor}/advised | written by the model `{actor}` |" in report
    table = (config.experiment.folder / "eval" / "report.md").read_text()
    assert "Each model writes the advice of its own arms." in table
    assert all(f"| {actor} | {arm} |" in table for actor in ("bold", "shy") for arm in REFLECTING)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"actors": {}}, r"eval\.actors_reflect: there are no eval\.actors"),
        ({"arms": ARMS}, r"eval\.arms\.advised\.model: each of eval\.actors writes its own advice"),
    ],
)
def test_actors_that_reflect_leave_no_doubt_about_who_writes(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    config = open_config(config_of_reflecting_actors(tmp_path, "http://127.0.0.1:1/v1", **section))
    with pytest.raises(ConfigError, match=said):
        asyncio.run(compare_arms(config))


def config_with_repeats(folder: Path, url: str, **section: Any) -> Path:
    path = config_with_actors(folder, url)
    config = yaml.safe_load(path.read_text())
    del config["eval"]["actors"]
    config["actor"]["temperature"] = 0.7
    config["eval"] |= {"repeats": 3, "tasks": 4} | section
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


@pytest.mark.slow
def test_repeats_differ_in_their_random_numbers_and_the_table_has_mean_and_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    winning: dict[str, Sequence[str]] = {}

    def reply(body: dict[str, Any]) -> str:
        """Follow the walkthrough, but waste an action now and then, by the seed of the call."""
        prompt = prompt_of(body)
        thought = re.search(r"Thought (\d+):\s*$", prompt)
        actions = [actions for opening, actions in winning.items() if opening in prompt]
        if thought is None or not actions or body["seed"] % 8 == 0 or int(thought[1]) > len(actions[0]):
            return "Action: look"
        return f"Action: {actions[0][int(thought[1]) - 1]}"

    with Endpoint(reply) as server:
        planned = [{"first": "advised", "second": "retry"}]
        config = open_config(config_with_repeats(tmp_path, server.url, comparisons=planned), "loop.trials=2")
        experiment = config.experiment
        section = experiment.environment.model_copy(update={"split": "held_out"})
        winning |= walkthroughs_of(experiment.model_copy(update={"environment": section}), 4)
        asyncio.run(compare_arms(config))
        server.requests.clear()
        asyncio.run(compare_arms(config))
        assert [body for body in server.requests if body["model"] == "unused"] == []
    report = (config.experiment.folder / "eval" / "report.md").read_text()
    shares = {arm: [last_share(config, f"repeat {number}", arm) for number in (1, 2, 3)] for arm in ARMS}
    assert any(len(set(of_arm)) > 1 for of_arm in shares.values())
    for arm, of_arm in shares.items():
        assert re.search(rf"^\| {arm} \| .* \| {fmean(of_arm):.3f} ± {stdev(of_arm):.3f} \|$", report, re.MULTILINE)
        for number, share in enumerate(of_arm, start=1):
            assert re.search(rf"^\| repeat {number} \| {arm} \| .* \| {share:.3f} \[", report, re.MULTILINE)
    for number in (1, 2, 3):
        report = (config.experiment.folder / "eval" / f"repeat {number}" / "report.md").read_text()
        assert f"| repeat {number}/advised | repeat {number}/retry | " in report.partition("## Planned comparisons")[2]


def last_share(config: Config, repeat: str, arm: str) -> float:
    """Return the share of tasks that the last attempt at each solved, counted from the stored attempts."""
    attempts = facts(config, f"eval/{repeat}/trial 0").trajectories | facts(config, f"eval/{repeat}/{arm}").trajectories
    last = {key.task_id: attempt for key, attempt in sorted(attempts.items(), key=lambda fact: fact[0].trial)}
    assert len(last) == 4
    return fmean(attempt.outcome is Outcome.SUCCESS for attempt in last.values())


def test_repeats_of_several_actors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = open_config(config_with_actors(tmp_path, "http://127.0.0.1:1/v1"), "eval.repeats=2")
    with pytest.raises(ConfigError, match=r"^eval\.repeats: eval\.actors are compared in one run of each"):
        asyncio.run(compare_arms(config))
