"""Programming problems with hidden tests, and the five verdicts of judging."""

import re
from enum import StrEnum
from textwrap import dedent, indent
from typing import Literal

from retroformer.environments.programming.python_source import definitions, parse
from retroformer.environments.programming.rust_source import complete_program
from retroformer.method.records import Record


class Verdict(StrEnum):
    PASSED = "passed"
    WRONG = "wrong"
    """Answer given, but an assertion does not hold."""
    CRASH = "crash"
    """Failure to compile or load, an exception, or an end of the process before it answered."""
    TIMEOUT = "timeout"
    """No answer in time."""
    HARNESS = "harness"
    """Failure of the test or the judge, not of the code: it says nothing about the code, and is never a return of 0."""


def printable(text: str) -> str:
    """Return the text with control characters and lone surrogates escaped, so stores, pages and prompts can hold it."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


class TestResult(Record):
    test: str
    verdict: Verdict
    output: str = ""
    """Actual result: the value, the exception, or how the program ended."""
    messages: str = ""
    """Messages of the compiler, if it refuses the program: the same for each test."""

    @property
    def line(self) -> str:
        """Test in one line: one of Rust may have several."""
        return re.sub(r"\s*\n\s*", " ", self.test)

    @property
    def feedback(self) -> str:
        """Test and its result in one line, as shown to an agent."""
        result = {
            Verdict.PASSED: "passed",
            Verdict.WRONG: f"failed: came out as {self.output}",
            Verdict.CRASH: f"failed: {self.output}",
            Verdict.TIMEOUT: f"failed: {self.output}",
            Verdict.HARNESS: f"could not be run: {self.output}",
        }[self.verdict]
        return f"{self.line}  # {' '.join(result.split())}"


class ProgramJudgement(Record):
    """Results of all tests that were run; hidden tests stop at the first failure."""

    results: tuple[TestResult, ...]

    @property
    def verdict(self) -> Verdict:
        """PASSED if at least one test was run and all passed; else the verdict of the first that did not pass."""
        if not self.results:
            return Verdict.HARNESS
        return next((test.verdict for test in self.results if test.verdict != Verdict.PASSED), Verdict.PASSED)


_SIGNATURE = re.compile(r"^( *)(?:async )?def ", re.MULTILINE)
Language = Literal["python", "rust"]


class Problem(Record):
    id: str
    language: Language
    prompt: str
    """Signature and description shown to the actor, as the beginning of a program."""
    entry_point: str
    """Name of the function."""
    tests: tuple[str, ...]
    """Hidden tests: never shown to an actor or a reflector."""
    preamble: str = ""
    """Python code before the tests: imports, and helpers that the prompt gives."""
    solution: str | None = None
    """Whole program that passes, if the data have one."""

    def program(self, answer: str) -> str:
        """Return the whole program for an answer, which is the function or only a continuation of the prompt."""
        if self.language == "rust":
            is_whole = re.search(rf"\bfn\s+{re.escape(self.entry_point)}\b", answer)
            return complete_program(answer if is_whole else self.prompt + answer)
        # The prompt's imports and definitions stay available; a definition of the same name replaces the prompt's.
        if self.entry_point not in definitions(answer):
            return _continue(self.prompt, answer)
        # A prompt that is a bare signature is not a program.
        start = self.prompt if parse(self.prompt) else f"{self.prompt.rstrip()}\n{_body_indent(self.prompt)}..."
        return f"{start}\n\n{answer}\n" if parse(start) else answer


def _continue(prompt: str, body: str) -> str:
    """Return the Python program of a prompt and a body; a body, or its first line, is indented anew if it has to be."""
    start, wanted = f"{prompt.expandtabs(4).rstrip()}\n", _body_indent(prompt)
    bodies = (body, f"    {body.lstrip()}", f"{wanted}{body.lstrip()}")
    programs = (start + indent(dedent(text), wanted) for text in bodies)
    return next((program for program in programs if parse(program)), start + body)


def _body_indent(prompt: str) -> str:
    """Return the indentation of the body of the prompt's last function, which may be a method."""
    return f"{(_SIGNATURE.findall(prompt.expandtabs(4)) or [''])[-1]}    "
