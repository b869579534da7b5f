"""The facts of a run leave it and come back unchanged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.config import Experiment
from retroformer.environments.sections import Alfworld
from retroformer.errors import ConfigError, MissingInput
from retroformer.parquet import export_run, import_run
from retroformer.rating import rated_reflections
from retroformer.records import Author, Ending, Key, Message, Outcome, Reflection, Step, Task, Trajectory
from retroformer.store import open_store

BEFORE, AFTER = (Key(arm="collect", task_id="mug", trial=trial) for trial in (0, 1))


def page(run: str) -> Experiment:
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
    store = open_store(page("one"))
    store.add_trajectory(BEFORE, attempt(0.0))
    advice = Reflection(
        text="Look in shelf 1.",
        prompt=(Message(role="user", content="It failed."),),
        author=Author(endpoint="embedded", model="warm"),
    )
    store.add_reflection(AFTER, 0, advice)
    store.add_trajectory(AFTER, attempt(1.0))
    store.close()
    return page("one")


def test_what_was_exported_is_imported_with_its_ratings(collected: Experiment, tmp_path: Path) -> None:
    assert export_run(collected, tmp_path / "out").startswith("2 trajectories and 1 reflections")
    import_run(page("two"), tmp_path / "out")
    there, here = open_store(page("one")), open_store(page("two"))
    assert here.trajectories("collect") == there.trajectories("collect")
    assert [one[:3] for one in here.reflections("collect")] == [one[:3] for one in there.reflections("collect")]
    assert [one.rating for one in rated_reflections(here, "collect")] == [1.0]
    there.close()
    here.close()


def test_importing_twice_changes_nothing(collected: Experiment, tmp_path: Path) -> None:
    export_run(collected, tmp_path / "out")
    assert import_run(collected, tmp_path / "out") == import_run(collected, tmp_path / "out")
    store = open_store(collected)
    assert len(store.trajectories("collect")) == 2
    store.close()


def test_other_tools_see_the_rating_beside_the_text(collected: Experiment, tmp_path: Path) -> None:
    import pyarrow.parquet

    export_run(collected, tmp_path / "out")
    (row,) = pyarrow.parquet.read_table(tmp_path / "out" / "reflections.parquet").to_pylist()
    assert (row["text"], row["rating"], row["task_id"], row["trial"]) == ("Look in shelf 1.", 1.0, "mug", 1)


def test_an_empty_run_and_a_strange_file_get_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInput, match="No facts of the run 'empty'"):
        export_run(page("empty"), tmp_path / "out")
    with pytest.raises(MissingInput, match=r"trajectories\.parquet"):
        import_run(page("empty"), tmp_path / "nowhere")
    (tmp_path / "trajectories.parquet").write_text("not parquet")
    with pytest.raises(ConfigError, match="not an export"):
        import_run(page("empty"), tmp_path)
