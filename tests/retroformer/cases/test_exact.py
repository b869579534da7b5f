"""Test that an exact export restores every fact of a run, and that facts that cannot be true are refused."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import retroformer as rf
from retroformer.cases.export_cases import export_cases
from retroformer.cases.import_cases import import_cases
from retroformer.config.experiment import Experiment
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.errors import ConfigError, DamagedFile, RetroformerError, StoreError
from retroformer.method.rating import ratings
from retroformer.method.records import (
    Author,
    DrawnToken,
    Ending,
    Key,
    Message,
    Outcome,
    Reflection,
    Sampling,
    Step,
    Task,
    Trajectory,
)
from retroformer.run.arm_names import LIVE
from retroformer.run.store import Store, open_store
from tests.support.facts import add_trajectory
from train.rl.live import conditions_of_play


def config(run: str) -> Experiment:
    return Experiment(run=run, environment=Alfworld(name="alfworld"))


def attempt(reward: float, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "task": Task(id="mug", environment="alfworld", split="train"),
        "opening": "A room with a “mug”.",
        "steps": (
            Step(thought="Hm.", action="look", observation="A mug.", reward=reward),
            Step(action="", observation=""),
        ),
        "outcome": Outcome.SUCCESS if reward else Outcome.FAILURE,
        "ending": Ending.SOLVED if reward else Ending.STEP_LIMIT,
    }
    return Trajectory.model_validate(fields | changes)


def key(trial: int, candidate: int = 0, repeat: int = 0, arm: str = "collect") -> Key:
    return Key(arm=arm, task_id="mug", trial=trial, candidate=candidate, repeat=repeat)


ADVICE = Reflection(
    text="Look in shelf 1.",
    prompt=(Message(role="user", content="It failed."),),
    author=Author(endpoint="embedded", model="warm", adapter_sha256="ab"),
    sampling=Sampling(temperature=0.9, max_new_tokens=50, seed=3),
    finish_reason="stop",
    drawn=(DrawnToken(7, -0.5),),
)


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """A run with candidates, repeats, shared first attempts, and attempts, advice and marks of several arms."""
    monkeypatch.chdir(tmp_path)
    with closing(open_store(config("one"))) as store:
        store.declare("collect", {"seed": 1})
        add_trajectory(store, key(0), attempt(0.0, judged=True))
        for candidate in (0, 5000):
            store.add_reflection(key(1, candidate), 0, ADVICE)
            for repeat in range(2):
                add_trajectory(store, key(1, candidate, repeat), attempt(repeat / 2, opening="Another room."))
        store.add_reflection(key(2), 5000, ADVICE)
        add_trajectory(store, key(0, arm="eval/trial 0"), attempt(0.0))
        store.add_reflection(key(1, arm="eval/advised"), 0, ADVICE)
        add_trajectory(store, key(1, arm="eval/advised"), attempt(1.0))
        add_trajectory(store, key(1, arm="eval/unadvised"), attempt(0.25))
        store.marks.add("collect", "mug", "wrong", "It never looked.")
        store.marks.add("collect", "mug", "")
    return config("one")


def facts(store: Store) -> list[Any]:
    arms = store.arms()
    read = [
        [
            store.conditions(arm),
            dict(store.stream_trajectories(arm)),
            [each[:3] for each in store.stream_reflections(arm)],
        ]
        for arm in arms
    ]
    read += [store.stored_times(arm, "mug") for arm in arms]
    return [arms, read, store.marks.history(), store.accounts()]


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_an_exact_export_restores_every_fact(collected: Experiment, tmp_path: Path, name: str) -> None:
    assert export_cases(collected, tmp_path / name, exact=True).startswith("8 cases")
    assert "12 of their facts new" in import_cases(config("two"), tmp_path / name)
    assert "0 of their facts new" in import_cases(config("two"), tmp_path / name)
    with closing(open_store(collected)) as there, closing(open_store(config("two"))) as here:
        assert facts(here) == facts(there)
        assert [reflection.rating for reflection in ratings(here, "collect", records=True)] == [0.25, 0.25]
    assert "0 of their facts new" in import_cases(collected, tmp_path / name)


def test_other_tools_can_read_the_rating_and_the_arm(collected: Experiment, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    export_cases(collected, tmp_path / "all.parquet", exact=True)
    table = pandas.read_parquet(tmp_path / "all.parquet")
    arms = [origin["attempt"]["arm"] for origin in table.origin]
    assert sorted(arms) == ["collect"] * 5 + ["eval/trial 0"] * 2 + ["eval/unadvised"]
    assert sorted(table.rating.dropna()) == [0.0, 0.0, 0.5, 0.5, 1.0]


def test_a_run_with_facts_of_other_conditions_accepts_no_import(collected: Experiment, tmp_path: Path) -> None:
    export_cases(collected, tmp_path / "all.jsonl", exact=True)
    with closing(open_store(config("two"))) as store:
        store.declare("collect", {"seed": 2})
        add_trajectory(store, key(0), attempt(0.0))
    with pytest.raises(ConfigError, match="seed=2, not 1"):
        import_cases(config("two"), tmp_path / "all.jsonl")


def test_imported_facts_keep_their_conditions(collected: Experiment, tmp_path: Path) -> None:
    export_cases(collected, tmp_path / "all.jsonl", exact=True)
    import_cases(config("two"), tmp_path / "all.jsonl")
    with closing(open_store(config("two"))) as store, pytest.raises(ConfigError, match="seed=1, not 2"):
        store.declare("collect", {"seed": 2})


def test_facts_of_live_training_are_imported_with_their_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (
        Experiment(run=run, environment=Alfworld(name="alfworld", source="generated")) for run in ("one", "two")
    )
    played_under = conditions_of_play(one)
    with closing(open_store(one)) as store:
        add_trajectory(store, key(0), attempt(0.0))
        store.declare(LIVE, played_under)
        store.add_reflection(key(1, 7, arm=LIVE), 0, ADVICE)
        add_trajectory(store, key(1, 7, arm=LIVE), attempt(1.0))
    export_cases(one, tmp_path / "all.parquet", exact=True)
    assert "3 of their facts new" in import_cases(two, tmp_path / "all.parquet")
    with closing(open_store(one)) as there, closing(open_store(two)) as here:
        assert facts(here) == facts(there)


def set_at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = row
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "kind", "sentence"),
    [
        (
            "attempt.steps.0.reward",
            float("nan"),
            DamagedFile,
            "Line 1 of .*, attempt.steps.0.reward: Input should be a fin",
        ),
        ("attempt.score", 1e9, DamagedFile, r"Line 1 of .*, attempt: score is 1e\+09, but its steps earn 0"),
        ("attempt.outcome", "invalid", DamagedFile, "Line 1 of .*, attempt: outcome: an invalid attempt is not a fact"),
        ("attempt.outcome", "won", DamagedFile, "Line 1 of .*, attempt.outcome: Input should be 'success'"),
        ("attempt.ending", None, DamagedFile, "Line 1 of .*, attempt: .* needs its steps and its ending"),
        ("attempt.usage", {"prompt_tokens": 2**70}, DamagedFile, "attempt.usage.prompt_tokens: "),
        ("attempt.usage", {"dollars": 1e308}, DamagedFile, "attempt.usage.dollars: Input should be less"),
        ("origin.attempt.trial", -1, DamagedFile, "origin.attempt.trial: Input should be greater than or equal to 0"),
        (
            "origin.attempt.candidate",
            2**40,
            DamagedFile,
            "origin.attempt.candidate: Input should be less than or equal",
        ),
        ("origin.retry.trial", 2, DamagedFile, "Line 1 of .*, origin: retry: it is not the trial after the attempt"),
        ("origin.retry.task_id", "cup", DamagedFile, "Line 1 of .*, origin: retry: it is not the trial after"),
        ("origin.retry", None, DamagedFile, "Line 1 of .*: origin.retry: the field is missing"),
        ("origin.marks.0.verdict", "great", DamagedFile, "origin.marks.0.verdict: Input should be 'right'"),
        ("advice.reflection.text", 7, DamagedFile, "advice.reflection.text: Input should be a valid string"),
        ("origin.environment", "hotpotqa", ConfigError, "case 1, origin.environment: a fact about hotpotqa cannot be"),
        ("origin.conditions", {"environment": 7}, ConfigError, "case 1, origin.conditions: they are damaged"),
        (
            "origin.conditions",
            {"seed": 9},
            ConfigError,
            "case 2, origin.conditions: facts of the arm 'collect' were made",
        ),
        ("attempt.judged", False, ConfigError, "case 2: another case has other facts under its keys"),
    ],
)
def test_a_fact_that_cannot_be_true_is_refused_with_its_place_and_nothing_is_imported(
    collected: Experiment, tmp_path: Path, path: str, value: Any, kind: type[RetroformerError], sentence: str
) -> None:
    file = tmp_path / "all.jsonl"
    export_cases(collected, file, exact=True)
    first, *others = file.read_text().splitlines()
    row = json.loads(first)
    set_at(path, value)(row)
    file.write_text("\n".join([json.dumps(row), *others]))
    with pytest.raises(kind, match=sentence) as refused:
        import_cases(config("two"), file)
    assert "\n" not in str(refused.value)
    assert not Path("runs/two/experience.db").exists()


def test_an_impossible_return_is_refused(collected: Experiment, tmp_path: Path) -> None:
    with closing(open_store(collected)) as store:
        add_trajectory(store, key(0, arm="a"), attempt(7.0))
    export_cases(collected, tmp_path / "all.jsonl", exact=True)
    with pytest.raises(
        ConfigError, match=r"case 1, attempt\.score: a return of 7 is impossible in alfworld, where it lies"
    ):
        import_cases(config("two"), tmp_path / "all.jsonl")


def test_an_export_of_facts_that_were_changed_by_hand_is_refused(collected: Experiment, tmp_path: Path) -> None:
    with closing(sqlite3.connect("runs/one/experience.db")) as database:
        database.execute("update trajectories set conditions_sha256 = 'abc' where trial = 1")
        database.commit()
    with pytest.raises(StoreError, match=r"trial 1, candidate 0, repeat 0 in trajectories is not what was stored"):
        export_cases(collected, tmp_path / "all.jsonl", exact=True)
    assert not (tmp_path / "all.jsonl").exists()


def test_a_plain_export_holds_no_evaluation_and_no_prompt(collected: Experiment, tmp_path: Path) -> None:
    export_cases(collected, tmp_path / "cases.jsonl")
    cases = list(rf.read_cases(tmp_path / "cases.jsonl"))
    assert len(cases) == 5
    assert not [case for case in cases if case.origin or (case.advice and case.advice.reflection)]
