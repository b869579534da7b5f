"""Tests of the gate with a real server and agent: who is promoted, who is not, and what a killed gate repeats."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from math import log
from pathlib import Path

import pytest

from eval.gate.promote import Decision, decide, differences_of, prepare, tasks_to_retry
from retroformer.config.file import load
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput, ProvenanceError, StoreError
from retroformer.method.records import Key, Outcome, Task
from retroformer.run.arm_names import GATE_FIRST_TRIAL
from retroformer.run.promotions import History, roll_back
from retroformer.run.store import Store, open_store
from tests.support.characters import attempt_at
from tests.support.contest import TASKS, contest_run
from tests.support.facts import add_trajectory
from tests.support.killing import start_and_kill
from tests.support.runs import ROOT, run, stored


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return contest_run(tmp_path)


def contest(config: Path, adapter: str, against: str, *overrides: str) -> Decision:
    return asyncio.run(decide(prepare(config, overrides, adapter, against)))


@pytest.mark.slow
def test_an_adapter_that_helps_is_promoted_against_no_advice_and_its_evidence_is_kept(config: Path) -> None:
    altered = prepare(config, (), "dpo", "none")
    shutil.copytree("runs/doors/sft", altered.history.folder_of(altered.candidate), dirs_exist_ok=True)
    with pytest.raises(ProvenanceError, match="does not serve dpo@"):
        asyncio.run(decide(altered))
    decision = contest(config, "sft", "current")
    history = History(Path("runs/doors"))
    (record,) = history.records()
    assert record == decision.promotion
    assert record.evidence is not None
    # Eight wins in a row reach a wealth of 20, and tasks are played four at a time.
    assert (record.evidence.pairs, record.evidence.better, record.evidence.worse) == (8, 8, 0)
    assert (record.evidence.against, record.kind, record.adapter) == ("no advice", "promoted", history.current())
    assert record.evidence.log_wealth >= log(1 / record.evidence.level)
    with closing(open_store(load(config))) as store:
        assert [store.arm_counts()[arm].attempts for arm in (GATE_FIRST_TRIAL, *record.evidence.arms)] == [8, 8, 8]
        assert {
            stored.reflection.author.adapter_sha256 for stored in store.stream_reflections(record.evidence.arms[0])
        } == {
            history.records()[0].adapter.sha256  # type: ignore[union-attr]
        }
    assert decision.sentence.startswith(f"Promoted: reflector is {record.adapter} (8 better, 0 worse of 8 pairs")


@pytest.mark.slow  # It starts a server as the test above does.
def test_an_adapter_that_harms_is_not_promoted_and_the_command_says_so(config: Path) -> None:
    done = run(config.parent, "retroformer", "promote", str(config), "sft", "eval.split=harmed")
    assert done.returncode == 1
    assert "Not promoted: sft@" in done.stderr
    assert " is worse (0 better, 8 worse of 8 pairs against no advice" in done.stderr
    assert History(Path("runs/doors")).records() == ()


@pytest.mark.slow
def test_a_gate_that_was_killed_repeats_no_finished_retry_and_equal_adapters_are_not_promoted(config: Path) -> None:
    history = History(Path("runs/doors"))
    history.append((), "first", history.keep("sft", Path("runs/doors/sft")), "nothing was served before")
    database, arguments = Path("runs/doors/experience.db"), ["promote", str(config), "dpo", "eval.split=even"]
    assert start_and_kill(config.parent, "retroformer", arguments, lambda _: stored(database) >= 30) is None
    done = run(config.parent, "retroformer", *arguments)
    assert done.returncode == 1
    assert f"is not shown to be better (0 better, 0 worse of {TASKS} pairs against sft@" in done.stderr
    # Four retries may have been in flight when it was killed.
    assert 2 * TASKS <= len(Path("retries").read_text().split()) <= 2 * TASKS + 4
    assert history.length == 1


def test_what_cannot_be_decided_is_refused_before_anything_is_played(config: Path) -> None:
    history = History(Path("runs/doors"))

    def refusal(adapter: str = "sft", against: str = "current", *overrides: str) -> str:
        with pytest.raises((ConfigError, MissingInput)) as caught:
            prepare(config, overrides, adapter, against)
        return str(caught.value)

    shutil.copytree("runs/doors/sft", "runs/doors/reward")
    for name in ("ppo", "reward", "mine"):
        refused = refusal(name, "current", "serve.adapters={mine: runs/doors/none}")
        assert f"No adapter {name!r} in runs/doors can be promoted, only sft, dpo" in refused
    Path("runs/doors/dpo/metrics.json").write_text(
        '{"training_domains": [{"environment": "agent", "seed": null, "tasks": ["helped-0"]}]}'
    )
    assert "1 of 20 evaluation tasks were used to train 'dpo@" in refusal("dpo", "none")
    assert "add reflector.endpoint.base_url= to" in refusal("sft", "none", "reflector.endpoint.base_url=http://a/v1")
    assert "serve.adapters.reflector fixes" in refusal("sft", "none", "serve.adapters={reflector: runs/doors/sft}")
    kept = history.keep("sft", Path("runs/doors/sft"))
    history.append((), "first", kept, "nothing was served before")
    assert "is the reflector already: add --against none" in refusal("sft")
    prepared = prepare(config, ["eval.split=[helped, harmed]"], "sft", "none")
    assert (prepared.baseline, {task.split for task in prepared.tasks}) == (None, {"helped"})
    roll_back(history, history.records(), "live outcomes", by_monitor=True)
    assert "live outcomes have shown it to be worse" in refusal("sft", "none")
    with closing(open_store(load(config))) as store:
        assert store.arms() == []
        add_trajectory(store, Key(arm=GATE_FIRST_TRIAL, task_id="helped-0"), attempt_at())
    with closing(sqlite3.connect("runs/doors/experience.db")) as connection, connection:
        connection.execute("UPDATE trajectories SET episode_return = 1.0")
    with pytest.raises(StoreError, match="is damaged"):
        prepare(config, (), "dpo", "none")
    config.write_text(config.read_text() + "domains: {helped: {}}\n")
    assert "this config has domains" in refusal()


def test_a_retry_that_is_missing_stops_the_gate_but_a_first_attempt_may_be_missing(tmp_path: Path) -> None:
    tasks = [Task(id=name, environment="riddles", split="train") for name in ("a", "b", "c")]
    with closing(Store(f"sqlite:///{tmp_path}/gate.db", "gate")) as store:

        def add(arm: str, name: str, trial: int, reward: float) -> None:
            outcome = Outcome.SUCCESS if reward >= 1 else Outcome.FAILURE
            attempt = attempt_at(Task(id=name, environment="riddles", split="train"), (reward,), outcome)
            attempt = attempt.model_copy(update={"opening": f"Riddle {name}"})
            add_trajectory(store, Key(arm=arm, task_id=name, trial=trial), attempt)

        add(GATE_FIRST_TRIAL, "b", 0, 0.0)
        add(GATE_FIRST_TRIAL, "c", 0, 1.0)
        add("gate/new", "b", 1, 7.0)
        failed = tasks_to_retry(store, tasks, {})
        assert [task.id for task in failed] == ["b"], "c was solved at first, and a was never played"
        with pytest.raises(InfrastructureFailure, match="1 retries could not be played, such as that of 'b'"):
            differences_of(store, failed, "gate/new", "gate/old")
        add("gate/old", "b", 1, -0.25)
        assert differences_of(store, failed, "gate/new", "gate/old") == [1.0], "returns count as at least 0, at most 1"


def test_copies_of_one_task_are_one_pair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tasks = [Task(id=f"copy-{number}", environment="riddles", split="train") for number in range(8)]
    with closing(Store(f"sqlite:///{tmp_path}/gate.db", "gate")) as store:
        for number, task in enumerate(tasks):
            opening = ("Caf\u00e9?", "  cafe\u0301? ")[number % 2]
            attempt = attempt_at(task).model_copy(update={"opening": opening})
            add_trajectory(store, Key(arm=GATE_FIRST_TRIAL, task_id=task.id), attempt)
        openings = dict[str, str]()
        played = [tasks_to_retry(store, tasks[start : start + 4], openings) for start in (0, 4)]
    assert [[task.id for task in chunk] for chunk in played] == [["copy-0"], []]
    assert "3 tasks begin as others do and are not counted, such as 'copy-1'" in caplog.text
