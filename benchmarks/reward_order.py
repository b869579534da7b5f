"""Measures how reward models order pairs of the policy's own advice, beside what needs no reward model.

    python -m benchmarks.reward_order EXPERIMENT.yaml FOLDER REWARD POLICY [seed=SEED run=RUN [KEY=VALUE ...]]

Of the RUN, REWARD and POLICY name two adapters, and `round` a collection by POLICY: pairs of tasks that the reward
model has read are left out. Writes the margins of its pairs to FOLDER/RUN.json. Then reads all such files of FOLDER,
and prints the share of the pairs whose better text is preferred by the score, by the policy's likelihood of the text,
and for being longer, over all pairs and over those whose texts have equally many tokens; with 95% intervals over
failures.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.measure.statistics import bootstrap
from retroformer.config.experiment import Experiment
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


def margins(experiment: Experiment, reward: str, policy: str) -> dict[str, list[Any]]:
    """Return what the better text of each pair has more than the worse one, and the number of the pair's failure.

    The pairs are those of a run that its reward model has not read.
    """
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
    failures = [number for number, size in enumerate(groups.sizes) for _ in range(size)]
    columns = zip(PREFERENCES, (_margin(groups, of_group) for of_group in values), strict=True)
    return {"failure": failures} | {name: np.round(margin, 4).tolist() for name, margin in columns}


def _margin(groups: Groups, values: list[torch.Tensor]) -> NDArray[np.float64]:
    better, worse = in_pairs(torch.cat(values), list[Group](groups))
    return np.asarray((better - worse).double().numpy())


def main(config: Path, folder: Path, reward: str, policy: str, *overrides: str) -> None:
    if overrides:
        experiment = load(config, overrides)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{experiment.run}.json").write_text(json.dumps(margins(experiment, reward, policy)) + "\n")
    runs = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    failures = np.array([f"{run} {number}" for run, of_run in runs.items() for number in of_run["failure"]])
    by_name = {name: np.concatenate([of_run[name] for of_run in runs.values()]) for name in PREFERENCES}
    for name, chosen in (("all pairs", np.full(len(failures), True)), ("equally long", by_name["length"] == 0)):
        print(f"{name}: {chosen.sum()} pairs of {len(set(failures[chosen]))} failures")
        for preference, margin in by_name.items():
            print(f"  {preference:<10} {bootstrap((np.sign(margin[chosen]) + 1) / 2, failures[chosen])}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
