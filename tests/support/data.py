"""Location of the real data; tests that need them are skipped if they are missing."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("RETROFORMER_DATA") or Path(__file__).parents[3] / "shared" / "data")
"""Folder with alfworld, hotpotqa, webshop, programming and recorded."""


def needs_data(name: str) -> pytest.MarkDecorator:
    """Mark a test that reads the file or folder `name` below DATA."""
    return pytest.mark.skipif(not (DATA / name).exists(), reason=_missing(name))


def require_data(name: str) -> Path:
    """Return the file or folder `name` below DATA; skip the test if it is missing."""
    if not (DATA / name).exists():
        pytest.skip(_missing(name))
    return DATA / name


def _missing(name: str) -> str:
    return f"no {name}: set RETROFORMER_DATA to the folder that holds it"
