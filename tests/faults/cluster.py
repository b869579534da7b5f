"""Faults of a cluster: Ray's nodes are killed and replaced while they collect, and then its head."""

import importlib.util
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.world import PATIENCE_SECONDS, SLOTS, Outcome, Process, World
from tests.support.ray_cluster import cluster_of

NODES = 3


def killed_nodes(world: World, count: int) -> Outcome:
    """Kill nodes at random moments, each replaced by a new one, and the head last."""
    if importlib.util.find_spec("ray") is None:
        return Outcome(0, [], "the extra ray is not installed")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # Ray's sockets lie in its folder, so its path must be short.
        os.environ |= {"RAY_TMPDIR": folder, "TMPDIR": folder}
        run, made = world.new_run(), 0
        with world.slowly(0.3), cluster_of(NODES, Path(folder)) as cluster:
            process = _collecting(world, run, cluster)
            while process.poll() is None and made < count - 1:
                time.sleep(world.chance.uniform(2.0, 6.0))
                node = world.chance.choice([node for node in cluster.worker_nodes if node.any_processes_alive()])
                cluster.remove_node(node, allow_graceful=False)
                cluster.add_node(num_cpus=1)
                made += 1
            if process.poll() is None:
                cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
                made += 1
            process.communicate(timeout=PATIENCE_SECONDS)
        with cluster_of(NODES, Path(folder)) as cluster:
            process = _collecting(world, run, cluster)
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        found = [] if process.returncode == 0 else [f"{run} did not end: {said[-300:]}"]
        # All workers die with the head.
        return Outcome(made, found + world.judge(run, (made + NODES) * SLOTS))


def _collecting(world: World, run: str, cluster: Any) -> Process:
    return world.start(run, "collect.backend=ray", environment={"RAY_ADDRESS": cluster.address})
