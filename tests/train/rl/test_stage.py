"""PPO as a stage: the facts of every update, and alarms that are logged once, even across a resumption."""

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from retroformer.errors import ConfigError
from tests.train.rl.test_ppo import adapters
from tests.train.world import prompt, tiny_experiment
from train.adapter import require_adapter
from train.base import load_base, load_tokenizer
from train.data.samples import prompt_ids
from train.rl.alarms import first_alarms
from train.rl.policy import SharedBase, make_optimizer
from train.rl.ppo import ppo
from train.rl.sampling import sampling_settings
from train.rl.stage import checkpoints_of, train_by_ppo
from train.stage import make_stage

FACTS = (
    *("reward_model_score", "score", "kl", "kl_k3", "kl_from_writer", "clip_fraction", "entropy"),
    *("explained_variance", "response_tokens", "ended", "alike", "restating"),
    *("copied_from_attempt", "copied_from_instruction", "alarm_collapse", "alarm_length"),
)


def test_every_update_is_recorded_and_an_alarm_is_logged_once_across_a_resumption(
    tiny_base: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick = {"learning_rate": 0.3, "batch_size": 16, "epochs": 4, "updates": 4}
    train, sft, reward = adapters(workplace, tiny_base)
    (reward / "metrics.json").write_text(json.dumps({"train_score_mean": 0.0, "train_score_deviation": 1.0}))
    experiment = tiny_experiment(workplace, tiny_base, ppo={**quick, "kl": 1e-3})
    # With this seed some of the first responses end, and none of the second update.
    experiment = experiment.model_copy(update={"seed": 4})
    stage = make_stage("ppo", experiment, [], {})
    prompts = [prompt(f"task {number}") for number in range(4)]
    caplog.set_level(logging.WARNING, logger="train.rl.alarms")

    def improved() -> tuple[dict[str, Any], bytes, list[str]]:
        caplog.clear()
        train_by_ppo(stage, prompts, {"sft": require_adapter(sft), "reward": require_adapter(reward)})
        said = [record.getMessage() for record in caplog.records if record.name == "train.rl.alarms"]
        weights = (stage.folder / "adapter_model.safetensors").read_bytes()
        return json.loads((stage.folder / "metrics.json").read_text()), weights, said

    metrics, weights, said = improved()
    for facts in metrics["history"]:
        assert not set(FACTS) - facts.keys()
        assert all(isinstance(value, float | int) for value in facts.values())
    assert metrics["alarms"] == said == first_alarms(metrics["history"])
    assert any("responses have grown or do not end" in alarm for alarm in first_alarms(metrics["history"][:2]))

    # The checkpoint of a run that was killed after its second update.
    model = SharedBase(load_base(train), sft, reward)
    optimizer = make_optimizer(model, experiment.train.ppo)
    tokenizer = load_tokenizer(train)
    ids = [prompt_ids(tokenizer, asked) for asked in prompts]
    draw = sampling_settings(experiment, tokenizer, experiment.train.ppo.batch_size)
    list(islice(ppo(model, optimizer, ids, experiment.train.ppo, draw), 2))
    checkpoints_of(stage, model, optimizer).save(metrics["history"][:2])
    resumed, resumed_weights, said = improved()
    assert resumed["resumed_from_update"] == 2
    assert (resumed["history"], resumed["alarms"]) == (metrics["history"], metrics["alarms"])
    assert resumed_weights == weights
    assert said == metrics["alarms"][len(first_alarms(metrics["history"][:2])) :]


def test_updates_too_small_are_named_and_a_policy_of_another_shape_than_the_config_asks_for_is_refused(
    tiny_base: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, sft, reward = adapters(workplace, tiny_base)
    (reward / "metrics.json").write_text(json.dumps({"train_score_mean": 0.0, "train_score_deviation": 1.0}))
    slow = {"learning_rate": 1e-6, "updates": 10}
    experiment = tiny_experiment(workplace, tiny_base, lora={"layers": "upper_half"}, ppo=slow)
    stage = make_stage("ppo", experiment, [], {})
    with pytest.raises(ConfigError, match=r"layers .*'all'.*, but train.lora asks for .*'upper_half'"):
        train_by_ppo(stage, [prompt("task")], {"sft": require_adapter(sft), "reward": require_adapter(reward)})
    said = "ppo takes 40 steps with a learning rate of 1e-06, which will hardly change this base (0.0006 is usual)"
    assert said in caplog.text
