"""Judging Rust: one program compiled from the judged code, run once for each test; see `rust_source.py`."""

import re
import shutil
import signal
import subprocess
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.environments.programming import rust_source, sandbox
from retroformer.environments.programming.inside.filesystem import BUILD
from retroformer.environments.programming.limits import COMPILING, Limits
from retroformer.environments.programming.problems import Problem
from retroformer.environments.programming.rust_source import RustTest
from retroformer.environments.programming.verdict import CheckedTest, Verdict, printable
from retroformer.errors import MissingInput

_OVERHEAD_SECONDS = 30.0
_SHOWN = 500
# The linker that Rust brings along looks for itself in /proc, which a jail does not have.
_FLAGS = ("--edition", "2021", "--error-format", "short", "-C", "debuginfo=0", "-C", "link-arg=-fuse-ld=bfd")


class _Toolchain(NamedTuple):
    compiler: str
    library: str
    folders: tuple[str, ...]


class _Ran(NamedTuple):
    """How a program ended and what it told."""

    code: int
    seconds: float
    late: bool
    much: bool
    answer: bytes
    errors: bytes

    @property
    def told(self) -> str:
        return self.answer.decode(errors="replace")


@cache
def _toolchain() -> _Toolchain:
    found = shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))
    if found is None or shutil.which("cc") is None:
        raise MissingInput("Rust problems need a Rust compiler and a linker: install rustc and gcc, or take Python.")
    report = subprocess.run([found, "--print", "sysroot"], capture_output=True, text=True, check=False)
    if report.returncode != 0:
        raise MissingInput(f"{found} does not work ({report.stderr.strip()}): install a Rust toolchain.")
    root = Path(report.stdout.strip())
    return _Toolchain(str(root / "bin" / "rustc"), str(root / "lib"), (str(root), "/usr", "/bin", "/etc/alternatives"))


def checked(
    problem: Problem, program: str, tests: tuple[str, ...], limits: Limits, hidden: bool
) -> tuple[CheckedTest, ...]:
    """What each test comes to: all of them, or those up to the first that does not pass if they are hidden."""
    try:
        parsed = tuple(rust_source.parse_test(test) for test in tests)
        kind = rust_source.result_type(problem.prompt, problem.entry_point)
    except ValueError as error:
        return (CheckedTest(test=tests[0], verdict=Verdict.HARNESS, output=str(error)),)
    expected = _expected(parsed, problem.entry_point, kind)
    if isinstance(expected, str):
        return (CheckedTest(test=tests[0], verdict=Verdict.HARNESS, output=expected),)
    source = rust_source.answering(program, problem.entry_point, [test.call for test in parsed], kind)
    ran = _run(source, [[str(index)] for index in range(len(tests))], limits, hidden)
    if len(ran) == 1:
        return (CheckedTest(test=tests[0], verdict=Verdict.CRASH, output=f"does not compile: {_errors(ran[0])}"),)
    results = []
    for test, value, one in zip(tests, expected, ran[1:], strict=False):
        verdict, output = _judged(one, value, limits)
        results.append(CheckedTest(test=test, verdict=verdict, output=printable(output[:_SHOWN])))
        if hidden and verdict != Verdict.PASSED:
            break
    return tuple(results)


def compiling_tests(problem: Problem, tests: tuple[str, ...]) -> tuple[str, ...]:
    """Those tests that call the function and compile against the prompt's signature (Reflexion, section 4.3).

    Raises:
        MissingInput: there is no Rust compiler.
        ServiceError: this machine cannot isolate it.
    """
    if _compile(problem, tests):
        return tests
    return tuple(test for test in tests if _compile(problem, (test,)))


def _compile(problem: Problem, tests: tuple[str, ...]) -> bool:
    kind = rust_source.result_type(problem.prompt, problem.entry_point)
    try:
        parsed = tuple(rust_source.parse_test(test) for test in tests)
    except ValueError:
        return False
    if not all(rust_source.calls(test.call, problem.entry_point) for test in parsed):
        return False
    stub = rust_source.completed(problem.prompt + " unimplemented!() ")
    source = rust_source.answering(stub, problem.entry_point, [test.call for test in parsed], kind)
    callable_all = not tests or _run(source, [], COMPILING, False, "--emit=metadata")[0].code == 0
    return callable_all and not isinstance(_expected(parsed, problem.entry_point, kind), str)


@lru_cache(maxsize=4096)
def _expected(tests: tuple[RustTest, ...], entry_point: str, kind: str) -> tuple[str, ...] | str:
    """The expected values as text, or why there are none. They are computed where the judged code never is."""
    values = [(test.value, rust_source.type_of(test.call, entry_point, kind)) for test in tests]
    if not values:
        return ()
    ran = _run(rust_source.expecting(values), [[]], COMPILING, True)
    if len(ran) == 1:
        return f"the test does not compile: {_errors(ran[0])}"
    told = tuple(ran[1].told.split("\n"))
    return told if ran[1].code == 0 and len(told) == len(tests) else "the test has no value"


def _run(source: str, calls: list[list[str]], limits: Limits, stop: bool, *flags: str) -> list[_Ran]:
    """Compile, and if that worked run once for each list of arguments."""
    tools = _toolchain()
    output, path = f"{BUILD}/program", f"{BUILD}/program.rs"
    compiler = [tools.compiler, *_FLAGS, *flags, "-o", output, path]
    variables = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": tools.library, "TMPDIR": "/work"}
    steps = [_step(compiler, {"program.rs": source}, variables, compiling=True, needed=True)]
    steps += [_step([output, *call], {}, {}, compiling=False, needed=stop) for call in calls]
    seconds = _OVERHEAD_SECONDS + COMPILING.wall_seconds + len(calls) * (limits.wall_seconds + 1)
    outcome = sandbox.run({"kind": "commands", "steps": steps}, limits, seconds, tools.folders)
    return [_Ran(*report[2:]) for report in outcome.reports if report[0] == "command"]


def _step(
    arguments: list[str], files: dict[str, str], variables: dict[str, str], compiling: bool, needed: bool
) -> dict[str, Any]:
    return {
        "arguments": arguments,
        "files": files,
        "variables": variables,
        "compiling": compiling,
        "needed": needed,
    }


def _judged(ran: _Ran, expected: str, limits: Limits) -> tuple[Verdict, str]:
    spent = ran.code in (-signal.SIGXCPU, -signal.SIGKILL) and ran.seconds >= limits.cpu_seconds * 0.9
    if ran.late or spent:
        return Verdict.TIMEOUT, f"no answer within {limits.cpu_seconds} s"
    if ran.much:
        return Verdict.CRASH, "the program told far too much"
    if ran.code != 0:
        return Verdict.CRASH, _errors(ran)
    if ran.told == expected:
        return Verdict.PASSED, ""
    if not ran.answer:
        return Verdict.CRASH, "the program ended itself with exit status 0 before it answered"
    return Verdict.WRONG, ran.told


def _errors(ran: _Ran) -> str:
    """The first lines of what went wrong, without where the judge put the program."""
    text = re.sub(rf"{BUILD}/program\.rs:\d+:\d+:?", "", ran.errors.decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("note: ")]
    said = printable("\n".join(lines[:3]))[:_SHOWN]
    return said or ("it took too long" if ran.late else f"it ended with status {ran.code} and said nothing")
