"""One base model, two small adapters, and one real endpoint that most tests of this folder share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.models.embedded import base_model_folder
from serve.engine.model import Model
from tests.serve.clients import loaded
from tests.serve.handing import World
from tests.serve.running import KEYS, Endpoint, make_adapter, ready_line, save_sketch, served_config, start, tiny_config
from tests.train.world import save_tiny_model

PATIENCE_SECONDS = 300.0
"""Upper bound for the shutdown of an endpoint on a loaded machine."""
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
    """Endpoint with the base, the adapters `first` and `second`, and `sft` as a finished stage of the run."""
    folder = tmp_path_factory.mktemp("endpoint")
    stage = folder / "runs" / "served" / "sft"
    stage.parent.mkdir(parents=True)
    stage.symlink_to(adapters["first"], target_is_directory=True)
    process = start(folder, config=served_config(base, adapters))
    yield Endpoint(process, ready_line(process), folder / "runs" / "served" / "logs")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert output == ""


@pytest.fixture(scope="session")
def sketch(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a base model with other content and a tenth of the work, for prompts as long as the embedded one's."""
    return save_sketch(base, tmp_path_factory.mktemp("sketch") / "base")


@pytest.fixture(scope="session")
def sketch_adapters(sketch: Path) -> dict[str, Path]:
    return {name: make_adapter(sketch, sketch.parent / name, seed) for seed, name in enumerate(("first", "second"))}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run torch with one thread, since sums are rounded differently with two."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(sketch: Path, sketch_adapters: dict[str, Path]) -> Model:
    """Load the sketch with its adapters into the engine of this process."""
    return loaded(sketch, sketch_adapters)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a base model that answers in milliseconds."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "base")


@pytest.fixture(scope="session")
def tiny_adapters(tiny: Path) -> dict[str, Path]:
    return {name: make_adapter(tiny, tiny.parent / name, seed) for seed, name in enumerate(("configured", "other"))}


@pytest.fixture(scope="session")
def keyed(tiny: Path, tiny_adapters: dict[str, Path]) -> Iterator[Endpoint]:
    """Start an endpoint of the tiny base that serves `configured` and loads adapters for clients with one of `KEYS`."""
    log = tiny.parent / "runs" / "tiny" / "logs" / "worker.log"
    log.parent.mkdir(parents=True)
    log.touch(0o644)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, ",".join(KEYS))
        taking = f"hand_over: true, api_key_env: {VARIABLE}, adapters: {{configured: {tiny_adapters['configured']}}}"
        process = start(tiny.parent, config=tiny_config(tiny, taking))
    yield Endpoint(process, ready_line(process), log.parent)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def world(keyed: Endpoint, tiny_adapters: dict[str, Path]) -> World:
    """Return the endpoint `keyed` with the folders of both adapters."""
    return World(keyed, tiny_adapters)
