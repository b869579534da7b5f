"""Test that the facts of a run are unchanged after export and import."""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from retroformer.arm_names import LIVE
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.errors import ConfigError, MissingInput, StoreError
from retroformer.experiment.config import Experiment
from retroformer.experiment.storage import open_store
from retroformer.parquet import export_run, import_run
from retroformer.rating import rated_reflections
from retroformer.records import Author, Ending, Key, Message, Outcome, Reflection, Step, Task, Trajectory
from train.rl.live import conditions_of_play

BEFORE, AFTER = (Key(arm="collect", task_id="mug", trial=trial) for trial in (0, 1))


def config(run: str) -> Experiment:
    return Experiment(run=run, environment=Alfworld(name="alfworld"))


def attempt(reward: float) -> Trajectory:
    return Trajectory(
        task=Task(id="mug", environment="alfworld", split="train"),
        opening="A room with a “mug”.",
        steps=(Step(action="look", observation="A mug.", reward=reward),),
        outcome=Outcome.SUCCESS if reward else Outcome.FAILURE,
        ending=Ending.SOLVED if reward else Ending.STEP_LIMIT,
    )


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Experiment]:
    monkeypatch.chdir(tmp_path)
    store = open_store(config("one"))
    store.add_trajectory(BEFORE, attempt(0.0))
    advice = Reflection(
        text="Look in shelf 1.",
        prompt=(Message(role="user", content="It failed."),),
        author=Author(endpoint="embedded", model="warm"),
    )
    store.add_reflection(AFTER, 0, advice)
    store.add_trajectory(AFTER, attempt(1.0))
    store.close()
    return config("one")


def test_exported_facts_are_imported_with_their_ratings(collected: Experiment, tmp_path: Path) -> None:
    assert export_run(collected, tmp_path / "out").startswith("2 trajectories and 1 reflections")
    import_run(config("two"), tmp_path / "out")
    there, here = open_store(config("one")), open_store(config("two"))
    assert here.trajectories("collect") == there.trajectories("collect")
    assert [stored[:3] for stored in here.reflections("collect")] == [
        stored[:3] for stored in there.reflections("collect")
    ]
    assert [reflection.rating for reflection in rated_reflections(here, "collect")] == [1.0]
    there.close()
    here.close()


def test_importing_twice_changes_nothing(collected: Experiment, tmp_path: Path) -> None:
    export_run(collected, tmp_path / "out")
    assert import_run(collected, tmp_path / "out") == import_run(collected, tmp_path / "out")
    store = open_store(collected)
    assert len(store.trajectories("collect")) == 2
    store.close()


def test_other_tools_can_read_the_rating_beside_the_text(collected: Experiment, tmp_path: Path) -> None:
    import pyarrow.parquet

    export_run(collected, tmp_path / "out")
    (row,) = pyarrow.parquet.read_table(tmp_path / "out" / "reflections.parquet").to_pylist()
    assert (row["text"], row["rating"], row["task_id"], row["trial"]) == ("Look in shelf 1.", 1.0, "mug", 1)


def test_an_empty_run_and_a_foreign_file_get_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInput, match="No facts of the run 'empty'"):
        export_run(config("empty"), tmp_path / "out")
    with pytest.raises(MissingInput, match=r"trajectories\.parquet"):
        import_run(config("empty"), tmp_path / "nowhere")
    (tmp_path / "trajectories.parquet").write_text("not parquet")
    with pytest.raises(ConfigError, match="not an export"):
        import_run(config("empty"), tmp_path)


Change = Callable[[dict[str, Any]], None]


def set_reward(value: float) -> Change:
    def change(row: dict[str, Any]) -> None:
        record = json.loads(row["record"])
        record["steps"][0]["reward"] = value
        row["record"] = json.dumps(record)

    return change


def set_in_record(name: str, value: object) -> Change:
    return lambda row: row.update(record=json.dumps(json.loads(row["record"]) | {name: value}))


def set_column(name: str, value: object) -> Change:
    return lambda row: row.update({name: value})


def rewrite(path: Path, change: Change, number: int) -> None:
    """Change one row of a file, counted from 1, and keep its metadata."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    rows = table.to_pylist()
    change(rows[number - 1])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, table.schema), path)


@pytest.mark.parametrize(
    ("file", "number", "change", "sentence"),
    [
        ("trajectories", 2, set_reward(math.nan), r"row 2, steps\.0\.reward: Input should be a finite number"),
        ("trajectories", 2, set_reward(1e9), r"row 2, reward: a return of 1e\+09 is impossible in alfworld"),
        ("trajectories", 2, set_in_record("outcome", "invalid"), r"row 2, outcome: an invalid attempt is not a fact"),
        ("trajectories", 1, set_in_record("outcome", "won"), r"row 1, outcome: Input should be 'success'"),
        ("trajectories", 2, set_column("task_id", "cup"), r"row 2, task_id: the key names 'cup', the record 'mug'"),
        ("trajectories", 2, set_column("trial", -1), r"row 2, trial: Input should be greater than or equal to 0"),
        ("trajectories", 2, set_column("trial", 0), r"row 2: this key comes twice"),
        ("trajectories", 2, set_column("record", '{"task": '), r"row 2, record: Invalid JSON"),
        ("trajectories", 2, set_column("record", None), r"row 2, record: "),
        ("trajectories", 2, set_column("candidate", 2**40), r"row 2, candidate: Input should be less than or equal to"),
        ("trajectories", 2, set_in_record("usage", {"prompt_tokens": 2**70}), r"row 2, usage\.prompt_tokens: "),
        ("trajectories", 2, set_in_record("usage", {"dollars": 1e308}), r"row 2, usage\.dollars: Input should be less"),
        (
            "trajectories",
            2,
            set_column("conditions_sha256", None),
            r"row 2, conditions_sha256: None is not in",
        ),
        ("trajectories", 1, set_column("conditions_sha256", "f" * 64), r"row 1, conditions_sha256: .* is not in the"),
        ("reflections", 1, set_column("trial", 0), r"row 1, trial: advice is for trial 1"),
        ("reflections", 1, set_column("previous_candidate", -1), r"row 1, previous_candidate: -1 is not a number of"),
        ("reflections", 1, set_in_record("text", 7), r"row 1, text: Input should be a valid string"),
    ],
)
def test_a_fact_that_cannot_be_true_is_refused_with_its_place_and_nothing_is_imported(
    collected: Experiment, tmp_path: Path, file: str, number: int, change: Change, sentence: str
) -> None:
    export_run(collected, tmp_path / "out")
    rewrite(tmp_path / "out" / f"{file}.parquet", change, number)
    with pytest.raises(ConfigError, match=rf"{file}\.parquet, {sentence}"):
        import_run(config("two"), tmp_path / "out")
    with closing(open_store(config("two"))) as store:
        assert store.arms() == []
        assert store.accounts() == {}


def test_conditions_that_were_changed_in_a_file_are_refused(collected: Experiment, tmp_path: Path) -> None:
    import pyarrow.parquet

    with closing(open_store(config("bound"))) as store:
        store.declare("collect", {"seed": 1})
        store.add_trajectory(BEFORE, attempt(0.0))
    export_run(config("bound"), tmp_path / "out")
    path = tmp_path / "out" / "trajectories.parquet"
    table = pyarrow.parquet.read_table(path)
    for metadata, sentence in (
        (b'{"ab": {"seed": 2}}', "were changed"),
        (b"{", "are damaged"),
        (None, "lacks the conditions"),
    ):
        changed = table.replace_schema_metadata({b"retroformer.conditions": metadata} if metadata else None)
        pyarrow.parquet.write_table(changed, path)
        with pytest.raises(ConfigError, match=sentence):
            import_run(config("two"), tmp_path / "out")


def test_imported_facts_keep_their_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_store(config("bound"))) as store:
        store.declare("collect", {"seed": 1})
        store.add_trajectory(BEFORE, attempt(0.0))
    export_run(config("bound"), tmp_path / "out")
    assert import_run(config("two"), tmp_path / "out").endswith("1 of them new")
    assert import_run(config("two"), tmp_path / "out").endswith("0 of them new")
    with closing(open_store(config("two"))) as store:
        assert store.conditions("collect") == {"seed": 1}
        with pytest.raises(ConfigError, match="seed=1, not 2"):
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
        store.declare(LIVE, played_under)
        store.add_trajectory(Key(arm=LIVE, task_id="mug", trial=1), attempt(1.0))
    export_run(one, tmp_path / "out")
    assert import_run(two, tmp_path / "out").endswith("1 of them new")
    with closing(open_store(two)) as store:
        assert store.conditions(LIVE) == played_under


def test_a_run_with_facts_of_other_conditions_accepts_no_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for run, seed in (("bound", 1), ("two", 2)):
        with closing(open_store(config(run))) as store:
            store.declare("collect", {"seed": seed})
            store.add_trajectory(BEFORE, attempt(0.0))
    export_run(config("bound"), tmp_path / "out")
    with pytest.raises(ConfigError, match="seed=2, not 1"):
        import_run(config("two"), tmp_path / "out")


def test_a_file_without_a_column_is_refused(collected: Experiment, tmp_path: Path) -> None:
    export_run(collected, tmp_path / "out")
    path = tmp_path / "out" / "trajectories.parquet"
    table = pyarrow.parquet.read_table(path)
    for name in ("conditions_sha256", "record", "task_id"):
        pyarrow.parquet.write_table(table.drop_columns([name]), path)
        with pytest.raises(ConfigError, match=rf"row 1, {name}: "):
            import_run(config("two"), tmp_path / "out")


def test_an_export_of_facts_that_were_changed_by_hand_is_refused(collected: Experiment, tmp_path: Path) -> None:
    with closing(sqlite3.connect("runs/one/experience.db")) as database:
        database.execute("update trajectories set conditions_sha256 = 'abc' where trial = 1")
        database.commit()
    with pytest.raises(StoreError, match=r"trial 1, candidate 0, repeat 0 in trajectories is not what was stored"):
        export_run(collected, tmp_path / "out")
