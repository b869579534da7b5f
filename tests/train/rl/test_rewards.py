"""GRPO on stored reflections: importance weights, what is learned from them, and the stage."""

import json
import math
from contextlib import closing
from pathlib import Path

import pytest
import torch

from retroformer.config.file import load
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import DrawnToken, Key, Reflection, Sampling, Task
from retroformer.run.store import open_store
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory
from tests.train.rl.test_grpo import DRAW, fresh_model, quick_settings, shifted
from tests.train.rl.test_grpo_stage import QUICK, fresh_adapters
from tests.train.rl.test_ppo import END, PROMPTS
from tests.train.world import AUTHOR, config_file, metrics, prompt
from train.__main__ import main
from train.data.samples import RatedGroup, RatedResponse
from train.rl.grpo import grpo
from train.rl.policy import SharedBase, make_optimizer
from train.rl.rewards import MAX_WEIGHT, StoredGroups
from train.rl.sampling import Responses, ended_responses, policy_log_probs, respond

SIZE = 4
GOOD, BAD = [40, 41, END], [50, 51, END]


def sampled(model: SharedBase, count: int = SIZE) -> tuple[Responses, list[RatedGroup]]:
    """Let a model respond to two prompts; return the responses, and what a store would hold of them."""
    torch.manual_seed(5)
    asked = [ids for ids in PROMPTS[:2] for _ in range(count)]
    responses = respond(model, asked, DRAW)
    log_probs_BT = policy_log_probs(model, responses, 3200)
    drawn = [
        RatedResponse(tuple(map(DrawnToken, tokens, log_probs_T.tolist())), float(number % 2))
        for number, (tokens, log_probs_T) in enumerate(zip(responses.tokens, log_probs_BT, strict=True))
    ]
    return responses, [RatedGroup(prompt("x"), tuple(drawn[first : first + count])) for first in (0, count)]


def test_reflections_of_the_policy_itself_weigh_one_and_others_by_the_ratio(tiny_base: Path, tmp_path: Path) -> None:
    model = fresh_model(tmp_path, tiny_base)
    responses, groups = sampled(model)
    stored = StoredGroups(groups, PROMPTS[:2], SIZE)
    asked = [ids for ids in PROMPTS[:2] for _ in range(SIZE)]
    same = stored.respond(model, asked, DRAW)
    assert same.tokens == responses.tokens
    assert same.importance_BT is not None
    assert (same.importance_BT[same.mask_BT > 0] == 1.0).all()
    assert stored(0, [0] * SIZE + [1] * SIZE, same).tolist() == [0.0, 1.0] * SIZE
    before_BT = policy_log_probs(model, responses, 3200)
    shifted(model)
    other = stored.respond(model, asked, DRAW)
    ratios_BT = torch.exp(policy_log_probs(model, responses, 3200) - before_BT)
    assert other.importance_BT is not None
    assert other.importance_BT[:, : ratios_BT.shape[1]] == pytest.approx(ratios_BT.clamp(max=MAX_WEIGHT), abs=2e-3)
    assert other.facts["importance"] != 1.0
    assert float(ratios_BT.max()) > 1.0


def test_what_follows_a_stop_string_is_not_trained_on(tiny_base: Path, tmp_path: Path) -> None:
    model = fresh_model(tmp_path, tiny_base)
    stopped, ended = (
        RatedResponse(tuple(DrawnToken(token, -2.0) for token in tokens), rating)
        for tokens, rating in (([40, 41], 1.0), ([50, 51, 52, 53, END], 0.0))
    )
    stored = StoredGroups([RatedGroup(prompt("x"), (stopped, ended))], PROMPTS[:1], 2)
    responses = stored.respond(model, [PROMPTS[0]] * 2, DRAW)
    assert sorted(responses.tokens) == [[40, 41], [50, 51, 52, 53, END]]
    assert sorted(responses.ended_B.tolist()) == [False, True]
    assert int(responses.response_BT.min()) >= 0


def test_a_group_that_is_too_small_is_filled_without_ratings(tiny_base: Path, tmp_path: Path) -> None:
    model = fresh_model(tmp_path, tiny_base)
    _, groups = sampled(model, count=2)
    stored = StoredGroups(groups, PROMPTS[:2], SIZE)
    responses = stored.respond(model, [PROMPTS[1]] * SIZE, DRAW)
    assert responses.tokens[2:] == [responses.tokens[0]] * 2
    rewards_B = stored(0, [1] * SIZE, responses)
    assert rewards_B[:2].tolist() == [0.0, 1.0]
    assert all(map(math.isnan, rewards_B[2:].tolist()))


def test_of_a_large_group_reflections_with_different_ratings_are_drawn_anew(tiny_base: Path, tmp_path: Path) -> None:
    model = fresh_model(tmp_path, tiny_base)
    _, (group, _) = sampled(model, count=SIZE)
    equal_first = RatedGroup(group.prompt, tuple(sorted(group.responses, key=lambda response: response.rating)))
    stored = StoredGroups([equal_first], PROMPTS[:1], 2)
    seen = set[str]()
    for update in range(20):
        torch.manual_seed(update)
        responses = stored.respond(model, [PROMPTS[0]] * 2, DRAW)
        assert sorted(stored(update, [0, 0], responses).tolist()) == [0.0, 1.0]
        seen |= set(map(str, responses.tokens))
    assert len(seen) == len({str([token.id for token in response.drawn]) for response in group.responses})


def test_what_was_rated_better_becomes_likelier(tiny_base: Path, tmp_path: Path) -> None:
    model = fresh_model(tmp_path, tiny_base)
    likely = -math.log(10.0)
    responses = tuple(
        RatedResponse(tuple(DrawnToken(token, likely) for token in tokens), rating)
        for tokens, rating in ((GOOD, 1.0), (BAD, 0.0))
    )
    stored = StoredGroups([RatedGroup(prompt("x"), responses)], PROMPTS[:1], 2)
    settings = quick_settings(group=2, batch_size=2, updates=6, reward="stored")

    def advantage() -> float:
        ids_BT = torch.tensor([GOOD, BAD])
        texts = ended_responses([PROMPTS[0]] * 2, ids_BT, DRAW)
        good, bad = policy_log_probs(model, texts, 3200).sum(dim=1).tolist()
        return float(good - bad)

    before = advantage()
    optimizer = make_optimizer(model, settings)
    for facts in grpo(model, optimizer, PROMPTS[:1], stored, settings, DRAW, answer=stored.respond):
        assert 0.0 <= facts["truncated"] <= 1.0
    assert advantage() > before + 1.0


def store_rated(config: Path, arm: str, name: str, temperature: float = 1.0, *, tokens: bool = True) -> None:
    """Store a failure with a good and a bad reflection."""
    subject = Task(id=name, environment="riddles", split="train")
    with closing(open_store(load(config))) as store:
        add_trajectory(store, Key(arm=arm, task_id=name), attempt_at(subject))
        for candidate, (ids, reward) in enumerate(((GOOD, 1.0), (BAD, 0.0))):
            drawn = tuple(DrawnToken(token, -2.0) for token in ids) if tokens else None
            how = Sampling(temperature=temperature)
            advice = Reflection(text=f"{candidate}", prompt=prompt(name), author=AUTHOR, sampling=how, drawn=drawn)
            key = Key(arm=arm, task_id=name, trial=1, candidate=candidate)
            store.add_reflection(key, 0, advice)
            add_trajectory(store, key, attempt_at(subject, (reward,)))


def test_the_stage_trains_on_stored_ratings_without_a_reward_model(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, grpo=QUICK | {"reward": "stored", "group": 2, "updates": 3})
    for number in range(3):
        store_rated(config, "collect", f"task-{number}")
    fresh_adapters(workplace / "runs/tiny", load(config))
    main(["grpo", str(config)])
    history = metrics(workplace, "grpo")["history"]
    assert [facts["score"] for facts in history] == [0.5] * 3
    assert all(facts["left_out"] == 0 for facts in history)
    assert all(facts["importance"] != 1.0 for facts in history)
    assert json.loads((workplace / "runs/tiny/grpo/metrics.json").read_text())["prompts"] == 3


@pytest.mark.parametrize(("temperature", "tokens"), [(0.9, True), (1.0, False)])
def test_reflections_of_unknown_probability_are_refused(
    tiny_base: Path, workplace: Path, temperature: float, tokens: bool
) -> None:
    config = config_file(workplace, tiny_base, grpo=QUICK | {"reward": "stored", "group": 2})
    store_rated(config, "collect", "task", temperature, tokens=tokens)
    with pytest.raises(ConfigError, match=r"collect with train\.grpo\.reward=stored and reflector\.temperature=1"):
        main(["grpo", str(config)])


def test_a_run_without_differing_ratings_is_refused(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, grpo=QUICK | {"reward": "stored", "group": 2})
    store_rated(config, "collect 2", "task")
    with pytest.raises(MissingInput):
        main(["grpo", str(config)])
