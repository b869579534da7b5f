"""Tests of all of `eval` on generated games: arms that share trial 0, a placebo, and a faulty server."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collect.rate import rate_reflections
from eval.measure.results import arm_results
from eval.report.report import compare_arms
from retroformer.config.file import Config
from retroformer.config.parts import chosen_tasks
from retroformer.errors import ConfigError, EndpointFailure, InfrastructureFailure
from retroformer.method.records import Outcome
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import open_store
from tests.support.endpoint import Behaviour, Endpoint, prompt_of
from tests.support.runs import facts, open_config, run, write_config

pytestmark = pytest.mark.usefixtures("workplace")

REMOTE, PLACEBO, ALONE = "eval/remote reflector", "eval/placebo", "eval/no reflection"


def compare(config: Config) -> str:
    return asyncio.run(compare_arms(config))


def test_every_arm_retries_the_failures_of_the_shared_first_trial(tmp_path: Path) -> None:
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url), "loop.trials=2")
        assert compare(config) == "report: runs/toy/eval/report.html"
    first = facts(config, FIRST_TRIAL).trajectories
    failed = {key.task_id for key, trajectory in first.items() if trajectory.outcome is Outcome.FAILURE}
    assert len(first) == 6
    assert failed
    for arm in (REMOTE, PLACEBO, ALONE):
        assert {key.task_id for key in facts(config, arm).trajectories} == failed
        assert {key.trial for key in facts(config, arm).trajectories} == {1}


def test_the_arm_without_advice_repeats_its_failures_and_the_placebo_reads_what_was_meant_for_others(
    tmp_path: Path,
) -> None:
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url), "loop.trials=2")
        compare(config)
    assert all(trajectory.outcome is Outcome.FAILURE for trajectory in facts(config, ALONE).trajectories.values())
    assert all(stored.reflection.text == "" for stored in facts(config, ALONE).reflections)
    meant_for: dict[str, set[str]] = {}
    for stored in facts(config, REMOTE).reflections:
        meant_for.setdefault(str(stored.reflection.prompt), set()).add(stored.key.task_id)
    placebo = facts(config, PLACEBO).reflections
    assert placebo
    assert all(stored.key.task_id not in meant_for[str(stored.reflection.prompt)] for stored in placebo)


def dies_after(requests: int, server: Endpoint) -> None:
    def die(number: int) -> None:
        if number > requests:
            server.behaviour = Behaviour.NO_CHOICES

    server.before_answer = die


def recovers(server: Endpoint) -> None:
    server.before_answer = lambda number: None
    server.behaviour = Behaviour.WELL


@pytest.mark.slow
def test_unfinished_tasks_are_left_out_of_the_numbers_until_a_later_run_adds_them(
    tmp_path: Path,
) -> None:
    with Endpoint() as server:
        dies_after(2, server)
        config = open_config(write_config(tmp_path, server.url), "loop.trials=2", "eval.arms.placebo={kind: none}")
        with pytest.raises(
            InfrastructureFailure,
            match="unfinished in arm 'remote reflector'; the report shows rates without them",
        ):
            compare(config)
        broken = (tmp_path / "runs/toy/eval/report.md").read_text()
        assert "of 6 held-out tasks of split `held_out` (6) were finished in every arm" in broken
        assert "6 of 6" not in broken
        assert "answered with something that is not a completion" in broken
        assert broken.count("Over all 6 tasks, unfinished ones counted as failures:") == 3
        recovers(server)
        compare(config)
        whole = (tmp_path / "runs/toy/eval/report.md").read_text()
        assert "6 of 6 held-out tasks" in whole
        assert "Over all 6 tasks" not in whole


@pytest.mark.slow
def test_a_placebo_waits_until_its_source_is_finished(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        compare(open_config(path, "run=whole", "loop.trials=2"))
        server.requests.clear()
        dies_after(2, server)
        with pytest.raises(InfrastructureFailure, match="its advice cannot be dealt out yet: run the same command"):
            compare(open_config(path, "loop.trials=2"))
        assert facts(open_config(path), PLACEBO).counts == (0, 0)
        recovers(server)
        compare(open_config(path, "loop.trials=2"))
    assert facts(open_config(path), PLACEBO).same_as(facts(open_config(path, "run=whole"), PLACEBO))


def test_a_placebo_does_without_the_advice_that_an_endpoint_always_refuses_to_write(tmp_path: Path) -> None:
    refused: list[str] = []

    def mood(body: dict[str, Any], came_before: int) -> Behaviour:
        prompt = prompt_of(body)
        if "Advice for the next attempt" in prompt and not refused:
            refused.append(prompt)
        return Behaviour.REFUSED if prompt in refused else Behaviour.WELL

    with Endpoint() as server:
        server.mood = mood
        config = open_config(write_config(tmp_path, server.url), "loop.trials=2", "eval.tasks=14")
        with pytest.raises(InfrastructureFailure) as unfinished:
            compare(config)
    assert "1 of 14 tasks are left unfinished in arm 'remote reflector'" in str(unfinished.value)
    assert "The last one: " in str(unfinished.value)
    assert "answered 400" in str(unfinished.value)
    failed = {key.task_id for key in facts(config, ALONE).trajectories}
    assert {key.task_id for key in facts(config, PLACEBO).trajectories} == failed
    assert len(facts(config, REMOTE).trajectories) == len(failed) - 1
    assert (tmp_path / "runs/toy/eval/report.md").exists()


def test_an_endpoint_that_does_not_answer_the_probe_stops_eval_before_the_first_trial(tmp_path: Path) -> None:
    with Endpoint() as server:
        server.behaviour = Behaviour.ERROR
        config = open_config(write_config(tmp_path, server.url))
        with pytest.raises(EndpointFailure, match="answered 500"):
            compare(config)
    assert facts(config, FIRST_TRIAL).counts == (0, 0)


def test_the_probe_has_a_prompt_if_only_retries_without_advice_were_collected(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        server.behaviour = Behaviour.REFUSED
        with pytest.raises(InfrastructureFailure):
            asyncio.run(rate_reflections(open_config(path, "collect.tasks=3", "collect.unadvised=true")))
        server.behaviour = Behaviour.WELL
        refused = len(server.requests)
        compare(open_config(path, "eval.tasks=2", "loop.trials=2"))
        assert "What should the next attempt do first?" in prompt_of(server.requests[refused])


def test_tasks_that_were_trained_on_are_refused(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        asyncio.run(rate_reflections(open_config(path, "collect.tasks=3")))
        with pytest.raises(ConfigError, match=r"evaluation tasks were used for training.*eval.split=NAME"):
            compare(open_config(path, "eval.split=train"))


@pytest.mark.parametrize("of", ["nobody", "placebo", ""])
def test_a_placebo_of_an_arm_that_does_not_write_is_refused(tmp_path: Path, of: str) -> None:
    config = open_config(
        write_config(tmp_path, "http://127.0.0.1:1/v1"), f"eval.arms.placebo.of={of or '~'!s}".replace("~", '""')
    )
    with pytest.raises(
        ConfigError, match="is not an arm that writes advice; name one of no reflection, remote reflector"
    ):
        compare(config)


def test_a_changed_arm_never_mixes_with_the_facts_of_the_old_one(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        words = ("eval.tasks=2", "loop.trials=2", "eval.arms.placebo={kind: none}")
        compare(open_config(path, *words))
        with pytest.raises(ConfigError, match=r"'eval/remote reflector' facts made with arm.model='big', not 'bigger'"):
            compare(open_config(path, *words, "eval.arms.remote reflector.model=bigger"))


@pytest.mark.slow
def test_a_fault_on_the_command_line_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    done = run(tmp_path, "eval", str(write_config(tmp_path, "http://127.0.0.1:1/v1")))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "The model 'big' at http://127.0.0.1:1/v1 cannot be reached: ConnectError: Connection refused.\n"
    )


def test_a_judge_that_is_always_wrong_makes_the_agent_play_won_games_again_and_loses_none(tmp_path: Path) -> None:
    """The judge never says yes. With few actions, bad advice loses games that trial 0 has won."""
    with Endpoint() as server:
        judge = [f"actor.endpoint.{key}" for key in ("model=big", f"base_url={server.url}")]
        arms = ("eval.arms={remote reflector: {kind: model, model: big}}",)
        path = write_config(tmp_path, server.url)
        config = open_config(path, "evaluator.kind=model", *judge, *arms, "eval.tasks=8", "loop.actions=7")
        compare(config)
    first = facts(config, FIRST_TRIAL).trajectories
    won = {key.task_id for key, attempt in first.items() if attempt.outcome is Outcome.SUCCESS}
    again = facts(config, REMOTE).trajectories
    assert {key.task_id for key in again if key.trial == 2} == {key.task_id for key in first}
    assert any(key.task_id in won and attempt.outcome is Outcome.FAILURE for key, attempt in again.items())
    with closing(open_store(config.experiment)) as store:
        tasks = chosen_tasks(config.experiment, 8, ("held_out",))
        (curve,) = arm_results(store, tasks, {REMOTE: [REMOTE]}, trials=3)
    assert (np.diff(curve.solved_NT, axis=0) >= 0).all()
    assert curve.solved_NT[:, curve.solved_NT[0] == 1].tolist() == [[1.0] * len(won)] * 3


def test_advice_is_sampled_at_the_temperature_of_eval(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        sampling = ("loop.trials=2", "eval.tasks=2", "reflector.temperature=0.4", "eval.temperature=0.2")
        compare(open_config(path, *sampling))
        probe, *asked = [request["temperature"] for request in server.requests]
        assert probe == 0
        assert set(asked) == {0.2}


@pytest.mark.slow
def test_arms_without_a_model_need_no_server(tmp_path: Path) -> None:
    arms = "eval.arms={retry: {kind: none}, rule: {kind: rule}}"
    config = open_config(write_config(tmp_path, "http://127.0.0.1:9/v1"), arms, "reflector.endpoint.base_url=null")
    assert compare(config) == "report: runs/toy/eval/report.html"
    assert facts(config, "eval/rule").trajectories
