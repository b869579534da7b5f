"""Judge of Rust: one program compiled from the judged code, run once for each test; see `rust_source.py`.

Finds the compiler on PATH or where rustup installs it, and the folders of the toolchain that the jail shows.
"""

import re
import shutil
import signal
import subprocess
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from retroformer.environments.programming import rust_source, sandbox
from retroformer.environments.programming.jail import controller
from retroformer.environments.programming.jail.confinement import BUILD
from retroformer.environments.programming.problems import Problem, TestResult, Verdict, printable
from retroformer.environments.programming.rust_source import RustTest
from retroformer.environments.programming.sandbox import COMPILING, DEFAULT, Limits
from retroformer.errors import MissingInput

_OVERHEAD_SECONDS = 30.0
_SHOWN = 500
_TRIES = 4
"""Number of tests tried one by one for each that is kept."""
_SEARCH_SECONDS = 300.0
"""Time limit for trying them: enough for hundreds of ordinary tests, but not for a few made to compile slowly."""
_MESSAGE_CHARACTERS = 2000
"""Maximum number of characters of the compiler's messages: about four errors with their hints."""
_ABORTED = "error: aborting due to "
_NEXT_ERROR = re.compile(r"^(?=error(?:\[E\d+\])?: )", re.MULTILINE)
# Rust's bundled linker looks for itself in /proc, which a jail does not have.
_FLAGS = (
    *("--edition", "2021", "--color", "never", "--remap-path-prefix", f"{BUILD}/="),
    *("-C", "debuginfo=0", "-C", "link-arg=-fuse-ld=bfd"),
)


class _Toolchain(NamedTuple):
    compiler: str
    library: str
    folders: tuple[str, ...]


class _RunResult(NamedTuple):
    code: int
    seconds: float
    late: bool
    much: bool
    answer: bytes
    errors: bytes

    @property
    def good(self) -> bool:
        return self.code == 0 and not self.late and not self.much

    @property
    def printed(self) -> str:
        return self.answer.decode(errors="replace")


class _JailFailure(Exception):
    """Error: the jail failed, not the code in it."""


def rust_compiler() -> str | None:
    """Return the path of the Rust compiler, or None if there is none."""
    return shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))


@cache
def _toolchain() -> _Toolchain:
    compiler = rust_compiler()
    if compiler is None or shutil.which("cc") is None:
        raise MissingInput("Rust problems need a Rust compiler and a linker: install rustc and gcc, or take Python.")
    report = subprocess.run([compiler, "--print", "sysroot"], capture_output=True, text=True, check=False)
    if report.returncode != 0:
        raise MissingInput(f"{compiler} does not work ({report.stderr.strip()}): install a Rust toolchain.")
    root = Path(report.stdout.strip())
    return _Toolchain(str(root / "bin" / "rustc"), str(root / "lib"), (str(root), "/usr", "/bin", "/etc/alternatives"))


def check_tests(
    problem: Problem, program: str, tests: tuple[str, ...], limits: Limits, hidden: bool
) -> tuple[TestResult, ...]:
    """Return the result of each test; with hidden tests only up to the first that does not pass."""
    name = problem.entry_point
    try:
        parsed = tuple(rust_source.parse_check(test, name) if hidden else _own(test, name) for test in tests)
        kind = rust_source.result_type(problem.prompt, name)
        expected = _expected(parsed, name, kind)
        source = rust_source.answer_files(program, name, [test.call for test in parsed], kind)
        ran = _run(source, [[str(index)] for index in range(len(tests))], limits, hidden)
    except (ValueError, _JailFailure) as error:
        return (TestResult(test=tests[0], verdict=Verdict.HARNESS, output=str(error)),)
    if not ran[0].good:
        messages = compiler_messages(ran[0].errors.decode(errors="replace")) or _errors(ran[0])
        return tuple(
            TestResult(test=test, verdict=Verdict.CRASH, output="does not compile", messages=messages)
            for test in (tests[:1] if hidden else tests)
        )
    results = []
    for test, value, result in zip(tests, expected, ran[1:], strict=False):
        verdict, output = _verdict(result, value, limits)
        results.append(TestResult(test=test, verdict=verdict, output=printable(output[:_SHOWN])))
        if hidden and verdict != Verdict.PASSED:
            break
    return tuple(results)


def compiling_tests(problem: Problem, tests: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return the tests that call the function and compile against the prompt's signature (Reflexion, section 4.3).

    most: maximum number kept; compiling takes long, so the search ends there. Raises MissingInput, ServiceError.
    """
    if _compile(problem, tests[:most]):
        return tests[:most]
    kept: list[str] = []
    deadline = time.monotonic() + _SEARCH_SECONDS
    for test in tests[: _TRIES * most]:
        if len(kept) < most and time.monotonic() < deadline and _compile(problem, (test,)):
            kept.append(test)
    return tuple(kept)


def _compile(problem: Problem, tests: tuple[str, ...]) -> bool:
    name = problem.entry_point
    kind = rust_source.result_type(problem.prompt, name)
    try:
        parsed = tuple(_own(test, name) for test in tests)
        stub = rust_source.complete_program(problem.prompt + " unimplemented!() ")
        source = rust_source.answer_files(stub, name, [test.call for test in parsed], kind)
        if tests and not _run(source, [], COMPILING, False, "--emit=metadata")[0].good:
            return False
        _expected(parsed, name, kind)
    except (ValueError, _JailFailure):
        return False
    return True


def _own(test: str, name: str) -> RustTest:
    """Return a test of the agent's own, which may check a part of the function's result. Raises ValueError."""
    parsed = rust_source.parse_test(test)
    if not rust_source.calls(parsed.call, name):
        parsed = RustTest(parsed.value, parsed.call)
    if not rust_source.calls(parsed.call, name):
        raise ValueError(f"{test!r} does not call {name}")
    return parsed


@lru_cache(maxsize=4096)
def _expected(tests: tuple[RustTest, ...], entry_point: str, kind: str) -> tuple[str, ...]:
    """Return the expected values as text, computed apart from the judged code. Raises ValueError, _JailFailure."""
    if not tests:
        return ()
    values = [(test.value, rust_source.type_of(test.call, entry_point, kind)) for test in tests]
    ran = _run(rust_source.expectation_files(values), [[]], DEFAULT, True)
    if not ran[0].good:
        ran = _run(rust_source.expectation_files(values, comparable=True), [[]], DEFAULT, True)
    if not ran[0].good:
        raise ValueError(f"the test does not compile: {_errors(ran[0])}")
    values_as_text = tuple(ran[1].printed.split("\n"))
    if not ran[1].good or len(values_as_text) != len(tests):
        raise ValueError("the test has no value")
    return values_as_text


def _run(files: dict[str, str], calls: list[list[str]], limits: Limits, stop: bool, *flags: str) -> list[_RunResult]:
    """Compile, and on success run once for each list of arguments. Raises _JailFailure."""
    tools = _toolchain()
    output, path = f"{BUILD}/program", f"{BUILD}/{rust_source.PROGRAM}"
    compiler = [tools.compiler, *_FLAGS, *flags, "-o", output, path]
    variables = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": tools.library, "TMPDIR": "/work"}
    step = {"arguments": compiler, "files": files, "variables": variables, "compiling": True, "needed": True}
    running_step = {"files": {}, "variables": {}, "compiling": False, "needed": stop}
    steps = [step, *({"arguments": [output, *call]} | running_step for call in calls)]
    running = controller.longest(limits.wall_seconds, len(calls), stop)
    seconds = _OVERHEAD_SECONDS + COMPILING.wall_seconds + running
    outcome = sandbox.run({"kind": "commands", "steps": steps}, limits, seconds, tools.folders)
    ran = [_RunResult(*report[2:]) for report in outcome.reports if report[0] == "command"]
    stopped = _RunResult(-signal.SIGKILL, seconds, late=outcome.late, much=False, answer=b"", errors=b"")
    if outcome.late:
        ran.append(stopped)
    elif outcome.exhausted and not outcome.complete:
        ran.append(stopped._replace(seconds=0.0, errors=b"it used too much memory"))
    elif not outcome.complete:
        raise _JailFailure(f"the jail broke down: {outcome.fault}")
    return ran


def _verdict(ran: _RunResult, expected: str, limits: Limits) -> tuple[Verdict, str]:
    if ran.late or controller.ProcessEnd(ran.code, ran.seconds).out_of_time(limits.cpu_seconds):
        return Verdict.TIMEOUT, f"no answer within {limits.cpu_seconds} s"
    if ran.much:
        return Verdict.CRASH, "the program told far too much"
    if ran.code != 0:
        return Verdict.CRASH, _errors(ran)
    if ran.printed == expected:
        return Verdict.PASSED, ""
    if not ran.answer:
        return Verdict.CRASH, "the program ended itself with exit status 0 before it answered"
    return Verdict.WRONG, ran.printed


def _errors(ran: _RunResult) -> str:
    lines = [line.strip() for line in ran.errors.decode(errors="replace").splitlines()]
    message = printable("\n".join([line for line in lines if line and not line.startswith("note: ")][:3]))[:_SHOWN]
    return message or ("it took too long" if ran.late else f"it ended with status {ran.code} and said nothing")


def compiler_messages(text: str) -> str:
    """Return the first errors whole, as many as fit, then the number of errors left out; empty if there are none.

    Only a first error that is too long by itself is cut, and marked.
    """
    errors = [error.rstrip() for error in _NEXT_ERROR.split(text) if error.startswith("error")]
    errors = [printable(error) for error in errors if not error.startswith(_ABORTED)]
    if errors and len(errors[0]) > _MESSAGE_CHARACTERS:
        errors[0] = f"{errors[0][:_MESSAGE_CHARACTERS]} [shortened]"
    shown, left = list[str](), _MESSAGE_CHARACTERS
    for error in errors:
        left -= len(error)
        if shown and left < 0:
            break
        shown.append(error)
    # Without its last line the compiler was stopped in the middle, as it printed far too much.
    omitted = f"{'' if _ABORTED in text else 'at least '}{len(errors) - len(shown)}"
    return "\n\n".join((*shown, *([f"(Errors left out: {omitted}.)"] if shown != errors else [])))
