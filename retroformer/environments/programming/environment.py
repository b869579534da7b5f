"""Programming environment: the agent's own tests first, if allowed, then the program (Reflexion, section 4.3).

An action that begins with `Tests:` submits tests, once; anything else is the program, which ends the episode. The
answer to a program is the result of the agent's own tests. The result of the hidden tests is the reward, and is not
shown.
"""

import re
from collections.abc import Mapping

from retroformer.environments.programming import judging
from retroformer.environments.programming.limits import Limits
from retroformer.environments.programming.own_tests import accepted
from retroformer.environments.programming.problems import Problem
from retroformer.environments.programming.verdict import CheckedTest, Verdict
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.records import Task, Transition

TESTS = "Tests:"
"""Prefix of an action that submits tests."""
NO_TESTS = "No test was kept. A test calls {name} and stands in one line, such as `{example}`."
OPENING = "Complete this {language} program:"
TESTS_PASSED, TESTS_FAILED, NONE = "Tests passed:", "Tests failed:", "none"
UNCOMPILED = "The compiler's messages:"
HANDED_IN = "The program is handed in. No tests were run."
EPISODE_OVER = "The episode is over."

_EXAMPLES = {"python": "assert {name}(...) == ...", "rust": "assert_eq!({name}(...), ...);"}
_PROGRAM_CHARACTERS = 100_000
TOO_LONG = f"The program is longer than {_PROGRAM_CHARACTERS} characters, so it is not run."


class ProgrammingEnvironment:
    """Episodes with one problem each."""

    def __init__(
        self, problems: Mapping[str, Problem], own_tests: int, max_steps: int, limits: Limits, seed: int
    ) -> None:
        self._problems, self._most_tests, self._max_steps, self._limits = problems, own_tests, max_steps, limits
        self._seed = seed
        self._problem: Problem | None = None
        self._forget()

    def _forget(self) -> None:
        self._steps, self._tests, self._last = 0, tuple[str, ...](), Transition(observation="")

    def reset(self, task: Task) -> Transition:
        """Show the problem of this task.

        Raises:
            UnknownTask: the data have no problem of this id.
        """
        if task.id not in self._problems:
            raise UnknownTask(f"No problem {task.id!r} in this set: --list prints the ids.")
        self._problem = self._problems[task.id]
        self._forget()
        self._last = Transition(
            observation=f"{OPENING.format(language=self._problem.language.capitalize())}\n\n{self._problem.prompt}"
        )
        return self._last

    def step(self, action: str) -> Transition:
        """Accept tests, or judge a program; the last of `max_steps` actions truncates if it is not a program.

        Raises:
            EnvironmentFailure: the judge failed, or is not available on this machine.
        """
        if self._problem is None:
            raise EnvironmentFailure("No problem was shown yet: reset comes before the first step.")
        if self._last.over:
            return self._last.model_copy(update={"observation": EPISODE_OVER, "reward": 0.0})
        self._steps += 1
        if action.lstrip().startswith(TESTS):
            observation = self._keep(self._problem, action.lstrip().removeprefix(TESTS))
            self._last = Transition(observation=observation, truncated=self._steps >= self._max_steps)
        else:
            self._last = self._judged(self._problem, action)
        return self._last

    def _keep(self, problem: Problem, text: str) -> str:
        if not self._most_tests:
            return "No tests may be handed in here."
        self._tests = accepted(problem, text, self._most_tests, self._seed)
        if not self._tests:
            example = _EXAMPLES[problem.language].format(name=problem.entry_point)
            return NO_TESTS.format(name=problem.entry_point, example=example)
        return "\n".join(("Tests kept:", *self._tests))

    def _judged(self, problem: Problem, answer: str) -> Transition:
        if len(answer) > _PROGRAM_CHARACTERS:
            return Transition(observation=TOO_LONG, terminated=True, tests_passed=False)
        program = problem.program(answer)
        own = judging.check(problem, program, self._tests, self._limits).checked if self._tests else ()
        verdict = judging.judge(problem, program, self._limits).verdict
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


def _report(own: tuple[CheckedTest, ...]) -> str:
    if not own:
        return HANDED_IN
    passed = [checked.test for checked in own if checked.verdict is Verdict.PASSED]
    failed = [checked.feedback for checked in own if checked.verdict is not Verdict.PASSED]
    messages = [UNCOMPILED, own[0].messages] if own[0].messages else []
    return "\n".join((TESTS_PASSED, *(passed or [NONE]), TESTS_FAILED, *(failed or [NONE]), *messages))


def own_tests_passed(answer: str) -> bool | None:
    """Return True if the answer to a program says that the agent's own tests passed; None if it had no tests."""
    if not answer.startswith(f"{TESTS_PASSED}\n"):
        return None
    return answer.endswith(f"\n{TESTS_FAILED}\n{NONE}")


def language_of(opening: str) -> str:
    """Return the language of a problem by its opening, such as `Python`; empty if it is not an opening."""
    shown = re.match(OPENING.format(language=r"(\w+)"), opening)
    return shown[1] if shown else ""
