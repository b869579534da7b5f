"""Measures how reward models order pairs of the policy's own advice, beside what needs no reward model.

    python -m benchmarks.reward_order EXPERIMENT.yaml SEEDS REWARD POLICY [KEY=VALUE ...]

Of each seed's run, NAME-SEED, REWARD and POLICY name two adapters, and `round` a collection by POLICY: pairs of tasks
that the reward model has read are left out. Prints the share of the pairs whose better text is preferred by the score,
by the policy's likelihood of the text, and for being longer, over all pairs and over those whose texts have equally
many tokens; with 95% intervals over seeds' failures.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from eval.measure.statistics import bootstrap
from retroformer.config.file import load
from retroformer.models.loading import load_adapter
from retroformer.run.stage_metrics import read_metrics
from train.base import load_base, load_tokenizer
from train.data import inputs
from train.data.samples import sample_pairs
from train.dpo import DirectPreference, response_sums
from train.group_trainer import GroupReader
from train.pair_split import in_pairs
from train.reward import Ranking, scorer
from train.shared_prompt.packed import Group, Groups

PREFERENCES = ("score", "likelihood", "length")


class Margins(NamedTuple):
    """What the better text of each pair has more than the worse one, of P pairs."""

    of_preferences: tuple[NDArray[np.float64], ...]
    failures: NDArray[np.str_]


def margins(config: Path, seed: str, reward: str, policy: str, overrides: list[str]) -> Margins:
    """Read the pairs of one run that its reward model has not read."""
    name = load(config).run
    experiment = load(config, [*overrides, f"run={name}-{seed}", f"seed={seed}", "serve.adapters={}"])
    train, folder = experiment.train, experiment.folder
    read = {task for domain in read_metrics(folder / reward).training_domains or () for task in domain.tasks}
    pairs = [pair for pair in inputs.pairs(experiment) if pair.task_id not in read]
    groups = Groups(list(sample_pairs(load_tokenizer(train), pairs)), train.micro_batch_tokens)
    judge = GroupReader(scorer(train, folder / reward), Ranking("equal"))
    writer = GroupReader(load_adapter(load_base(train), folder / policy), DirectPreference("equal"))
    values = (
        judge.measured(groups),
        [response_sums(writer, group) for group in groups],
        [torch.tensor(list(map(len, group.responses))) for group in groups],
    )
    failures = [f"{seed} {number}" for number, size in enumerate(groups.sizes) for _ in range(size)]
    return Margins(tuple(_margin(groups, of_group) for of_group in values), np.array(failures))


def _margin(groups: Groups, values: list[torch.Tensor]) -> NDArray[np.float64]:
    better, worse = in_pairs(torch.cat(values), list[Group](groups))
    return np.asarray((better - worse).double().numpy())


def main(config: Path, seeds: str, reward: str, policy: str, *overrides: str) -> None:
    of_seeds = [margins(config, seed, reward, policy, list(overrides)) for seed in seeds.split(",")]
    failures = np.concatenate([of_seed.failures for of_seed in of_seeds])
    columns = zip(*(of_seed.of_preferences for of_seed in of_seeds), strict=True)
    by_name = dict(zip(PREFERENCES, map(np.concatenate, columns), strict=True))
    for name, chosen in (("all pairs", np.full(len(failures), True)), ("equally long", by_name["length"] == 0)):
        print(f"{name}: {chosen.sum()} pairs of {len(set(failures[chosen]))} failures")
        for preference, margin in by_name.items():
            print(f"  {preference:<10} {bootstrap((np.sign(margin[chosen]) + 1) / 2, failures[chosen])}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
