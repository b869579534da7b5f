"""A Ray cluster on this machine: a head and nodes, each with processes of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
