"""Stages on a local Ray cluster store what one process stores, also when nodes are killed."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.rate import rate_reflections
from eval.report.report import compare_arms
from retroformer.config.file import Config
from retroformer.errors import ConfigError
from retroformer.run.store import open_store
from tests.support.endpoint import Endpoint
from tests.support.ray_cluster import cluster_of, kill_head, replace_node
from tests.support.runs import HOUSEHOLD, ROOT, facts, open_config, write_config

pytestmark = pytest.mark.usefixtures("workplace")

pytest.importorskip("ray", reason="the extra ray is not installed")


def with_ray(stage: str, config: Path, *overrides: str, address: str = "") -> "subprocess.Popen[str]":
    folder = config.parent
    return subprocess.Popen(
        [sys.executable, "-m", stage, str(config), "loop.backend=ray", *overrides],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | ({"RAY_ADDRESS": address} if address else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def conditions(config: Config, arm: str) -> dict[str, Any] | None:
    with closing(open_store(config.experiment)) as store:
        return store.conditions(arm)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_folder")
def test_a_local_cluster_stores_what_one_process_stores(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        alone = open_config(path, "collect.tasks=24", "run=alone")
        asyncio.run(rate_reflections(alone))
        calls = len(server.requests)
        process = with_ray("collect", path, "collect.tasks=24", "run=spread")
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert "24 of 24 played" in said
        spread = open_config(path, "collect.tasks=24", "run=spread")
        assert facts(alone).same_as(facts(spread))
        assert len(server.requests) == 2 * calls


@pytest.mark.slow
@pytest.mark.usefixtures("ray_folder")
def test_a_local_cluster_evaluates_as_one_process_does(tmp_path: Path) -> None:
    """The placebo reads what its source has written, so the arms are played in their order."""
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        alone = open_config(path, "eval.tasks=20", "run=alone")
        asyncio.run(compare_arms(alone))
        process = with_ray("eval", path, "eval.tasks=20", "run=spread")
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        spread, calls = open_config(path, "eval.tasks=20", "run=spread"), len(server.requests)
        asyncio.run(compare_arms(spread))
        assert len(server.requests) == calls + 1, "only the probe is repeated: the conditions are the same"
    for arm in ("trial 0", "no reflection", "remote reflector", "placebo"):
        assert conditions(alone, f"eval/{arm}") == conditions(spread, f"eval/{arm}")
        assert facts(alone, f"eval/{arm}").same_as(facts(spread, f"eval/{arm}"))
        assert facts(spread, f"eval/{arm}").trajectories
    tables = [
        [line for line in (tmp_path / "runs" / run / "eval/report.md").read_text().splitlines() if "solved" in line]
        for run in ("alone", "spread")
    ]
    assert tables[0] == tables[1]


def test_a_model_without_an_address_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(HOUSEHOLD))
    config = open_config(path, "loop.backend=ray")
    with pytest.raises(ConfigError, match=r"With loop\.backend=ray every model needs an address"):
        asyncio.run(rate_reflections(config))
    with pytest.raises(ConfigError, match=r"With loop\.backend=ray every model needs an address"):
        asyncio.run(compare_arms(config))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_folder")
def test_killed_nodes_and_a_killed_head_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """400 tasks on three nodes: five nodes are killed at random moments and replaced, and then the head."""
    chance = random.Random(0)
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        alone = open_config(path, "collect.tasks=400", "run=alone")
        asyncio.run(rate_reflections(alone))
        calls = len(server.requests)
        spread = open_config(path, "collect.tasks=400", "run=spread")
        kills = 0
        with cluster_of(3, Path(os.environ["RAY_TMPDIR"])) as cluster:
            process = with_ray("collect", path, "collect.tasks=400", "run=spread", address=cluster.address)
            for share in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8):
                wait_for(lambda share=share: len(server.requests) - calls >= share * calls, process)
                if kills < 5:
                    replace_node(cluster, chance)
                    kills += 1
                else:
                    kill_head(cluster)
            process.communicate(timeout=300)
            assert process.returncode != 0
        with cluster_of(3, Path(os.environ["RAY_TMPDIR"])) as cluster:
            process = with_ray("collect", path, "collect.tasks=400", "run=spread", address=cluster.address)
            said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        assert facts(alone).same_as(facts(spread))
        # Five workers died with their nodes, and three with the head.
        in_flight = (kills + 3) * spread.experiment.loop.concurrency
        assert 0 <= len(server.requests) - 2 * calls <= in_flight


def wait_for(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 600
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
