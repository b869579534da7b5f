"""Checkpoints of PPO when its updates end early."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from retroformer.errors import DamagedFile, EndpointFailure, RetroformerError, ServiceError
from retroformer.method.records import Message
from tests.train.rl.test_ppo import adapters, quick_settings
from tests.train.world import tiny_experiment
from train.base import load_base, load_tokenizer
from train.data.samples import prompt_ids
from train.loop import Facts, take
from train.rl.alarms import describer, first_alarms, repetition, with_alarms
from train.rl.policy import SharedBase, make_optimizer
from train.rl.stage import checkpoints_of
from train.stage import make_stage

FACTS = {"score": 0.0, "kl": 0.0, "alike": 0.0, "response_tokens": 4.0, "ended": 1.0, "entropy": 1.0}


@pytest.mark.parametrize(
    ("steps", "failure", "kept"),
    [
        (1, ServiceError("Another process has ended."), ["update-000001.pt"]),
        (50, ServiceError("Another process has ended."), []),
        (50, EndpointFailure("No server."), ["update-000001.pt"]),
    ],
)
def test_a_half_updated_policy_is_never_saved(
    tiny_base: Path, workplace: Path, steps: int, failure: RetroformerError, kept: list[str]
) -> None:
    """Another process ends in the middle of an update, but a server fails before an update begins."""
    train, sft, reward = adapters(workplace, tiny_base)
    experiment = tiny_experiment(
        workplace, tiny_base, ppo=quick_settings(updates=3).model_dump(), checkpoint_steps=steps
    )
    stage = make_stage("ppo", experiment, [], {})
    model = SharedBase(load_base(train), sft, reward)
    optimizer = make_optimizer(model, experiment.train.ppo)

    def pass_over_a_batch() -> None:
        for parameter in model.adapter_parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    def updates() -> Iterator[Facts]:
        pass_over_a_batch()
        yield dict(FACTS)
        if isinstance(failure, ServiceError):
            pass_over_a_batch()
        raise failure

    checkpoints = checkpoints_of(stage, model, optimizer)
    with pytest.raises(type(failure)):
        take(stage, "update", 3, updates(), [], checkpoints.save, str)
    paths = sorted(stage.checkpoints.glob("update-*.pt"))
    assert [path.name for path in paths] == kept
    for path in paths:
        steps_taken = {int(state["step"]) for state in torch.load(path)["optimizer"]["state"].values()}
        assert steps_taken == {1}


FIRST = {"alike": 0.01, "ended": 1.0, "response_tokens": 20.0}


def history_of(*changes: dict[str, float]) -> list[dict[str, float]]:
    history: list[dict[str, float]] = []
    for now in with_alarms([FIRST | change for change in changes], history):
        history += [now]
    return history


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        ({"alike": 0.12}, "alarm_collapse"),
        ({"ended": 0.74}, "alarm_length"),
        ({"response_tokens": 41.0}, "alarm_length"),
        ({"alike": 0.1, "ended": 0.76, "response_tokens": 39.0}, None),
        ({"alike": 0.0, "response_tokens": 2.0}, None),
    ],
)
def test_an_alarm_rings_beyond_its_bound(change: dict[str, float], alarm: str | None) -> None:
    now = history_of({}, change)[-1]
    assert {name for name in ("alarm_collapse", "alarm_length") if now[name]} == ({alarm} - {None})


def test_an_alarm_that_rings_again_is_reported_once_with_its_first_update() -> None:
    history = history_of({}, {}, {"alike": 0.5}, {}, {"alike": 0.6, "ended": 0.5})
    assert [facts["alarm_collapse"] for facts in history] == [0.0, 0.0, 1.0, 0.0, 1.0]
    assert first_alarms(history) == [
        "Update 3: the policy says the same to different failures (alike 0.01 at first and 0.50 now).",
        "Update 5: the responses have grown or do not end (ended 1.00 at first and 0.50 now, response_tokens "
        "20.00 at first and 20.00 now).",
    ]


def test_an_alarm_rings_however_slowly_a_policy_drifts() -> None:
    history = history_of(*({"alike": alike} for alike in (0.01, 0.08, 0.15)))
    assert [facts["alarm_collapse"] for facts in history] == [0.0, 0.0, 1.0]


def test_a_first_update_without_a_fact_has_no_alarm_of_it() -> None:
    history: list[dict[str, float]] = [{"ended": 1.0, "response_tokens": 20.0}]
    (now,) = with_alarms([FIRST | {"alike": 0.5, "ended": 0.5}], history)
    assert (now["alarm_collapse"], now["alarm_length"]) == (0.0, 1.0)


def test_checkpoints_of_other_parts_are_refused_with_their_folder(tiny_base: Path, workplace: Path) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    stage = make_stage("ppo", tiny_experiment(workplace, tiny_base), [], {})
    model = SharedBase(load_base(train), sft, reward)
    checkpoints = checkpoints_of(stage, model, make_optimizer(model, stage.experiment.train.ppo))
    checkpoints.save([FACTS])
    other = checkpoints._replace(parts=checkpoints.parts | {"value_head": torch.nn.Sequential(model.value_head)})
    with pytest.raises(DamagedFile, match=r"ppo.* are of another version .*value_head.*: delete the folder, and"):
        other.restore()
    assert checkpoints.restore() == [FACTS]


def test_the_first_update_never_rings() -> None:
    assert first_alarms(history_of({"alike": 0.9, "ended": 0.0, "response_tokens": 99.0})) == []


def test_texts_that_were_alike_from_the_beginning_are_no_collapse() -> None:
    """As stored reflections are, which the policy did not write."""
    assert first_alarms(history_of({"alike": 0.5}, {"alike": 0.55})) == []
    (said,) = first_alarms(history_of({"alike": 0.5}, {"alike": 0.61}))
    assert said.startswith("Update 2: the policy says the same to different failures (alike 0.50 at first")


EXAMPLES = Message(role="system", content="You advise. For example: try the left door before the right one.")
ATTEMPT = Message(role="user", content="Action 1: go to drawer 1\nAction 2: open drawer 1\nIt failed. Advice:")


def test_copies_of_the_attempt_and_of_the_examples_are_counted_separately() -> None:
    texts = ["Open drawer 1. It failed.", "Try the left door.", "Look under the bed, behind the lamp."]
    facts = repetition(texts, [(EXAMPLES, ATTEMPT)] * 3)
    assert facts["copied_from_attempt"] == pytest.approx(1 / 3)
    assert facts["restating"] == pytest.approx(1 / 3)
    assert facts["copied_from_instruction"] == pytest.approx(1 / 3)


def test_a_response_restates_if_half_of_it_is_copied() -> None:
    # 2 of 4 n-grams, then 2 of 5.
    half, less = "open drawer 1 it failed so wait", "open drawer 1 it failed so wait here"
    assert [repetition([text], [(ATTEMPT,)])["restating"] for text in (half, less)] == [1.0, 0.0]


def test_a_prompt_of_one_message_has_no_instruction_to_copy() -> None:
    assert repetition(["open drawer 1 it"], [(ATTEMPT,)])["copied_from_instruction"] == 0.0


def test_alike_counts_pairs_of_responses_to_different_prompts() -> None:
    first, second = (ATTEMPT,), (EXAMPLES, ATTEMPT)

    def alike(*responses: tuple[tuple[Message, ...], str]) -> float:
        return repetition([text for _, text in responses], [prompt for prompt, _ in responses])["alike"]

    # Four pairs of responses to two prompts, of which two are equal; that the first prompt got one twice counts not.
    assert alike((first, "Wait."), (first, "Wait."), (second, "Wait."), (second, "Go.")) == 0.5
    assert alike((first, "Wait."), (first, "Go."), (second, "Stop."), (second, "Stop.")) == 0.0
    assert alike((first, "Wait."), (first, "Wait.")) == 0.0


def test_responses_are_compared_with_their_own_prompts(tiny_base: Path, workplace: Path) -> None:
    tokenizer = load_tokenizer(tiny_experiment(workplace, tiny_base).train)
    prompts = [(EXAMPLES, ATTEMPT), (Message(role="user", content="Nothing to copy here at all."),)]
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    said = [*tokenizer("Open drawer 1. It failed.", add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    describe = describer(tokenizer, prompts, ids)
    assert describe(ids, [said, said])["copied_from_attempt"] == 0.5
    assert describe([ids[1]], [said])["copied_from_attempt"] == 0.0
