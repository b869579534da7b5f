"""A run whose reflector and reward model are adapters with random weights, on a base that answers in milliseconds."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from retroformer.config.file import load
from tests.train.world import prompt, save_tiny_model
from train.base import load_base, load_tokenizer, lora_config
from train.data.samples import AdviceText, samples
from train.group_trainer import GroupReader
from train.reward import Ranking, scores_of

CONTEXT_TOKENS = 8192
"""Context length of the base: its tokens are bytes, so prompts are long."""


def judged_run(folder: Path, **sections: Any) -> Path:
    """Write the config of the run `judged` in `folder`, with finished stages `sft` and `reward`."""
    base = save_tiny_model(folder / "tiny")
    config = base / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT_TOKENS}))
    path = folder / "config.yaml"
    content = {
        "run": "judged",
        "environment": {"name": "alfworld", "source": "generated", "split": "train"},
        "train": {"base_model": str(base), "quantization": "none", "dtype": "float32"},
        "serve": {"port": 0},
    }
    path.write_text(yaml.safe_dump(content | sections))
    for seed, stage in enumerate(("sft", "reward")):
        save_adapter(path, folder / "runs/judged" / stage, seed)
    return path


def save_adapter(path: Path, folder: Path, seed: int) -> Path:
    """Save a non-zero adapter, with a score head if the folder is a reward model's."""
    from peft import get_peft_model

    train, scores = load(path).train, folder.name.startswith("reward")
    torch.manual_seed(seed)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft asks transformers by an old name.
        base = load_base(train, scores=scores)
        config = lora_config(base, train.lora, scores=scores)
        config.init_lora_weights = False
        model: Any = get_peft_model(base, config)
        model.save_pretrained(str(folder))
    return folder


class ScoresOfTraining:
    """Reward model of a config that scores answers as its training does."""

    def __init__(self, path: Path, folder: Path) -> None:
        from peft import PeftModel

        experiment = load(path)
        train = experiment.train
        self._tokenizer = load_tokenizer(train)
        with warnings.catch_warnings(action="ignore"):
            model = PeftModel.from_pretrained(load_base(train, scores=True), str(folder))
            self._reader = GroupReader(model, Ranking(train.pair_weight))

    def __call__(self, asked: str, texts: Sequence[str]) -> list[float]:
        """Return the scores of these different answers to `world.prompt(asked)`."""
        answers = [AdviceText(prompt(asked), text) for text in texts]
        return scores_of(self._reader, list(samples(self._tokenizer, answers)))
