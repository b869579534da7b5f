"""Retroformer: train a small open model to write advice that improves the next attempt of a frozen language agent.

    import retroformer as rf

`rf.Reflector` improves an agent where it runs; `rf.Invalid` is for attempts that could not be made.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retroformer.coaching.reflector import Advice, Gains, Invalid, Reflector

__all__ = ["Advice", "Gains", "Invalid", "Reflector"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that importing the package alone takes no time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from retroformer.coaching import reflector

    return getattr(reflector, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
