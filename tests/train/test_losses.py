"""The losses on numbers worked by hand, and in limits in which the formulas are simple."""

import math

import pytest
import torch

from train.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    generalized_advantages,
    implicit_rewards,
    k1,
    masked_mean,
    preference_loss,
    soft_critic_loss,
    soft_policy_loss,
    soft_targets,
    soft_values,
    token_rewards,
)


def test_the_score_counts_at_the_last_token_and_the_divergence_at_each() -> None:
    log_probs_BT = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -9.0]])
    reference_log_probs_BT = torch.tensor([[-1.5, -1.0, -3.0], [-2.0, -1.0, -1.0]])
    rewards_BT = token_rewards(
        scores_B=torch.tensor([2.0, -1.0]),
        divergences_BT=k1(log_probs_BT, reference_log_probs_BT),
        mask_BT=torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
        kl_weight=0.1,
    )
    # Row 1: -0.1*0.5, -0.1*-1, -0.1*0 + 2. Row 2: -0.1*1, -0.1*0 - 1, and nothing at the padding.
    expected_BT = torch.tensor([[-0.05, 0.1, 2.0], [-0.1, -1.0, 0.0]])
    torch.testing.assert_close(rewards_BT, expected_BT)


def test_advantages_follow_the_recursion_worked_by_hand() -> None:
    # gamma 0.5, lambda 0.5. Last token: 4 - 2 = 2. Middle: 2 + 0.5*2 - 1 + 0.25*2 = 2.5. First: 0 + 0.5 - 1 + 0.625.
    advantages_BT, returns_BT = generalized_advantages(
        torch.tensor([[0.0, 2.0, 4.0]]), torch.tensor([[1.0, 1.0, 2.0]]), torch.ones(1, 3), gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantages_BT, torch.tensor([[0.125, 2.5, 2.0]]))
    torch.testing.assert_close(returns_BT, torch.tensor([[1.125, 3.5, 4.0]]))


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [
        (1.0, 1.1, -1.1),  # inside the range: not clipped
        (1.0, 1.5, -1.2),  # a good token already likely enough: no gradient
        (1.0, 0.5, -0.5),  # a good token became less likely: full gradient
        (-1.0, 0.5, 0.8),  # a bad token already rare enough: no gradient
        (-1.0, 1.5, 1.5),  # a bad token became more likely: full gradient
    ],
)
def test_the_policy_loss_is_clipped_only_where_it_would_improve(advantage: float, ratio: float, loss: float) -> None:
    found_BT = clipped_policy_loss(
        torch.tensor([[math.log(ratio)]]), torch.zeros(1, 1), torch.tensor([[advantage]]), clip=0.2
    )
    assert found_BT.item() == pytest.approx(loss, abs=1e-6)


def test_a_value_that_moved_too_far_has_the_error_of_the_clipped_value() -> None:
    # From 0 towards a return of 1: 0.1 is in range, (1-0.1)^2/2. 0.9 is not, so it has the error of 0.2: (1-0.2)^2/2.
    found_BT = clipped_value_loss(torch.tensor([[0.1, 0.9]]), torch.zeros(1, 2), torch.ones(1, 2), clip=0.2)
    torch.testing.assert_close(found_BT, torch.tensor([[0.405, 0.32]]))


def test_a_masked_mean_leaves_padding_out() -> None:
    assert masked_mean(torch.tensor([[2.0, 4.0, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]])).item() == 3.0


def test_direct_preference_optimisation_is_bradley_terry_on_log_ratios() -> None:
    # The policy makes the chosen text e times as likely as SFT, the rejected one half as likely: beta * (1 + log 2).
    chosen_B = implicit_rewards(torch.tensor([-4.0]), torch.tensor([-5.0]), beta=0.5)
    rejected_B = implicit_rewards(torch.tensor([-3.0 - math.log(2)]), torch.tensor([-3.0]), beta=0.5)
    torch.testing.assert_close(chosen_B - rejected_B, torch.tensor([0.5 * (1 + math.log(2))]))
    loss = math.log1p(math.exp(-0.5 * (1 + math.log(2))))
    torch.testing.assert_close(preference_loss(chosen_B, rejected_B), torch.tensor([loss]))
    # In the wrong order the loss is larger by the difference: -log sigmoid(-x) = x - log sigmoid(x).
    torch.testing.assert_close(preference_loss(rejected_B, chosen_B), torch.tensor([loss + 0.5 * (1 + math.log(2))]))


def test_a_soft_value_is_the_mean_value_plus_alpha_times_the_entropy() -> None:
    log_policy_BA = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]]).log()
    q_BA = torch.tensor([[2.0, 4.0, 99.0], [1.0, 2.0, 6.0]])
    # The first state has two actions: 2/4 + 4 * 3/4 = 3.5, and the entropy is (log 4 + 3 log(4/3)) / 4.
    # The second: 1/2 + 2/4 + 6/4 = 2.5, and the entropy is (log 2 + log 4) / 2.
    entropies = ((math.log(4) + 3 * math.log(4 / 3)) / 4, (math.log(2) + math.log(4)) / 2)
    expected_B = torch.tensor([3.5 + 0.2 * entropies[0], 2.5 + 0.2 * entropies[1]])
    torch.testing.assert_close(soft_values(q_BA, log_policy_BA, alpha=0.2), expected_B)
    torch.testing.assert_close(soft_policy_loss(q_BA, log_policy_BA, alpha=0.2), -expected_B)


def test_a_soft_target_is_the_reward_and_the_discounted_value_of_what_follows() -> None:
    targets_B = soft_targets(
        torch.tensor([0.0, 1.0]), torch.tensor([2.0, 9.0]), over_B=torch.tensor([False, True]), gamma=0.99
    )
    torch.testing.assert_close(targets_B, torch.tensor([1.98, 1.0]))


def test_the_critics_loss_is_half_the_squared_error_of_both() -> None:
    # State 1: (1 - 2)^2 / 2 + (4 - 2)^2 / 2. State 2: the first critic is right, the second off by 1.
    losses_B = soft_critic_loss(torch.tensor([[1.0, 3.0], [4.0, 4.0]]), torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(losses_B, torch.tensor([2.5, 0.5]))


def test_the_policy_loss_is_least_where_the_policy_is_the_softmax_of_the_values_over_alpha() -> None:
    q_BA, admitted_BA = torch.tensor([[0.1, 0.5, 7.0]]), torch.tensor([[True, True, False]])
    scores_BA = (q_BA / 0.2).requires_grad_()
    loss_B = soft_policy_loss(q_BA, scores_BA.masked_fill(~admitted_BA, -torch.inf).log_softmax(dim=1), alpha=0.2)
    # The least loss is -alpha log sum exp(Q / alpha), over the admitted actions.
    assert loss_B.item() == pytest.approx(-0.2 * math.log(math.exp(0.5) + math.exp(2.5)))
    loss_B.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(scores_BA.grad, torch.zeros(1, 3), atol=1e-6, rtol=0)


def test_the_policy_loss_moves_probability_to_the_better_action() -> None:
    # With pi = 1/2 each and alpha 0, d loss / d score = -pi (Q - mean Q): -1/2 * (3 - 2) for the better action.
    scores_BA = torch.zeros(1, 2, requires_grad=True)
    loss_B = soft_policy_loss(torch.tensor([[1.0, 3.0]]), scores_BA.log_softmax(dim=1), alpha=0.0)
    loss_B.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(scores_BA.grad, torch.tensor([[0.5, -0.5]]))
