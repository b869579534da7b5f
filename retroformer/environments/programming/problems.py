"""Programming problems with hidden tests, and which of them may be trained on."""

import re
from typing import Literal

from retroformer.environments.programming.rust_source import completed
from retroformer.environments.programming.syntax import functions, parsed
from retroformer.errors import ConfigError
from retroformer.records import Record

Language = Literal["python", "rust"]


class Problem(Record):
    """One function to write."""

    id: str
    language: Language
    prompt: str
    """What the actor is given: signature and description, as the beginning of a program."""
    entry_point: str
    """The function's name."""
    tests: tuple[str, ...]
    """Hidden: never shown to an actor or a reflector."""
    preamble: str = ""
    """Python that precedes the tests: imports, and helpers that the prompt gives."""
    solution: str | None = None
    """A whole program that passes, where the data have one."""

    def program(self, answer: str) -> str:
        """The whole program that an answer stands for: the function, or only what continues the prompt."""
        if self.language == "rust":
            whole = re.search(rf"\bfn\s+{re.escape(self.entry_point)}\b", answer)
            return completed(answer if whole else self.prompt + answer)
        # What the prompt imports and defines stays available; a function of the same name replaces the prompt's.
        if self.entry_point not in functions(answer):
            return self.prompt + answer
        # A prompt that is a bare signature is no program by itself.
        start = self.prompt if parsed(self.prompt) else f"{self.prompt.rstrip()}\n    ..."
        return f"{start}\n\n{answer}\n" if parsed(start) else answer


class ProblemSet(Record):
    """Problems from one source."""

    name: str
    licence: str
    may_train: bool
    """False where the licence forbids it."""
    problems: tuple[Problem, ...]

    def for_training(self) -> tuple[Problem, ...]:
        """The problems, to train on.

        Raises:
            ConfigError: their licence forbids it.
        """
        if not self.may_train:
            raise ConfigError(
                f"{self.name} is for evaluation only ({self.licence}): train on humaneval or mbpp instead."
            )
        return self.problems
