"""A tiny language model and a store of rated reflections, for tests of training."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.method.records import Author, Key, Message, Reflection, Task
from retroformer.run.store import Store, open_store
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIAL = ("<|pad|>", "<|start|>", "<|end|>")
GOOD, BAD = "Look in the fridge.", "Dance on the sofa."
AUTHOR = Author(endpoint="rule", model="rule")


def save_tiny_model(folder: Path, hidden: int = 32) -> Path:
    """Save a Llama of two layers with random weights, whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: index for index, word in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def prompt(name: str) -> tuple[Message, ...]:
    return (Message(role="user", content=f"{name} failed. Advice:"),)


def config_file(folder: Path, base: Path, **train: Any) -> Path:
    """Write a config whose stages train the model in `base` for a few steps, with large learning rates."""
    quick = {"learning_rate": 3e-3}
    # Without epochs, a stage would repeat these few texts until it has taken thirty steps.
    once: dict[str, Any] = {
        "sft": {**quick, "epochs": 2},
        "reward": {**quick, "epochs": 1, "batch_size": 4},
        "dpo": {"learning_rate": 1e-5, "epochs": 1},
    }
    settings: dict[str, Any] = {
        "base_model": str(base),
        "quantization": "none",
        "dtype": "float32",
        "max_length": 256,
        "checkpoint_steps": 1,
        "report_to": "none",
        # A dozen tasks leave one or two held-out pairs.
        "weak_reward_model": "allow",
        "batch_size": 4,
        "micro_batch_tokens": 200,
        "ppo": {**quick, "batch_size": 4, "updates": 3, "epochs": 2},
    }
    path = folder / "config.yaml"
    content = {
        "run": "tiny",
        "environment": {"name": "alfworld", "source": "generated"},
        "reflector": {"max_new_tokens": 8},
        "train": settings | train | {stage: steps | train.get(stage, {}) for stage, steps in once.items()},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def tiny_experiment(folder: Path, base: Path, **train: Any) -> Experiment:
    return load(config_file(folder, base, **train))


def collect(
    config: Path,
    tasks: int = 12,
    rate: Callable[[str], float] = lambda text: float(text == GOOD),
    arm: str = "collect",
    texts: Sequence[str] = (GOOD, BAD),
) -> None:
    """Store a failure of each task, with the advice in `texts`, written by rule and rated by `rate`."""
    store = open_store(load(config))
    for number in range(tasks):
        _collect_one(store, arm, f"{arm} task-{number}", rate, texts)
    store.close()


def _collect_one(store: Store, arm: str, name: str, rate: Callable[[str], float], texts: Sequence[str]) -> None:
    subject = Task(id=name, environment="riddles", split="train")
    add_trajectory(store, Key(arm=arm, task_id=name), attempt_at(subject))
    for candidate, text in enumerate(texts):
        advice = Reflection(text=text, prompt=prompt(name), author=AUTHOR)
        rated = Key(arm=arm, task_id=name, trial=1, candidate=candidate)
        store.add_reflection(rated, 0, advice)
        add_trajectory(store, rated, attempt_at(subject, (rate(text),)))
        store.add_reflection(Key(arm="written", task_id=name, trial=1, candidate=candidate), 0, advice)


def metrics(folder: Path, stage: str) -> dict[str, Any]:
    """Read the metrics of a finished stage of the run in `folder`."""
    metrics: dict[str, Any] = json.loads((folder / "runs/tiny" / stage / "metrics.json").read_text())
    return metrics


def save_adapter(experiment: Experiment, folder: Path, size: float = 0.05, *, scores: bool = False) -> None:
    """Save a fresh adapter, with B weights of this size instead of zero."""
    from train.base import add_fresh_adapter, load_base

    adapted = add_fresh_adapter(load_base(experiment.train, scores=scores), experiment.train.lora, scores=scores)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(size)
    adapted.save_pretrained(folder)


def trained(folder: Path, base: Path, name: str = "sft", size: float = 0.05, **train: Any) -> Path:
    """Write a run with a store and a finished stage of this name, whose B weights are `size`; return its config."""
    from train.stage import make_stage, publish

    config = config_file(folder, base, **train)
    collect(config)
    opened = load(config)
    stage = make_stage(name, opened, ["text"], {})
    publish(stage, lambda folder: save_adapter(opened, folder, size, scores=name == "reward"), {"samples": 1})
    return config
