"""Faults of a cluster: Ray's nodes are killed and replaced while they collect, and then its head."""

import importlib.util
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.faults.world import PATIENCE_SECONDS, SLOTS, Outcome, Process, World
from tests.support.ray_cluster import cluster_of
from tests.support.runs import HOUSEHOLD, write_config

NODES = 3
_TASKS = 150
"""Enough that nodes start, are killed and are replaced while the run goes on."""
_MOST = 6
"""Most faults in one run."""


def killed_nodes(world: World, count: int) -> Outcome:
    """Kill nodes at random moments, each replaced by a new one, and the head last."""
    if importlib.util.find_spec("ray") is None:
        return Outcome(0, [], "the extra ray is not installed")
    folder = world.folder / "many"
    folder.mkdir()
    path = write_config(folder, world.server.url, HOUSEHOLD | {"collect": {"tasks": _TASKS, "candidates": 2}})
    many, faults, found = World(folder, world.server, world.chance, path), 0, list[str]()
    with many.slowly(0.1):
        while faults < count and not found:
            made, violations = _killed_run(many, min(_MOST, count - faults))
            faults += made
            found += violations
    return Outcome(faults, found)


def _killed_run(world: World, count: int) -> tuple[int, list[str]]:
    run, made = world.new_run(), 0
    calls = world.whole("collect").calls
    # Ray's sockets lie in its folder, so its path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, RAY_TMPDIR=name, TMPDIR=name),
    ):
        with cluster_of(NODES, Path(name)) as cluster:
            process = _collecting(world, run, cluster)
            for share in sorted(world.chance.uniform(0.05, 0.9) for _ in range(count)):
                while process.poll() is None and len(world.server.requests) < share * calls:
                    time.sleep(0.05)
                if process.poll() is not None:
                    break
                made += 1
                if made == count:
                    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
                    break
                node = world.chance.choice([node for node in cluster.worker_nodes if node.any_processes_alive()])
                cluster.remove_node(node, allow_graceful=False)
                cluster.add_node(num_cpus=1)
            process.communicate(timeout=PATIENCE_SECONDS)
        with cluster_of(NODES, Path(name)) as cluster:
            process = _collecting(world, run, cluster)
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    found = [] if process.returncode == 0 else [f"{run} did not end: {said[-300:]}"]
    # All workers die with the head.
    return made, found + world.judge(run, (made + NODES) * SLOTS)


def _collecting(world: World, run: str, cluster: Any) -> Process:
    return world.start(run, "collect.backend=ray", environment={"RAY_ADDRESS": cluster.address})
