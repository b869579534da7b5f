"""The adaptive KL coefficient: Ziegler's rule in numbers, and a resumed run that equals an unbroken one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.experiment.sections.train import Ppo
from tests.train.rl.test_ppo import adapters
from train.base import load_base
from train.rl import checkpoint
from train.rl.kl_weight import kl_weight_after, next_kl_weight
from train.rl.optimizer import make_optimizer
from train.rl.ppo import ppo
from train.rl.sampling import Draw
from train.rl.shared_base import SharedBase

DRAW = Draw(max_new_tokens=4, at_once=5, pad_id=0, eos_id=2, seed=0)
PROMPTS = [[1, 10 + number, 30] for number in range(6)]


def quick_settings(**changes: Any) -> Ppo:
    return Ppo(learning_rate=3e-2, batch_size=10, micro_batch_tokens=500, epochs=4, updates=5, kl=0.1, **changes)


def test_without_a_target_the_kl_weight_is_fixed() -> None:
    assert next_kl_weight(0.3, 99.0, quick_settings()) == 0.3
    assert kl_weight_after([], quick_settings()) == 0.1


@pytest.mark.parametrize(
    ("kl", "weight"),
    [
        (6.0, 0.2),  # on target
        (6.6, 0.202),  # e = 0.1, K = 10 / 100: 0.2 * 1.01
        (60.0, 0.204),  # e is clipped to 0.2: 0.2 * 1.02
        (5.4, 0.198),  # e = -0.1
        (-3.0, 0.196),  # an estimate may be negative: e is clipped to -0.2
    ],
)
def test_the_kl_weight_follows_the_target_with_numbers_worked_by_hand(kl: float, weight: float) -> None:
    assert next_kl_weight(0.2, kl, quick_settings(kl_target=6.0, kl_horizon=100)) == pytest.approx(weight, rel=1e-12)


def test_in_one_horizon_the_kl_weight_rises_by_about_a_fifth_for_any_batch_size() -> None:
    for batch_size in (10, 50):
        settings, weight = (
            quick_settings(kl_target=1.0, kl_horizon=1000).model_copy(update={"batch_size": batch_size}),
            1.0,
        )
        for _ in range(1000 // batch_size):
            weight = next_kl_weight(weight, 9.0, settings)
        assert weight == pytest.approx(1.22, abs=0.01)


def test_a_horizon_shorter_than_a_batch_keeps_the_kl_weight_positive() -> None:
    assert next_kl_weight(1.0, 0.0, quick_settings(kl_target=1.0, kl_horizon=1)) == pytest.approx(0.8)


def test_the_formula_of_the_paper_gives_the_same_kl_weights() -> None:
    """Compare with section 2.2 of Ziegler et al.: e = clamp((KL - target) / target), beta * (1 + K e)."""
    settings, weight = quick_settings(kl_target=3.0, kl_horizon=40), torch.tensor(0.5, dtype=torch.float64)
    ours, divergences = 0.5, torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 6
    for kl in divergences:
        weight = weight * (1 + 10 / 40 * ((kl - 3.0) / 3.0).clamp(-0.2, 0.2))
        ours = next_kl_weight(ours, kl.item(), settings)
        assert ours == pytest.approx(weight.item(), rel=1e-12)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_resumed_run_adapts_the_kl_weight_as_an_unbroken_one(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    settings = quick_settings(kl_target=0.5, kl_horizon=20, kl_stop=0.02, kl_estimator="k3", whiten_rewards=True)

    def fresh() -> tuple[SharedBase, torch.optim.AdamW]:
        model = SharedBase(load_base(train), sft, reward)
        return model, make_optimizer(model, settings)

    model, optimizer = fresh()
    unbroken = []
    for facts in ppo(model, optimizer, PROMPTS, settings, DRAW):
        unbroken.append(facts)
        if len(unbroken) == 2:
            checkpoint.save(workplace / "checkpoints", 2, model, optimizer, unbroken)
    resumed_model, resumed_optimizer = fresh()
    resumed = checkpoint.restore(workplace / "checkpoints", resumed_model, resumed_optimizer)
    assert len(resumed) == 2
    resumed += ppo(resumed_model, resumed_optimizer, PROMPTS, settings, DRAW, done=tuple(resumed))
    assert resumed == unbroken
    assert len({facts["kl_weight"] for facts in unbroken}) == settings.updates, "the weight never moved"
    assert any(facts["steps"] < settings.epochs for facts in unbroken), "no batch was stopped early"
    assert all(
        torch.equal(parameter, other)
        for parameter, other in zip(model.parameters(), resumed_model.parameters(), strict=True)
    )
