"""Tests of the monitor: differences worked by hand, and a rollback on the facts of a real store."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from eval.gate.monitor import look, watch
from eval.measure.betting import log_wealth
from retroformer.coach.recorder import ADVISED_SPLIT, OpenTask
from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.errors import StoreError
from retroformer.method.records import Key, Outcome, Task
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.promotions import History, PromotedAdapter
from retroformer.run.store import Store, open_store
from retroformer.run.store.rows import LiveRetry
from tests.support.characters import advice, attempt_at
from tests.support.facts import add_trajectory
from tests.support.runs import ROOT, run

START = datetime(2026, 1, 1, tzinfo=UTC)
MINE, OTHER = "a" * 64, "b" * 64


def retries(letters: str, adapter: str = MINE, start: datetime = START) -> list[LiveRetry]:
    """Return a retry a second: `+` and `-` with advice, solved and failed; `S` and `F` the same without advice."""
    return [
        LiveRetry(
            letter in "+-",
            float(letter in "+S"),
            start + timedelta(seconds=number + 1),
            adapter if letter in "+-" else None,
        )
        for number, letter in enumerate(letters)
    ]


def test_an_unadvised_retry_is_compared_with_the_mean_of_the_advised_ones_before_it() -> None:
    # Means .5, none and 1 before the unadvised retries: differences -.5, (left out), and 1.
    seen = watch(retries("+-SF+F-"), MINE, START, 0.05)
    assert (seen.evidence.pairs, seen.evidence.better, seen.evidence.worse, seen.worse) == (2, 1, 1, False)
    assert seen.evidence.mean_difference == pytest.approx((-0.5 + 1) / 2)
    assert seen.evidence.log_wealth == pytest.approx(log_wealth(np.array([0.5, -1.0]))[-1])
    assert seen.retries == 7


def test_eight_lost_comparisons_are_enough_and_seven_are_not() -> None:
    assert not watch(retries("-S" * 7), MINE, START, 0.05).worse
    seen = watch(retries("--S" * 20), MINE, START, 0.05)
    assert (seen.worse, seen.evidence.pairs, seen.retries) == (True, 8, 24)


def test_an_adapter_that_helps_or_does_nothing_stays() -> None:
    assert not watch(retries("+F" * 500), MINE, START, 0.05).worse
    idle = watch(retries("-F" * 500), MINE, START, 0.05)
    assert (idle.worse, idle.evidence.better, idle.evidence.worse) == (False, 0, 0)
    assert watch([], MINE, START, 0.05).evidence.pairs == 0


def test_advice_of_another_adapter_and_retries_before_the_promotion_do_not_count() -> None:
    harmful = retries("-S" * 20)
    assert not watch(harmful, OTHER, START, 0.05).worse
    assert watch(harmful, MINE, START + timedelta(seconds=38), 0.05).evidence.pairs == 1
    assert watch(harmful, MINE, harmful[-1].stored_at, 0.05).retries == 0


def test_a_good_adapter_that_turns_bad_is_still_rolled_back() -> None:
    assert watch(retries("+F" * 10 + "-S" * 100), MINE, START, 0.05).worse


def test_only_stories_that_were_drawn_to_be_advised_are_compared() -> None:
    assert OpenTask.of("a task", advised=True).task.split == ADVISED_SPLIT
    assert OpenTask.of("a task").task.split != ADVISED_SPLIT
    assert (OpenTask.of("a task").advised, OpenTask.of("a task", advised=False).advised) == (True, False)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """A run whose adapter `sft`, the second, was promoted an hour ago."""
    monkeypatch.chdir(tmp_path)
    Path("live.yaml").write_text("run: live\nenvironment: {name: agent}\n")
    history = History(Path("runs/live"))
    for name, sha256 in (("warm", OTHER), ("sft", MINE)):
        record = history.append(history.records(), "promoted", PromotedAdapter(name=name, sha256=sha256), "test")
        path = history.folder / f"{record.number:06d}.json"
        path.write_text(record.model_copy(update={"at": record.at - timedelta(hours=1)}).model_dump_json())
    return load(Path("live.yaml"))


def store_stories(store: Store, letters: str, adapter: str, split: str = ADVISED_SPLIT) -> None:
    """Store a story for each letter, as in `retries`."""
    for number, letter in enumerate(letters):
        advised = letter in "+-"
        arm, name = COLLECT if advised else UNADVISED, f"{number:03d}-{letter}-{split}@{number:012x}"
        story = Task(id=name, environment="agent", split=split if advised else "live")
        add_trajectory(store, Key(arm=arm, task_id=name), attempt_at(story))
        if advised:
            written = advice("Try again.")
            author = written.author.model_copy(update={"adapter_sha256": adapter})
            key = Key(arm=arm, task_id=name, trial=1)
            store.add_reflection(key, 0, written.model_copy(update={"author": author}))
        solved = letter in "+S"
        outcome = Outcome.SUCCESS if solved else Outcome.FAILURE
        add_trajectory(store, Key(arm=arm, task_id=name, trial=1), attempt_at(story, (float(solved),), outcome))


def outcomes(experiment: Experiment, *stories: tuple[str, ...]) -> None:
    with closing(open_store(experiment)) as store:
        for arguments in stories:
            store_stories(store, *arguments)


def test_harmful_advice_is_rolled_back_with_its_evidence_and_the_adapter_before_is_watched(
    experiment: Experiment,
) -> None:
    outcomes(experiment, ("--S" * 20, MINE))
    found = look(experiment)
    assert found.startswith(f"Rolled back: reflector is warm@{OTHER[:12]}, as sft@{MINE[:12]} was worse than no advice")
    record = History(experiment.folder).records()[-1]
    assert (record.kind, record.by_monitor, record.evidence and record.evidence.worse) == ("rolled back", True, 8)
    assert look(experiment).startswith(f"reflector stays warm@{OTHER[:12]}: 0 live retries"), "nothing counts twice"


def test_stories_that_had_no_chance_to_be_unadvised_are_not_compared(experiment: Experiment) -> None:
    outcomes(experiment, ("--S" * 20, MINE, "live"), ("--S" * 20, OTHER))
    assert look(experiment).startswith(
        f"reflector stays sft@{MINE[:12]}: 40 live retries (0 better, 0 worse of 0 pairs"
    )


def test_the_command_looks_once(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    outcomes(experiment, ("+F" * 20, MINE))
    done = run(tmp_path, "retroformer", "monitor", "live.yaml", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "(20 better, 0 worse of 20 pairs against no advice, mean difference +1.000" in done.stdout


def test_a_row_that_was_changed_behind_the_stores_back_decides_nothing(experiment: Experiment) -> None:
    outcomes(experiment, ("+F" * 20, MINE))
    with closing(sqlite3.connect(experiment.folder / "experience.db")) as connection, connection:
        connection.execute("UPDATE trajectories SET episode_return = 0.0 WHERE arm = 'collect'")
    with pytest.raises(StoreError, match="is damaged"):
        look(experiment)
