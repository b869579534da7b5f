"""Which of the tests that a model wrote are tests: the syntax tree says it for Python, the compiler for Rust."""

from retroformer.environments.programming import python_tests, rust, rust_source
from retroformer.environments.programming.problems import Problem

_CHARACTERS = 100_000
"""Of a text in which tests are looked for; what comes after is not read."""


def accepted(problem: Problem, text: str, most: int) -> tuple[str, ...]:
    """The first tests in a text, each once, in its order.

    Raises:
        MissingInput: the language's compiler is not there.
        ServiceError: this machine cannot isolate it.
    """
    text = text[:_CHARACTERS]
    if problem.language == "rust":
        return rust.compiling_tests(problem, rust_source.split_tests(text), most)
    return python_tests.assertions(text, problem.entry_point)[:most]
