"""The campaigns of `make faults`. Each repeats one kind of fault at random moments until it has had its share."""

import random
import tempfile
from pathlib import Path

from tests.faults import cluster, collecting, stages, storing
from tests.faults.world import Campaign, Outcome, World
from tests.support.endpoint import Endpoint

CAMPAIGNS: dict[str, tuple[Campaign, int]] = {
    "SIGKILL while collecting": (collecting.kills, 60),
    "SIGKILL while evaluating": (stages.killed_evaluations, 25),
    "SIGKILL while training": (stages.killed_trainings, 15),
    "SIGKILL of a server's processes": (stages.killed_servers, 10),
    "Ray's nodes and head killed": (cluster.killed_nodes, 6),
    "endpoint storms": (collecting.storms, 120),
    "environment processes killed or stopped": (collecting.environment_deaths, 30),
    "SQLite locked": (storing.locked_databases, 25),
    "PostgreSQL stopped and started": (storing.restarted_servers, 12),
    "full disk": (storing.full_disks, 8),
    "read-only folder": (storing.read_only_folders, 6),
    "flipped bits in the store": (storing.flipped_bits, 60),
    "adapter truncated, flipped or swapped": (stages.changed_adapters, 9),
    "two collectors, one killed": (collecting.two_collectors, 10),
    "clock jumps": (collecting.clock_jumps, 10),
}
"""Campaigns by name, each with its number of faults."""


def run(name: str, seed: int, share: float = 1.0) -> Outcome:
    """Run a campaign with this share of its faults; its moments follow from the seed, what they meet does not."""
    campaign, usual = CAMPAIGNS[name]
    with tempfile.TemporaryDirectory(prefix="faults") as folder, Endpoint() as server:
        world = World(Path(folder), server, random.Random(f"{seed} {name}"))
        return campaign(world, max(1, round(share * usual)))
