"""A Ray cluster on this machine: a head and nodes, each with processes of its own."""

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


@contextmanager
def ray_folder() -> Iterator[Path]:
    """Give Ray a folder that is removed; its path must be short, as sockets lie in it."""
    # A killed worker cannot remove the sockets of its environments.
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, RAY_TMPDIR=name, TMPDIR=name),
    ):
        yield Path(name)


@contextmanager
def cluster_of(nodes: int, folder: Path, cpus: int = 1) -> Iterator[Any]:
    """Start a head without CPUs, and nodes with some each, whose files are in `folder`."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(folder / "ray")}
    (folder / "ray").mkdir(exist_ok=True)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=cpus)
        yield cluster
    finally:
        cluster.shutdown()


def replace_node(cluster: Any, chance: random.Random) -> None:
    """Kill one of the nodes that are alive, and add another."""
    alive = [node for node in cluster.worker_nodes if node.any_processes_alive()]
    cluster.remove_node(chance.choice(alive), allow_graceful=False)
    cluster.add_node(num_cpus=1)


def kill_head(cluster: Any) -> None:
    """Kill all processes of the head."""
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
