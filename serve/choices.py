"""A completion that must be one of given texts: the tree of their tokens, walked as tokens are written."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

_Tree: TypeAlias = "dict[int, _Tree]"


class Choices:
    """Where a completion stands among the token sequences it may become.

    Each sequence ends with a token that ends the request, so none is the beginning of another.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._here: _Tree = {}
        for sequence in sequences:
            branch = self._here
            for token in sequence:
                branch = branch.setdefault(token, {})

    @property
    def allowed(self) -> list[int]:
        """Tokens that may come next, ascending; none after the end of a sequence."""
        return sorted(self._here)

    def write(self, token: int) -> None:
        """One of the allowed tokens has been written."""
        self._here = self._here[token]
