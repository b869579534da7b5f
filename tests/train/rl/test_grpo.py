"""GRPO on a tiny model: numbers worked by hand, the gradient of the formula, and both kinds of rewards."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retroformer.config.sections.train import Grpo
from tests.train.rl.test_ppo import END, FIRST_BAD_TOKEN, OFTEN_ENDS, PAD, PROMPTS, adapters
from train.base import load_base
from train.losses import against_others, centred, group_loss, shares, standardised
from train.rl.grpo import CLIP, CLIP_HIGH, GrpoBatch, accumulate_gradients, compare, grpo
from train.rl.policy import SharedBase, make_optimizer
from train.rl.rewards import ModelScores, ScoreScale
from train.rl.sampling import Responses, SamplingSettings, blocks, ended_responses, prompt_indices, respond
from train.shared_prompt.packed import Group, Packed, pack

DRAW = SamplingSettings(max_new_tokens=4, at_once=32, pad_id=PAD, ends=(END,), seed=0)
NONE = math.nan
REWARDS_NG = torch.tensor(
    [[1.0, 0.0, 0.0, 1.0], [0.3, 0.3, 0.3, 0.3], [3.0, NONE, 0.0, NONE], [NONE, NONE, 2.0, NONE], [NONE] * 4]
)


def quick_settings(**changes: Any) -> Grpo:
    quick = Grpo(learning_rate=3e-2, batch_size=32, updates=15, epochs=2, group=8, kl=0.0)
    return quick.model_copy(update=changes)


def fresh_model(folder: Path, base: Path, **train: Any) -> SharedBase:
    """Return a model whose policy equals the SFT policy, without a reward model."""
    base_train, sft, _ = adapters(folder, base)
    return SharedBase(load_base(base_train.model_copy(update=train)), sft, None)


def shifted(model: SharedBase) -> SharedBase:
    """Change the policy so that it differs from the SFT policy."""
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if ".policy." in name and "lora_B" in name:
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def low_tokens_pay(update: int, asked: Sequence[int], responses: Responses) -> Tensor:
    """Reward the share of tokens below a border that splits the initial policy's tokens in half."""
    return torch.tensor([sum(token < FIRST_BAD_TOKEN for token in said) / len(said) for said in responses.tokens])


def answers(model: SharedBase, group: int, at_once: int) -> Responses:
    """Return responses of different lengths."""
    torch.manual_seed(1)
    responses = respond(model, [ids for ids in PROMPTS[:3] for _ in range(group)], OFTEN_ENDS._replace(at_once=at_once))
    assert len(set(map(len, responses.tokens))) > 2
    return responses


def test_an_advantage_is_the_difference_from_the_mean_of_the_group() -> None:
    expected = [[0.5, -0.5, -0.5, 0.5], [0.0] * 4, [1.5, 0.0, -1.5, 0.0], [0.0] * 4, [0.0] * 4]
    assert centred(REWARDS_NG).tolist() == expected


def test_grpo_divides_advantages_by_the_deviation_of_the_group() -> None:
    first = 0.5 / (0.5 + 1e-4)
    third = 1.5 / (1.5 + 1e-4)
    expected = [[first, -first, -first, first], [0.0] * 4, [third, 0.0, -third, 0.0], [0.0] * 4, [0.0] * 4]
    torch.testing.assert_close(standardised(REWARDS_NG), torch.tensor(expected))


def test_differences_from_rounding_are_not_scaled_up() -> None:
    assert standardised(torch.tensor([[0.1, 0.1 + 1e-8]])).abs().max() < 1e-3


def test_rloo_compares_a_reward_with_the_mean_of_the_others() -> None:
    expected = [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [0.0] * 4, [3.0, 0.0, -3.0, 0.0], [0.0] * 4, [0.0] * 4]
    torch.testing.assert_close(against_others(REWARDS_NG), torch.tensor(expected))


def test_responses_without_rewards_and_groups_that_do_not_differ_have_no_share() -> None:
    expected = [[1 / 8] * 4, [0.0] * 4, [1 / 4, 0.0, 1 / 4, 0.0], [0.0] * 4, [0.0] * 4]
    assert shares(REWARDS_NG).tolist() == expected
    assert shares(REWARDS_NG).sum() == 1.0
    assert shares(REWARDS_NG[4:]).sum() == 0.0


def test_the_gradient_of_a_token_is_its_coefficient_in_the_paper() -> None:
    """Compare with DeepSeekMath eq. 21, ratio as in eq. 3: weight * ratio * advantage + beta * (pi_ref / pi - 1)."""
    new_BT = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], requires_grad=True)
    old_BT = torch.tensor([[-1.0, -2.5], [-0.6, -2.0]])
    reference_BT = torch.tensor([[-1.0, -1.5], [-0.8, -3.0]])
    weights_BT = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    loss_BT = group_loss(new_BT, old_BT, reference_BT, torch.tensor([2.0, -1.0]), 0.2, 0.5, 0.2, weights_BT)
    loss_BT.sum().backward()  # type: ignore[no-untyped-call]
    # Ratios 1, e^.5 (clipped above), e^.1 and e^-1 (clipped below).
    expected = [[2.0, 0.5 * (math.exp(0.5) - 1)], [-3 * math.exp(0.1) + 0.5 * (math.exp(-0.3) - 1), 0.0]]
    assert new_BT.grad is not None
    torch.testing.assert_close(-new_BT.grad, torch.tensor(expected))


def objective(model: SharedBase, batch: GrpoBatch, rewards_NG: Tensor, settings: Grpo) -> Tensor:
    """Compute DeepSeekMath eq. 3, or its variant with RLOO or DAPO, one response at a time without padding."""
    total, groups = torch.zeros(()), rewards_NG.tolist()
    valued = [group for group in groups if len({reward for reward in group if not math.isnan(reward)}) > 1]
    said_in_all = sum(
        len(text)
        for row, text in enumerate(batch.responses.tokens)
        if groups[row // settings.group] in valued
        and not math.isnan(groups[row // settings.group][row % settings.group])
    )
    for row, reward in enumerate(reward for group in groups for reward in group):
        rewarded = [other for other in groups[row // settings.group] if not math.isnan(other)]
        if math.isnan(reward) or groups[row // settings.group] not in valued:
            continue
        advantage = reward - sum(rewarded) / len(rewarded)
        if settings.variant == "rloo":
            advantage = reward - (sum(rewarded) - reward) / (len(rewarded) - 1)
        if settings.variant == "grpo":
            advantage /= (
                math.sqrt(sum((other - sum(rewarded) / len(rewarded)) ** 2 for other in rewarded) / len(rewarded))
                + 1e-4
            )
        text = batch.responses.tokens[row]
        packed, said = pack([Group(batch.responses.prompts[row], [text])]), len(text)
        new_T = model.read(packed, said).log_probs_RT[0]
        reference_T = model.reference_log_probs(packed, said)[0]
        ratios_T = torch.exp(new_T - batch.log_probs_BT[row, :said])
        upper = 1 + (CLIP_HIGH if settings.dapo else CLIP)
        surrogate_T = torch.min(ratios_T * advantage, ratios_T.clip(1 - CLIP, upper) * advantage)
        away_T = torch.exp(reference_T) / torch.exp(new_T)
        sums = (surrogate_T - settings.kl * (away_T - torch.log(away_T) - 1)).sum()
        if settings.dapo:
            total = total + sums / said_in_all
            continue
        divisor = said if settings.variant == "grpo" else DRAW.max_new_tokens
        total = total + sums / divisor / len(rewarded) / len(valued)
    return total


@pytest.mark.parametrize(
    "changes",
    [{"variant": "grpo"}, {"variant": "rloo"}, {"dapo": True}],
    ids=["grpo", "rloo", "dapo"],
)
@pytest.mark.parametrize("at_once", [1, 20, 1000])
def test_the_gradient_agrees_with_the_formula_for_any_micro_batch(
    tiny_base: Path, workplace: Path, changes: dict[str, Any], at_once: int
) -> None:
    model = shifted(fresh_model(workplace, tiny_base))
    settings, draw = quick_settings(group=4, kl=0.3, **changes), DRAW._replace(micro_batch_tokens=at_once)
    rewards_NG = REWARDS_NG[[0, 1, 2]]
    batch = compare(model, answers(model, 4, 4), rewards_NG.flatten(), settings, draw)
    for parameter in model.adapter_parameters():
        parameter.data += 0.03  # The policy changes, so ratios are not 1.
    facts = accumulate_gradients(model, make_optimizer(model, settings), batch, settings)
    [whole] = blocks(batch.responses, 10_000)
    new_BT = model.read(whole.packed, batch.responses.length).log_probs_RT
    ratios_N = torch.exp(new_BT - batch.log_probs_BT)[batch.responses.mask_BT > 0]
    clipped_N = (ratios_N < 1 - CLIP) | (ratios_N > 1 + (CLIP_HIGH if settings.dapo else CLIP))
    assert facts["clip_fraction"] == pytest.approx(clipped_N.float().mean().item())
    assert facts["clip_fraction"] > 0.05
    gradients = [parameter.grad.clone() for parameter in model.adapter_parameters() if parameter.grad is not None]
    model.zero_grad()
    value = objective(model, batch, rewards_NG, settings)
    (-value).backward()  # type: ignore[no-untyped-call]
    wanted = [parameter.grad for parameter in model.adapter_parameters() if parameter.grad is not None]
    scale = min(1.0, 1.0 / facts["gradient_norm"])  # Gradients are clipped to a norm of 1.
    assert facts["policy_loss"] + facts["kl_loss"] == pytest.approx(-value.item(), abs=1e-5)
    assert len(gradients) == len(wanted) > 4
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, scale * theirs, rtol=1e-3, atol=1e-5)


def test_a_response_without_a_reward_has_no_gradient(tiny_base: Path, workplace: Path) -> None:
    model = shifted(fresh_model(workplace, tiny_base))
    settings, responses = quick_settings(group=4, kl=0.1), answers(model, 4, 12)
    rewards_B = torch.tensor([1.0, 0.0, 0.0, NONE, *[0.5] * 4, *[NONE] * 4])
    batch = compare(model, responses, rewards_B, settings, DRAW)
    assert batch.weights_BT[[3, 8, 9, 10, 11]].sum() == 0
    assert batch.advantages_B[3:].tolist() == [0.0] * 9
    assert (batch.facts["left_out"], batch.facts["equal_groups"]) == (5, 2)
    assert batch.facts["score"] == pytest.approx(3 / 7)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_the_surrogate_of_a_token_has_its_importance_weight(tiny_base: Path, workplace: Path, weight: float) -> None:
    model, settings = shifted(fresh_model(workplace, tiny_base)), quick_settings(group=4)
    responses, rewards_B = answers(model, 4, 12), torch.arange(12.0)

    def norm(responses: Responses) -> float:
        batch = compare(model, responses, rewards_B, settings, DRAW)
        return accumulate_gradients(model, make_optimizer(model, settings), batch, settings)["gradient_norm"]

    weighted = responses._replace(importance_BT=torch.full_like(responses.mask_BT, weight))
    assert norm(weighted) == pytest.approx(weight * norm(responses), rel=1e-4)


def test_groups_of_equal_reward_give_no_gradient(tiny_base: Path, workplace: Path) -> None:
    model = shifted(fresh_model(workplace, tiny_base))
    settings, towards_sft = quick_settings(group=4), quick_settings(group=4, kl=0.1)
    batch = compare(model, answers(model, 4, 12), torch.full((12,), 0.1), towards_sft, DRAW)
    assert accumulate_gradients(model, make_optimizer(model, settings), batch, settings)["gradient_norm"] == 0.0
    assert batch.facts["equal_groups"] == 3
    assert accumulate_gradients(model, make_optimizer(model, settings), batch, towards_sft)["gradient_norm"] == 0.0


def test_a_divergence_in_the_reward_makes_no_group_of_equal_rewards_count(tiny_base: Path, workplace: Path) -> None:
    model = shifted(fresh_model(workplace, tiny_base))
    settings, responses = quick_settings(group=4, kl=0.5, kl_estimator="k1", variant="rloo"), answers(model, 4, 12)
    rewards_B = torch.tensor([1.0, 0.0, 0.0, 1.0, *[0.5] * 8])
    batch = compare(model, responses, rewards_B, settings, DRAW)
    divergences_B = ((batch.log_probs_BT - batch.reference_BT) * responses.mask_BT).sum(dim=1)
    penalised_NG = (rewards_B - 0.5 * divergences_B).view(3, 4)[:1]
    torch.testing.assert_close(batch.advantages_B[:4], against_others(penalised_NG)[0])
    assert batch.advantages_B[4:].tolist() == [0.0] * 8
    assert accumulate_gradients(model, make_optimizer(model, settings), batch, settings)["kl_loss"] == 0.0


def test_groups_of_equal_reward_are_replaced_by_groups_on_other_failures(tiny_base: Path, workplace: Path) -> None:
    turns, prompts = list[list[int]](), [[1, 10 + number, 30] for number in range(12)]

    def even_failures_pay(update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """Give the groups on even failures different rewards, and those on odd ones equal rewards."""
        turns.append(list(asked))
        return torch.tensor([float(place % 4) if number % 2 == 0 else 1.0 for place, number in enumerate(asked)])

    def facts_of(**changes: Any) -> dict[str, float]:
        turns.clear()
        model, settings = (
            fresh_model(workplace, tiny_base),
            quick_settings(group=4, updates=1, batch_size=16, **changes),
        )
        (facts,) = grpo(model, make_optimizer(model, settings), prompts, even_failures_pay, settings, DRAW)
        return facts

    without = facts_of()
    assert len(turns) == 1
    equal = len({number for number in turns[0] if number % 2})
    assert without["equal_groups"] == equal > 0
    refilled = facts_of(dapo=True)
    assert [len(numbers) // 4 for numbers in turns] == [4, equal]
    assert refilled["refilled"] == equal
    assert refilled["equal_groups"] == sum(number % 2 for number in turns[1][::4]), "they are replaced once"
    assert refilled["score"] == without["score"], "refilled groups are chosen, so they do not count in the score"
    batch = [number for number in turns[0][::4] if number % 2 == 0] + turns[1][::4]
    assert len(set(batch)) == len(batch) == 4, "a failure is twice in the batch"


@pytest.mark.parametrize(("quantization", "dtype"), [("none", "float32"), ("none", "bfloat16"), ("nf4", "bfloat16")])
def test_the_first_ratio_of_an_update_is_exactly_one(
    tiny_base: Path, workplace: Path, quantization: str, dtype: str
) -> None:
    model = fresh_model(workplace, tiny_base, quantization=quantization, dtype=dtype)
    settings, draw = quick_settings(group=4, kl=0.1), DRAW._replace(micro_batch_tokens=30)
    batch = compare(model, answers(model, 4, 3), torch.arange(12.0), settings, draw)
    assert batch.facts["kl"] == 0.0
    optimizer = make_optimizer(model, settings)
    first = accumulate_gradients(model, optimizer, batch, settings)
    assert (first["ratio_furthest_from_1"], first["kl_loss"]) == (0.0, 0.0)
    optimizer.step()
    assert accumulate_gradients(model, optimizer, batch, settings)["ratio_furthest_from_1"] > 0


@pytest.mark.parametrize("variant", ["grpo", "rloo"])
def test_the_policy_learns_the_arm_of_a_bandit_that_pays(tiny_base: Path, workplace: Path, variant: str) -> None:
    model, settings = fresh_model(workplace, tiny_base), quick_settings(variant=variant)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    facts = list(grpo(model, make_optimizer(model, settings), PROMPTS, low_tokens_pay, settings, DRAW))
    assert facts[0]["score"] < 0.6
    assert facts[-1]["score"] > 0.7
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all(".policy." in name for name in moved)


def test_a_large_kl_coefficient_keeps_the_policy_close_to_its_start(tiny_base: Path, workplace: Path) -> None:
    divergences = []
    for weight in (1e-6, 5.0):
        model, settings = fresh_model(workplace, tiny_base), quick_settings(kl=weight, updates=8)
        divergences.append(
            list(grpo(model, make_optimizer(model, settings), PROMPTS, low_tokens_pay, settings, DRAW))[-1]["kl"]
        )
    assert divergences[1] < 0.5 * divergences[0]


def test_a_pass_takes_every_prompt_once_in_whole_groups() -> None:
    lengths = [5, 1, 4, 2, 3, 6]
    asked = [prompt_indices(lengths, update, prompts=2, responses=3, seed=7) for update in range(6)]
    assert all(
        update[:3] == [update[0]] * 3 and update[3:] == [update[3]] * 3 and update[0] != update[3] for update in asked
    )
    assert all(lengths[update[0]] < lengths[update[3]] for update in asked)
    assert [sorted(number for update in pass_ for number in update[::3]) for pass_ in (asked[:3], asked[3:])] == [
        [*range(6)]
    ] * 2
    assert asked[:3] != asked[3:]


class ScoresByPlace(SharedBase):
    """A reward model that gives each place another score, as rounding can."""

    def scores(self, packed: Packed) -> Tensor:
        return torch.arange(1.0, 1 + packed.responses)


def test_equal_reflections_have_equal_scores_and_a_missing_end_lowers_the_score(
    tiny_base: Path, workplace: Path
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = ScoresByPlace(load_base(train), sft, reward)
    drawn_BT = torch.tensor([[20, END, PAD], [20, END, PAD], [20, END, PAD], [20, 21, 22]])
    responses = ended_responses([[5], [5], [6], [6]], drawn_BT, DRAW)
    scores_B = ModelScores(model, ScoreScale(1.0, 0.5), 3200)(0, [0, 0, 1, 1], responses)
    # Scores are 1, the first one's again, 3 and 4; (4 - 1) / 0.5 = 6, less 1 for the missing end.
    assert scores_B.tolist() == [0.0, 0.0, 4.0, 5.0]
