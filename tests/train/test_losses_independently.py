"""The losses compared with the papers' formulas in another form: sums for recursions, autograd for derivatives."""

import math

import pytest
import torch
from torch import Tensor

from train.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    generalized_advantages,
    k1,
    k3,
    preference_loss,
    token_rewards,
    whitened,
)

LENGTHS = (7, 3, 1, 5)
MASK_BT = torch.tensor([[float(position < length) for position in range(7)] for length in LENGTHS])


def noise(seed: int) -> Tensor:
    """Return random doubles of the shape of four responses of up to seven tokens."""
    return torch.randn(MASK_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.7, 0.0)])
def test_advantages_are_the_weighted_sums_of_later_errors(gamma: float, lam: float) -> None:
    """Compare with GAE eq. 16: the sum over l of (gamma * lambda)^l times the error of position t + l."""
    rewards_BT, values_BT = noise(1) * MASK_BT, noise(2)
    found_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, MASK_BT, gamma, lam)
    for row, length in enumerate(LENGTHS):
        rewards, values = rewards_BT[row, :length].tolist(), [*values_BT[row, :length].tolist(), 0.0]
        errors = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(length)]
        for t in range(length):
            expected = sum((gamma * lam) ** later * errors[t + later] for later in range(length - t))
            assert found_BT[row, t].item() == pytest.approx(expected, abs=1e-12)
            assert returns_BT[row, t].item() == pytest.approx(expected + values[t], abs=1e-12)
    assert not (found_BT * (1 - MASK_BT)).any()


def test_the_gradient_of_the_policy_loss_is_zero_outside_the_clip_range() -> None:
    """By PPO eq. 7, the derivative is -A * ratio if the minimum is the unclipped term, else 0."""
    old_BT, advantages_BT = noise(3), noise(4)
    new_BT = (old_BT + 0.4 * noise(5)).requires_grad_()
    clipped_policy_loss(new_BT, old_BT, advantages_BT, clip=0.2).sum().backward()  # type: ignore[no-untyped-call]
    assert new_BT.grad is not None
    beyond = 0
    for new, old, advantage, gradient in zip(
        new_BT.flatten().tolist(),
        old_BT.flatten().tolist(),
        advantages_BT.flatten().tolist(),
        new_BT.grad.flatten().tolist(),
        strict=True,
    ):
        ratio = math.exp(new - old)
        credit_ends = ratio > 1.2 if advantage > 0 else ratio < 0.8
        beyond += credit_ends
        assert gradient == pytest.approx(0.0 if credit_ends else -advantage * ratio, abs=1e-12)
    assert 3 < beyond < 25


def test_the_policy_loss_is_the_negative_minimum_of_both_surrogates() -> None:
    old_BT, new_BT, advantages_BT = noise(6), noise(7), noise(8)
    ratio_BT = new_BT.exp() / old_BT.exp()
    clipped_BT = torch.where(ratio_BT > 1.2, 1.2, torch.where(ratio_BT < 0.8, 0.8, ratio_BT))
    expected_BT = -torch.stack([ratio_BT * advantages_BT, clipped_BT * advantages_BT]).min(dim=0).values
    torch.testing.assert_close(clipped_policy_loss(new_BT, old_BT, advantages_BT, 0.2), expected_BT)


def test_the_value_loss_and_its_gradient_follow_the_larger_error() -> None:
    old_BT, returns_BT = noise(9), noise(10)
    values_BT = (old_BT + 0.5 * noise(11)).requires_grad_()
    loss_BT = clipped_value_loss(values_BT, old_BT, returns_BT, clip=0.2)
    loss_BT.sum().backward()  # type: ignore[no-untyped-call]
    assert values_BT.grad is not None
    columns = (
        tensor.detach().flatten().tolist() for tensor in (values_BT, old_BT, returns_BT, loss_BT, values_BT.grad)
    )
    held = 0
    for value, old, wanted, loss, gradient in zip(*columns, strict=True):
        near = min(max(value, old - 0.2), old + 0.2)
        assert loss == pytest.approx(0.5 * max(abs(value - wanted), abs(near - wanted)) ** 2)
        charged_as_near = near != value and abs(near - wanted) > abs(value - wanted)
        held += charged_as_near
        assert gradient == pytest.approx(0.0 if charged_as_near else value - wanted, abs=1e-12)
    assert held > 0


def test_the_estimators_agree_with_hand_worked_numbers() -> None:
    # The policy gives the token 1/2 where the reference gives it 1/4: log 2, and 1/2 - 1 + log 2.
    # Then 1/4 for 1/2: -log 2, and 2 - 1 - log 2.
    mine_BT, reference_BT = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.5]]).log()
    two = math.log(2)
    torch.testing.assert_close(k1(mine_BT, reference_BT), torch.tensor([[two, -two]]))
    torch.testing.assert_close(k3(mine_BT, reference_BT), torch.tensor([[two - 0.5, 1 - two]]))


def test_the_means_of_k1_and_k3_are_the_divergence() -> None:
    policy_V, reference_V = noise(12).flatten().log_softmax(0), noise(13).flatten().log_softmax(0)
    exact = torch.nn.functional.kl_div(reference_V, policy_V, reduction="sum", log_target=True)
    for estimate in (k1, k3):
        torch.testing.assert_close((policy_V.exp() * estimate(policy_V, reference_V)).sum(), exact)


def test_only_k1_in_the_reward_gives_the_gradient_of_the_divergence() -> None:
    """The policy gradient of a reward r is the sum over the vocabulary of pi * r * grad log pi, with r held fixed."""
    logits_V, reference_V = noise(15).flatten().requires_grad_(), noise(16).flatten().log_softmax(0)
    policy_V = logits_V.log_softmax(0)
    divergence = torch.nn.functional.kl_div(reference_V, policy_V, reduction="sum", log_target=True)
    (exact_V,) = torch.autograd.grad(divergence, logits_V, retain_graph=True)
    pushes = {
        estimate: torch.autograd.grad(
            (policy_V.exp().detach() * estimate(policy_V, reference_V).detach() * policy_V).sum(),
            logits_V,
            retain_graph=True,
        )[0]
        for estimate in (k1, k3)
    }
    torch.testing.assert_close(pushes[k1], exact_V)
    assert (pushes[k3] - exact_V).norm() > 0.1 * exact_V.norm()


def test_token_rewards_sum_to_the_penalised_score_of_the_response() -> None:
    scores_B = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    mine_BT, reference_BT = noise(17) * MASK_BT, noise(18) * MASK_BT
    earned_B = token_rewards(scores_B, k1(mine_BT, reference_BT), MASK_BT, 0.3).sum(dim=1)
    for row, length in enumerate(LENGTHS):
        log_ratio = mine_BT[row, :length].sum() - reference_BT[row, :length].sum()
        torch.testing.assert_close(earned_B[row], scores_B[row] - 0.3 * log_ratio)


def test_the_preference_loss_is_the_cross_entropy_of_the_softmax_over_both() -> None:
    """By Bradley-Terry, the chosen text wins with probability exp(s) / (exp(s) + exp(s'))."""
    chosen_B, rejected_B = noise(19).flatten().requires_grad_(), noise(20).flatten().requires_grad_()
    wins_B = chosen_B.exp() / (chosen_B.exp() + rejected_B.exp())
    torch.testing.assert_close(preference_loss(chosen_B, rejected_B), -wins_B.log())
    gradients_B = torch.autograd.grad(preference_loss(chosen_B, rejected_B).sum(), (chosen_B, rejected_B))
    torch.testing.assert_close(gradients_B[0], (wins_B - 1).detach())
    torch.testing.assert_close(gradients_B[1], (1 - wins_B).detach())


def test_whitening_agrees_with_plain_statistics_over_the_response_tokens() -> None:
    values_BT = noise(21)
    tokens = values_BT[MASK_BT > 0]
    scaled = (tokens - tokens.mean()) / tokens.std(correction=0)
    torch.testing.assert_close(whitened(values_BT, MASK_BT)[MASK_BT > 0], scaled)
    assert not (whitened(values_BT, MASK_BT) * (1 - MASK_BT)).any()


def test_explained_variance_is_1_for_perfect_values_0_for_a_constant_and_negative_for_wrong_values() -> None:
    returns_BT = noise(22)
    prophet, constant, liar = (
        explained_variance(values_BT, returns_BT, MASK_BT)
        for values_BT in (returns_BT, 0 * returns_BT + 3, -returns_BT)
    )
    assert (prophet.item(), constant.item(), liar.item()) == pytest.approx((1.0, 0.0, -3.0))
    # Returns 1 and 3 have variance 1; errors 0 and 1 have variance 1/4.
    worked = explained_variance(
        torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[1.0, 3.0, 7.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    )
    assert worked.item() == 0.75
    assert explained_variance(noise(23), torch.zeros_like(returns_BT), MASK_BT).item() == 0.0


def test_k3_is_0_at_masked_padding() -> None:
    wild_BT = torch.tensor([[0.0, -500.0]]) * torch.tensor([[1.0, 0.0]])
    assert k3(wild_BT, torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]
