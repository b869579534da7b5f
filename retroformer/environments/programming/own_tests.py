"""Which of the tests that a model wrote are tests: the syntax tree says it for Python, the compiler for Rust."""

from retroformer.environments.programming import python_tests, rust, rust_source
from retroformer.environments.programming.problems import Problem


def accepted(problem: Problem, text: str) -> tuple[str, ...]:
    """Tests in a text, each once, in its order.

    Raises:
        MissingInput: the language's compiler is not there.
        ServiceError: this machine cannot isolate it.
    """
    if problem.language == "rust":
        return rust.compiling_tests(problem, tuple(dict.fromkeys(rust_source.split_tests(text))))
    return python_tests.assertions(text, problem.entry_point)
