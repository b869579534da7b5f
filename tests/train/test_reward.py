from pathlib import Path

import pytest
import torch

from retroformer.experiment.sections.train import Paired
from retroformer.records import Author, Key, PreferencePair, RatedReflection, Reflection
from tests.train.world import BAD, GOOD, prompt, tiny_experiment
from train.base import load_base, load_tokenizer, lora_config
from train.data.samples import sample_pairs
from train.pair_split import held_out_tasks
from train.reward import train_reward_model
from train.rl.shared_base import SharedBase
from train.shared_prompt.group import group_of
from train.shared_prompt.packed import pack
from train.stage import finished, make_stage

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
PAIRS = [
    PreferencePair(task_id=f"task {n}", prompt=prompt(f"task {n}"), chosen=GOOD, rejected=BAD, margin=1.0)
    for n in range(20)
]
RATED = [
    RatedReflection(
        key=Key(arm="collect", task_id=pair.task_id, trial=1, candidate=candidate),
        reflection=Reflection(text=text, prompt=pair.prompt, author=Author(endpoint="e", model="m")),
        return_before=0.0,
        returns_after=(1.0 - candidate,),
    )
    for pair in PAIRS
    for candidate, text in enumerate((pair.chosen, pair.rejected))
]


def test_separable_pairs_are_ordered_and_the_saved_model_gives_equal_scores(tiny_base: Path, workplace: Path) -> None:
    from peft import get_peft_model

    quick = Paired(learning_rate=1e-2, batch_size=4, micro_batch_tokens=200, epochs=4)
    experiment = tiny_experiment(workplace, tiny_base)
    stage = make_stage("reward", experiment, quick, [pair.model_dump() for pair in PAIRS], {})
    train_reward_model(stage, quick, PAIRS, RATED)
    done = finished(stage)
    assert done
    metrics = done.model_dump()
    assert metrics["held_out_reflections"] == 4
    assert metrics["held_out_correlation"] > 0.9
    assert metrics["held_out_length_correlation"] > 0.9, "the good advice is a letter longer"
    assert (metrics["held_out_longer_wins"], metrics["held_out_majority"]) == (1.0, 1.0)
    assert metrics["held_out_brier"] < 0.25
    assert (metrics["pairs"], metrics["held_out_pairs"], metrics["steps"]) == (18, 2, 18)
    assert (metrics["train_accuracy"], metrics["held_out_accuracy"]) == (1.0, 1.0)

    get_peft_model(load_base(experiment.train), lora_config(experiment.train.lora)).save_pretrained(workplace / "sft")
    model = SharedBase(load_base(experiment.train), workplace / "sft", stage.folder).eval()
    pairs = list(sample_pairs(load_tokenizer(experiment.train), PAIRS))
    scores = model.scores(pack([group_of([pair]) for pair in pairs])).view(-1, 2)
    assert bool((scores[:, 0] > scores[:, 1]).all())
    trained_on = [row for row, pair in zip(scores, PAIRS, strict=True) if pair.task_id not in metrics["held_out_tasks"]]
    assert torch.stack(trained_on).mean().item() == pytest.approx(metrics["train_score_mean"], abs=1e-4)


def test_the_same_tenth_of_the_tasks_is_always_held_out() -> None:
    tasks = [f"task {number}" for number in range(25)]
    assert len(held_out_tasks(tasks * 2, seed=0)) == 3
    assert held_out_tasks(tasks, seed=0) == held_out_tasks(tasks[::-1], seed=0)
    assert held_out_tasks(tasks, seed=0) != held_out_tasks(tasks, seed=1)


def test_the_only_task_is_not_held_out() -> None:
    assert held_out_tasks(["only"], seed=0) == set()
    assert len(held_out_tasks(["one", "two"], seed=0)) == 1
