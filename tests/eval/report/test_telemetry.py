"""The form of reflections, on texts counted by hand."""

from eval.report.telemetry import AdviceTelemetry
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.method.records import Message, Reflection, Step
from tests.support.characters import advice, attempt_at
from tests.support.evaluations import arm, evaluated
from tests.support.markdown_tables import chapters_in_markdown


def written(text: str, model: str, prompt: str = "") -> Reflection:
    messages = (Message(role="user", content=prompt),) if prompt else ()
    return advice(text, model).model_copy(update={"prompt": messages})


def rows(telemetry: AdviceTelemetry) -> list[list[str]]:
    lines = [line for line in chapters_in_markdown(telemetry.chapters()).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def facts(stored: str, *reflections: Reflection) -> TaskFacts:
    seen = attempt_at().model_copy(update={"steps": (Step(action="go to drawer 1", observation="It is shut."),)})
    attempts = dict.fromkeys(range(len(reflections) + 1), seen)
    return TaskFacts("a", seen, {stored: SeedFacts(attempts, dict(enumerate(reflections, start=1)))})


def test_length_variety_copies_and_sections_are_counted_for_each_training_seed() -> None:
    trained = arm("trained", "eval/trained/sft", "eval/trained/ppo")
    telemetry = AdviceTelemetry(evaluated([trained, arm("silent")]))
    telemetry.add(
        facts(
            "eval/trained/sft",
            written("go to drawer 2", "sft", prompt="Action 1: go to drawer 2"),
            written("", "sft"),
            written("Reflection: look up. New plan: look up.", "sft", prompt="look"),
        )
    )
    telemetry.add(facts("eval/trained/ppo", written("Wait here now.", "ppo", prompt="now")))
    telemetry.add(facts("eval/silent", written("  ", "nobody")))
    assert rows(telemetry) == [
        # Words: go to drawer 2 reflection look up new plan look up; 9 of 11 differ. Pairs: 3 + 6, look up twice.
        [
            "trained/sft",
            "`sft`",
            "2",
            "5.5",
            "0.818",
            "0.889",
            "0.500",
            "1 of 2 (50%)",
            "1 of 2 (50%)",
            "1 of 2 (50%)",
            "1 of 2 (50%)",
        ],
        ["trained/ppo", "`ppo`", "1", "3.0", "1.000", "1.000", "0.000", *["0 of 1 (0%)"] * 4],
    ]


def test_without_a_prompt_copies_are_those_of_the_attempt() -> None:
    telemetry = AdviceTelemetry(evaluated([arm("placebo", "eval/placebo")]))
    # Of: go to drawer 1 / to drawer 1 at / drawer 1 at last, the first is in the attempt.
    telemetry.add(facts("eval/placebo", written("Go to drawer 1 at last", "placebo")))
    assert rows(telemetry)[0][6] == "0.333"


def test_arms_that_wrote_nothing_give_no_section() -> None:
    telemetry = AdviceTelemetry(evaluated([arm("silent", "eval/silent")]))
    telemetry.add(facts("eval/silent", written("", "nobody")))
    assert list(telemetry.chapters()) == []
