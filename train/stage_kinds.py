"""The training stages in one table: purpose, required adapters, and how each uses memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from retroformer.config.experiment import Experiment

ACTOR_ROWS = 2
"""Demonstrations that are in memory at once."""

StageName = Literal["actor", "warm", "sft", "reward", "ppo", "dpo", "grpo", "sac"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class StageKind:
    """A stage. The defaults describe imitation with one fresh adapter."""

    name: StageName
    """Name of the stage, of its section of `train` in a config, and of its command."""
    does: str
    """First sentence of its command's help."""
    reads: str
    """Inputs of its command, for the help."""
    purpose: str
    """What its adapter does, for the model card."""
    limits: str
    """What its adapter does not do, for the model card."""
    needs: tuple[str, ...] = ()
    """Stages whose adapters are in memory beside the trained one."""
    responses: int = 1
    """Least number of responses in a row: two for stages on pairs."""
    trains_actor: bool = False
    """True if its adapter acts, not advises. `train plan` does not describe such stages."""
    on_policy: bool = False
    """True if it trains on responses of its own policy, on the base that `train.rl.policy` describes."""
    rate_share: float = 1.0
    """Learning rate that fits it as a share of that of imitation on the same base."""
    trains_head: bool = False
    """True if it trains a score head or a value head on the hidden states."""
    reads_language_head: bool = True
    """True if log-probabilities are computed, by the language head."""

    @property
    def on_groups(self) -> bool:
        """True if it trains a reflector on stored texts, by the trainer that train.trainer names."""
        return not (self.on_policy or self.trains_actor)


_KINDS = (
    StageKind(
        "actor",
        does="Teach a household or shopping actor by scripted play.",
        reads="the tasks of environment.split",
        purpose="plays the compact text of one environment, taught by scripted play; it is frozen in every experiment",
        limits="It continues texts of one environment; every other text is continued as if it were one of these.",
        trains_actor=True,
    ),
    StageKind(
        "warm",
        does="Imitate advice that was written by rule.",
        reads="what `collect warm` wrote to the store",
        purpose="writes advice after a failed attempt, in the form of advice written by rule (a warm start)",
        limits="It has learned a form: what it says need not be true or useful, since its examples were not all so.",
    ),
    StageKind(
        "sft",
        does="Imitate reflections with a positive rating.",
        reads="rated reflections, and the warm adapter if there is one",
        purpose="writes advice after a failed attempt, by imitating advice that helped or that attempts proved right",
        limits="It imitates few texts, and says confidently what fitted other attempts.",
    ),
    StageKind(
        "reward",
        does="Learn which of two reflections is better.",
        reads="pairs of rated reflections",
        purpose="scores advice on a failed attempt: the higher, the more the next attempt should gain",
        limits="It is no language model and no judge of facts: scores far from its data are arbitrary, and only their "
        "order within one attempt was trained.",
        responses=2,
        trains_head=True,
        reads_language_head=False,
    ),
    StageKind(
        "ppo",
        does="Write what the reward model prefers.",
        reads="prompts of the store, and the adapters of sft and reward",
        purpose="writes advice after a failed attempt, improved by PPO against a reward model",
        limits="A reward model is not the task: a higher score is no gain until `retroformer eval` has shown one.",
        needs=("sft", "reward"),
        on_policy=True,
        rate_share=0.3,
        trains_head=True,
    ),
    StageKind(
        "dpo",
        does="Write the better of two reflections, without a reward model.",
        reads="pairs, and the adapter of sft",
        purpose="writes advice after a failed attempt, improved by DPO on pairs of rated advice",
        limits="A margin between recorded pairs is not the task: it is no gain until `retroformer eval` has shown one.",
        needs=("sft",),
        responses=2,
        rate_share=0.1,
    ),
    StageKind(
        "grpo",
        does="Write what is better than its group, scored by a reward model, by live retries or by stored ratings.",
        reads="prompts of the store, the adapter of sft, and that of reward if train.grpo.reward is model",
        purpose="writes advice after a failed attempt, improved by GRPO on groups of advice",
        limits="A higher reward in training is no gain on other tasks until `retroformer eval` has shown one.",
        needs=("sft", "reward"),
        on_policy=True,
        rate_share=0.3,
    ),
    StageKind(
        "sac",
        does="Train the actor itself by soft actor-critic, the paper's baseline without a reflector.",
        reads="the tasks of environment.split, which it plays, and the adapter that actor.endpoint.model names",
        purpose="plays the tasks of one environment, trained by discrete SAC on its own attempts",
        limits="It chooses among actions that the environment lists, and takes no advice unless it did before.",
        trains_actor=True,
        trains_head=True,
    ),
)
STAGES: Mapping[str, StageKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The stages by name, in the order of their commands."""


def stages_of(experiment: "Experiment") -> list[StageKind]:
    """Return the stages that train a reflector and that a config can run.

    The warm start needs advice written by rule; GRPO has a reward model in memory only if that gives the rewards.
    """
    rated = experiment.train.grpo.reward != "model"
    written = any(domain.collect.written for domain in experiment.each_domain)
    return [
        replace(kind, needs=("sft",)) if kind.name == "grpo" and rated else kind
        for kind in _KINDS
        if not kind.trains_actor and (kind.name != "warm" or written)
    ]
