"""Collecting on a local Ray cluster stores what one process stores, also when nodes are killed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from tests.support.endpoint import Endpoint
from tests.support.runs import ROOT, facts, open_config, write_config

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect_with_ray(folder: Path, config: Path, *overrides: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "collect", str(config), "collect.backend=ray", *overrides],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_local_cluster_stores_what_one_process_stores(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        alone = open_config(path, "collect.tasks=24", "run=alone")
        asyncio.run(rate_reflections(alone))
        calls = len(server.requests)
        process = collect_with_ray(tmp_path, path, "collect.tasks=24", "run=spread")
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert "24 of 24 played" in said
        spread = open_config(path, "collect.tasks=24", "run=spread")
        assert facts(alone).same_as(facts(spread))
        assert len(server.requests) == 2 * calls
