"""Demonstrations: real games played by script, told in the text that the actor is served, learnt where it acts."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from retroformer.actors.household import household_prompt
from retroformer.environments.alfworld import compact, taskset
from retroformer.environments.sections import Alfworld
from retroformer.protocols import Scene
from retroformer.records import Memory, Step
from retroformer.train_sections import Train
from tests.train.world import experiment
from train.base import load_tokenizer
from train.cloning import clone, scripted_play
from train.dataset import IGNORED
from train.demonstrations import Demonstration, counts, demonstrations, transcript
from train.stage import finished, make_stage

COUNT = 60
GAMES = taskset(Alfworld(name="alfworld", source="generated", split="train"), 0)


@pytest.fixture(scope="module")
def made() -> list[Demonstration]:
    return list(demonstrations(GAMES, COUNT, 20, seed=0))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Train())


def test_they_are_the_same_every_time_and_others_for_another_seed(made: list[Demonstration]) -> None:
    assert list(islice(demonstrations(GAMES, COUNT, 20, seed=0), 5)) == made[:5]
    assert list(islice(demonstrations(GAMES, COUNT, 20, seed=1), 5)) != made[:5]


def test_types_take_turns_and_most_attempts_end_well(made: list[Demonstration]) -> None:
    types = [one.task_id.partition("-")[0] for one in made]
    assert len(set(types)) == 6
    assert types[:6] == types[6:12]
    assert 0.5 < sum(one.solved for one in made) / COUNT < 1
    assert counts(made)["demonstrations"] == sum(counts(made)["kinds"].values()) == COUNT


def test_the_actor_is_served_the_text_that_it_was_taught(made: list[Demonstration]) -> None:
    """The first prompt of each demonstration, told again by the actor from the environment's own words."""
    environment = GAMES.environment()
    for number, one in enumerate(made[:20]):
        task = GAMES.task(one.task_id)
        opening = environment.reset(task).observation
        told = task.model_copy(update={"id": f"{task.id} {number}"})
        advice = [line.removeprefix("Advice: ") for line in one.text.splitlines() if line.startswith("Advice: ")]
        scene = Scene(task=told, opening=opening, steps=(), memory=Memory(reflections=tuple(advice)))
        assert household_prompt(scene) == one.pieces[0][0]
        action = one.pieces[1][0].strip()
        step = Step(action=action, observation=environment.step(action).observation)
        if len(one.pieces) > 2:
            later = scene.model_copy(update={"steps": (step,)})
            assert household_prompt(later) == "".join(piece for piece, _ in one.pieces[:3])


def test_tokens_are_those_of_the_pieces_and_only_own_actions_are_learnt(
    made: list[Demonstration], tokenizer: Any
) -> None:
    for one in made:
        told = transcript(tokenizer, one)
        in_pieces = [tokenizer(piece, add_special_tokens=False).input_ids for piece, _ in one.pieces]
        assert told.ids == [token for ids in in_pieces for token in ids]
        learnt = tokenizer.decode([label for label in told.labels if label != IGNORED])
        assert learnt == "".join(piece for piece, own in one.pieces if own)


def test_slips_are_shown_and_not_learnt(made: list[Demonstration]) -> None:
    acts = [(piece, own) for one in made for piece, own in one.pieces if piece.startswith(" ")]
    slips = [piece for piece, own in acts if not own]
    assert 0 < len(slips) / len(acts) < 0.08
    assert all(piece.startswith(" go to ") for piece in slips)


def test_what_advice_says_is_done_first(made: list[Demonstration]) -> None:
    told = [one for one in made if "Advice: Look in " in one.text and one.kind == "places"]
    for one in told:
        named = one.text.partition("Advice: Look in ")[2].partition(".")[0]
        first = one.pieces[1][0].strip().removeprefix("go to ")
        assert not one.pieces[1][1] or compact.type_of(first) in named


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_stage_trains_and_publishes_a_small_adapter(tiny_base: Path, workplace: Path) -> None:
    from safetensors.torch import load_file

    few = {"learning_rate": 3e-3, "batch_size": 4, "micro_batch_size": 2, "demonstrations": 8, "actions": 3}
    described = experiment(workplace, tiny_base, actor=few, max_length=512)
    attempts = scripted_play(described)
    stage = make_stage("actor", described, described.train.actor, [one.text for one in attempts], {})
    clone(stage, attempts)
    metrics = finished(stage)
    assert metrics is not None
    assert (metrics["demonstrations"], metrics["steps"]) == (8, 2)
    weights = load_file(stage.folder / "adapter_model.safetensors")
    settings = json.loads((stage.folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == described.train.base_model
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.bfloat16"}
