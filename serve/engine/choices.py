"""Constrained choice: a completion must be one of given texts, held as a tree of their tokens."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

_Tree: TypeAlias = "dict[int, _Tree]"


class Choices:
    """Position of a completion in the tree of the token sequences that it may become.

    Each sequence ends with a token that ends the request, so none is a prefix of another.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._node: _Tree = {}
        for sequence in sequences:
            branch = self._node
            for token in sequence:
                branch = branch.setdefault(token, {})

    @property
    def allowed(self) -> list[int]:
        """Tokens that may come next, ascending; none after the end of a sequence."""
        return sorted(self._node)

    def write(self, token: int) -> None:
        """Move to `token`, one of the allowed tokens, which has been written."""
        self._node = self._node[token]
