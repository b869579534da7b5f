"""Retroformer: train a small open model to write advice that improves the next attempt of a frozen language agent.

    import retroformer as rf

`rf.Reflector` improves an agent where it runs; `rf.Invalid` is for attempts that could not be made. `rf.read_cases` and
`rf.write_cases` exchange what agents lived through with other programs, as files of `rf.Case`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retroformer.cases.case import Case
    from retroformer.cases.files import read_cases, write_cases
    from retroformer.coaching.reflector import Advice, Gains, Invalid, Reflector

__all__ = ["Advice", "Case", "Gains", "Invalid", "Reflector", "read_cases", "write_cases"]

_HOMES = {"Case": "cases.case", "read_cases": "cases.files", "write_cases": "cases.files"}
"""Modules of the public names that are not in `coaching.reflector`."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that importing the package alone takes no time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"retroformer.{_HOMES.get(name, 'coaching.reflector')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
