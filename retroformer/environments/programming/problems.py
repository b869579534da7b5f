"""Programming problems with hidden tests, and the licences that decide which may be used for training."""

import re
from typing import Literal

from retroformer.environments.programming.rust_source import completed
from retroformer.environments.programming.syntax import functions, parsed
from retroformer.errors import ConfigError
from retroformer.records import Record

Language = Literal["python", "rust"]


class Problem(Record):
    """Problem with one function to write."""

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
            whole = re.search(rf"\bfn\s+{re.escape(self.entry_point)}\b", answer)
            return completed(answer if whole else self.prompt + answer)
        # The prompt's imports and definitions stay available; a function of the same name replaces the prompt's.
        if self.entry_point not in functions(answer):
            return self.prompt + answer
        # A prompt that is a bare signature is not a program.
        start = self.prompt if parsed(self.prompt) else f"{self.prompt.rstrip()}\n    ..."
        return f"{start}\n\n{answer}\n" if parsed(start) else answer


class ProblemSet(Record):
    """Problems from one source."""

    name: str
    licence: str
    may_train: bool
    """False if the licence forbids training."""
    problems: tuple[Problem, ...]

    def for_training(self) -> tuple[Problem, ...]:
        """Return the problems for training.

        Raises:
            ConfigError: their licence forbids training.
        """
        if not self.may_train:
            raise ConfigError(
                f"{self.name} is for evaluation only ({self.licence}): train on humaneval or mbpp instead."
            )
        return self.problems
