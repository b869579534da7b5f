"""Tests of retrieved advice: similar tasks and high ratings come first, untried advice sometimes."""

import asyncio
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from retroformer.agents.arms.retrieved import RatedAdvice, RetrievalGain, RetrievingReflector, load_rated_advice
from retroformer.agents.arms.similarity import Similarity
from retroformer.errors import MissingInput
from retroformer.method.records import Key, Memory
from retroformer.run.arm_names import eval_arm
from retroformer.run.store import Store
from tests.support.characters import advice, attempt_at, task
from tests.support.facts import add_trajectory

CLEAN, HEAT = "Your task is to: put a clean mug in shelf.", "Your task is to: heat some egg and put it in bin."


def used(text: str, rating: float, opening: str = CLEAN, task_id: str = "other") -> RatedAdvice:
    return RatedAdvice(text=text, opening=opening, source=f"run/{text}", task_id=task_id, rating=rating)


def retrieved(experiences: list[RatedAdvice], *, opening: str = CLEAN, held: tuple[str, ...] = (), c: float = 0) -> str:
    failure = attempt_at(task("mine")).model_copy(update={"opening": opening})
    reflector = RetrievingReflector(experiences, c)
    return asyncio.run(reflector.reflect(failure, Memory(reflections=held), 0)).text


def test_at_equal_rating_the_advice_of_the_more_similar_task_is_chosen() -> None:
    both = [used("Rinse it.", 1.0, CLEAN), used("Warm it.", 1.0, HEAT)]
    assert retrieved(both, opening=CLEAN) == "Rinse it."
    assert retrieved(both, opening=HEAT) == "Warm it."


def test_for_similar_tasks_the_advice_with_the_higher_rating_is_chosen() -> None:
    assert retrieved([used("Look up.", 0.0), used("Rinse it.", 0.5), used("Rinse  it.", 0.75)]) == "Rinse it."


def test_advice_in_memory_is_not_repeated() -> None:
    pieces = [used("Rinse it.", 1.0), used("Look left.", 0.5)]
    assert retrieved(pieces, held=("Rinse it.",)) == "Look left."
    assert retrieved(pieces, held=("Rinse it.", "Look left.")) == ""


def test_advice_for_the_same_task_is_never_given() -> None:
    assert retrieved([used("Rinse it.", 1.0, task_id="mine"), used("Look left.", 0.1)]) == "Look left."


def test_rarely_tried_advice_is_chosen_if_exploration_weighs_enough() -> None:
    often = [used("Rinse it.", 0.5)] * 8
    rare = [used("Look left.", 0.0)]
    assert retrieved(often + rare, c=0.0) == "Rinse it."
    assert retrieved(often + rare, c=1.0) == "Look left."


def test_usefulness_is_the_upper_confidence_bound_worked_by_hand() -> None:
    reflector = RetrievingReflector([*[used("a", 0.5)] * 3, used("b", -1.0)], 0.3)
    often, rare = sorted(reflector._pieces, key=lambda piece: -len(piece.uses))
    assert reflector.usefulness(often) == pytest.approx(0.5 + 0.3 * math.sqrt(2 * math.log(4) / 3))
    assert reflector.usefulness(rare) == 0.0


def test_a_gain_counts_like_one_more_rating_in_the_mean_and_in_the_bound() -> None:
    reflector = RetrievingReflector([*[used("a", 0.5)] * 3, used("b  c", -1.0)], 0.3)
    reflector.learn([RetrievalGain("a", -0.5), RetrievalGain("b c", 1.0), RetrievalGain("expired", 1.0)])
    reflector.learn([RetrievalGain("b c", 0.6)])
    first, second = reflector._pieces
    # Seven trials in all: a has 4 with mean (3 * .5 - .5) / 4, b c has 3 with mean (-1 + 1 + .6) / 3.
    assert (first.text, first.trials, first.rating) == ("a", 4, pytest.approx(0.25))
    assert (second.text, second.trials, second.rating) == ("b  c", 3, pytest.approx(0.2))
    assert reflector.usefulness(first) == pytest.approx(0.25 + 0.3 * math.sqrt(2 * math.log(7) / 4))
    assert reflector._usefulness.tolist() == [reflector.usefulness(first), reflector.usefulness(second)]


def test_advice_that_brings_nothing_gives_way_to_another() -> None:
    reflector = RetrievingReflector([used("Rinse it.", 0.5), used("Look left.", 0.3)], 0.0)
    failure = attempt_at(task("mine")).model_copy(update={"opening": CLEAN})
    chosen = []
    for _ in range(4):
        text = asyncio.run(reflector.reflect(failure, Memory(), 0)).text
        chosen.append(text)
        reflector.learn([RetrievalGain(text, 0.0)])
    # Means: .5 and .3; then .25 and .3; then .25 and .15; then .1667 and .15.
    assert chosen == ["Rinse it.", "Look left.", "Rinse it.", "Rinse it."]


def test_similarity_is_the_cosine_of_tf_idf_vectors() -> None:
    alike = Similarity(["put mug", "put egg", "put pan"])
    assert alike.to("put mug") == pytest.approx([1, 0, 0], abs=1e-6)
    assert Similarity(["desk 1", "desk 2", "bed 1"]).to("desk 7")[:2] == pytest.approx([1, 1], abs=1e-6)


def chosen_by_definition(experiences: list[RatedAdvice], opening: str, held: tuple[str, ...], c: float) -> str:
    """Return the choice that the module's docstring defines, computed anew for every piece."""
    by_text = defaultdict[str, list[RatedAdvice]](list)
    for experience in experiences:
        by_text[" ".join(experience.text.split())].append(experience)
    pieces = [uses for text, uses in sorted(by_text.items()) if text]
    words = [Counter(re.findall(r"[^\W\d_]+", uses[0].opening.lower())) for uses in pieces]
    containing = Counter(word for counted in words for word in counted)

    def vector(counted: Counter[str]) -> dict[str, float]:
        weights = {
            word: count * math.log((1 + len(pieces)) / (1 + containing[word])) + 1e-9 for word, count in counted.items()
        }
        length = math.sqrt(math.fsum(weight**2 for weight in weights.values())) or 1.0
        return {word: weight / length for word, weight in weights.items()}

    wanted = vector(Counter(re.findall(r"[^\W\d_]+", opening.lower())))
    best, best_score = "", -1.0
    for uses, counted in zip(pieces, words, strict=True):
        of_piece = vector(counted)
        similarity = sum(weight * of_piece.get(word, 0.0) for word, weight in wanted.items())
        total = sum(len(each) for each in pieces)
        bonus = c * math.sqrt(2 * math.log(total) / len(uses)) if total > 1 else 0.0
        score = similarity * max(0.0, fmean(use.rating for use in uses) + bonus)
        allowed = uses[0].text not in held and all(use.task_id != "mine" for use in uses)
        if allowed and score > best_score:
            best, best_score = uses[0].text, score
    return best


@pytest.mark.parametrize("seed", range(150))
def test_the_choice_is_that_of_the_definition(seed: int) -> None:
    dice = Random(seed)
    vocabulary = [f"word{letter}" for letter in "abcdefghij"[: dice.randint(1, 10)]]
    openings = [" ".join(dice.choices([*vocabulary, "12", "the_end"], k=dice.randint(0, 8))) for _ in range(6)]
    experiences = [
        used(
            dice.choice(("go  left", "go left", "look", "", "wait", *(f"advice {number}" for number in range(9)))),
            dice.choice((-1.0, -0.25, 0.0, 0.1, 0.3, 0.5, 1.0)),  # Few values, so that there are ties.
            dice.choice(openings),
            dice.choice(("mine", "a", "b", "c")),
        )
        for _ in range(dice.randint(1, 40))
    ]
    if not any(experience.text for experience in experiences):
        return
    held = tuple(dice.choices(("go left", "look", "advice 1", "advice 2"), k=dice.randint(0, 3)))
    opening, c = dice.choice((*openings, "wordz", "")), dice.choice((0.0, 0.3, 1.0))
    assert retrieved(experiences, opening=opening, held=held, c=c) == chosen_by_definition(
        experiences, opening, held, c
    )


def test_a_large_memory_is_searched_outside_the_event_loop() -> None:
    pieces = [used(f"Advice {number}.", 0.5, f"{CLEAN} {'really ' * (number % 50)}") for number in range(20_001)]
    best = used("Rinse it.", 1.0)
    reflector = RetrievingReflector([*pieces, best], 0.0)
    failure = attempt_at(task("mine")).model_copy(update={"opening": CLEAN})

    async def reflect_while_the_loop_goes_on() -> tuple[str, int]:
        turns, reflecting = 0, asyncio.ensure_future(reflector.reflect(failure, Memory(), 0))
        while not reflecting.done():
            await asyncio.sleep(0)
            turns += 1
        return reflecting.result().text, turns

    text, turns = asyncio.run(reflect_while_the_loop_goes_on())
    assert text == "Rinse it."
    assert turns > 1  # On the event loop it would have finished after the first.


def test_an_empty_memory_is_refused_with_instructions() -> None:
    with pytest.raises(MissingInput, match="collect"):
        RetrievingReflector([], 0.3)


def test_only_rated_training_advice_is_retrieved_with_its_source(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'experience.db'}", "school")
    for arm, text in (("collect", "Rinse it."), (eval_arm("x"), "Leaked.")):
        for trial, reward in enumerate((0.0, 1.0)):
            add_trajectory(store, Key(arm=arm, task_id="a", trial=trial), attempt_at(task("a"), rewards=(reward,)))
        store.add_reflection(Key(arm=arm, task_id="a", trial=1), 0, advice(text))
    store.add_reflection(Key(arm="collect", task_id="b", trial=1), 0, advice("Not rated."))
    (experience,) = load_rated_advice(store)
    assert (experience.text, experience.rating, experience.source) == ("Rinse it.", 1.0, "school/collect/a/1.0")
    store.close()
