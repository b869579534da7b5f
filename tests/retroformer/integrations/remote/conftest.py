"""A run to push: an adapter that peft saved, and rated facts."""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import chdir, closing
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
pytest.importorskip("huggingface_hub", reason="the extra `remote` is not installed")
pytest.importorskip("retroformer.integrations.remote", reason="the integration was removed")

from retroformer.config.file import load
from retroformer.method.records import Author, Ending, Key, Message, Outcome, Reflection, Step, Task, Trajectory
from retroformer.run.store import open_store
from tests.support.facts import add_trajectory
from tests.train.world import save_tiny_model, trained


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with config.yaml and the adapter runs/tiny/sft; tests copy it."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Those of transformers and peft.
        trained(folder, save_tiny_model(folder / "base"))
    return folder


@pytest.fixture
def home(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a copy of the trained run, whose store has a failure, advice on it, and a retry that was solved."""
    folder = tmp_path / "home"
    shutil.copytree(trained_run, folder)
    (folder / "runs/tiny/experience.db").unlink()
    monkeypatch.chdir(folder)
    before, after = (Key(arm="collect", task_id="mug", trial=trial) for trial in (0, 1))
    with closing(open_store(load(folder / "config.yaml"))) as store:
        add_trajectory(store, before, _attempt(0.0))
        advice = Reflection(
            text="Look in shelf 1.",
            prompt=(Message(role="user", content="It failed."),),
            author=Author(endpoint="embedded", model="warm"),
        )
        store.add_reflection(after, 0, advice)
        add_trajectory(store, after, _attempt(1.0))
    return folder


@pytest.fixture
def away(home: Path, tmp_path: Path) -> Iterator[Path]:
    """Return another folder, with the config and without the run; a `with chdir` goes there."""
    folder = tmp_path / "away"
    folder.mkdir()
    shutil.copy(home / "config.yaml", folder)
    yield folder
    assert not [path for path in folder.rglob("*") if "pulling" in path.name]


def _attempt(reward: float) -> Trajectory:
    return Trajectory(
        task=Task(id="mug", environment="alfworld", split="train"),
        opening="A room with a mug.",
        steps=(Step(action="look", observation="A mug.", reward=reward),),
        outcome=Outcome.SUCCESS if reward else Outcome.FAILURE,
        ending=Ending.SOLVED if reward else Ending.STEP_LIMIT,
    )
