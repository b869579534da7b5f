"""Filter of model-written tests, and the sample of them that is kept (Reflexion, section 4.3).

The syntax tree decides which Python tests are valid, the compiler which Rust tests are. Up to `own_tests` of the valid
tests are sampled without replacement.
"""

from hashlib import sha256

from retroformer.environments.programming import python_tests, rust, rust_source
from retroformer.environments.programming.problems import Problem

_CHARACTERS = 100_000
"""Maximum number of characters searched for tests; the rest of the text is ignored."""


def accepted(problem: Problem, text: str, most: int, seed: int) -> tuple[str, ...]:
    """Return a sample of at most `most` valid tests of a text, each once, in text order.

    The sample depends on `seed`, the problem and the tests alone, so later attempts keep the same tests.

    Raises:
        MissingInput: the language's compiler is missing.
        ServiceError: this machine cannot isolate it.
    """
    text = text[:_CHARACTERS]
    if problem.language == "rust":
        written = rust_source.split_tests(text)
        # Compiling takes long: the tests are tried in the order of the draw, up to the number wanted.
        kept = rust.compiling_tests(problem, _shuffled(problem, written, seed), most)
    else:
        written = python_tests.assertions(text, problem.entry_point)
        kept = _shuffled(problem, written, seed)[:most]
    return tuple(test for test in written if test in kept)


def _shuffled(problem: Problem, tests: tuple[str, ...], seed: int) -> tuple[str, ...]:
    """Return the tests in an order that is random but the same on every machine and Python version."""

    def draw(test: str) -> bytes:
        return sha256(f"{seed}\n{problem.id}\n{test}".encode(errors="surrogatepass")).digest()

    return tuple(sorted(tests, key=draw))
