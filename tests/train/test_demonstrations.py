"""Demonstrations of the actor: games played by script, in the text of its prompts, with labels on its actions."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from retroformer.config.sections.train import Train
from retroformer.environments.alfworld import compact, taskset
from retroformer.environments.alfworld.actors import household_prompt
from retroformer.environments.alfworld.advice_writer import WORDINGS, Sentences
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.alfworld.scripted_play import demonstrations as play
from retroformer.environments.extras import Demonstration
from retroformer.environments.section import Wording
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Step
from tests.support.alfworld import game_task
from tests.train.world import tiny_experiment
from train.actor import clone, counts, labelled_text, scripted_play
from train.base import load_tokenizer
from train.data.samples import IGNORED
from train.stage import finished, make_stage

COUNT = 60
GAMES = taskset(Alfworld(name="alfworld", source="generated", split="train"), 0)


@pytest.fixture(scope="module")
def demonstrations() -> list[Demonstration]:
    return list(play(GAMES, COUNT, 20, seed=0))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Train())


def test_demonstrations_depend_on_the_seed_only(demonstrations: list[Demonstration]) -> None:
    assert list(islice(play(GAMES, COUNT, 20, seed=0), 5)) == demonstrations[:5]
    assert list(islice(play(GAMES, COUNT, 20, seed=1), 5)) != demonstrations[:5]


def test_advice_can_be_in_the_words_that_the_packaged_actor_has_never_seen() -> None:
    def sentences(manner: Wording) -> list[str]:
        played = play(GAMES, COUNT, 20, 0, manner)
        return [line for each in played for line in each.text.splitlines() if line.startswith("Advice: ")]

    def words(wording: Sentences) -> set[str]:
        """Return the starts of the search sentences that begin with two words or more."""
        starts = {template.partition("{")[0] for template in wording.search}
        return {start for start in starts if start.count(" ") > 1}

    of = {manner: sentences(manner) for manner in WORDINGS}
    assert len(of["unseen"]) > COUNT / 2
    for manner, other in (("demonstrated", "unseen"), ("unseen", "demonstrated")):
        count = sum(any(start in line for start in words(WORDINGS[manner])) for line in of[manner])
        assert count > len(of[manner]) / 3
        assert not [line for line in of[manner] for start in words(WORDINGS[other]) if f"Advice: {start}" in line]


def test_advice_in_words_that_are_not_obeyed_changes_no_action() -> None:
    ignored = [each for each in play(GAMES, COUNT, 20, 0, "either", "unseen") if each.kind == "ignored"]
    assert COUNT / 5 < len(ignored) < COUNT * 3 / 5
    for each in ignored:
        # The demonstrator goes to the first place of the room line, as without advice.
        first = each.text.partition("Room: ")[2].partition("\n")[0].partition(",")[0].partition("-")[0]
        assert not each.pieces[1][1] or each.pieces[1][0].strip() in (f"go to {first}", f"examine {first}")


def test_task_types_alternate_and_most_attempts_succeed(demonstrations: list[Demonstration]) -> None:
    types = [demonstration.task_id.partition("-")[0] for demonstration in demonstrations]
    assert len(set(types)) == 6
    assert types[:6] == types[6:12]
    assert 0.5 < sum(demonstration.solved for demonstration in demonstrations) / COUNT < 1
    assert counts(demonstrations)["demonstrations"] == sum(counts(demonstrations)["kinds"].values()) == COUNT


def test_the_actor_is_prompted_with_the_text_that_it_was_trained_on(demonstrations: list[Demonstration]) -> None:
    """The actor writes the first prompt of each demonstration again from the environment's texts."""
    environment = GAMES.environment()
    for number, demonstration in enumerate(demonstrations[:20]):
        task = game_task(demonstration.task_id)
        opening = environment.reset(task).observation
        renamed = task.model_copy(update={"id": f"{task.id} {number}"})
        advice = [
            line.removeprefix("Advice: ") for line in demonstration.text.splitlines() if line.startswith("Advice: ")
        ]
        scene = Scene(task=renamed, opening=opening, steps=(), memory=Memory(reflections=tuple(advice)))
        assert household_prompt(scene) == demonstration.pieces[0][0]
        action = demonstration.pieces[1][0].strip()
        step = Step(action=action, observation=environment.step(action).observation)
        if len(demonstration.pieces) > 2:
            later = scene.model_copy(update={"steps": (step,)})
            assert household_prompt(later) == "".join(piece for piece, _ in demonstration.pieces[:3])


def test_tokens_match_the_pieces_and_only_own_actions_are_labelled(
    demonstrations: list[Demonstration], tokenizer: Any
) -> None:
    for demonstration in demonstrations:
        text = labelled_text(tokenizer, demonstration)
        in_pieces = [tokenizer(piece, add_special_tokens=False).input_ids for piece, _ in demonstration.pieces]
        assert text.input_ids == [token for ids in in_pieces for token in ids]
        learnt = tokenizer.decode([label for label in text.labels if label != IGNORED])
        assert learnt == "".join(piece for piece, own in demonstration.pieces if own)


def test_mistakes_are_shown_without_labels(demonstrations: list[Demonstration]) -> None:
    acts = [
        (piece, own) for demonstration in demonstrations for piece, own in demonstration.pieces if piece.startswith(" ")
    ]
    slips = [piece for piece, own in acts if not own]
    assert 0 < len(slips) / len(acts) < 0.08
    assert all(piece.startswith(" go to ") for piece in slips)


def test_advice_is_followed_first(demonstrations: list[Demonstration]) -> None:
    advised = [
        demonstration
        for demonstration in demonstrations
        if "Advice: Look in " in demonstration.text and demonstration.kind == "places"
    ]
    for demonstration in advised:
        named = demonstration.text.partition("Advice: Look in ")[2].partition(".")[0]
        first = demonstration.pieces[1][0].strip().removeprefix("go to ")
        assert not demonstration.pieces[1][1] or compact.type_of(first) in named


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_stage_trains_and_publishes_a_small_adapter(tiny_base: Path, workplace: Path) -> None:
    from safetensors.torch import load_file

    described = tiny_experiment(workplace, tiny_base, max_length=1024)
    attempts = scripted_play(described, 16)
    stage = make_stage("actor", described, [demonstration.text for demonstration in attempts], {})
    clone(stage, attempts)
    done = finished(stage)
    assert done
    metrics = done.model_dump()
    assert (metrics["demonstrations"], metrics["steps"]) == (16, 2)
    weights = load_file(stage.folder / "adapter_model.safetensors")
    settings = json.loads((stage.folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == described.train.base_model
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.bfloat16"}
