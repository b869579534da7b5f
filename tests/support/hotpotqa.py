"""The real questions and pages, if they are installed."""

from pathlib import Path

import pytest

from retroformer.environments.hotpotqa import taskset
from retroformer.environments.hotpotqa.environment import Hotpotqa
from tests.support.data import DATA, require_data

SHARED = DATA / "hotpotqa"


def index_of_the_data(cache: Path) -> Path:
    """Return a folder for RETROFORMER_CACHE with the index, which the first caller builds. Skips without data."""
    require_data("hotpotqa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(cache))
        taskset(Hotpotqa(data=SHARED)).environment()
    return cache
