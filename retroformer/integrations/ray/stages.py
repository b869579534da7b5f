"""The stages that a cluster can train, and the adapters that each may read."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

ClusterStage = Literal["warm", "sft", "reward", "dpo", "ppo", "grpo", "actor"]

EARLIER_STAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "warm": (),
        "sft": ("warm",),
        "reward": ("warm", "sft"),
        "dpo": ("sft",),
        "ppo": ("sft", "reward"),
        "grpo": ("sft", "reward"),
        "actor": (),
    }
)
"""Stage -> the stages whose adapters it may read."""
