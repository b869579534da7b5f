"""Rust."""
from retroformer.environments.programming.limits import Limits
from retroformer.environments.programming.problems import Problem
from retroformer.environments.programming.verdict import CheckedTest
def checked(problem: Problem, program: str, tests: tuple[str, ...], limits: Limits, hidden: bool) -> tuple[CheckedTest, ...]:
    return ()
