"""Relative differences between a prompt with all its responses in one row, and a row for each response.

    python benchmarks/agreement.py

They are those that the check on the first batch of a stage compares with its limits (train/shared_prompt/agreement.py):
of hidden states, and of the gradient of the sum of a stage's values by the adapter: log-probabilities of tokens, or the
scores of texts. Rounding is different as the shapes of tensors are. The model is the embedded one with small random
adapters.

A second table has the differences between `train.trainer: packed` and `trl`, each with its own code from tokens to
gradient: of the loss of a batch, of its whole gradient, and of the parameter whose gradient differs most.
"""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.training_cases import CASES, SFT, Sizes, prepare, read_work
from benchmarks.training_trl import differences as differences_from_trl
from train.imitation import Imitation, adapted
from train.reward import Ranking, scorer
from train.shared_prompt.agreement import differences
from train.shared_prompt.packed import Group
from train.shared_prompt.reading import trunk_of

PROMPTS, RESPONSE, RESPONSES = (128, 384), 48, 4
"""Lengths in tokens, and the number of responses to a prompt."""
DTYPES = ("float32", "bfloat16")


def main() -> None:
    print("| dtype | prompt | hidden states | gradient | of which |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for dtype in DTYPES:
            prepare(Sizes("sft-4", max(PROMPTS), RESPONSE, RESPONSES, 1, 4, dtype, "embedded"), Path(folder))
            work = read_work(Path(folder))
            train = work.experiment.train
            responses = [texts[0] for texts in work.responses][:RESPONSES]
            stages: dict[str, tuple[Any, Any]] = {
                "log-probabilities": (adapted(train, work.folder / SFT), Imitation()),
                "scores": (scorer(train), Ranking(train.pair_weight)),
            }
            for name, (model, objective) in stages.items():
                values = partial(objective.values, model)
                for length in PROMPTS:
                    measured = differences(trunk_of(model.train()), values, Group(work.prompts[0][:length], responses))
                    figures = f"{measured['hidden states']:.1e} | {measured['gradient']:.1e}"
                    print(f"| {dtype} | {length} | {figures} | {name} |", flush=True)
        print("\n| dtype | prompt | packed and TRL | loss | gradient | largest of a parameter |")
        print("|---" * 6 + "|")
        for dtype in DTYPES:
            for case in ("sft-4", "reward-4", "dpo-4"):
                for length in PROMPTS:
                    rows = CASES[case].rows
                    prepare(Sizes(case, length, RESPONSE, 1, 1, rows, dtype, "embedded"), Path(folder))
                    figures = " | ".join(f"{figure:.1e}" for figure in differences_from_trl(read_work(Path(folder))))
                    print(f"| {dtype} | {length} | {case} | {figures} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
