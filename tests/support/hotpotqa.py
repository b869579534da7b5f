"""The real questions and pages, where they are."""

import os
from pathlib import Path

import pytest

from retroformer.environments.hotpotqa import taskset
from retroformer.environments.sections import Hotpotqa

SHARED = Path(os.environ.get("RETROFORMER_DATA") or Path(__file__).parents[3] / "shared" / "data") / "hotpotqa"


def index_of_the_data(cache: Path) -> Path:
    """This folder as RETROFORMER_CACHE with the index in it; the first test that asks builds it. Skips without data."""
    if not SHARED.is_dir():
        pytest.skip("no HotPotQA data: set RETROFORMER_DATA to the folder that holds hotpotqa/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(cache))
        taskset(Hotpotqa(data=SHARED)).environment()
    return cache
