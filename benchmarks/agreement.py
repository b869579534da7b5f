"""Relative differences between a prompt with all its responses in one row, and a row for each response.

    python benchmarks/agreement.py [--prompts 128 384] [--response 48] [--responses 4] [--dtypes float32 bfloat16]

They are those that the check on the first batch of a stage compares with its limits (train/shared_prompt/agreement.py):
of hidden states, and of the gradient of the sum of a stage's values by the adapter: log-probabilities of tokens, or the
scores of texts. Rounding is different as the shapes of tensors are. The model is the embedded one with small random
adapters.

A second table has the differences between `train.trainer: packed` and `trl`, each with its own code from tokens to
gradient: of the loss of a batch, of its whole gradient, and of the parameter whose gradient differs most.
"""

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", nargs="+", type=int, default=[128, 384], help="tokens")
    parser.add_argument("--response", type=int, default=48, help="tokens")
    parser.add_argument("--responses", type=int, default=4)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--base-model", default="embedded", help="as in a config: a folder, or a name on the hub")
    chosen = parser.parse_args()
    print("| dtype | prompt | hidden states | gradient | of which |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for dtype in chosen.dtypes:
            sizes = Sizes(
                "sft-4", max(chosen.prompts), chosen.response, chosen.responses, 1, 4, dtype, chosen.base_model
            )
            prepare(sizes, Path(folder))
            work = read_work(Path(folder))
            train = work.experiment.train
            responses = [texts[0] for texts in work.responses][: chosen.responses]
            stages: dict[str, tuple[Any, Any]] = {
                "log-probabilities": (adapted(train, work.folder / SFT), Imitation()),
                "scores": (scorer(train), Ranking(train.pair_weight)),
            }
            for name, (model, objective) in stages.items():
                values = partial(objective.values, model)
                for length in chosen.prompts:
                    measured = differences(trunk_of(model.train()), values, Group(work.prompts[0][:length], responses))
                    figures = f"{measured['hidden states']:.1e} | {measured['gradient']:.1e}"
                    print(f"| {dtype} | {length} | {figures} | {name} |", flush=True)
        print("\n| dtype | prompt | packed and TRL | loss | gradient | largest of a parameter |")
        print("|---" * 6 + "|")
        for dtype in chosen.dtypes:
            for case in ("sft-4", "reward-4", "dpo-4"):
                for length in chosen.prompts:
                    rows = CASES[case].rows
                    sizes = Sizes(case, length, chosen.response, 1, 1, rows, dtype, chosen.base_model)
                    prepare(sizes, Path(folder))
                    figures = " | ".join(f"{figure:.1e}" for figure in differences_from_trl(read_work(Path(folder))))
                    print(f"| {dtype} | {length} | {case} | {figures} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
