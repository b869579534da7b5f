"""Test that a prompt contains the whole trajectory and marks what it leaves out."""

import re
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.config.parts import reflection_renderer
from retroformer.environments.alfworld.reflection_prompt import compact_reflection_prompt
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.prompts import (
    PromptPack,
    adaptation_prompt,
    judge_prompt,
    load_pack,
    react_prompt,
    reflection_prompt,
    shorten,
)
from retroformer.method.protocols import Scene
from retroformer.method.records import Ending, Lesson, Memory, Outcome, Step, Task, Trajectory

PACK = PromptPack(
    act="Act in the house.",
    examples=("Thought 1: First.\nAction 1: go to desk 1\nObservation 1: A desk.", "Action 1: look\nAction 2: wait"),
    remember="Advice from before:",
    reflect="Say why it failed.",
    ask="Advice:",
)
COMMANDS = PACK.model_copy(
    update={
        "layout": "commands",
        "examples": ("> look\nA room.",),
        "examples_by_task": {"cool-": ("> think: Bread.\nOK.\n> cool bread 1 with fridge 1",)},
        "reflect_examples": ("> look\nAdvice: Go.",),
        "tools": "Call tools.",
    }
)
GAME = Task(id="cool-bread", environment="alfworld", split="train")
OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a fridge 1, a cabinet 2, and a cabinet 1.\n\n"
    "Your task is to: cool some bread and put it in cabinet."
)
STEPS = (
    Step(thought="The fridge.", action="go to fridge 1", observation="You arrive at fridge 1. The fridge 1 is closed."),
    Step(action="open fridge 1", observation="You open the fridge 1. The fridge 1 is open. In it, you see nothing."),
)
FAILURE = Trajectory(task=GAME, opening=OPENING, steps=STEPS, outcome=Outcome.FAILURE, ending=Ending.TOO_MANY_ACTIONS)
ADVISED = Memory(reflections=("Look in\n cabinet 1.", "Cool it first."))
CABINET = (Step(action="go to cabinet 1", observation="On the cabinet 1, you see a bread 1."),)
LESSONS = (
    Lesson(attempt=FAILURE, advice="Look in\n cabinet 1."),
    Lesson(attempt=FAILURE.model_copy(update={"steps": CABINET}), advice=""),
)
SECOND = Memory(reflections=("Look in\n cabinet 1.",), earlier=LESSONS)


def scene(memory: Memory | None = None, steps: tuple[Step, ...] = STEPS) -> Scene:
    return Scene(task=GAME, opening=OPENING, steps=steps, memory=memory or Memory())


def observed(*lengths: int) -> tuple[Step, ...]:
    """Return steps with different observations of these lengths, and empty thoughts and actions."""
    return tuple(Step(action="", observation=chr(97 + i) * length) for i, length in enumerate(lengths))


def test_the_actor_reads_instruction_examples_and_its_attempt_so_far() -> None:
    system, user = react_prompt(PACK, scene())
    assert system.content.startswith("Act in the house.\n\nThought 1: First.")
    assert user.content == (
        f"{OPENING}\n"
        "Thought 1: The fridge.\nAction 1: go to fridge 1\n"
        "Observation 1: You arrive at fridge 1. The fridge 1 is closed.\n"
        "Action 2: open fridge 1\n"
        "Observation 2: You open the fridge 1. The fridge 1 is open. In it, you see nothing.\n"
        "Thought 3:"
    )


def test_each_reflection_in_memory_is_one_line_of_the_actors_prompt() -> None:
    _, user = react_prompt(PACK, scene(ADVISED))
    assert user.content.startswith("Advice from before:\n- Look in cabinet 1.\n- Cool it first.\n\nYou are in")


def test_a_last_attempt_that_the_memory_holds_is_shown_above_the_advice() -> None:
    memory = ADVISED.model_copy(update={"last_trajectory": FAILURE})
    words = react_prompt(PACK, Scene(task=GAME, opening=OPENING, steps=(), memory=memory))[1].content
    assert words.index(PACK.last_attempt) < words.index("Action 2: open fridge 1") < words.index(PACK.remember)
    assert words.endswith(f"{OPENING}\nThought 1:")


def test_a_last_attempt_is_shortened_where_it_is_long() -> None:
    wordy = FAILURE.model_copy(update={"steps": (Step(action="look", observation="x" * 9000), *STEPS)})
    scene = Scene(task=GAME, opening=OPENING, steps=(), memory=Memory(last_trajectory=wordy))
    assert len(react_prompt(PACK, scene)[1].content) < 7000


def test_a_judge_reads_the_attempt_but_not_how_it_ended() -> None:
    system, user = judge_prompt(PACK, 10_000, FAILURE)
    assert "yes or no" in system.content
    assert "Action 2: open fridge 1" in user.content
    assert FAILURE.ending.value not in user.content


def test_a_reflector_of_an_agent_that_judges_itself_is_not_told_how_the_attempt_really_ended() -> None:
    judged = FAILURE.model_copy(update={"ending": Ending.SOLVED, "judged": False})
    assert "solved" not in reflection_prompt(PACK, 10_000, judged, Memory())[1].content


def test_the_prompt_of_one_model_that_acts_and_adapts_continues_its_own_prompt() -> None:
    acted = react_prompt(PACK, Scene(task=GAME, opening=OPENING, steps=STEPS, memory=ADVISED))
    adapts = adaptation_prompt(PACK, FAILURE, ADVISED)
    assert adapts[0] == acted[0]
    assert adapts[1].content == acted[1].content.removesuffix("Thought 3:") + PACK.ask


def test_the_one_model_of_sala_reads_two_examples_of_the_kind_of_task_and_then_two_failures_with_plans() -> None:
    sala, commands = load_pack("sala", "alfworld"), load_pack("commands", "alfworld")
    task = GAME.model_copy(update={"id": "pick_cool_then_place_in_recep-Apple/trial_1"})
    advised = scene(Memory(reflections=("Look in fridge 1.",)), ()).model_copy(update={"task": task})
    system, user = react_prompt(sala, advised)
    act, *parts = system.content.split("You are in the middle of a room. ")
    first, second, lost, also_lost = (f"You are in the middle of a room. {part.strip()}" for part in parts)
    assert [first, second] == [f"{text.strip()}\nSTATUS: OK" for text in commands.examples_by_task["pick_cool"][:2]]
    assert all("STATUS: FAIL\nNew plan: " in text for text in (lost, also_lost))
    assert [lost, also_lost] == [text.strip() for text in sala.failures]
    assert "put OBJECT in/on PLACE" in act
    assert not re.search(r"Thought|Action|Observation|move", system.content)
    assert user.content == f"Your plan after the last attempt failed:\n- Look in fridge 1.\n\n{OPENING}\n>"


def test_react_beside_sala_reads_the_two_examples_alone() -> None:
    task = GAME.model_copy(update={"id": "look_at_obj_in_light-Bowl/trial_1"})
    system, _ = react_prompt(load_pack("react", "alfworld"), scene().model_copy(update={"task": task}))
    examples = load_pack("commands", "alfworld").examples_by_task["look_at_obj"]
    assert [text.strip() in system.content for text in examples] == [True, True, False]
    assert system.content.count("Your task is to:") == 2
    assert "STATUS" not in system.content


def test_in_the_layout_of_commands_a_thought_is_an_action_and_a_step_has_no_labels() -> None:
    steps = (Step(action="think: The fridge is cold.", observation="OK."), *STEPS)
    _, user = react_prompt(COMMANDS, scene(ADVISED, steps))
    assert user.content.endswith(
        f"{OPENING}\n"
        "> think: The fridge is cold.\nOK.\n"
        "> think: The fridge.\n> go to fridge 1\nYou arrive at fridge 1. The fridge 1 is closed.\n"
        "> open fridge 1\nYou open the fridge 1. The fridge 1 is open. In it, you see nothing.\n"
        ">"
    )
    assert "> open fridge 1\nYou open" in reflection_prompt(COMMANDS, 24000, FAILURE, Memory())[1].content
    assert "> open fridge 1\nYou open" in judge_prompt(COMMANDS, 24000, FAILURE)[1].content
    acted = react_prompt(COMMANDS, scene(ADVISED))
    assert adaptation_prompt(COMMANDS, FAILURE, ADVISED)[1].content == acted[1].content[:-1] + COMMANDS.ask


def test_the_examples_of_a_pack_follow_the_kind_of_task() -> None:
    system, _ = react_prompt(COMMANDS, scene())
    assert system.content == "Act in the house.\n\n> think: Bread.\nOK.\n> cool bread 1 with fridge 1"
    other = Scene(task=GAME.model_copy(update={"id": "heat-bread"}), opening=OPENING, steps=(), memory=Memory())
    assert react_prompt(COMMANDS, other)[0].content == "Act in the house.\n\n> look\nA room."


def test_a_reflector_reads_the_examples_of_the_pack_after_its_instruction() -> None:
    assert (
        reflection_prompt(COMMANDS, 24000, FAILURE, Memory())[0].content == "Say why it failed.\n\n> look\nAdvice: Go."
    )


def test_the_actions_of_a_pack_are_those_of_all_its_examples_without_thoughts() -> None:
    assert PACK.actions == ("go to desk 1", "look", "wait")
    assert COMMANDS.actions == ("look", "cool bread 1 with fridge 1")


def test_the_first_prompt_asks_for_the_first_thought() -> None:
    assert react_prompt(PACK, scene(steps=()))[1].content == f"{OPENING}\nThought 1:"


def test_the_reflector_reads_the_whole_attempt_the_advice_it_had_and_how_it_ended() -> None:
    system, user = reflection_prompt(PACK, 24000, FAILURE, ADVISED)
    assert system.content == "Say why it failed."
    assert "Action 2: open fridge 1\nObservation 2: You open the fridge 1." in user.content
    assert "Advice that this attempt was given:\n- Look in cabinet 1.\n- Cool it first.\n" in user.content
    assert user.content.endswith("The attempt failed (too many actions).\nAdvice:")
    assert "[shortened]" not in user.content


def test_a_first_attempt_had_no_advice_and_none_is_mentioned() -> None:
    assert "given" not in reflection_prompt(PACK, 24000, FAILURE, Memory())[1].content


def test_an_overlong_attempt_is_shortened_and_says_so() -> None:
    long = FAILURE.model_copy(
        update={"steps": (Step(action="look", observation="x" * 5000), *STEPS, Step(action="end", observation="END"))}
    )
    _, user = reflection_prompt(PACK, 1000, long, Memory())
    assert user.content.count("[shortened]") == 1
    assert "Observation 4: END\n" in user.content
    assert len(user.content) < 1200  # Labels and the last lines are not counted.


def test_the_compact_view_holds_the_same_in_fewer_words() -> None:
    system, user = compact_reflection_prompt(FAILURE, ADVISED)
    assert "household robot" in system.content
    assert user.content.split("\n") == [
        "Task: cool some bread and put it in cabinet",
        "Seen: none",
        "Searched: fridge 1",
        "Not searched: cabinet 1-2",
        "Advice: Look in cabinet 1. Cool it first.",
        "Failed. Advice for the next attempt:",
    ]
    assert "Advice:" not in compact_reflection_prompt(FAILURE, Memory())[1].content


def test_the_compact_view_says_what_was_searched_with_each_piece_of_advice() -> None:
    _, user = compact_reflection_prompt(FAILURE, SECOND)
    assert user.content.split("\n") == [
        "Task: cool some bread and put it in cabinet",
        "Seen: bread 1 in cabinet 1",
        "Searched: fridge 1, cabinet 1",
        "Not searched: cabinet 2",
        "Advice: Look in cabinet 1.",
        "Searched then: cabinet 1",
        "Advice: none",
        "Searched then: fridge 1",
        "Failed. Advice for the next attempt:",
    ]


def test_the_full_view_shows_earlier_attempts_before_the_latest() -> None:
    _, user = reflection_prompt(PACK, 24_000, FAILURE, SECOND)
    places = [user.content.index(text) for text in ("Attempt 1, which failed:", "Attempt 2,", "The latest attempt:")]
    assert places == sorted(places)
    assert "Advice after it: Look in cabinet 1.\n" in user.content
    assert "Advice after it: none\n" in user.content
    assert user.content.count("Action 1: go to fridge 1") == 2
    assert "attempt" not in reflection_prompt(PACK, 24_000, FAILURE, Memory())[1].content.partition("The attempt")[0]


def test_the_oldest_attempts_are_dropped_where_the_prompt_has_no_room() -> None:
    whole = reflection_prompt(PACK, 24_000, FAILURE, SECOND)[1].content
    both, _, after = whole.removeprefix(f"{OPENING}\n").partition(f"{PACK.latest}\n")
    first, mark, second = both.partition("Attempt 2, which failed:\nAction 1: go to cabinet 1\n")
    room = len(OPENING) + len(after.partition(f"\n{PACK.advised}")[0]) + len(mark + second)
    prompts = [reflection_prompt(PACK, room + more, FAILURE, SECOND)[1].content for more in (-1, 0, len(first))]
    assert prompts == [whole.replace(both + PACK.latest + "\n", ""), whole.replace(first, ""), whole]


def test_an_earlier_attempt_without_steps_is_dropped_beside_an_attempt_that_fills_the_prompt() -> None:
    idle = Memory(earlier=(Lesson(attempt=FAILURE.model_copy(update={"steps": ()}), advice=""),))
    assert reflection_prompt(PACK, 100, FAILURE, idle) == reflection_prompt(PACK, 100, FAILURE, Memory())


@pytest.mark.parametrize("view", ["full", "compact"])
def test_a_config_chooses_whether_its_reflector_sees_earlier_attempts(tmp_path: Path, view: str) -> None:
    config = tmp_path / "toy.yaml"
    config.write_text("run: toy\nenvironment: {name: alfworld}\n")
    every, last = (
        reflection_renderer(load(config, [f"reflector.view={view}", f"reflector.history={history}"]))
        for history in ("all", "last")
    )
    assert every(FAILURE, SECOND) != last(FAILURE, SECOND)
    assert last(FAILURE, SECOND) == every(FAILURE, Memory(reflections=SECOND.reflections))


def test_a_fitting_attempt_is_not_shortened() -> None:
    assert shorten(observed(500, 300), 800) == observed(500, 300)
    assert shorten((), 0) == ()


def test_the_longest_observation_is_cut_first_and_no_more_than_needed() -> None:
    # 900 characters for 800: the marker takes 12, so 500 becomes 388 + 12 = 400.
    first, second, third = (step.observation for step in shorten(observed(300, 500, 100), 800))
    assert second == "b" * 388 + " [shortened]"
    assert (first, third) == ("a" * 300, "c" * 100)


def test_the_last_observation_is_cut_after_all_others_and_loses_its_middle() -> None:
    kept = shorten(observed(300, 800), 900)
    assert kept[1].observation == "b" * 800
    first, last = (step.observation for step in shorten(observed(300, 2000), 1000))
    assert first == "a" * 80 + " [shortened]"
    assert last == "b" * 448 + " [shortened]" + "b" * 448
    assert len(first) + len(last) == 1000


def test_if_one_cut_is_not_enough_the_next_longest_observation_is_cut() -> None:
    first, second, _ = (step.observation for step in shorten(observed(400, 300, 10), 300))
    assert first == "a" * 80 + " [shortened]"
    assert second == "b" * (300 - 92 - 10 - 12) + " [shortened]"


def test_no_observation_is_cut_below_its_minimum() -> None:
    shortened = shorten(observed(*[90] * 20), 100)
    assert [step.observation for step in shortened] == [step.observation for step in observed(*[90] * 20)]


def test_thoughts_and_actions_are_cut_last_the_longest_down_to_a_common_length() -> None:
    steps = (
        Step(thought="t" * 400, action="x" + "a" * 498 + "y", observation="o" * 400),
        Step(action="b" * 300, observation=""),
    )
    assert [step.action for step in shorten(steps, 1300)] == [step.action for step in steps]
    first, last = shorten(steps, 792)
    assert first.observation == "o" * 80 + " [shortened]"
    assert first.thought == "t" * 111 + " [shortened]" + "t" * 110
    assert first.action == "x" + "a" * 110 + " [shortened]" + "a" * 109 + "y"
    assert last.action == "b" * 111 + " [shortened]" + "b" * 110
    assert sum(len(text) for step in (first, last) for text in (step.thought, step.action, step.observation)) <= 792


def test_an_agent_that_only_answers_and_a_long_task_are_shortened_too() -> None:
    answered = FAILURE.model_copy(
        update={"opening": "Q" * 50_000, "steps": (Step(action="A" * 50_000, observation=""),)}
    )
    for user in (reflection_prompt(PACK, 1000, answered, Memory())[1], judge_prompt(PACK, 1000, answered)[1]):
        assert user.content.count("[shortened]") == 2
        assert user.content.count("Q") > 450
        assert user.content.count("A") > 450
        assert len(user.content) < 1200


def test_a_config_chooses_how_its_reflector_sees_a_failure(tmp_path: Path) -> None:
    config = tmp_path / "toy.yaml"
    config.write_text("run: toy\nenvironment: {name: alfworld}\n")
    full, compact = (reflection_renderer(load(config, [f"reflector.view={view}"])) for view in ("full", "compact"))
    assert "Observation 2: You open the fridge 1." in full(FAILURE, Memory())[1].content
    assert compact(FAILURE, Memory()) == compact_reflection_prompt(FAILURE, Memory())


def test_a_pack_may_be_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("act: a\nexamples: [b]\nremember: c\nreflect: d\nask: e\n")
    assert load_pack(str(path), "alfworld").examples == ("b",)


def test_a_pack_may_have_no_examples_for_a_zero_shot_prompt(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: default\nact: Answer.\nexamples: []\n")
    system, user = react_prompt(load_pack(str(path), "hotpotqa"), scene(steps=()))
    assert (system.content, user.content) == ("Answer.", f"{OPENING}\nThought 1:")


def test_a_pack_that_extends_a_shipped_one_has_its_texts_except_for_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: default\nreflect_examples: [Look there.]\nask: What now?\n")
    default, mine = load_pack("default", "hotpotqa"), load_pack(str(path), "hotpotqa")
    assert mine == default.model_copy(update={"reflect_examples": ("Look there.",), "ask": "What now?"})


@pytest.mark.parametrize("base", ["other.yaml", "3", "[default]", ""])
def test_a_pack_extends_a_shipped_pack_only(tmp_path: Path, base: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {base}\n")
    with pytest.raises(
        ConfigError, match=r"mine\.yaml is not a prompt pack: extends: write the name of a shipped pack"
    ):
        load_pack(str(path), "hotpotqa")
    path.write_text("extends: fancy\n")
    with pytest.raises(MissingInput, match=r"mine\.yaml extends a pack .* No prompt pack 'fancy' for hotpotqa: set"):
        load_pack(str(path), "hotpotqa")


def test_the_error_for_an_unknown_pack_lists_the_names_that_load() -> None:
    with pytest.raises(MissingInput) as error:
        load_pack("fancy", "webshop")
    assert str(error.value) == (
        "No prompt pack 'fancy' for webshop: set actor.prompts to default or reflexion or the path of a YAML file."
    )
    assert all(load_pack(name, "webshop").act for name in ("default", "reflexion"))


@pytest.mark.parametrize("text", ["act: a\n", "just words", "act: [", "act: a\nexamples: []\nremember: c\n"])
def test_a_file_that_is_not_a_pack_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a prompt pack"):
        load_pack(str(path), "alfworld")


def test_a_pack_beside_the_config_is_found_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "experiments"
    folder.mkdir()
    words = "examples: [b]\nremember: c\nreflect: d\nask: e\n"
    (folder / "mine.yaml").write_text(f"act: beside\n{words}")
    config = folder / "config.yaml"
    config.write_text("run: toy\nenvironment: {name: alfworld}\nactor: {kind: react, prompts: mine.yaml}\n")

    def prompts_used(*overrides: str) -> tuple[str, str]:
        prompts = load(config, overrides).actor.prompts
        return prompts, load_pack(prompts, "alfworld").act

    monkeypatch.chdir(tmp_path)
    assert prompts_used() == ("experiments/mine.yaml", "beside")
    monkeypatch.chdir(folder)
    assert prompts_used() == ("mine.yaml", "beside")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert prompts_used() == (str(folder / "mine.yaml"), "beside")
    (tmp_path / "elsewhere" / "mine.yaml").write_text(f"act: here\n{words}")
    assert prompts_used() == ("mine.yaml", "here")
    assert prompts_used("actor.prompts=default")[0] == "default"


def test_the_error_for_a_missing_pack_file_names_the_places_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".pre-commit-config.yaml").touch()
    with pytest.raises(MissingInput, match="neither where the command runs nor beside the experiment config") as absent:
        load_pack("fancy.yaml", "alfworld")
    assert "pre-commit" not in str(absent.value)


def test_all_words_of_the_full_view_are_those_of_the_pack() -> None:
    own = {
        "reflect": "R1",
        "ask": "R2",
        "earlier": "R3",
        "lesson": "R4",
        "latest": "R5",
        "advised": "R6",
        "failed": "R7",
    }
    words = reflection_prompt(PACK.model_copy(update=own), 10_000, FAILURE, SECOND)
    text = "\n".join(message.content for message in words)
    assert all(text.count(word) == (2 if word in ("R3", "R4") else 1) for word in own.values())
    assert not [words for words in ("which failed", "Advice", "attempt") if words in text]
