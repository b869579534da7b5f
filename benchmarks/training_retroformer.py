"""Retroformer's side of `benchmarks/training.py`: the trainers and loops of `retroformer train`."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.training_cases import REWARD, SFT, StageWork
from benchmarks.training_laps import Laps, Ready, StepLaps
from train.base import load_base, load_tokenizer, switched_to
from train.data.samples import Sample, SamplePair
from train.dpo import REFERENCE, response_sums
from train.plan.rehearsal import supervised_trainer
from train.rl import grpo, ppo
from train.rl.policy import SharedBase, make_optimizer
from train.rl.sampling import Responses, respond, sampling_settings
from train.shared_prompt.packed import Groups
from train.stage import Stage
from train.trainer import run_trainer


def load_stage(work: StageWork) -> Ready:
    return {"ppo": _ppo, "grpo": _grpo}.get(work.case.stage, supervised)(work)


def share_of_even_tokens(tokens: Sequence[int]) -> float:
    """Reward a response in GRPO; both sides use it."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


def rows(work: StageWork) -> Iterator[Sample | SamplePair]:
    for prompt, responses in zip(work.prompts, work.responses, strict=True):
        texts = [Sample(prompt, response) for response in responses]
        pairs = [SamplePair(prompt, responses[better], responses[worse]) for better, worse in work.case.pairs]
        yield from pairs or texts


def supervised(work: StageWork) -> Ready:
    """Load the trainer of SFT, the reward model or DPO that the config names."""
    stage, groups = Stage(work.case.stage, work.experiment, {}), groups_of(work)
    trainer = trainer_of(work, groups)
    packed_dpo = stage.name == "dpo" and trainer.reader.packs
    before = _reference_seconds(trainer, groups, work.case.failures) if packed_dpo else 0.0

    def take(laps: Laps) -> list[float]:
        trainer.add_callback(StepLaps(laps))
        losses: list[float] = run_trainer(trainer, stage)["losses"]
        return losses

    return Ready(trainer.model, take, before)


def groups_of(work: StageWork) -> Groups:
    return Groups(list(rows(work)), work.experiment.train.micro_batch_tokens)


def trainer_of(work: StageWork, groups: Groups) -> Any:
    """Return the trainer of the work's stage on `groups`."""
    torch.manual_seed(work.experiment.seed)
    return supervised_trainer(Stage(work.case.stage, work.experiment, {}), work.folder / SFT, groups)


def _reference_seconds(trainer: Any, groups: Groups, failures: int) -> float:
    """Read the groups of one update again as the reference does when DPO's trainer is made; return the CPU time."""
    start = time.process_time()
    with switched_to(trainer.model, REFERENCE):
        for group in groups[:failures]:
            response_sums(trainer.reader, group)
    return time.process_time() - start


def _ppo(work: StageWork) -> Ready:
    model, draw = _on_policy(work, work.folder / REWARD)
    optimizer, settings = make_optimizer(model, work.settings), work.settings

    def updates(laps: Laps) -> Iterator[object]:
        return ppo.ppo(model, optimizer, work.prompts, settings, draw, answer=laps.timed("sampling", respond))

    return _ready(model, updates)


def _grpo(work: StageWork) -> Ready:
    model, draw = _on_policy(work, None)
    optimizer, settings = make_optimizer(model, work.settings), work.settings

    def rewards(update: int, indices: Sequence[int], responses: Responses) -> Tensor:
        return torch.tensor([share_of_even_tokens(tokens) for tokens in responses.tokens])

    def updates(laps: Laps) -> Iterator[object]:
        answer = laps.timed("sampling", respond)
        return grpo.grpo(model, optimizer, work.prompts, rewards, settings, draw, answer=answer)

    return _ready(model, updates)


def _on_policy(work: StageWork, reward: Path | None) -> tuple[SharedBase, Any]:
    train = work.experiment.train
    model = SharedBase(load_base(train), work.folder / SFT, reward)
    draw = sampling_settings(work.experiment, load_tokenizer(train), work.case.rows)
    # No token ends a turn, so every response has the maximum length.
    return model, draw._replace(ends=())


def _ready(model: SharedBase, updates: Callable[[Laps], Iterator[object]]) -> Ready:
    def take(laps: Laps) -> list[float]:
        setattr(model, "choose_attention", laps.timed("check", model.choose_attention))  # noqa: B010
        laps.begin()
        for _ in updates(laps):
            laps.end()
        return []

    return Ready(model.language_model.get_base_model(), take)
