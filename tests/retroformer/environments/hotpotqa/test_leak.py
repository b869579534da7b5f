"""Gold answers in advice: planted ones are noticed, and advice that could be written without the answer is clean."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import pytest

from retroformer.cases.import_cases import import_cases
from retroformer.config.experiment import Experiment
from retroformer.environments.hotpotqa import taskset
from retroformer.environments.hotpotqa.advice import GoldAnswerLeak, holds
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory
from retroformer.run.store import open_store
from tests.support.data import require_data

QUESTION = "Question: Which city is the seat of the regiment that Élise Moreau founded?"


def attempt(*steps: Step, opening: str = QUESTION) -> Trajectory:
    task = Task(id="5a", environment="hotpotqa", split="all")
    return Trajectory(task=task, opening=opening, steps=steps, outcome=Outcome.FAILURE, ending=Ending.TERMINATED)


def given_away(advice: str, gold: str, *attempts: Trajectory) -> str:
    return GoldAnswerLeak(lambda task: gold).given_away(advice, attempts or (attempt(),))


@pytest.mark.parametrize(
    "advice",
    [
        "The answer is Fort Saint-Éloi.",
        "answer with FORT SAINT ELOI",
        "Next time I will finish with 'Fort Saint-Eloi'; it is the seat.",
        "It is the Fort Saint\N{EN DASH}Éloi's garrison.",
        "fort\nsaint\neloi",
    ],
)
def test_the_answer_is_noticed_in_any_spelling(advice: str) -> None:
    assert given_away(advice, "Fort Saint-Éloi") == "Fort Saint-Éloi"


@pytest.mark.parametrize(
    "advice", ["Search the fort.", "Saint Eloi founded a fort.", "Fort Saint-Éloise is elsewhere.", ""]
)
def test_a_part_of_the_answer_or_another_word_is_no_leak(advice: str) -> None:
    assert given_away(advice, "Fort Saint-Éloi") == ""


@pytest.mark.parametrize(
    "seen",
    [
        attempt(opening=f"{QUESTION} Is it Lyon?"),
        attempt(Step(action="Search[Moreau]", observation="She moved to Lyon in 1820.")),
        attempt(Step(thought="Perhaps lyon.", action="Search[Moreau]", observation="Nothing.")),
        attempt(Step(action="Finish[the city of Lyon]", observation="Answer is INCORRECT")),
    ],
)
def test_an_answer_that_an_attempt_showed_may_be_repeated(seen: Trajectory) -> None:
    assert given_away("The seat is Lyon.", "Lyon") == "Lyon"
    assert given_away("The seat is Lyon.", "Lyon", seen) == ""
    assert given_away("The seat is Lyon.", "Lyon", seen, attempt()) == ""


@pytest.mark.parametrize("gold", ["yes", "No", "The Who", "It", "3", "A"])
def test_answers_that_any_advice_may_hold_are_not_counted(gold: str) -> None:
    assert given_away("Yes or no: look up the 3 men who sold it, a band.", gold) == ""


def test_initials_are_noticed_with_and_without_points() -> None:
    assert holds("He lives in the US now.", "U.S.")
    assert holds("He lives in the U.S. now.", "US")
    assert not holds("He lives in Russia.", "US")
    assert not holds("anything", "the")


PLANTS = (
    "{advice} The answer is {gold}.",
    "{gold} is what I should have answered. {advice}",
    "{advice} Next time finish with {gold}!",
    "{advice} (hint: {upper})",
    '{advice} I will search for "{gold}", as it fits.',
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, list[Trajectory]]]:
    """Return each recorded reflection with its gold answer and the attempts before it."""
    section = Hotpotqa(data=require_data("hotpotqa"), split="all")
    source = taskset(section)
    experiment = Experiment(
        run="logs", environment=section, store=f"sqlite:///{tmp_path_factory.mktemp('logs')}/logs.db"
    )
    import_cases(experiment, require_data("recorded/reflexion_logs.jsonl.xz"), "reflexion")
    with closing(open_store(experiment)) as store:
        attempts = dict(store.stream_trajectories("recorded"))
        return [
            (
                stored.reflection.text,
                source.answer(Task(id=stored.key.task_id, environment="hotpotqa", split="all")),
                [
                    made
                    for key, made in attempts.items()
                    if key.task_id == stored.key.task_id and key.trial < stored.key.trial
                ],
            )
            for stored in store.stream_reflections("recorded")
        ]


def test_of_261_recorded_reflections_only_the_one_that_holds_its_answer_is_named(
    written: list[tuple[str, str, list[Trajectory]]],
) -> None:
    leaks = [given_away(advice, gold, *attempts) for advice, gold, attempts in written]
    assert len(leaks) == 261
    # The model knew it: "... when in fact it was Tybalt", whom no attempt had come across.
    assert [leak for leak in leaks if leak] == ["Tybalt"]


def test_twenty_of_twenty_answers_planted_in_recorded_reflections_are_noticed(
    written: list[tuple[str, str, list[Trajectory]]],
) -> None:
    def planted() -> Iterator[tuple[str, str]]:
        answers = set[str]()
        for advice, gold, attempts in written:
            if gold not in answers and gold not in ("yes", "no") and _unseen(gold, attempts):
                plant = PLANTS[len(answers) % len(PLANTS)].format(advice=advice, gold=gold, upper=gold.upper())
                answers.add(gold)
                yield gold, given_away(plant, gold, *attempts)

    pairs = list(islice(planted(), 20))
    assert len(pairs) == 20
    assert all(gold == leak for gold, leak in pairs)


def _unseen(gold: str, attempts: list[Trajectory]) -> bool:
    """Return True if no attempt shows a word of the answer, by a rule of its own."""
    shown = " ".join(made.model_dump_json() for made in attempts).lower()
    return not any(word.lower() in shown for word in gold.split())
