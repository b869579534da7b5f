"""What judging comes to: five different things, which nobody may confuse."""

from enum import StrEnum

from retroformer.records import Record


class Verdict(StrEnum):
    PASSED = "passed"
    WRONG = "wrong"
    """The code answered, and an assertion does not hold."""
    CRASH = "crash"
    """The code does not compile or load, raised an exception, or its process ended before it answered."""
    TIMEOUT = "timeout"
    """No answer in time."""
    HARNESS = "harness"
    """The test or the judge failed, not the code: it says nothing about the code, and is never a return of 0."""


def printable(text: str) -> str:
    """What judged code said, without what no store, page or prompt could hold: control characters, half characters."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


class CheckedTest(Record):
    """One test and what came of it."""

    test: str
    verdict: Verdict
    output: str = ""
    """What came out instead: the value, or the exception, or how the program ended."""

    @property
    def feedback(self) -> str:
        """The test with its result, in one line, as an agent is shown it."""
        said = {
            Verdict.PASSED: "passed",
            Verdict.WRONG: f"failed: came out as {self.output}",
            Verdict.CRASH: f"failed: {self.output}",
            Verdict.TIMEOUT: f"failed: {self.output}",
            Verdict.HARNESS: f"could not be run: {self.output}",
        }[self.verdict]
        return f"{self.test}  # {' '.join(said.split())}"


class Judgement(Record):
    """All tests that were run, up to the first failure where they are the hidden ones."""

    checked: tuple[CheckedTest, ...]
    seconds: float
    """By the clock, for all of it."""

    @property
    def verdict(self) -> Verdict:
        """PASSED if every test passed, and at least one was run; else what the first other one came to."""
        if not self.checked:
            return Verdict.HARNESS
        return next((one.verdict for one in self.checked if one.verdict != Verdict.PASSED), Verdict.PASSED)

    @property
    def passed(self) -> bool:
        return self.verdict == Verdict.PASSED
