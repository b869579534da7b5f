"""A run whose reflector and reward model are adapters with random weights, on a base that answers in milliseconds."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from retroformer.config_file import load
from tests.train.world import prompt, save_tiny_model
from train.base import load_base, load_tokenizer, lora_config
from train.dataset import samples

CONTEXT_TOKENS = 8192
"""Its tokens are bytes, so prompts are long."""


def judged_run(folder: Path, **page: Any) -> Path:
    """The page of the run `judged` in `folder`, with finished stages `sft` and `reward`."""
    base = save_tiny_model(folder / "tiny")
    config = base / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT_TOKENS}))
    path = folder / "page.yaml"
    content = {
        "run": "judged",
        "environment": {"name": "alfworld", "source": "generated", "split": "train"},
        "train": {"base_model": str(base), "quantization": "none", "dtype": "float32"},
        "serve": {"port": 0},
    }
    path.write_text(yaml.safe_dump(content | page))
    for seed, stage in enumerate(("sft", "reward")):
        save_adapter(path, folder / "runs/judged" / stage, seed)
    return path


def save_adapter(page: Path, folder: Path, seed: int) -> Path:
    """An adapter that is not zero; with a score head where the folder is a reward model's."""
    from peft import get_peft_model

    train, scores = load(page).train, folder.name.startswith("reward")
    torch.manual_seed(seed)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft asks transformers by an old name.
        config = lora_config(train.lora, scores=scores)
        config.init_lora_weights = False
        model: Any = get_peft_model(load_base(train, scores=scores), config)
        model.save_pretrained(str(folder))
    return folder


class ScoresOfTraining:
    """The reward model of a page, scoring as its training does."""

    def __init__(self, page: Path, folder: Path) -> None:
        from accelerate import Accelerator
        from peft import PeftModel
        from transformers import TrainingArguments

        train = load(page).train
        self._tokenizer = load_tokenizer(train)
        with warnings.catch_warnings(action="ignore"):
            self.model = PeftModel.from_pretrained(load_base(train, scores=True), str(folder))
            self.args = TrainingArguments(output_dir=str(folder.parent / "trained"), use_cpu=True, report_to=[])
        self.accelerator = Accelerator(cpu=True)

    def __call__(self, asked: str, texts: Sequence[str]) -> list[float]:
        """Of these different answers to `world.prompt(asked)`."""
        from train.reward import scores

        return scores(self, samples(self._tokenizer, [(prompt(asked), text) for text in texts]))
