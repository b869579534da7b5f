"""Programming problems with hidden tests, and the licences that decide which may be used for training."""

import re
from textwrap import dedent, indent
from typing import Literal

from retroformer.environments.programming.rust_source import completed
from retroformer.environments.programming.syntax import defined, parsed
from retroformer.errors import ConfigError
from retroformer.records import Record

_SIGNATURE = re.compile(r"^( *)(?:async )?def ", re.MULTILINE)
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
        # The prompt's imports and definitions stay available; a definition of the same name replaces the prompt's.
        if self.entry_point not in defined(answer):
            return _continued(self.prompt, answer)
        # A prompt that is a bare signature is not a program.
        start = self.prompt if parsed(self.prompt) else f"{self.prompt.rstrip()}\n{_body_indent(self.prompt)}..."
        return f"{start}\n\n{answer}\n" if parsed(start) else answer


def _continued(prompt: str, body: str) -> str:
    """Return the Python program of a prompt and a body; a body, or its first line, is indented anew if it has to be."""
    start, wanted = f"{prompt.expandtabs(4).rstrip()}\n", _body_indent(prompt)
    bodies = (body, f"    {body.lstrip()}", f"{wanted}{body.lstrip()}")
    programs = (start + indent(dedent(text), wanted) for text in bodies)
    return next((program for program in programs if parsed(program)), start + body)


def _body_indent(prompt: str) -> str:
    """Return the indentation of the body of the prompt's last function, which may be a method."""
    return f"{(_SIGNATURE.findall(prompt.expandtabs(4)) or [''])[-1]}    "


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
