"""Verdicts of judging: five distinct results that must not be confused."""

from enum import StrEnum

from retroformer.records import Record


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


class CheckedTest(Record):
    """Test with its result."""

    test: str
    verdict: Verdict
    output: str = ""
    """Actual result: the value, the exception, or how the program ended."""
    messages: str = ""
    """Messages of the compiler, if it refuses the program: the same for each test."""

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
        return f"{self.test}  # {' '.join(result.split())}"


class CheckedProgram(Record):
    """Results of all tests that were run; hidden tests stop at the first failure."""

    checked: tuple[CheckedTest, ...]
    seconds: float
    """Wall-clock seconds for all tests."""

    @property
    def verdict(self) -> Verdict:
        """PASSED if at least one test was run and all passed; else the verdict of the first that did not pass."""
        if not self.checked:
            return Verdict.HARNESS
        return next((test.verdict for test in self.checked if test.verdict != Verdict.PASSED), Verdict.PASSED)

    @property
    def passed(self) -> bool:
        return self.verdict == Verdict.PASSED
