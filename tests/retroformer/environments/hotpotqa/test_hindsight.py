"""Hindsight names the pages that a correct attempt read and the failed ones did not."""

import pytest

from retroformer.environments.hotpotqa import advice as module
from retroformer.environments.hotpotqa.advice import TitleHindsight
from retroformer.environments.hotpotqa.docstore import Docstore, build_docstore, page
from retroformer.environments.hotpotqa.environment import HotpotqaEnvironment, Question
from retroformer.method.records import Ending, Lesson, Outcome, Step, Task, Trajectory
from tests.reachable_modules import reachable_modules

TASK = Task(id="q", environment="hotpotqa", split="train")
QUESTION = Question(id="q", text="In which country is the river of Otho Town?", answer="Arvania")
TITLES = ("Otho Town", "Lena River", "Arvania", "Arvania (film)")
WRITER = TitleHindsight([])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Docstore:
    file = tmp_path_factory.mktemp("pages") / "pages.sqlite"
    return Docstore(build_docstore((page(title, [f"{title} is described here."]) for title in TITLES), file))


def played(pages: Docstore, *actions: str) -> Trajectory:
    """Return what the real environment makes of these actions."""
    environment = HotpotqaEnvironment({"q": QUESTION}, pages, reward="em", max_steps=8)
    opening = environment.reset(TASK).observation
    transitions = [environment.step(action) for action in actions]
    steps = tuple(
        Step(action=action, observation=transition.observation, reward=transition.reward)
        for action, transition in zip(actions, transitions, strict=True)
    )
    solved = bool(transitions[-1].success)
    return Trajectory(
        task=TASK,
        opening=opening,
        steps=steps,
        outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
        ending=Ending.SOLVED if solved else Ending.TERMINATED,
    )


@pytest.fixture(scope="module")
def failure(pages: Docstore) -> Trajectory:
    return played(pages, "Search[Otho Town]", "Finish[Borland]")


def test_the_pages_that_a_correct_attempt_read_are_named(pages: Docstore, failure: Trajectory) -> None:
    solved = played(pages, "Search[otho town]", "Search[Lena River]", "Finish[Arvania]")
    assert WRITER.advice(failure, (), [solved]) == "Search for Lena River."


def test_a_search_that_found_nothing_is_not_named(pages: Docstore, failure: Trajectory) -> None:
    solved = played(pages, "Search[the long river]", "Search[Lena River]", "Finish[Arvania]")
    assert WRITER.advice(failure, (), [solved]) == "Search for Lena River."


def test_pages_of_an_earlier_failure_are_not_named_again(pages: Docstore, failure: Trajectory) -> None:
    earlier = Lesson(attempt=played(pages, "Search[Lena River]", "Finish[Borland]"), advice="Search for more.")
    solved = played(pages, "Search[Lena River]", "Finish[Arvania]")
    assert WRITER.advice(failure, (), [solved]) == "Search for Lena River."
    assert WRITER.advice(failure, (earlier,), [solved]) == ""


def test_the_answer_is_never_given_away(pages: Docstore, failure: Trajectory) -> None:
    solved = played(pages, "Search[Lena River]", "Search[Arvania]", "Search[Arvania (film)]", "Finish[Arvania]")
    assert WRITER.advice(failure, (), [solved]) == "Search for Lena River."


def test_the_correct_attempt_that_needed_the_fewest_pages_is_taken(pages: Docstore, failure: Trajectory) -> None:
    long = played(pages, "Search[Arvania (film)]", "Search[Lena River]", "Finish[arvania]")
    short = played(pages, "Search[Lena River]", "Finish[Arvania]")
    assert WRITER.advice(failure, (), [long, short]) == "Search for Lena River."


def test_nothing_is_said_where_no_later_attempt_is_correct(pages: Docstore, failure: Trajectory) -> None:
    assert WRITER.advice(failure, (), []) == ""
    assert WRITER.advice(failure, (), [played(pages, "Search[Lena River]", "Finish[Borland]")]) == ""


def test_hindsight_cannot_reach_the_gold_answers() -> None:
    read = reachable_modules(module.__name__)
    assert "retroformer.environments.hotpotqa.environment" in read
    assert not {name.rsplit(".", 1)[-1] for name in read} & {"hotpotqa", "data"}
