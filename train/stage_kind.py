"""What sets the stages of training apart, as far as memory goes: facts about train/, one line a stage."""

from dataclasses import dataclass, replace
from typing import Literal

from retroformer.config import Experiment

StageName = Literal["warm", "sft", "reward", "ppo", "dpo", "grpo"]


@dataclass(frozen=True)
class StageKind:
    """How one stage differs from plain fine-tuning."""

    name: StageName
    texts: int = 1
    """Of a sample: both of a pair are read in one batch."""
    adapters: int = 1
    """On the base: the one that is trained, the SFT policy where it is held to one, and the reward model's."""
    trains_head: bool = False
    """Whether a score or a value is learnt beside the adapter, from the hidden states."""
    language_head: Literal["none", "compute", "fp32"] = "fp32"
    """The type that it computes in: that of everything else, or fp32, where small differences count."""
    autocast: Literal["always", "on a GPU", "never"] = "always"
    """Where the trunk is read under it. transformers' trainer sees to it in a model's own forward pass alone, so a loss
    that reads the trunk itself goes without."""
    casts: Literal["peft", "autocast"] = "peft"
    """What turns an adapter's input into the type that it computes in; `train.shared_base` leaves it to autocast."""
    draws: bool = False
    """Whether the process that trains draws responses, too."""
    pads: bool = False
    """Whether a single text has padding: what follows the end of a drawn response is, whoever drew it."""


KINDS = (
    StageKind("warm", language_head="compute", autocast="on a GPU"),
    StageKind("sft", language_head="compute", autocast="on a GPU"),
    StageKind("reward", texts=2, trains_head=True, language_head="none"),
    StageKind("ppo", adapters=3, trains_head=True, casts="autocast", draws=True, pads=True),
    StageKind("dpo", texts=2, adapters=2, autocast="never"),
    StageKind("grpo", adapters=3, casts="autocast", draws=True, pads=True),
)


def kinds(experiment: Experiment) -> list[StageKind]:
    """Those that a page can run, in the order of their commands.

    There is a warm start only where advice is written by rule, no reward model in memory where returns are live, and
    no drawing where a server does it.
    """
    page = experiment.train
    served = {name for name, one in (("ppo", page.ppo), ("grpo", page.grpo)) if one.generation is not None}
    return [
        replace(
            kind,
            adapters=2 if kind.name == "grpo" and page.grpo.reward == "live" else kind.adapters,
            draws=kind.draws and kind.name not in served,
        )
        for kind in KINDS
        if kind.name != "warm" or experiment.collect.written
    ]
