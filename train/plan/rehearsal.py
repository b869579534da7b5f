"""Measures the memory of a stage by two real steps on random tokens.

Models, adapters, trainers and the loops of PPO and GRPO are those of the stages; only the texts are random.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from peft import get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.train import Grpo
from retroformer.provenance import ADAPTER_WEIGHTS

from ..base import CPU, device, load_base, load_tokenizer, lora_config
from ..data.samples import IGNORED
from ..dpo import pair_trainer
from ..imitation import response_trainer
from ..reward import score_trainer
from ..rl import grpo, ppo
from ..rl.optimizer import make_optimizer
from ..rl.sampling import Draw, Responses, draw_of, padded_responses, respond
from ..rl.shared_base import SharedBase
from ..stage import Stage
from ..trainer import run_trainer, trainer_settings
from .estimate import Case
from .live_bytes import LiveBytes, tensors_of
from .shape import read_config, skeleton

STEPS = 2
"""The first step allocates the optimiser's state; the second has it in memory from its start."""

Rehearsal = tuple[nn.Module, Callable[[], object]]
"""A model in memory, and a function that takes the steps."""


def rehearse(experiment: Experiment, case: Case) -> int:
    """Take `STEPS` steps of a stage with one micro-batch a step; return the peak memory of tensors in bytes."""
    stage = Stage(case.kind.name, _with_small_batches(experiment, case), {})
    with TemporaryDirectory() as folder:
        model, run = (_on_policy if case.kind.on_policy else _supervised)(stage, case, Path(folder))
        if device() == CPU:
            with LiveBytes(tensors_of(model)) as live:
                run()
            return int(live.peak)
        torch.cuda.reset_peak_memory_stats()
        run()
        return int(torch.cuda.max_memory_allocated())


def _with_small_batches(experiment: Experiment, case: Case) -> Experiment:
    section = getattr(experiment.train, case.kind.name)
    changes = {"batch_size": case.micro_batch, "micro_batch_size": case.micro_batch}
    if case.kind.on_policy:
        changes |= {"batch_size": max(case.micro_batch, case.rows_drawn), "updates": 1, "epochs": STEPS}
    if isinstance(section, Grpo):
        # Prompts of a group have the same length, but real rows of several groups are padded.
        changes |= {"group": 1}
    train = experiment.train.model_copy(update={case.kind.name: section.model_copy(update=changes)})
    return experiment.model_copy(update={"train": train})


def _supervised(stage: Stage, case: Case, folder: Path) -> Rehearsal:
    train, start = stage.experiment.train, -case.response_tokens
    settings = trainer_settings(stage, getattr(train, stage.name))
    settings |= {"output_dir": str(folder), "save_strategy": "no"}
    texts = _texts(stage, case, STEPS * case.micro_batch * case.kind.texts_per_sample)
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    if stage.name == "reward":
        rows = Dataset.from_list([{"chosen_ids": chosen, "rejected_ids": rejected} for chosen, rejected in pairs])
        trainer = score_trainer(train, settings, rows)
    elif stage.name == "dpo":
        names = ("prompt_ids", "chosen_ids", "rejected_ids")
        split = [(chosen[:start], chosen[start:], rejected[start:][1:]) for chosen, rejected in pairs]
        rows = Dataset.from_list([dict(zip(names, parts, strict=True)) for parts in split])
        sft = fresh_adapter(stage.experiment, folder / "sft")
        trainer = pair_trainer(stage, train.dpo, settings, sft, 0, rows)
    else:
        labels = [[IGNORED] * (len(ids) + start) + ids[start:] for ids in texts]
        rows = Dataset.from_dict({"input_ids": texts, "labels": labels})
        trainer = response_trainer(train, settings, rows)
    return trainer.model, lambda: run_trainer(trainer, stage, len(rows))


def _on_policy(stage: Stage, case: Case, folder: Path) -> Rehearsal:
    experiment, train = stage.experiment, stage.experiment.train
    reward = fresh_adapter(experiment, folder / "reward", scores=True) if "reward" in case.kind.needs else None
    model = SharedBase(load_base(train), fresh_adapter(experiment, folder / "sft"), reward)
    # This end-of-turn token is outside the vocabulary, so every response has the maximal length.
    draw = draw_of(experiment, getattr(train, stage.name), load_tokenizer(train))
    draw = draw._replace(max_new_tokens=case.response_tokens, eos_id=model.vocabulary)
    prompts = [ids[: -case.response_tokens] for ids in _texts(stage, case, case.micro_batch)]
    answer = respond if case.rows_drawn else _constant_responses
    if stage.name == "ppo":
        optimizer = make_optimizer(model, train.ppo)
        return model, lambda: list(ppo.ppo(model, optimizer, prompts, train.ppo, draw, answer=answer))
    optimizer = make_optimizer(model, train.grpo)

    def rewards(update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        return torch.zeros(len(asked))  # Scoring needs less memory than training on as many rows.

    return model, lambda: list(grpo.grpo(model, optimizer, prompts, rewards, train.grpo, draw, answer=answer))


def _constant_responses(model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
    """Stand in for a server that generates responses, which needs no memory in this process."""
    drawn_BT = torch.ones(len(prompts), draw.max_new_tokens, dtype=torch.long, device=model.device)
    return padded_responses(prompts, drawn_BT, draw)


def fresh_adapter(experiment: Experiment, folder: Path, *, scores: bool = False) -> Path:
    """Write an adapter of the config's shape with small random weights into `folder`, without loading a model."""
    shell = skeleton(read_config(experiment.train.base_model), scores=scores)
    adapted: Any = get_peft_model(shell, lora_config(experiment.train.lora, scores=scores))
    weights = {name: 1e-3 * torch.randn(weight.shape) for name, weight in get_peft_model_state_dict(adapted).items()}
    adapted.peft_config["default"].save_pretrained(folder)
    save_file(weights, folder / ADAPTER_WEIGHTS)
    return folder


def _texts(stage: Stage, case: Case, count: int) -> list[list[int]]:
    """Return random texts; all but the first of each micro-batch are one token shorter, so that batches are padded."""
    generator = torch.Generator().manual_seed(stage.experiment.seed)
    vocabulary = len(load_tokenizer(stage.experiment.train))
    texts = torch.randint(3, vocabulary, (count, case.tokens), generator=generator).tolist()
    return [ids if not index % case.micro_batch else ids[1:] for index, ids in enumerate(texts)]
