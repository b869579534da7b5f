"""Which of the tests that a model wrote are tests: the syntax tree says it for Python, the compiler for Rust."""

from retroformer.environments.programming import python_tests, rust
from retroformer.environments.programming.limits import Limits
from retroformer.environments.programming.problems import Problem


def accepted(problem: Problem, text: str, limits: Limits) -> tuple[str, ...]:
    """Tests in a text, each once, in its order.

    Raises:
        MissingInput: the language's compiler is not there.
    """
    if problem.language == "rust":
        return rust.assertions(problem, text, limits)
    return python_tests.assertions(text, problem.entry_point)
