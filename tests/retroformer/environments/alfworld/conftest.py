from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let ALFWorld create its folders in an empty home, and restore the arguments that its planner rewrites."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("ALFWORLD_DATA", raising=False)
        patch.setattr("sys.argv", ["pytest"])
        yield
