"""All actions of a state in one row: each has the likelihood that it has alone after the prompt."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.world import save_adapter, tiny_experiment
from train.base import load_base
from train.sac.models import ActorCritic, by_action, log_policy, written_greedily
from train.shared_prompt.packed import Group, pack

SHORT = Group([5, 6, 7], [[8, 9], [8, 10, 11], [12]])
LONG = Group([20, 21, 22, 23, 24, 25], [[30, 31, 32, 33], [8, 9]])


def log_probs_alone(model: Any, prompt: list[int], action: list[int]) -> list[float]:
    """Return the log-probability of each token of an action, read alone by a plain forward pass."""
    with torch.no_grad():
        logits_LV = model(input_ids=torch.tensor([prompt + action])).logits[0]
    log_probs_LV = logits_LV.log_softmax(dim=-1)
    return [float(log_probs_LV[len(prompt) - 1 + place, token]) for place, token in enumerate(action)]


@pytest.mark.parametrize("trained", [False, True], ids=["fresh", "trained"])
def test_an_action_has_the_likelihood_that_it_has_alone_after_its_prompt(
    tiny_base: Path, workplace: Path, trained: bool
) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    plain: Any = load_base(experiment.train)
    if trained:
        from peft import PeftModel

        save_adapter(experiment, workplace / "start")
        plain = PeftModel.from_pretrained(plain, workplace / "start")
    model = ActorCritic(
        load_base(experiment.train), experiment.train.lora, workplace / "start" if trained else None
    ).eval()
    log_probs_BAT, admitted_BA = model.action_log_probs([SHORT, LONG])
    assert admitted_BA.tolist() == [[True, True, True], [True, True, False]]
    assert log_probs_BAT.shape == (2, 3, 4)
    for row, state in enumerate((SHORT, LONG)):
        for number, action in enumerate(state.responses):
            expected = log_probs_alone(plain, state.prompt, action)
            assert log_probs_BAT[row, number, : len(action)].tolist() == pytest.approx(expected, abs=1e-4)
            assert not log_probs_BAT[row, number, len(action) :].any()


def test_the_prompt_is_read_once_and_an_action_sees_nothing_of_the_others() -> None:
    packed = pack([SHORT])
    assert packed.ids_BL.tolist() == [[5, 6, 7, 8, 9, 8, 10, 11, 12]]
    assert packed.positions_BL.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5, 3]]
    (sees_LL,) = packed.sees()
    seen = [[column for column in range(9) if sees_LL[row, column]] for row in range(9)]
    assert seen == [
        *([0], [0, 1], [0, 1, 2]),
        *([0, 1, 2, 3], [0, 1, 2, 3, 4]),
        *([0, 1, 2, 5], [0, 1, 2, 5, 6], [0, 1, 2, 5, 6, 7]),
        [0, 1, 2, 8],
    ]
    # The first token of every action is predicted at the end of the prompt, the others at the token before them.
    assert packed.source_N.tolist() == [2, 3, 2, 5, 6, 2]
    assert SHORT.length == 9
    assert SHORT.longest == 6


def test_the_policy_is_the_softmax_of_summed_log_probabilities_over_the_actions_of_each_state() -> None:
    packed = pack([SHORT, LONG])
    # -1 for every token: the actions of the short state have -2, -3 and -1, those of the long one -4 and -2.
    log_policy_BA = log_policy(*by_action([SHORT, LONG], packed, -torch.ones(len(packed.token_N))))
    for row, scores in enumerate(([-2.0, -3.0, -1.0], [-4.0, -2.0])):
        expected = torch.tensor(scores).softmax(dim=0)
        torch.testing.assert_close(log_policy_BA[row, : len(scores)].exp(), expected)
    assert log_policy_BA[1, 2] == -torch.inf


def test_greedy_decoding_follows_the_likeliest_token_and_need_not_reach_the_likeliest_action() -> None:
    actions = [[1, 2, 9], [1, 3, 9], [4, 9]]
    # `1` has probability .6 and is continued in two ways, so `4` with .4 is the likeliest action.
    probabilities_AT = torch.tensor([[0.6, 0.45, 1.0], [0.6, 0.55, 1.0], [0.4, 1.0, 1.0]])
    assert int(probabilities_AT.prod(dim=1).argmax()) == 2
    assert written_greedily(actions, probabilities_AT.log()) == 1
    assert written_greedily([[4, 9]], torch.zeros(1, 2)) == 0
