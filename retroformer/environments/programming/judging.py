"""Judge of candidate code against a problem. Synchronous; any number of processes may judge at once."""

import re
from hashlib import sha256

from retroformer.environments.programming import python_source, rust, rust_source, sandbox
from retroformer.environments.programming.jail import controller
from retroformer.environments.programming.problems import Problem, ProgramJudgement, TestResult, Verdict, printable
from retroformer.environments.programming.sandbox import DEFAULT, Limits

_OVERHEAD_SECONDS = 30.0
"""Time limit for building a jail, and for everything that is not a test, on a busy machine."""


def judge(problem: Problem, program: str, limits: Limits = DEFAULT) -> ProgramJudgement:
    """Judge a whole program by the problem's hidden tests, up to the first that does not pass.

    Raises ServiceError, MissingInput, EnvironmentFailure.
    """
    return _checked(problem, program, problem.tests, limits, hidden=True)


def check(problem: Problem, program: str, tests: tuple[str, ...], limits: Limits = DEFAULT) -> ProgramJudgement:
    """Judge a whole program by each of the tests that an agent wrote, independently. Raises like `judge`."""
    return _checked(problem, program, tests, limits, hidden=False)


def _checked(problem: Problem, program: str, tests: tuple[str, ...], limits: Limits, hidden: bool) -> ProgramJudgement:
    one_language = rust.check_tests if problem.language == "rust" else _python
    return ProgramJudgement(results=one_language(problem, program, tests, limits, hidden) if tests else ())


def _python(
    problem: Problem, program: str, tests: tuple[str, ...], limits: Limits, hidden: bool
) -> tuple[TestResult, ...]:
    tests_as_jobs = [
        python_source.controller_test(index, test, problem.entry_point) for index, test in enumerate(tests)
    ]
    job = {
        "kind": "python",
        "source": program,
        "preamble": problem.preamble,
        "entry_point": problem.entry_point,
        # Hidden tests share a process, as in the data sets' own harnesses; an agent's own tests do not.
        "own": not hidden,
        "groups": [tests_as_jobs] if hidden else [[test] for test in tests_as_jobs],
    }
    seconds = _OVERHEAD_SECONDS + controller.longest(limits.wall_seconds, len(tests), hidden)
    outcome = sandbox.run(job, limits, seconds)
    reported = {report[1]: (report[2], report[3]) for report in outcome.reports if report[0] == "result"}
    results = tuple(
        TestResult(test=tests[index], verdict=Verdict(verdict), output=printable(output))
        for index, (verdict, output) in sorted(reported.items())
    )
    missing = tests[max(reported, default=-1) + 1 :]
    return results if outcome.complete or not missing else (*results, *_incomplete_results(missing, outcome, hidden))


def _incomplete_results(missing: tuple[str, ...], outcome: sandbox.JailOutcome, hidden: bool) -> tuple[TestResult, ...]:
    """Return the results of the tests at which a jail ran out of time or memory, or failed itself."""
    verdict, why = Verdict.HARNESS, f"the jail broke down: {outcome.fault}"
    if outcome.late:
        verdict, why = Verdict.TIMEOUT, "it took too long"
    elif outcome.exhausted:
        verdict, why = Verdict.CRASH, "the program and its tests together used more memory than they may"
    broken = TestResult(test=missing[0], verdict=verdict, output=why)
    not_run = () if hidden else missing[1:]
    return (broken, *(TestResult(test=test, verdict=Verdict.HARNESS, output="not run") for test in not_run))


_STUB = """
class Object:
    def __init__(self, *arguments, **keywords): pass
    def __getattr__(self, name): return constant
def constant(*arguments, **keywords): return {value}
def __getattr__(name): return {kind}
"""
"""Solution that computes nothing: whatever is called returns the same value."""


def empty_test(problem: Problem) -> str | None:
    """Return a test that checks nothing, since it passes with solutions that compute nothing; None if there is none.

    Raises like `judge`.
    """
    tests = problem.tests
    kind = "Object" if re.search(rf"\bclass {problem.entry_point}\b", problem.prompt) else "constant"
    for value in ("None", "object()"):
        results = check(problem, _STUB.format(value=value, kind=kind), tests).results
        tests = tuple(result.test for result in results if result.verdict is Verdict.PASSED)
    return tests[0] if tests else None


_CHARACTERS = 100_000
"""Maximum number of characters searched for tests; the rest of the text is ignored."""


def select_tests(problem: Problem, text: str, most: int, seed: int) -> tuple[str, ...]:
    """Return a sample of at most `most` valid tests of a text, each once, in text order (Reflexion, section 4.3).

    The syntax tree decides which Python tests are valid, the compiler which Rust tests are.

    The sample depends on `seed`, the problem and the tests alone, so later attempts keep the same tests.

    Raises MissingInput, ServiceError.
    """
    text = text[:_CHARACTERS]
    if problem.language == "rust":
        written = rust_source.split_tests(text)
        # Compiling takes long: the tests are tried in the order of the draw, up to the number wanted.
        kept = rust.compiling_tests(problem, _shuffled(problem, written, seed), most)
    else:
        written = python_source.assertions(text, problem.entry_point)
        kept = _shuffled(problem, written, seed)[:most]
    return tuple(test for test in written if test in kept)


def _shuffled(problem: Problem, tests: tuple[str, ...], seed: int) -> tuple[str, ...]:
    """Return the tests in an order that is random but the same on every machine and Python version."""

    def draw(test: str) -> bytes:
        return sha256(f"{seed}\n{problem.id}\n{test}".encode(errors="surrogatepass")).digest()

    return tuple(sorted(tests, key=draw))
