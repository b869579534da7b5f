"""PPO on a tiny model, with learning rates that show an effect in a few updates."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from retroformer.config.sections.train import Ppo
from tests.train.world import tiny_experiment
from train.base import add_fresh_adapter, load_base, load_tokenizer
from train.loop import set_learning_rates
from train.plan.estimate import sampled_at_once
from train.rl.policy import SharedBase, make_optimizer
from train.rl.ppo import accumulate_gradients, evaluate, ppo
from train.rl.rewards import UNSCALED, ScoreScale
from train.rl.sampling import Responses, SamplingSettings, blocks, ended_responses, respond, sampling_settings
from train.shared_prompt.packed import Group, Packed, pack

PROMPTS = [[1, 10 + number, 30, *range(40, 40 + number)] for number in range(6)]
PAD, END = 0, 2
FIRST_BAD_TOKEN = 130
DRAW = SamplingSettings(max_new_tokens=4, at_once=32, pad_id=PAD, ends=(END,), seed=0)
OFTEN_ENDS = DRAW._replace(ends=(END, *range(60, 120)))
"""With so many end tokens, an untrained model's responses have different lengths."""


class PaysForLowTokens(SharedBase):
    """Scores the share of tokens below a border that splits the initial policy's tokens in half."""

    def scores(self, packed: Packed) -> Tensor:
        low_N = (packed.token_N < FIRST_BAD_TOKEN).float()
        return packed.sums(low_N) / packed.sums(torch.ones_like(low_N))


def adapters(folder: Path, base: Path) -> tuple[Any, Path, Path]:
    """Return the `train` section of a config, and untrained adapters of the policy and the reward model."""
    train = tiny_experiment(folder, base).train
    torch.manual_seed(0)
    for name, scores in (("sft", False), ("reward", True)):
        adapted: Any = add_fresh_adapter(load_base(train, scores=scores), train.lora, scores=scores)
        adapted.save_pretrained(folder / name)
    return train, folder / "sft", folder / "reward"


def quick_settings(**changes: Any) -> Ppo:
    return Ppo(learning_rate=3e-2, batch_size=32, updates=20, epochs=4, kl=0.0).model_copy(update=changes)


def test_the_policy_learns_the_arm_of_a_bandit_that_pays(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = PaysForLowTokens(load_base(train), sft, reward)
    settings = quick_settings(kl=1e-6)
    facts = list(ppo(model, make_optimizer(model, settings), PROMPTS, settings, DRAW))
    assert facts[0]["reward_model_score"] < 0.55
    assert facts[-1]["reward_model_score"] > 0.75
    assert facts[-1]["kl"] > 5


def test_a_large_kl_coefficient_keeps_the_policy_close_to_its_start(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model, heavy = (
        PaysForLowTokens(load_base(train), sft, reward),
        quick_settings(kl=3.0, learning_rate=3e-3, updates=4),
    )
    facts = list(ppo(model, make_optimizer(model, heavy), PROMPTS, heavy, DRAW))
    assert facts[-1]["kl"] < 1.0
    assert facts[-1]["reward_model_score"] < 0.6


def test_reference_and_reward_model_are_read_without_the_dropout_of_their_adapters(
    tiny_base: Path, workplace: Path
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    for folder in (sft, reward):
        config = folder / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_dropout": 0.5}))
        # An untrained adapter adds nothing, with or without dropout.
        weights = folder / "adapter_model.safetensors"
        save_file({name: torch.randn_like(tensor) for name, tensor in load_file(weights).items()}, weights)
    model = SharedBase(load_base(train), sft, reward)
    responses = respond(model, sorted(PROMPTS, key=len), DRAW)
    first, second = (evaluate(model, responses, quick_settings(kl=0.1), DRAW, UNSCALED).facts for _ in range(2))
    assert first["kl"] == first["kl_k3"] == 0
    assert first == second


@pytest.mark.parametrize(("quantization", "dtype"), [("none", "float32"), ("none", "bfloat16"), ("nf4", "bfloat16")])
def test_the_first_ratio_of_an_update_is_exactly_one(
    tiny_base: Path, workplace: Path, quantization: str, dtype: str
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    train = train.model_copy(update={"quantization": quantization, "dtype": dtype})
    model = SharedBase(load_base(train), sft, reward)
    optimizer = make_optimizer(model, quick_settings())
    torch.manual_seed(1)
    responses = respond(model, sorted(PROMPTS * 2, key=len), DRAW._replace(at_once=5))
    batch = evaluate(model, responses, quick_settings(), DRAW._replace(micro_batch_tokens=50), UNSCALED)
    set_learning_rates(optimizer, quick_settings(), 100)
    first = accumulate_gradients(model, optimizer, batch)
    assert (first["ratio_furthest_from_1"], first["clip_fraction"], first["kl_from_writer"]) == (0.0, 0.0, 0.0)
    assert first["ratio"] == pytest.approx(1.0)
    optimizer.step()
    second = accumulate_gradients(model, optimizer, batch)
    assert second["ratio_furthest_from_1"] > 0
    assert second["kl_from_writer"] > 0


def test_only_policy_and_value_head_are_trained(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    list(ppo(model, make_optimizer(model, quick_settings()), PROMPTS, quick_settings(updates=1), DRAW))
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all(".policy." in name or name.startswith("value_head") for name in moved)
    assert not any(".ref." in name or ".reward." in name for name in moved)


def test_a_fresh_policy_is_the_reference(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward).eval()
    packed = pack([Group([1, 9, 8], [[7, 6]])])
    mine = model.read(packed, 2)
    torch.testing.assert_close(mine.log_probs_RT, model.reference_log_probs(packed, 2), rtol=0, atol=0)
    assert mine.values_RT.tolist() == [[0.0, 0.0]]


def test_the_policy_reads_as_the_plain_model_does_beside_other_responses(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward).eval()
    ids = torch.tensor([[1, 9, 8, 7, 6]])
    log_probs_BTV = load_base(train).eval()(input_ids=ids).logits.log_softmax(dim=-1)
    expected_T = torch.stack([log_probs_BTV[0, 2, 7], log_probs_BTV[0, 3, 6], torch.tensor(0.0)])
    packed = pack([Group([1, 9, 8], [[4, 5, 6], [7, 6], [3]]), Group([5] * 9, [[1]])])
    readings = model.read(packed, 3)
    torch.testing.assert_close(readings.log_probs_RT[1], expected_T)
    assert readings.log_probs_RT.shape == readings.values_RT.shape == (4, 3)


def test_the_saved_policy_gives_equal_log_probabilities(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    list(ppo(model, make_optimizer(model, quick_settings()), PROMPTS, quick_settings(updates=1), DRAW))
    (workplace / "ppo").mkdir()
    model.save_policy(workplace / "ppo")
    again = SharedBase(load_base(train), workplace / "ppo", reward)
    packed = pack([Group([1, 9], [[8, 7, 6]])])
    first, second = (policy.eval().read(packed, 3).log_probs_RT for policy in (model, again))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_only_tokens_after_the_end_of_a_turn_become_padding() -> None:
    drawn_BT = torch.tensor([[7, END, 9], [7, 8, 9]])
    responses = ended_responses([[5], [5, 6]], drawn_BT, DRAW)
    assert responses.response_BT.tolist() == [[7, END, PAD], [7, 8, 9]]
    assert responses.mask_BT.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert responses.tokens == [[7, END], [7, 8, 9]]
    assert responses.ended_B.tolist() == [True, False]


@pytest.mark.parametrize(("at_once", "sampled"), [(None, [6]), (3, [3, 3]), (4, [4, 2]), (8, [6])])
def test_responses_are_sampled_in_batches_that_fit_beside_training(
    tiny_base: Path, workplace: Path, at_once: int | None, sampled: list[int]
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    # The longest prompt has 8 tokens, a response up to 8.
    section = quick_settings().model_dump()
    experiment = tiny_experiment(workplace, tiny_base, ppo=section, micro_batch_tokens=4 * 16)
    longest = max(map(len, PROMPTS)) + experiment.reflector.max_new_tokens
    draw = sampling_settings(experiment, load_tokenizer(train), sampled_at_once(experiment, "ppo", longest))
    model, rows = SharedBase(load_base(train), sft, reward), list[int]()

    def note(_: Any, __: Any, logits_BV: Tensor) -> None:
        rows.append(len(logits_BV))

    model.language_model.get_base_model().get_output_embeddings().register_forward_hook(note)
    responses = respond(model, PROMPTS, draw._replace(ends=(), at_once=at_once or draw.at_once))
    assert rows == [size for size in sampled for _ in range(draw.max_new_tokens)]
    assert len(responses.tokens) == len(PROMPTS)


def test_responses_to_one_prompt_share_a_row_unless_it_would_be_too_long() -> None:
    responses = ended_responses([[5, 6], [5, 6], [5, 6], [7]], torch.tensor([[9, 9], [8, 8], [7, 7], [6, 6]]), DRAW)
    shapes = {most: [tuple(block.packed.ids_BL.shape) for block in blocks(responses, most)] for most in (1, 6, 8, 16)}
    assert shapes == {
        1: [(1, 4), (1, 4), (1, 4), (1, 3)],
        6: [(1, 6), (1, 4), (1, 3)],
        8: [(1, 8), (1, 3)],
        16: [(2, 8)],
    }
    assert [block.rows for block in blocks(responses, 6)] == [slice(0, 2), slice(2, 3), slice(3, 4)]


def test_every_prompt_of_an_update_gets_its_number_of_responses(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model, asked = PaysForLowTokens(load_base(train), sft, reward), list[list[int]]()

    def answer(model: SharedBase, prompts: Sequence[list[int]], draw: SamplingSettings) -> Responses:
        asked.extend(prompts)
        return respond(model, prompts, draw)

    settings = quick_settings(batch_size=12, responses_per_prompt=4, updates=2)
    list(ppo(model, make_optimizer(model, settings), PROMPTS, settings, DRAW, answer=answer))
    assert [len(list(same)) for _, same in groupby(asked)] == [4] * 6
    assert sorted(ids[1] for ids in asked[::4]) == [10, 11, 12, 13, 14, 15]


def test_without_a_kl_coefficient_the_sft_policy_does_not_read(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model, settings = PaysForLowTokens(load_base(train), sft, reward), quick_settings(updates=1)
    monkeypatch.delattr(SharedBase, "reference_log_probs")
    [facts] = ppo(model, make_optimizer(model, settings), PROMPTS, settings, DRAW)
    assert "kl" not in facts
    with pytest.raises(AttributeError, match="reference_log_probs"):
        list(ppo(model, make_optimizer(model, settings), PROMPTS, quick_settings(updates=1, kl=0.1), DRAW))


def test_a_missing_end_costs_one_deviation_of_the_score(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = PaysForLowTokens(load_base(train), sft, reward)
    low = torch.tensor([[20, 21, 22, 23], [20, 21, 22, END]])
    responses = ended_responses([[5], [5]], low, DRAW)
    facts = evaluate(model, responses, quick_settings(), DRAW, ScoreScale(mean=0.5, deviation=0.25)).facts
    # Both earn (1 - 0.5) / 0.25 = 2; the first loses 1 for its missing end.
    assert (facts["reward_model_score"], facts["score"], facts["ended"]) == (1.0, 1.5, 0.5)


def moved(folder: Path, base: Path) -> SharedBase:
    """Return a model whose policy differs from its reference."""
    train, sft, reward = adapters(folder, base)
    model = PaysForLowTokens(load_base(train), sft, reward)
    list(ppo(model, make_optimizer(model, quick_settings()), PROMPTS, quick_settings(updates=1, kl=0.1), DRAW))
    return model


def test_a_response_earns_its_score_minus_its_divergence_and_advantages_are_whitened(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = moved(workplace, tiny_base)
    # With lambda and gamma 1 the return of the first token is the sum of all rewards, whatever the values.
    monkeypatch.setattr("train.rl.ppo.LAMBDA", 1.0)
    batch = evaluate(model, respond(model, PROMPTS, DRAW), quick_settings(kl=0.5), DRAW, UNSCALED)
    earned = batch.returns_BT[:, 0].mean().item()
    [block] = blocks(batch.responses, 10_000)
    over_BT = model.reference_log_probs(block.packed, batch.responses.length) - batch.log_probs_BT
    k3_BT = (over_BT.exp() - 1 - over_BT) * batch.responses.mask_BT
    assert batch.facts["kl_k3"] == pytest.approx(k3_BT.sum(dim=1).mean().item(), rel=1e-4)
    assert batch.facts["kl"] != batch.facts["kl_k3"]
    assert earned == pytest.approx(batch.facts["score"] - 0.5 * batch.facts["kl"], rel=1e-4)
    here = batch.responses.mask_BT > 0
    assert batch.advantages_BT[here].std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
    assert batch.advantages_BT[here].mean().item() == pytest.approx(0.0, abs=1e-5)


def test_the_gradient_is_that_of_the_mean_loss_of_policy_and_value_over_all_tokens(
    tiny_base: Path, workplace: Path
) -> None:
    model, settings = moved(workplace, tiny_base), quick_settings(kl=0.1)
    optimizer = make_optimizer(model, settings)
    responses = respond(model, sorted(PROMPTS * 2, key=len), OFTEN_ENDS)
    batch = evaluate(model, responses, settings, DRAW._replace(micro_batch_tokens=30), UNSCALED)
    assert len(set(map(len, responses.tokens))) > 2
    assert len(batch.blocks) > 2
    set_learning_rates(optimizer, settings, 100)
    accumulate_gradients(model, optimizer, batch)
    optimizer.step()
    facts = accumulate_gradients(model, optimizer, batch)
    parameters = [*model.adapter_parameters(), *model.value_head.parameters()]
    found = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    # The same, token by token, by equations 7 and 9 of PPO.
    [block] = blocks(responses, 10_000)
    read, policy_losses, value_losses = model.read(block.packed, responses.length), list[Tensor](), list[Tensor]()
    for row, column in responses.mask_BT.nonzero().tolist():
        ratio = torch.exp(read.log_probs_RT[row, column] - batch.log_probs_BT[row, column])
        advantage, target = batch.advantages_BT[row, column], batch.returns_BT[row, column]
        policy_losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
        value, old = read.values_RT[row, column], batch.values_BT[row, column]
        error = torch.maximum((value - target) ** 2, (old + (value - old).clamp(-0.2, 0.2) - target) ** 2) / 2
        value_losses.append(error)
    policy_loss, value_loss = torch.stack(policy_losses).mean(), torch.stack(value_losses).mean()
    parts = torch.autograd.grad(policy_loss + 0.1 * value_loss, parameters)
    expected = torch.cat([part.flatten() for part in parts])
    assert facts["gradient_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)
    torch.testing.assert_close(found, expected / max(facts["gradient_norm"], 1.0), rtol=1e-3, atol=1e-6)
    assert facts["policy_loss"] == pytest.approx(policy_loss.item(), rel=1e-4)
    assert facts["value_loss"] == pytest.approx(value_loss.item(), rel=1e-4)


def test_learning_rates_rise_and_then_stay_constant(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    optimizer, long = make_optimizer(model, quick_settings()), quick_settings(updates=100)
    rates = []
    for step in (0, 9, 19, 150):  # The warm-up is 5% of 400 steps.
        set_learning_rates(optimizer, long, step)
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates == [pytest.approx([share * 3e-2, share * 1e-3]) for share in (0.05, 0.5, 1.0, 1.0)]
