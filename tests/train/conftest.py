import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run torch with one thread, as in the processes that tests start, since resumed runs are compared bit by bit.

    Sums are rounded differently with two threads. The number of threads is restored after each test.
    """
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def _one_thread_for_fixtures() -> Iterator[None]:
    """Do the same for fixtures of module scope, which are set up before `_one_thread`."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train.world import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny"))
