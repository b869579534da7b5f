"""Tests of the comparison at equal budgets, worked by hand."""

from eval.report.costs import EqualBudget
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.method.records import Outcome, Trajectory, Usage
from tests.support.characters import advice, attempt_at
from tests.support.evaluations import arm, evaluated
from tests.support.markdown_tables import chapters_in_markdown


def attempt(tokens: int, *, solved: bool) -> Trajectory:
    outcome = Outcome.SUCCESS if solved else Outcome.FAILURE
    usage = Usage(calls=2, prompt_tokens=tokens - 1, completion_tokens=1)
    return attempt_at(outcome=outcome).model_copy(update={"usage": usage})


def test_each_arm_counts_what_it_solved_within_the_budget_with_the_advice_that_it_paid() -> None:
    paid = advice("Look.").model_copy(update={"usage": Usage(calls=1, prompt_tokens=60, completion_tokens=40)})
    first = attempt(50, solved=False)
    counted = EqualBudget(evaluated([arm("cheap", "cheap"), arm("dear", "dear")]))
    counted.add(
        TaskFacts(
            "a",
            first,
            {
                "cheap": SeedFacts({0: first, 1: attempt(50, solved=True)}, {}),
                "dear": SeedFacts({0: first, 1: attempt(50, solved=True)}, {1: paid}),
            },
        )
    )
    counted.add(
        TaskFacts(
            "b",
            first,
            {
                "cheap": SeedFacts({0: first, 1: attempt(50, solved=False)}, {}),
                "dear": SeedFacts({0: attempt(50, solved=True)}, {}),
            },
        )
    )
    text = chapters_in_markdown(counted.chapters())
    # cheap: task a for 100 tokens, b never. dear: a for 50 + 100 + 50 tokens, b for 50.
    assert "| arm | 50 tokens per task | 100 tokens per task | 150 tokens per task | 200 tokens per task |" in text
    assert "| cheap | 0.000 | 0.500 | 0.500 | 0.500 |" in text
    assert "| dear | 0.500 | 0.500 | 0.500 | 1.000 |" in text
    # In calls: cheap solves a with 4, dear a with 5 and b with 2.
    assert "| cheap | 0.000 | 0.000 | 0.500 | 0.500 |" in text
    assert "| dear | 0.500 | 0.500 | 0.500 | 1.000 |" in text


def test_an_invalid_attempt_is_not_charged_and_arms_without_calls_have_no_table() -> None:
    free = attempt_at(outcome=Outcome.SUCCESS).model_copy(update={"usage": Usage()})
    spoiled = attempt(1000, solved=False).model_copy(update={"outcome": Outcome.INVALID})
    counted = EqualBudget(evaluated([arm("x", "x")]))
    counted.add(TaskFacts("a", free, {"x": SeedFacts({0: free, 1: spoiled}, {})}))
    assert list(counted.chapters()) == []


def test_of_programs_the_last_one_counts() -> None:
    """The agent doubts a right program, spoils it, and repairs it; budgets are 38, 75, 113 and 150 tokens."""
    attempts = dict(enumerate(attempt(50, solved=solved) for solved in (True, False, True)))
    for last_counts, row in ((False, "0.000 | 1.000 | 1.000 | 1.000"), (True, "0.000 | 0.000 | 0.000 | 1.000")):
        counted = EqualBudget(evaluated([arm("x", "x", last_counts=last_counts)]))
        counted.add(TaskFacts("a", attempts[0], {"x": SeedFacts(attempts, {})}))
        assert f"| x | {row} |" in chapters_in_markdown(counted.chapters())
