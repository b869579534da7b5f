"""Reads YAML that a user wrote (an experiment config, an override or a prompt pack), within limits.

Aliases make a small text large: ten lines can expand to 10^9 values, which parse instantly and take hours to validate.
So the values are counted with every alias expanded, before any object is built.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from retroformer.files.bounded_file import MIB, read_text
from retroformer.files.bounded_json import MOST_LEVELS
from retroformer.files.characters import has_surrogate

MOST_BYTES = MIB
"""Largest file size in bytes. The largest shipped file, a prompt pack, has 9 KiB."""
MOST_VALUES = 100_000
"""Largest number of values in a text, aliases expanded. The largest shipped config has fewer than 100."""

_NOT_OF_ITS_TAG = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""Exceptions of PyYAML's constructors for `!!int abc`, `!!bool x`, `!!int ''`, `!!timestamp x` and the like."""


class YamlLimitError(yaml.MarkedYAMLError):
    """Error for YAML that exceeds the limits on nesting or values."""


class BoundedLoader(yaml.SafeLoader):
    """YAML's safe loader with limits; every error is a yaml.YAMLError with its line."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_levels = 0
        self._measures: dict[yaml.Node, tuple[int, int]] = {}
        """Levels and values of each finished node, with its aliases expanded."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node. Raises YamlLimitError if it is too deep or refers to itself."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._open_levels > MOST_LEVELS:
            raise _too_deep(mark)
        self._open_levels += 1
        node = super().compose_node(parent, index)
        self._open_levels -= 1
        if node is not None and node not in self._measures:
            raise YamlLimitError(None, None, "an alias stands inside what it refers to", mark)
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """Compose a scalar. Raises yaml.YAMLError if it holds an unpaired surrogate."""
        node = super().compose_scalar_node(anchor)
        if has_surrogate(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "half of a surrogate pair is not a character", node.start_mark
            )
        self._measures[node] = (0, 1)
        return node

    def compose_sequence_node(self, anchor: Any) -> yaml.SequenceNode:
        """Compose a sequence. Raises YamlLimitError."""
        node = super().compose_sequence_node(anchor)
        self._measure(node, node.value)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping. Raises YamlLimitError."""
        node = super().compose_mapping_node(anchor)
        self._measure(node, [child for pair in node.value for child in pair])
        return node

    def _measure(self, node: yaml.Node, children: list[yaml.Node]) -> None:
        levels = 1 + max((self._measures[child][0] for child in children), default=0)
        values = 1 + sum(self._measures[child][1] for child in children)
        if levels > MOST_LEVELS:
            raise _too_deep(node.start_mark)
        if values > MOST_VALUES:
            problem = f"more than {MOST_VALUES} values, aliases expanded, which is the limit"
            raise YamlLimitError(None, None, problem, node.start_mark)
        self._measures[node] = (levels, values)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build the value of a node. Raises yaml.YAMLError if its text does not fit its type or tag."""
        try:
            return super().construct_object(node, deep)
        except _NOT_OF_ITS_TAG as error:
            problem = f"{_shown(node)} is no {node.tag.rpartition(':')[2]} ({error})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def _too_deep(mark: Any) -> YamlLimitError:
    return YamlLimitError(None, None, f"more than {MOST_LEVELS} levels of nesting, which is the limit", mark)


def _shown(node: yaml.Node) -> str:
    return repr(node.value[:80]) if isinstance(node, yaml.ScalarNode) else "this"


def parse_yaml(text: str, loader: Callable[[str], BoundedLoader] = BoundedLoader) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or exceeds the limits (YamlLimitError).
    """
    parser = loader(text)
    try:
        return parser.get_single_data()
    finally:
        parser.dispose()


def read_yaml(path: Path, loader: Callable[[str], BoundedLoader] = BoundedLoader) -> Any:
    """Parse a YAML file of at most `MOST_BYTES`.

    Raises:
        yaml.YAMLError: as `parse_yaml` does.
        MissingInput: the file is not regular, too large, or not UTF-8.
        FileNotFoundError, PermissionError: as `open` raises them.
    """
    return parse_yaml(read_text(path, MOST_BYTES), loader)
