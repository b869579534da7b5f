"""PPO as a stage: what it writes down of every update, and that an alarm is said once, over a resumption, too."""

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.train.test_ppo import adapters
from tests.train.world import experiment, prompt
from train import checkpoint
from train.alarms import first_rings
from train.base import load_tokenizer
from train.dataset import prompt_ids
from train.policy import improve_policy
from train.ppo import make_optimizer, ppo
from train.sampling import draw_of
from train.shared_base import load_shared_base
from train.stage import make_stage

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
FACTS = (
    *("reward_model_score", "score", "kl", "kl_k3", "kl_weight", "kl_from_writer", "clip_fraction", "entropy"),
    *("explained_variance", "response_tokens", "ended", "distinct_1", "distinct_2", "restating"),
    *("copied_from_attempt", "copied_from_instruction", "alarm_collapse", "alarm_length", "steps"),
)


def test_every_update_is_written_down_and_an_alarm_is_said_once_over_a_resumption_too(
    tiny_base: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick = {"learning_rate": 0.3, "batch_size": 4, "micro_batch_size": 4, "epochs": 4, "updates": 4}
    page, sft, reward = adapters(workplace, tiny_base)
    (reward / "metrics.json").write_text(json.dumps({"train_score_mean": 0.0, "train_score_deviation": 1.0}))
    made = experiment(workplace, tiny_base, ppo={**quick, "kl": 1e-3, "kl_target": 5.0, "kl_horizon": 20})
    stage, prompts = make_stage("ppo", made, made.train.ppo, [], {}), [prompt(f"task {number}") for number in range(4)]
    caplog.set_level(logging.WARNING, logger="train.updates")

    def improved() -> tuple[dict[str, Any], bytes, list[str]]:
        caplog.clear()
        improve_policy(stage, prompts, sft, reward)
        said = [record.getMessage() for record in caplog.records if record.name == "train.updates"]
        weights = (stage.folder / "adapter_model.safetensors").read_bytes()
        return json.loads((stage.folder / "metrics.json").read_text()), weights, said

    metrics, weights, said = improved()
    for facts in metrics["history"]:
        assert not set(FACTS) - facts.keys()
        assert all(isinstance(value, float | int) for value in facts.values())
    assert len({facts["kl_weight"] for facts in metrics["history"]}) == 4
    assert metrics["alarms"] == said == first_rings(metrics["history"])
    assert any("responses have grown or do not end" in alarm for alarm in first_rings(metrics["history"][:2]))

    # What a run would have left that was killed after its second update.
    model = load_shared_base(page, sft, reward)
    optimizer = make_optimizer(model, made.train.ppo)
    tokenizer = load_tokenizer(page)
    ids = [prompt_ids(tokenizer, one) for one in prompts]
    draw = draw_of(made, made.train.ppo, tokenizer)
    list(islice(ppo(model, optimizer, ids, made.train.ppo, draw), 2))
    checkpoint.save(stage.checkpoints, 2, model, optimizer, metrics["history"][:2])
    resumed, resumed_weights, said = improved()
    assert resumed["resumed_from_update"] == 2
    assert (resumed["history"], resumed["alarms"]) == (metrics["history"], metrics["alarms"])
    assert resumed_weights == weights
    assert said == metrics["alarms"][len(first_rings(metrics["history"][:2])) :]
