import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from retroformer.method.rating import Rating
from retroformer.method.records import Author, PreferencePair, Reflection
from retroformer.models.adapter_weights import SCORE_HEAD
from retroformer.run.stage_metrics import read_metrics, training_tasks
from tests.train.world import BAD, GOOD, collect, config_file, metrics, prompt, save_adapter, tiny_experiment
from train.__main__ import main
from train.adapter import Adapter, require_adapter
from train.base import add_fresh_adapter, load_base, load_tokenizer
from train.data.samples import sample_pairs
from train.pair_split import held_out_tasks
from train.reward import train_reward_model
from train.rl.policy import SharedBase
from train.rl.rewards import score_scale
from train.shared_prompt.packed import group_of, pack
from train.stage import finished, make_stage

PAIRS = [
    PreferencePair(task_id=f"task {n}", prompt=prompt(f"task {n}"), chosen=GOOD, rejected=BAD, margin=1.0)
    for n in range(20)
]
RATED = [
    Rating(
        task_id=pair.task_id,
        trial=1,
        candidate=candidate,
        previous_candidate=0,
        text=text,
        return_before=0.0,
        returns_after=(1.0 - candidate,),
        record=Reflection(text=text, prompt=pair.prompt, author=Author(endpoint="e", model="m")).model_dump_json(),
    )
    for pair in PAIRS
    for candidate, text in enumerate((pair.chosen, pair.rejected))
]


def test_separable_pairs_are_ordered_and_the_saved_model_gives_equal_scores(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base, reward={"learning_rate": 1e-2, "epochs": 4})
    stage = make_stage("reward", experiment, [pair.model_dump() for pair in PAIRS], {})
    train_reward_model(stage, PAIRS, RATED, {})
    done = finished(stage)
    assert done
    metrics = done.model_dump()
    assert metrics["held_out_reflections"] == 4
    assert metrics["held_out_correlation"] > 0.9
    assert metrics["held_out_length_correlation"] > 0.9, "the good advice is a letter longer"
    assert (metrics["held_out_longer_wins"], metrics["held_out_majority"]) == (1.0, 1.0)
    assert "held_out_equal_length_accuracy" not in metrics, "no pair has texts of equally many tokens"
    assert (metrics["pairs"], metrics["held_out_pairs"], metrics["steps"]) == (18, 2, 18)
    assert (metrics["train_accuracy"], metrics["held_out_accuracy"]) == (1.0, 1.0)

    add_fresh_adapter(load_base(experiment.train), experiment.train.lora).save_pretrained(workplace / "sft")
    model = SharedBase(load_base(experiment.train), workplace / "sft", stage.folder).eval()
    pairs = list(sample_pairs(load_tokenizer(experiment.train), PAIRS))
    scores = model.scores(pack([group_of([pair]) for pair in pairs])).view(-1, 2)
    assert bool((scores[:, 0] > scores[:, 1]).all())
    trained_on = [row for row, pair in zip(scores, PAIRS, strict=True) if pair.task_id not in metrics["held_out_tasks"]]
    assert torch.stack(trained_on).mean().item() == pytest.approx(metrics["train_score_mean"], abs=1e-4)


def test_a_reward_model_reads_the_prompt(tiny_base: Path, workplace: Path) -> None:
    """Which text is better depends on the prompt alone, so a model that ignores it is right half of the time."""
    names = [f"{direction} {number}" for number in range(30) for direction in ("north", "south")]
    pairs = [
        PreferencePair(task_id=name, prompt=prompt(name), chosen=texts[0], rejected=texts[1], margin=1.0)
        for name in names
        for texts in ([(GOOD, BAD) if name.startswith("north") else (BAD, GOOD)])
    ]
    quick: Any = {"micro_batch_tokens": 800, "reward": {"batch_size": 10, "learning_rate": 1e-2, "epochs": 12}}
    stage = make_stage("reward", tiny_experiment(workplace, tiny_base, **quick), [len(pairs)], {})
    train_reward_model(stage, pairs, (), {})
    done = finished(stage)
    assert done
    assert done.held_out_pairs == 6
    assert (done.measure("train_accuracy"), done.held_out_accuracy) == (1.0, 1.0)


def test_a_batch_counts_failures_each_with_all_its_pairs(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, reward={"epochs": 1})
    collect(config, rate=lambda text: int(text[-1]), texts=[f"Advice {quality}" for quality in range(4)])
    main(["reward", str(config)])
    done = metrics(workplace, "reward")
    assert (done["pairs"], done["steps"]) == (60, 3), "10 failures in batches of 4; two are held out"
    main(["reward", str(config), "train.reward.batch_size=", "train.reward.epochs="])
    fitted = metrics(workplace, "reward")["inputs"]["optimizer"]
    assert (fitted["batch_size"], fitted["epochs"]) == (4, 8), "30 steps would be 10 epochs"


def test_a_reward_model_can_start_from_a_reflector(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base, reward={"learning_rate": 1e-4, "start": "warm"})
    start = workplace / "start"
    save_adapter(experiment, start)
    held_out = sorted(held_out_tasks([pair.task_id for pair in PAIRS], experiment.seed))
    trained = training_tasks(experiment, [held_out[0], "another task"])
    # Under another seed, these ids are of other games.
    elsewhere = training_tasks(experiment.model_copy(update={"seed": 9}), held_out)
    recorded = [trained.model_dump(), elsewhere.model_dump()]
    (start / "metrics.json").write_text(json.dumps({"training_domains": recorded}))
    adapters = {"start": require_adapter(start)}
    stage = make_stage("reward", experiment, [pair.model_dump() for pair in PAIRS], adapters)
    train_reward_model(stage, PAIRS, (), adapters)
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (start, stage.folder))
    assert [after.pop(name) for name in list(after) if name.endswith(SCORE_HEAD)]
    assert before.keys() == after.keys()
    changes = [float((after[name] - before[name]).abs().max()) for name in before]
    assert 0 < max(changes) < 1e-2, "it starts there"
    done = finished(stage)
    assert done
    assert (len(done.measure("held_out_tasks")), done.measure("held_out_tasks_read_by_start")) == (2, 1)
    assert "| held_out_tasks_read_by_start | 1 |" in (stage.folder / "README.md").read_text()


def test_the_scale_of_scores_is_that_of_held_out_texts_if_there_are_enough(tmp_path: Path) -> None:
    measures = {"train_score_mean": 1.0, "train_score_deviation": 8.0}
    measures |= {"held_out_score_mean": 0.5, "held_out_score_deviation": 2.0}
    for pairs, scale in ((8, (0.5, 2.0)), (7, (1.0, 8.0))):
        (tmp_path / "metrics.json").write_text(json.dumps(measures | {"held_out_pairs": pairs}))
        assert score_scale(Adapter(tmp_path, "", read_metrics(tmp_path))) == scale


def test_the_same_tenth_of_the_tasks_is_always_held_out() -> None:
    tasks = [f"task {number}" for number in range(25)]
    assert len(held_out_tasks(tasks * 2, seed=0)) == 3
    assert held_out_tasks(tasks, seed=0) == held_out_tasks(tasks[::-1], seed=0)
    assert held_out_tasks(tasks, seed=0) != held_out_tasks(tasks, seed=1)


def test_the_only_task_is_not_held_out() -> None:
    assert held_out_tasks(["only"], seed=0) == set()
    assert len(held_out_tasks(["one", "two"], seed=0)) == 1
