"""Programming environment: the agent's own tests first, if allowed, then the program (Reflexion, section 4.3).

An action that begins with `Tests:` submits tests, once; anything else is the program, which ends the episode. The
answer to a program is the result of the agent's own tests. The result of the hidden tests is the reward, and is not
shown.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from retroformer.config.sections.base import Positive
from retroformer.environments.extras import ReportedArm, TaskFacts
from retroformer.environments.programming import judging
from retroformer.environments.programming.judging import select_tests
from retroformer.environments.programming.loading import load, problem_file
from retroformer.environments.programming.problems import Problem, TestResult, Verdict
from retroformer.environments.programming.sandbox import DEFAULT
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.tasksets import EPISODE_OVER, FileTaskset, RowTaskset, not_reset, row_of
from retroformer.errors import EnvironmentFailure, MissingInput
from retroformer.files.document import Cell, Chapter, Row, arm_cell, chapter, share, table
from retroformer.method.records import Outcome, Task, Trajectory, Transition
from retroformer.run.provenance import files_sha256

_BUILDING_SECONDS = 1200.0
"""Upper bound on the time of all compilers and jails of one judged program."""


class Programming(EnvironmentSection):
    success: ClassVar[str] = "the hidden tests pass"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["programming"] = "programming"
    data: Path | None = None
    """Folder with the files of the problem sets, as published."""
    split: str = "humaneval"
    """Problem set: humaneval, mbpp, multipl-e-humaneval-rust and others, or a file of your own, NAME.jsonl."""
    own_tests: Annotated[int, Field(ge=0, le=32)] = 6
    """Maximum number of the agent's own tests that are kept; 0 is the ablation without them."""
    max_steps: Positive = 2
    """Actions after which an episode is truncated: tests, then the program."""

    @property
    def folder(self) -> Path:
        """Folder of the data. Raises MissingInput."""
        if self.data is None:
            raise MissingInput("Set environment.data to the folder with the problems, such as HumanEval.jsonl.")
        return self.data

    @property
    def longest_step_seconds(self) -> float:
        """Maximum wall-clock seconds for judging one program; under any load its own limits end it sooner."""
        return (self.own_tests + 2) * (DEFAULT.wall_seconds + 1.0) + _BUILDING_SECONDS


TESTS = "Tests:"
"""Prefix of an action that submits tests."""
NO_TESTS = "No test was kept. A test calls {name} and stands in one line, such as `{example}`."
OPENING = "Complete this {language} program:"
TESTS_PASSED, TESTS_FAILED, NONE = "Tests passed:", "Tests failed:", "none"
UNCOMPILED = "The compiler's messages:"
HANDED_IN = "The program is handed in. No tests were run."

_EXAMPLES = {"python": "assert {name}(...) == ...", "rust": "assert_eq!({name}(...), ...);"}
_PROGRAM_CHARACTERS = 100_000
TOO_LONG = f"The program is longer than {_PROGRAM_CHARACTERS} characters, so it is not run."


class ProgrammingEnvironment:
    def __init__(self, problems: Mapping[str, Problem], own_tests: int, max_steps: int, seed: int) -> None:
        self._problems, self._most_tests, self._max_steps, self._seed = problems, own_tests, max_steps, seed
        self._problem: Problem | None = None
        self._forget()

    def _forget(self) -> None:
        self._steps, self._tests, self._last = 0, tuple[str, ...](), Transition(observation="")

    def reset(self, task: Task) -> Transition:
        """Show the problem of this task. Raises UnknownTask, EnvironmentFailure."""
        self._problem = row_of(self._problems, task)
        self._forget()
        self._last = Transition(
            observation=f"{OPENING.format(language=self._problem.language.capitalize())}\n\n{self._problem.prompt}"
        )
        return self._last

    def step(self, action: str) -> Transition:
        """Accept tests, or judge a program; the last of `max_steps` actions truncates if it is not a program.

        Raises EnvironmentFailure.
        """
        if self._problem is None:
            raise not_reset()
        if self._last.over:
            return self._last.model_copy(update={"observation": EPISODE_OVER, "reward": 0.0})
        self._steps += 1
        if action.lstrip().startswith(TESTS):
            observation = self._keep(self._problem, action.lstrip().removeprefix(TESTS))
            self._last = Transition(observation=observation, truncated=self._steps >= self._max_steps)
        else:
            self._last = self._verdict(self._problem, action)
        return self._last

    def _keep(self, problem: Problem, text: str) -> str:
        if not self._most_tests:
            return "No tests may be handed in here."
        self._tests = select_tests(problem, text, self._most_tests, self._seed)
        if not self._tests:
            example = _EXAMPLES[problem.language].format(name=problem.entry_point)
            return NO_TESTS.format(name=problem.entry_point, example=example)
        return "\n".join(("Tests kept:", *self._tests))

    def _verdict(self, problem: Problem, answer: str) -> Transition:
        if len(answer) > _PROGRAM_CHARACTERS:
            return Transition(observation=TOO_LONG, terminated=True, tests_passed=False)
        program = problem.program(answer)
        own = judging.check(problem, program, self._tests).results if self._tests else ()
        verdict = judging.judge(problem, program).verdict
        if verdict is Verdict.HARNESS:
            raise EnvironmentFailure(f"The hidden tests of {problem.id} could not be run.")
        solved = verdict is Verdict.PASSED
        return Transition(
            observation=_report(own),
            reward=float(solved),
            terminated=True,
            success=solved,
            tests_passed=all(test.verdict is Verdict.PASSED for test in own) if own else None,
        )


def _report(own: tuple[TestResult, ...]) -> str:
    if not own:
        return HANDED_IN
    passed = [result.line for result in own if result.verdict is Verdict.PASSED]
    failed = [result.feedback for result in own if result.verdict is not Verdict.PASSED]
    messages = [UNCOMPILED, own[0].messages] if own[0].messages else []
    return "\n".join((TESTS_PASSED, *(passed or [NONE]), TESTS_FAILED, *(failed or [NONE]), *messages))


def own_tests_passed(answer: str) -> bool | None:
    """Return True if the answer to a program says that the agent's own tests passed; None if it had no tests."""
    return answer.endswith(f"\n{TESTS_FAILED}\n{NONE}") if answer.startswith(f"{TESTS_PASSED}\n") else None


def language_of(opening: str) -> str:
    """Return the language of a problem by its opening, such as `Python`; empty if it is not an opening."""
    shown = re.match(OPENING.format(language=r"(\w+)"), opening)
    return shown[1] if shown else ""


def share_of_tests(attempt: Trajectory) -> float:
    """Return 1 if the task is solved, else the share of tests passed, the hidden ones together counting as one test.

    So a program that passes all five of its own tests but not the hidden ones has a return of 5/6. Without a program,
    or without own tests, it is 0.
    """
    if attempt.outcome is Outcome.SUCCESS:
        return 1.0
    results = own_results(attempt.steps[-1].observation) if attempt.steps else Counter[str]()
    return results[TESTS_PASSED] / (results.total() + 1)


def own_results(observation: str) -> Counter[str]:
    """Count the agent's own tests below each heading of the answer to a program; empty for another answer."""
    results, heading = Counter[str](), ""
    lines = observation.split("\n")
    if lines[0] != TESTS_PASSED or TESTS_FAILED not in lines:
        return results
    for line in takewhile(lambda line: line != UNCOMPILED, lines):
        if line in (TESTS_PASSED, TESTS_FAILED):
            heading = line
        elif line != NONE:
            results[heading] += 1
    return results


def taskset(section: Programming, seed: int = 0) -> RowTaskset[Problem]:
    """Return the problems that a section describes; `seed` decides which of the agent's own tests are kept."""

    def read() -> dict[str, Problem]:
        return {problem.id: problem for problem in load(section.split, section.folder).problems}

    def build(problems: Mapping[str, Problem]) -> ProgrammingEnvironment:
        return ProgrammingEnvironment(problems, section.own_tests, section.max_steps, seed)

    class Published(RowTaskset[Problem]):
        """Problems as they were published, which their file identifies."""

        def fingerprint(self) -> str:
            path = problem_file(section.split, section.folder)
            return files_sha256({path.name: path})

    if section.split.endswith(".jsonl"):
        return FileTaskset(section.name, section.split, read, build)
    return Published(section.name, section.split, read, build)


_FIRST = "trial 0, shared"
_NOTE = (
    "Whether the agent's own tests passed, against the hidden tests: the solution is right if those passed. TP, FP, FN "
    "and TN are the conditional rates of Reflexion's Table 2; the last two columns are conditional on the solution. An "
    "arm's row counts the last attempt at each task. Attempts without a valid test of the agent's own count in no rate."
)


class OwnTestsChapter:
    """Chapter of the report on the quality of the tests that the agent wrote, by language (Reflexion, Table 2).

    The paper's rates are conditional on the result of the agent's own tests, so TP and FP add up to 1, and so do FN and
    TN. Its text gives FP as P(solution wrong | tests pass). The usual rates, conditional on the solution, stand beside.
    """

    def __init__(self, arms: Sequence[ReportedArm]) -> None:
        self._arms = arms
        self._counts: dict[tuple[str, str], Counter[tuple[bool | None, bool]]] = {}
        """Number of attempts by (own tests passed, solution right), for each group and language."""

    def add(self, facts: TaskFacts) -> None:
        if facts.first is not None:
            self._count(_FIRST, facts.first)
        for arm in self._arms:
            for stored in arm.stored_names:
                if attempts := facts.seeds[stored].attempts:
                    self._count(f"{arm.name}, last attempts", attempts[max(attempts)])

    def _count(self, group: str, attempt: Trajectory) -> None:
        if attempt.outcome is Outcome.INVALID or not attempt.steps:
            return
        passed = own_tests_passed(attempt.steps[-1].observation)
        counts = self._counts.setdefault((group, language_of(attempt.opening)), Counter())
        counts[passed, attempt.outcome is Outcome.SUCCESS] += 1

    def chapters(self) -> Iterator[Chapter]:
        """Yield the chapter, unless no attempt had tests of its own."""
        groups = {_FIRST: Cell(words=_FIRST)}
        groups |= {f"{arm.name}, last attempts": arm_cell(arm.name, f"{arm.name}, last attempts") for arm in self._arms}
        ordered = sorted(self._counts.items(), key=lambda entry: (list(groups).index(entry[0][0]), entry[0][1]))
        if any(counts[passed, right] for _, counts in ordered for passed in (True, False) for right in (True, False)):
            rows: list[Row] = [
                {"attempts": groups[group], "language": language, **_rates(counts)}
                for (group, language), counts in ordered
            ]
            yield chapter(
                "How good the agent's own tests were", _NOTE, table(rows, "Conditional rates of the own tests.")
            )


def _rates(counts: Counter[tuple[bool | None, bool]]) -> Row:
    tp, fp, fn, tn = (counts[passed, right] for passed in (True, False) for right in (True, False))
    return {
        "with own tests": share(tp + fp + fn + tn, counts.total()),
        "TP: right, if tests pass": share(tp, tp + fp),
        "FP: wrong, if tests pass": share(fp, tp + fp),
        "FN: right, if tests fail": share(fn, fn + tn),
        "TN: wrong, if tests fail": share(tn, fn + tn),
        "tests pass, if right": share(tp, tp + fn),
        "tests fail, if wrong": share(tn, tn + fp),
    }
