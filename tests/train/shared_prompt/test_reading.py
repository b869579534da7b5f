"""Layers below the first adapter are read once, and everything above them gets the same numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retroformer.config.sections.train import Grpo, Ppo
from tests.train.world import tiny_experiment
from train.base import add_fresh_adapter, load_base
from train.rl import grpo, ppo
from train.rl.policy import SharedBase, make_optimizer
from train.rl.sampling import Responses, SamplingSettings

PROMPTS = [[1, 10 + number, 30, *range(40, 40 + number)] for number in range(2)]
DRAW = SamplingSettings(max_new_tokens=4, at_once=8, pad_id=0, ends=(2,), seed=0, micro_batch_tokens=24)
PPO = Ppo(learning_rate=1e-2, batch_size=8, responses_per_prompt=4, updates=2, epochs=2, kl=0.1)
GRPO = Grpo(learning_rate=1e-2, batch_size=8, group=4, updates=2, epochs=2, kl=0.1)


def shared_base(base: Path, folder: Path, quantization: str, dtype: str) -> SharedBase:
    """Return a policy, a reference and a reward model that differ, with adapters on the upper of two layers."""
    train = tiny_experiment(folder, base, lora={"layers": "upper_half"}, quantization=quantization, dtype=dtype).train
    torch.manual_seed(0)
    for name, scores in (("sft", False), ("reward", True)):
        adapted = add_fresh_adapter(load_base(train, scores=scores), train.lora, scores=scores)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
        adapted.save_pretrained(folder / name)
    return SharedBase(load_base(train), folder / "sft", folder / "reward")


def rewards(update: int, asked: Sequence[int], responses: Responses) -> Tensor:
    return responses.response_BT.float().mean(dim=1)


def outcome(model: SharedBase, algorithm: str) -> tuple[list[dict[str, float]], list[Tensor]]:
    """Take two updates; return their facts and the policy."""
    if algorithm == "ppo":
        facts = list(ppo.ppo(model, make_optimizer(model, PPO), PROMPTS, PPO, DRAW))
    else:
        facts = list(grpo.grpo(model, make_optimizer(model, GRPO), PROMPTS, rewards, GRPO, DRAW))
    return facts, [parameter.detach() for parameter in model.adapter_parameters()]


@pytest.mark.parametrize(("quantization", "dtype"), [("none", "float32"), ("nf4", "bfloat16")])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_updates_are_those_of_a_model_that_reads_all_layers_each_time(
    tiny_base: Path, workplace: Path, algorithm: str, quantization: str, dtype: str
) -> None:
    once, always = (shared_base(tiny_base, workplace, quantization, dtype) for _ in range(2))
    del always.language_model.get_base_model().model.layers[0].forward
    facts, policy = outcome(once, algorithm)
    assert (facts, len(policy)) == (outcome(always, algorithm)[0], 14)
    for mine, other in zip(policy, always.adapter_parameters(), strict=True):
        assert torch.equal(mine, other)


def test_rows_of_an_update_are_read_once_through_the_lower_layers(tiny_base: Path, workplace: Path) -> None:
    model, read = shared_base(tiny_base, workplace, "none", "float32"), {"lower": 0, "upper": 0}
    layers = model.language_model.get_base_model().model.layers

    def count(name: str, layer: Any) -> None:
        attend = layer.self_attn.forward

        def counted(*arguments: Any, **options: Any) -> Any:
            read[name] += model._below._rows is not None
            return attend(*arguments, **options)

        layer.self_attn.forward = counted

    for name, layer in zip(read, layers, strict=True):
        count(name, layer)
    outcome(model, "ppo")
    # Two micro-batches in each of two updates; above them policy, reference and reward model, and two epochs.
    assert read == {"lower": 2 * 2, "upper": 2 * 2 * 5}
    assert not model._below._known
