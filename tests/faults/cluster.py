"""Faults of a cluster: Ray's nodes are killed and replaced while they collect, and then its head."""

import importlib.util
from typing import Any

from tests.faults.world import PATIENCE_SECONDS, SLOTS, Outcome, Process, World, still_runs_when
from tests.support.ray_cluster import cluster_of, kill_head, ray_folder, replace_node
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
    path = write_config(folder, world.server.url, HOUSEHOLD | {"collect": HOUSEHOLD["collect"] | {"tasks": _TASKS}})
    many, faults, sentences = World(folder, world.server, world.chance, path), 0, list[str]()
    with many.slowly(0.1):
        while faults < count and not sentences:
            made, sentences = _killed_run(many, min(_MOST, count - faults))
            faults += made
    return Outcome(faults, sentences)


def _killed_run(world: World, count: int) -> tuple[int, list[str]]:
    """Return the number of faults that a run met, at most `count`, and what they did to its facts."""
    run, made = world.new_run(), 0
    calls = world.whole("collect").calls
    with ray_folder() as folder:
        with cluster_of(NODES, folder) as cluster:
            process = _collecting(world, run, cluster)
            for share in sorted(world.chance.uniform(0.05, 0.9) for _ in range(count)):
                if not still_runs_when(process, lambda due=share * calls: len(world.server.requests) >= due):
                    break
                made += 1
                if made < count:
                    replace_node(cluster, world.chance)
                else:
                    kill_head(cluster)
            process.communicate(timeout=PATIENCE_SECONDS)
        with cluster_of(NODES, folder) as cluster:
            process = _collecting(world, run, cluster)
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    sentences = [] if process.returncode == 0 else [f"{run} did not end: {said[-300:]}"]
    # All workers die with the head.
    return made, sentences + world.judge(run, (made + NODES) * SLOTS)


def _collecting(world: World, run: str, cluster: Any) -> Process:
    return world.start(run, "loop.backend=ray", environment={"RAY_ADDRESS": cluster.address})
