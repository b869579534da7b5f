"""The real questions and pages, where they are."""

from pathlib import Path

import pytest

from retroformer.environments.hotpotqa import taskset
from retroformer.environments.sections import Hotpotqa
from tests.support.data import DATA, require_data

SHARED = DATA / "hotpotqa"


def index_of_the_data(cache: Path) -> Path:
    """This folder as RETROFORMER_CACHE with the index in it; the first test that asks builds it. Skips without data."""
    require_data("hotpotqa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(cache))
        taskset(Hotpotqa(data=SHARED)).environment()
    return cache
