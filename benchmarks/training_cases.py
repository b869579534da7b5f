"""Cases of `benchmarks/training.py`, and their inputs on disk: sizes, config, adapters, prompts and responses."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.models.embedded import base_model_folder

SFT, REWARD = "sft", "reward"
CONFIG, TEXTS, SIZES = "config.yaml", "texts.json", "sizes.json"
LORA = {"rank": 16, "alpha": 16}
"""As in configs/evidence/seed.yaml, which trains the same base model."""


class BenchmarkCase(NamedTuple):
    """A stage, and the failures of one update with the responses to each."""

    stage: str
    failures: int
    responses: int

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of the better and the worse response of each pair: the first half is better than the second."""
        half = self.responses // 2
        paired = self.stage in ("reward", "dpo")
        return [(better, half + worse) for better in range(half) for worse in range(half)] if paired else []

    @property
    def batch_size(self) -> int:
        """Samples or pairs of an update."""
        return self.failures * (len(self.pairs) or self.responses)

    @property
    def rows(self) -> int:
        """Rows of TRL's trainer in an update."""
        return self.failures * (2 * len(self.pairs) or self.responses)


CASES: Mapping[str, BenchmarkCase] = MappingProxyType(
    {
        "sft-1": BenchmarkCase("sft", 4, 1),
        "sft-4": BenchmarkCase("sft", 1, 4),
        "reward-1": BenchmarkCase("reward", 1, 2),
        "reward-4": BenchmarkCase("reward", 1, 4),
        "dpo-1": BenchmarkCase("dpo", 1, 2),
        "dpo-4": BenchmarkCase("dpo", 1, 4),
        "grpo-8": BenchmarkCase("grpo", 1, 8),
        "ppo-1": BenchmarkCase("ppo", 4, 1),
        "ppo-4": BenchmarkCase("ppo", 1, 4),
    }
)


class Sizes(NamedTuple):
    case: str
    prompt: int
    response: int
    updates: int
    epochs: int
    """Passes of PPO over a batch."""
    trl_rows: int
    """Rows that TRL's trainer has in memory at once."""
    dtype: str
    base_model: str


class StageWork(NamedTuple):
    sizes: Sizes
    experiment: Experiment
    prompts: list[list[int]]
    responses: list[list[list[int]]]
    """Responses to each prompt, for the stages that do not sample them."""
    folder: Path

    @property
    def case(self) -> BenchmarkCase:
        return CASES[self.sizes.case]

    @property
    def settings(self) -> Any:
        return getattr(self.experiment.train, self.case.stage)


def prepare(sizes: Sizes, folder: Path) -> None:
    """Write the inputs of both sides. Prompts and texts are random: costs do not depend on the words."""
    import torch

    from train.base import read_config
    from train.plan.rehearsal import fresh_adapter

    case, base = CASES[sizes.case], base_model_folder(sizes.base_model)
    (folder / SIZES).write_text(json.dumps(sizes))
    (folder / CONFIG).write_text(yaml.safe_dump(_config(sizes, str(base))))
    experiment = load(folder / CONFIG)
    torch.manual_seed(experiment.seed)
    for name in (SFT, REWARD):
        fresh_adapter(experiment, folder / name, scores=name == REWARD)
    failures, words = case.failures * sizes.updates, read_config(str(base)).vocab_size
    prompts = torch.randint(3, words, (failures, sizes.prompt))
    responses = torch.randint(3, words, (failures, case.responses, sizes.response))
    (folder / TEXTS).write_text(json.dumps([prompts.tolist(), responses.tolist()]))


def read_work(folder: Path) -> StageWork:
    """Read what `prepare` wrote."""
    prompts, responses = json.loads((folder / TEXTS).read_text())
    return StageWork(
        Sizes(*json.loads((folder / SIZES).read_text())), load(folder / CONFIG), prompts, responses, folder
    )


def _config(sizes: Sizes, base: str) -> dict[str, Any]:
    case = CASES[sizes.case]
    # One micro-batch holds all of an update, as TRL's does unless `trl_rows` is smaller.
    tokens = case.failures * (sizes.prompt + case.responses * sizes.response)
    stage: dict[str, Any] = {"learning_rate": 1e-3, "epochs": sizes.epochs if case.stage == "ppo" else 1}
    if case.stage in ("ppo", "grpo"):
        key = "responses_per_prompt" if case.stage == "ppo" else "group"
        stage |= {"batch_size": case.batch_size, "updates": sizes.updates, key: case.responses}
    elif case.stage == "reward":
        stage["batch_size"] = case.failures
    train: dict[str, Any] = {
        "base_model": base,
        "quantization": "none",
        "dtype": sizes.dtype,
        "lora": LORA,
        "report_to": "none",
    }
    train |= {"batch_size": case.batch_size, "micro_batch_tokens": tokens}
    return {
        "run": "benchmark",
        "environment": {"name": "alfworld", "source": "generated"},
        "reflector": {"max_new_tokens": sizes.response},
        "train": train | {case.stage: stage},
    }
