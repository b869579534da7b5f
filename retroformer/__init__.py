"""Retroformer: train a small open model to write advice that improves the next attempt of a frozen language agent.

    import retroformer as rf

`rf.Reflector` improves an agent inside your program; raise `rf.Invalid` for an attempt that could not be carried out.
`rf.read_cases` and `rf.write_cases` exchange attempts and advice with other programs as files of `rf.Case`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retroformer.cases.case import Case
    from retroformer.cases.files import read_cases, write_cases
    from retroformer.coach.recorder import Gains
    from retroformer.coach.reflector import Advice, Invalid, Reflector

__all__ = ["Advice", "Case", "Gains", "Invalid", "Reflector", "read_cases", "write_cases"]

_HOMES = {"Case": "cases.case", "Gains": "coach.recorder", "read_cases": "cases.files", "write_cases": "cases.files"}
"""Modules of the public names that are not in `coach.reflector`."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that importing the package alone stays fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"retroformer.{_HOMES.get(name, 'coach.reflector')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
