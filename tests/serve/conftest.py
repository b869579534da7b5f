"""One base model, two small adapters, and one real endpoint that most tests of this room share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.embedded_model import base_model_folder
from tests.serve.running import KEYS, Endpoint, make_adapter, page, start
from tests.train.world import save_tiny_model

PATIENCE_SECONDS = 300.0
"""Longer than an endpoint takes to end, on a loaded machine."""
VARIABLE = "RETROFORMER_TEST_KEYS"


@pytest.fixture(scope="session")
def base() -> Path:
    return base_model_folder("embedded")


@pytest.fixture(scope="session")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(base, folder / name, seed) for seed, name in enumerate(("first", "second"))}


@pytest.fixture(scope="session")
def endpoint(base: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Base, the adapters `first` and `second`, and `sft` as a finished stage of the run."""
    folder = tmp_path_factory.mktemp("endpoint")
    stage = folder / "runs" / "served" / "sft"
    stage.parent.mkdir(parents=True)
    stage.symlink_to(adapters["first"], target_is_directory=True)
    process = start(folder, page=page(base, adapters))
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert " at " in line, process.communicate()[1]
    yield Endpoint(process, line, folder / "runs" / "served" / "logs")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert output == ""


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """An endpoint that asks for one of `KEYS`, and takes adapters from who has one."""
    folder = tmp_path_factory.mktemp("keyed")
    base = save_tiny_model(folder / "base")
    log = folder / "runs" / "tiny" / "logs" / "api.log"
    log.parent.mkdir(parents=True)
    log.touch(0o644)  # As an earlier version has left it.
    page = f"""
run: tiny
environment: {{name: alfworld}}
train: {{base_model: {base}}}
serve: {{port: 0, hand_over: true, api_key_env: {VARIABLE}}}
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, ",".join(KEYS))
        process = start(folder, page=page)
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert " at " in line, process.communicate()[1]
    yield Endpoint(process, line, log.parent)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
