"""Advice by rule holds only what the failure's text shows, and the warm start's mixture has the declared shares."""

import asyncio
from collections import Counter
from random import Random

import pytest

from retroformer.environments.alfworld import compact, extras, taskset
from retroformer.environments.alfworld.actors import RuleActor
from retroformer.environments.alfworld.advice_reader import read_advice
from retroformer.environments.alfworld.advice_writer import (
    EMPTY_PHRASES,
    MIXTURE,
    UNSEEN,
    MixedKind,
    lesson_reflector,
    mixed_advice,
    oracle_reflector,
    rule_reflector,
    say,
)
from retroformer.environments.alfworld.attempt_reader import read_goal, view_of
from retroformer.environments.alfworld.environment import Alfworld, AlfworldEnvironment
from retroformer.environments.alfworld.hindsight import table_reflector
from retroformer.environments.extras import LessonParts
from retroformer.environments.section import Wording
from retroformer.method.protocols import Scene
from retroformer.method.records import Author, Ending, Lesson, Memory, Message, Outcome, Step, Task, Trajectory

PLACES = tuple(f"{kind} {number}" for kind in ("cabinet", "desk", "drawer", "shelf") for number in (1, 2, 3))
TASK = Task(id="mug/1", environment="alfworld", split="train")
ORDER = compact.room_order(TASK, PLACES)


def by_rule(attempt: Trajectory, memory: Memory) -> str:
    return asyncio.run(rule_reflector(render).reflect(attempt, memory, 0)).text


def lesson_parts(*, reads_history: bool = False) -> LessonParts:
    return LessonParts(Alfworld(), render, reads_history)


def mixed(attempt: Trajectory, kind: MixedKind, random: Random) -> str:
    return mixed_advice(view_of(attempt), kind, random)


def failure(*contents: str, task: str = "put some mug on desk") -> Trajectory:
    """Return a failed walk through the room that found these things, such as `nothing` or `a mug 1, and a pen 1`."""
    room = ", ".join(f"a {place}" for place in PLACES)
    return Trajectory(
        task=TASK,
        opening=f"You are in the middle. Looking around you, you see {room}.\n\nYour task is to: {task}.",
        steps=tuple(
            Step(action=f"go to {place}", observation=f"On the {place}, you see {things}.")
            for place, things in zip(ORDER, contents, strict=False)
        ),
        outcome=Outcome.FAILURE,
        ending=Ending.STEP_LIMIT,
    )


def render(trajectory: Trajectory, memory: Memory) -> tuple[Message, ...]:
    return (Message(role="user", content=f"{len(trajectory.steps)} steps, {len(memory.reflections)} reflections"),)


def listed(*places: str) -> str:
    names = compact.ranges(places)
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def test_advice_by_rule_names_all_sightings_and_nothing_else() -> None:
    assert by_rule(failure("nothing", "a pen 1, and a mug 3"), Memory()) == f"The mug 3 is in {ORDER[1]}."


def test_advice_by_rule_sends_to_the_next_places_for_unseen_things() -> None:
    assert by_rule(failure("nothing", "a pen 1"), Memory()) == f"Look in {listed(*ORDER[2:8])}."
    assert by_rule(failure(*["nothing"] * 11), Memory()) == f"Look in {ORDER[11]}."
    assert by_rule(failure(*["nothing"] * 12), Memory()) == ""


def test_an_arm_may_set_how_many_places_are_named() -> None:
    reflector = rule_reflector(render, places=2)
    reflection = asyncio.run(reflector.reflect(failure("nothing", "a pen 1"), Memory(), seed=0))
    assert reflection.text == f"Look in {listed(*ORDER[2:4])}."


def test_the_search_continues_after_the_places_of_earlier_advice() -> None:
    memory = Memory(reflections=(f"Look in {ORDER[2]} and {ORDER[7]}.",))
    expected = listed(*ORDER[8:], *ORDER[1:3])
    assert by_rule(failure("nothing"), memory) == f"Look in {expected}."


def test_two_things_and_a_lamp_are_each_mentioned() -> None:
    two = failure("a mug 1", "a mug 2, a mug 3", task="put two mug in desk")
    assert by_rule(two, Memory()) == f"The mug 1 is in {ORDER[0]}. The mug 2 is in {ORDER[1]}."
    half = failure("a mug 1", task="put two mug in desk")
    assert by_rule(half, Memory()) == f"The mug 1 is in {ORDER[0]}. Look in {listed(*ORDER[1:7])}."
    look = failure("a desklamp 1", "a mug 2", task="look at mug under the desklamp")
    assert by_rule(look, Memory()) == f"The mug 2 is in {ORDER[1]}. The desklamp 1 is in {ORDER[0]}."


def test_the_reflection_carries_its_prompt_and_its_author() -> None:
    memory = Memory(reflections=("Try harder.",))
    reflection = asyncio.run(rule_reflector(render).reflect(failure("a mug 3"), memory, seed=5))
    assert reflection.text == f"The mug 3 is in {ORDER[0]}."
    assert reflection.prompt == render(failure("a mug 3"), memory)
    assert reflection.author == Author(endpoint="rule", model="next-places")
    assert reflection.sampling.seed == 5


def test_unseen_wordings_mean_the_same_and_share_no_sentence_with_the_plain_ones() -> None:
    def said(manner: Wording, attempt: Trajectory, seed: int) -> str:
        return asyncio.run(rule_reflector(render, manner).reflect(attempt, Memory(), seed)).text

    seen, sought = failure("a mug 3"), failure("nothing", "a pen 1")
    assert {said("demonstrated", sought, seed) for seed in range(9)} == {f"Look in {listed(*ORDER[2:8])}."}
    drawn = [said("unseen", sought, seed) for seed in range(60)]
    assert drawn == [said("unseen", sought, seed) for seed in range(60)]
    assert set(drawn) == {say((sentence,), places=listed(*ORDER[2:8])) for sentence in UNSEEN.search}
    sightings = {say((sentence,), thing="mug 3", place=ORDER[0]) for sentence in UNSEEN.seen}
    assert {said("unseen", seen, seed) for seed in range(60)} == sightings
    assert said("unseen", failure(*["nothing"] * 12), 0) == ""


def test_every_writer_uses_either_wording_for_half_of_its_advice() -> None:
    section, sought = Alfworld(wording="either"), failure("nothing", "a pen 1")
    assert extras.hindsight is not None
    hindsight = extras.hindsight(section)([sought])
    writers = [
        rule_reflector(render, section.wording),
        table_reflector(render, [sought], wording=section.wording),
        oracle_reflector(render, lambda task: ("go to desk 2", "take mug 1 from desk 2"), section.wording),
        *(write(LessonParts(section, render, reads_history=False)) for write in extras.lessons.values()),
    ]
    others = [
        sought.model_copy(update={"task": TASK.model_copy(update={"id": f"mug/{number}"})}) for number in range(99)
    ]
    written = [[asyncio.run(writer.reflect(sought, Memory(), seed)).text for seed in range(99)] for writer in writers]
    # A retry that ignored its advice ends as the attempt before it, and yet its lesson may have other words.
    replays = [[Lesson(attempt=sought, advice=f"Look in desk {number}.")] for number in range(99)]
    of_tasks = [hindsight.advice(other, (), ()) for other in others]
    of_replays = [hindsight.advice(sought, earlier, ()) for earlier in replays]
    for texts in (*written, of_tasks, of_replays):
        plain, other = (
            sum(text.startswith(start) for text in texts)
            for start in (("Look in", "The mug 1 is in"), ("The places left are", "Remember that"))
        )
        assert 25 < plain < 75
        assert 25 < other < 75


def test_an_arm_can_say_everything_in_both_words() -> None:
    sought, both = failure("a desklamp 1", "nothing", task="look at mug under the desklamp"), "both"
    solution = ("go to desk 2", "take mug 1 from desk 2")
    rule = rule_reflector(render, both, places=2)
    table = table_reflector(render, [sought], places=2, wording=both)
    oracle = oracle_reflector(render, lambda task: solution, both)
    texts = [asyncio.run(writer.reflect(sought, Memory(), 0)).text for writer in (rule, table, oracle)]
    seen = f"The desklamp 1 is in {ORDER[0]}. Remember that {ORDER[0]} holds the desklamp 1."
    next_two, likeliest = listed(*ORDER[2:4]), "desk 1-2"
    assert texts == [
        f"{seen} Look in {next_two}. The places left are {next_two}.",
        f"{seen} Look in {likeliest}. The places left are {likeliest}.",
        "The mug 1 is in desk 2. Remember that desk 2 holds the mug 1.",
    ]


def test_the_phrases_of_the_mixture_are_the_first_five() -> None:
    assert EMPTY_PHRASES == (
        "Be careful and think step by step.",
        "Try harder next time.",
        "Make a better plan.",
        "Do not waste steps.",
        "Read the task again.",
    )


def named_places(words: str) -> set[str]:
    """Return the places that a piece of mixed advice names."""
    return set(read_advice([words], ORDER, read_goal("put some mug on desk")).first)


def test_each_kind_of_mixed_advice_has_its_declared_content() -> None:
    attempt = failure("nothing", "a mug 3", "nothing")
    for seed in range(30):
        assert named_places(mixed(attempt, "unvisited", Random(seed))) <= set(ORDER[3:])
        assert named_places(mixed(attempt, "visited", Random(seed))) <= set(ORDER[:3])
        assert mixed(attempt, "seen", Random(seed)) == f"The mug 3 is in {ORDER[1]}."
        assert mixed(attempt, "empty", Random(seed)) in EMPTY_PHRASES
    blind = [named_places(mixed(failure("nothing"), "seen", Random(seed))) for seed in range(200)]
    assert set().union(*blind) == set(ORDER)
    assert {len(places) for places in blind} == {1, 2, 3}


def test_the_mixture_is_the_declared_one_and_seeds_repeat() -> None:
    reflector = lesson_reflector("mixed", lesson_parts())
    attempt = failure("nothing", "a mug 3", "nothing")

    def text(seed: int) -> str:
        return asyncio.run(reflector.reflect(attempt, Memory(), seed)).text

    def kind(words: str) -> str:
        if words in EMPTY_PHRASES:
            return "empty"
        if words.startswith("The mug 3"):
            return "seen"
        return "visited" if named_places(words) <= set(ORDER[:3]) else "unvisited"

    texts = [text(seed) for seed in range(2000)]
    assert texts[:20] == [text(seed) for seed in range(20)]
    shares = Counter(map(kind, texts))
    assert sum(MIXTURE.values()) == pytest.approx(1)
    # Four standard errors of a share of 2,000 draws are at most 0.045.
    assert {name: count / 2000 for name, count in shares.items()} == pytest.approx(dict(MIXTURE), abs=0.045)
    assert max(len(words.split()) for words in texts) <= 9


# ---- generated games, played for real


def played(environment: AlfworldEnvironment, task: Task, advice: str = "") -> Trajectory:
    answer = environment.reset(task)
    opening, steps = answer.observation, list[Step]()
    while not answer.over and len(steps) < 12:
        now = Scene(task=task, opening=opening, steps=tuple(steps), memory=Memory(reflections=(advice,)))
        action = asyncio.run(RuleActor().act(now)).action
        answer = environment.step(action)
        steps.append(Step(action=action, observation=answer.observation))
    outcome, ending = (Outcome.SUCCESS, Ending.SOLVED) if answer.success else (Outcome.FAILURE, Ending.TOO_MANY_ACTIONS)
    return Trajectory(task=task, opening=opening, steps=tuple(steps), outcome=outcome, ending=ending)


@pytest.mark.slow
def test_advice_by_rule_wins_most_retries_and_the_mixture_few() -> None:
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    games = taskset(Alfworld(name="alfworld", source="generated"))
    environment = games.environment()
    failures = [
        attempt
        for attempt in (played(environment, task) for task in games.tasks()[:48])
        if attempt.outcome is Outcome.FAILURE
    ]
    won = Counter[str]()
    for attempt in failures:
        drawn = asyncio.run(lesson_reflector("mixed", lesson_parts()).reflect(attempt, Memory(), seed=0)).text
        for name, advice in (("rule", by_rule(attempt, Memory())), ("mixed", drawn)):
            won[name] += played(environment, attempt.task, advice).outcome is Outcome.SUCCESS
    assert len(failures) > 15
    assert won["rule"] / len(failures) > 0.7
    assert won["mixed"] / len(failures) < 0.5


def test_the_rule_that_reads_all_attempts_sends_nobody_where_one_has_searched() -> None:
    first, second = failure("nothing", "a pen 1", "a mug 3"), failure(*["nothing"] * 2)
    memory = Memory(reflections=("Look in attic 1.",), earlier=(Lesson(attempt=first, advice="Look in attic 1."),))
    last, every = (
        asyncio.run(rule_reflector(render, reads_history=reads).reflect(second, memory, 0)).text
        for reads in (False, True)
    )
    assert last == f"Look in {listed(*ORDER[2:8])}."
    assert every == f"The mug 3 is in {ORDER[2]}."


def test_the_warm_start_draws_unsearched_places_from_all_attempts() -> None:
    first, second = failure(*["nothing"] * 9), failure(*["nothing"] * 2)
    memory = Memory(earlier=(Lesson(attempt=first, advice=""),))
    for seed in range(50):
        text = asyncio.run(
            lesson_reflector("useful", lesson_parts(reads_history=True)).reflect(second, memory, seed)
        ).text
        mixed_text = mixed_advice(view_of(second, memory.earlier), "unvisited", Random(seed))
        assert named_places(text) | named_places(mixed_text) <= set(ORDER[9:])
