"""A prompt with all its responses in one row gives the gradient that separate rows give."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retroformer.errors import ConfigError
from retroformer.models.loading import load_adapter
from tests.train.world import save_adapter, tiny_experiment
from train.base import load_base
from train.dpo import POLICY, REFERENCE, DirectPreference, policy_and_reference
from train.group_trainer import Objective
from train.imitation import Imitation
from train.reward import Ranking, scorer
from train.shared_prompt import agreement
from train.shared_prompt import packed as packing
from train.shared_prompt.agreement import LIMIT, Values, choose_attention, differences, require_agreement
from train.shared_prompt.attention import QUICK, SPLIT
from train.shared_prompt.packed import Group, Packed, pack
from train.shared_prompt.reading import hidden_states, trunk_of
from train.stage import make_stage

GROUPS = [
    Group([5, 6, 7], [[8, 9], [8, 10, 11], [12]], [(0, 1), (0, 2), (2, 1)]),
    Group([20, 21, 22, 23, 24, 25], [[30, 31, 32, 33], [8, 9]], [(1, 0)], number=1),
    Group([40, 41], [[50], [51, 52, 53, 54, 55], [56, 57], [58, 59]], [(3, 0), (3, 1), (3, 2)], number=2),
]


def plain_hidden(trunk: Any, packed: Packed) -> Tensor:
    """Return the hidden states of one row as any library reads it, without a mask or positions."""
    hidden: Tensor = trunk(input_ids=packed.ids_BL, use_cache=False).last_hidden_state
    return hidden


def gradient(model: Any, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    return torch.cat(gradients)


def require_equal_gradients(model: Any, objective: Objective, tolerance: float = 1e-5) -> None:
    """Compare the gradient of a batch in shared rows with that of a row for each response."""
    model.train()
    trunk = trunk_of(model)
    shared = pack(GROUPS)
    ours = gradient(
        model, objective.loss(objective.values(model, hidden_states(trunk, shared), shared), shared, GROUPS, GROUPS)
    )
    singles = [pack([single]) for group in GROUPS for single in group.alone]
    values = torch.cat([objective.values(model, plain_hidden(trunk, single), single) for single in singles])
    theirs = gradient(model, objective.loss(values, shared, GROUPS, GROUPS))
    assert float((ours - theirs).norm() / theirs.norm()) < tolerance


@pytest.fixture(params=["none", "nf4"])
def experiment(request: pytest.FixtureRequest, tiny_base: Path, workplace: Path) -> Any:
    return tiny_experiment(workplace, tiny_base, quantization=request.param)


def adapted(experiment: Any, folder: Path, checkpointing: bool) -> Any:
    save_adapter(experiment, folder)
    model = load_adapter(load_base(experiment.train), folder)
    if checkpointing:
        model.get_base_model().gradient_checkpointing_enable()
        model.get_base_model().enable_input_require_grads()
    return model


@pytest.mark.parametrize("checkpointing", [False, True])
def test_imitation(experiment: Any, workplace: Path, checkpointing: bool) -> None:
    require_equal_gradients(adapted(experiment, workplace / "start", checkpointing), Imitation())


@pytest.mark.parametrize("weight", ["equal", "by_failure"])
def test_the_reward_model(experiment: Any, weight: Any) -> None:
    torch.manual_seed(0)
    require_equal_gradients(scorer(experiment.train), Ranking(weight))


def test_dpo(experiment: Any, workplace: Path) -> None:
    save_adapter(experiment, workplace / "sft")
    stage = make_stage("dpo", experiment, [], {})
    model = policy_and_reference(load_base(experiment.train), workplace / "sft", stage)
    objective = DirectPreference("by_failure")
    objective.references = [torch.randn(len(group.responses)) for group in GROUPS]
    require_equal_gradients(model, objective)
    assert {POLICY, REFERENCE} == set(model.peft_config)


def test_the_check_reads_three_distinct_responses(experiment: Any, workplace: Path) -> None:
    model, read = adapted(experiment, workplace / "start", checkpointing=False), list[int]()
    trunk = trunk_of(model)
    trunk.register_forward_pre_hook(lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True)
    equal, several = Group([5, 6], [[8, 9]] * 5), Group([5, 6, 7], [[8, 9], [8, 9], [10], [11, 12], [13]])
    choose_attention(trunk, lambda hidden, packed: Imitation().values(model, hidden, packed), [equal, several])
    assert read[:4] == [8, 5, 4, 5]


def test_equal_responses_to_a_prompt_are_read_once(experiment: Any, workplace: Path) -> None:
    model = adapted(experiment, workplace / "start", checkpointing=False)
    twice = Group([5, 6, 7], [[8, 9], [8, 10, 11], [8, 9]])
    packed, objective = pack([twice]), Imitation()
    assert packed.ids_BL.tolist() == [[5, 6, 7, 8, 9, 8, 10, 11]]
    shared = objective.values(model, hidden_states(trunk_of(model), packed), packed)
    singles = [pack([single]) for single in twice.alone]
    alone = [objective.values(model, plain_hidden(trunk_of(model), single), single) for single in singles]
    torch.testing.assert_close(shared, torch.cat(alone), atol=1e-4, rtol=1e-4)


def sees_other_responses(packed: Packed, first: int = 0) -> Tensor:
    index_L = torch.arange(packed.ids_BL.shape[1])
    return (index_L[first:, None] >= index_L).expand(len(packed.ids_BL), -1, -1)


def positions_of_the_row(groups: Sequence[Group]) -> Packed:
    packed = packing.pack(groups)
    return packed._replace(positions_BL=torch.arange(packed.ids_BL.shape[1]).expand_as(packed.ids_BL))


def test_responses_that_see_each_other_are_detected(
    experiment: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing.Packed, "sees", sees_other_responses)
    require_a_refusal(adapted(experiment, workplace / "start", checkpointing=False))


def test_positions_that_do_not_restart_are_detected(
    experiment: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("train.shared_prompt.agreement", __name__):
        monkeypatch.setattr(f"{module}.pack", positions_of_the_row)
    require_a_refusal(adapted(experiment, workplace / "start", checkpointing=False))


def require_a_refusal(model: Any) -> None:
    model.train()

    def values(hidden: Tensor, packed: Packed) -> Tensor:
        return Imitation().values(model, hidden, packed)

    with pytest.raises(ConfigError, match="does not read a prompt with several responses in one row as it reads"):
        require_agreement(trunk_of(model), values, GROUPS[2])
    with pytest.raises(AssertionError):
        require_equal_gradients(model, Imitation())


def log_probs_of(model: Any) -> Values:
    return lambda hidden, packed: Imitation().values(model, hidden, packed)


@pytest.fixture
def rounds_beyond_the_limit(tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an adapted model in bf16 whose gradient rounds by more than the limit.

    That of a well-trained adapter goes beyond the real limit, 0.12 of 0.1; a tiny random model has only 0.006.
    """
    model = adapted(tiny_experiment(workplace, tiny_base, dtype="bfloat16"), workplace / "start", checkpointing=False)
    assert trunk_of(model.train()).dtype == torch.bfloat16
    monkeypatch.setitem(LIMIT, torch.bfloat16, 2e-3)
    assert differences(trunk_of(model), log_probs_of(model), GROUPS[2])["gradient"] > 2e-3
    return model


def test_what_a_mask_changes_in_the_gradient_of_separate_rows_is_rounding(
    rounds_beyond_the_limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = rounds_beyond_the_limit
    require_agreement(trunk_of(model), log_probs_of(model), GROUPS[2])
    monkeypatch.setattr(agreement, "MORE_ROUNDING", 0)
    with pytest.raises(ConfigError, match="the relative difference of the gradient is"):
        require_agreement(trunk_of(model), log_probs_of(model), GROUPS[2])


def sees_everything(packed: Packed, first: int = 0) -> Tensor:
    return torch.ones(*packed.ids_BL[:, first:].shape, packed.ids_BL.shape[1], dtype=torch.bool)


@pytest.mark.parametrize("sees", [sees_other_responses, sees_everything])
def test_a_fault_is_no_rounding(
    rounds_beyond_the_limit: Any, monkeypatch: pytest.MonkeyPatch, sees: Callable[[Packed], Tensor]
) -> None:
    """Use a wrong mask between the responses, and one that is as wrong in separate rows."""
    model = rounds_beyond_the_limit
    monkeypatch.setattr(packing.Packed, "sees", sees)
    with pytest.raises(ConfigError, match="the relative difference of the hidden states is"):
        require_agreement(trunk_of(model), log_probs_of(model), GROUPS[2])


def test_in_fp32_nothing_but_the_limit_counts(
    experiment: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a mask that hides early tokens, in separate rows as well."""

    def sees_a_window(packed: Packed, first: int = 0) -> Tensor:
        index_L = torch.arange(packed.ids_BL.shape[1])
        return right(packed, first) & (packed.positions_BL[:, first:, None] - packed.positions_BL[:, None, :] < 4) | (
            index_L[first:, None] == index_L
        )

    right = packing.Packed.sees
    model = adapted(experiment, workplace / "start", checkpointing=False).train()
    monkeypatch.setattr(packing.Packed, "sees", sees_a_window)
    with pytest.raises(ConfigError, match=r"rounding explains at most 0\.001\."):
        require_agreement(trunk_of(model), log_probs_of(model), GROUPS[2])


def test_quick_attention_is_used_on_request(experiment: Any, workplace: Path) -> None:
    model = adapted(experiment, workplace / "start", checkpointing=False)
    trunk = trunk_of(model)
    for quick, attention in ((True, QUICK), (False, SPLIT)):
        trunk.config._attn_implementation = SPLIT
        choose_attention(trunk, lambda hidden, packed: Imitation().values(model, hidden, packed), GROUPS, quick=quick)
        assert trunk.config._attn_implementation == attention


def test_attention_in_two_parts_is_that_of_the_whole_mask(experiment: Any, workplace: Path) -> None:
    trunk, packed = trunk_of(adapted(experiment, workplace / "start", checkpointing=False)), pack(GROUPS)
    assert trunk.config._attn_implementation == SPLIT
    assert packed.shortest_prompt == len(GROUPS[2].prompt)
    length = packed.ids_BL.shape[1]
    assert packed.dense_mask(torch.float32, first=2).shape == (3, 1, length - 2, length)
    in_parts = hidden_states(trunk, packed)
    trunk.config._attn_implementation = "sdpa"
    torch.testing.assert_close(hidden_states(trunk, packed), in_parts)
