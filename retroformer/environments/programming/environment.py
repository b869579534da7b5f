"""One function to write: first tests of the agent's own, if it may have any, then the program (Reflexion, section 4.3).

An action that begins with `Tests:` hands in tests, once; anything else is the program, which ends the episode. The
answer to a program is what the agent's own tests made of it. What the hidden tests say is the reward, and is not told.
"""

from collections.abc import Mapping

from retroformer.environments.programming import judging
from retroformer.environments.programming.limits import Limits
from retroformer.environments.programming.own_tests import accepted
from retroformer.environments.programming.problems import Problem
from retroformer.environments.programming.verdict import CheckedTest, Verdict
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.records import Task, Transition

TESTS = "Tests:"
"""What an action with tests begins with."""
NO_TESTS = "No test was kept. A test calls {name} and stands in one line, such as `{example}`."
HANDED_IN = "The program is handed in. No tests were run."
EPISODE_OVER = "The episode is over."

_EXAMPLES = {"python": "assert {name}(...) == ...", "rust": "assert_eq!({name}(...), ...);"}
_PROGRAM_CHARACTERS = 100_000
TOO_LONG = f"The program is longer than {_PROGRAM_CHARACTERS} characters, so it is not run."


class ProgrammingEnvironment:
    """One problem after another."""

    def __init__(self, problems: Mapping[str, Problem], own_tests: int, max_steps: int, limits: Limits) -> None:
        self._problems, self._most_tests, self._max_steps, self._limits = problems, own_tests, max_steps, limits
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
            observation=f"Complete this {self._problem.language.capitalize()} program:\n\n{self._problem.prompt}"
        )
        return self._last

    def step(self, action: str) -> Transition:
        """Take tests, or judge a program; the last of `max_steps` actions truncates where it is no program.

        Raises:
            EnvironmentFailure: the judge broke down, or is not to be had on this machine.
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
        self._tests = accepted(problem, text, self._most_tests)
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
            observation=_told(own),
            reward=float(solved),
            terminated=True,
            success=solved,
            tests_passed=all(one.verdict is Verdict.PASSED for one in own) if own else None,
        )


def _told(own: tuple[CheckedTest, ...]) -> str:
    if not own:
        return HANDED_IN
    passed = [one.test for one in own if one.verdict is Verdict.PASSED]
    failed = [one.feedback for one in own if one.verdict is not Verdict.PASSED]
    return "\n".join(("Tests passed:", *(passed or ["none"]), "Tests failed:", *(failed or ["none"])))
