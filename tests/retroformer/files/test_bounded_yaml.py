"""Test that a user's YAML with a small text and a huge value is refused before any object is built."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from retroformer.errors import MissingInput
from retroformer.files.bounded import MOST_LEVELS, MOST_VALUES, YamlLimitError, parse_yaml, read_yaml

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 10)
)
"""YAML of ten lines that expand to 10^10 values."""


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    "text",
    ["a: &x {b: 1}\nc: *x\n", "base: &b {k: 1}\nmore: {<<: *b, l: 2}\n", "[1.5, 2001-12-13, ~, yes, 0x10, é]", ""],
)
def test_yaml_within_the_limits_is_parsed_as_usual(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text)


def test_values_are_counted_with_their_aliases_expanded() -> None:
    with pytest.raises(YamlLimitError, match="more than 100000 values, aliases expanded") as refused:
        parse_yaml(LAUGHS)
    assert refused.value.problem_mark is not None
    assert refused.value.problem_mark.line == 4  # a4 stands for 1.1 * 10^5 values.


@pytest.mark.slow
def test_the_number_of_values_is_limited_exactly() -> None:
    assert len(parse_yaml("x: &x [1, 2]\ny: [" + "*x, " * 33_000 + "]")["y"]) == 33_000
    plain = "[" + "1," * (MOST_VALUES - 1) + "]"
    assert len(parse_yaml(plain)) == MOST_VALUES - 1
    with pytest.raises(YamlLimitError):
        parse_yaml(f"{plain[:-1]}1]")


def test_a_recursive_value_is_refused() -> None:
    with pytest.raises(YamlLimitError, match="stands inside what it refers to"):
        parse_yaml("a: &a [1, *a]")


def test_levels_are_limited_exactly_and_aliases_count() -> None:
    assert parse_yaml(nested(MOST_LEVELS)) is not None
    chain = "".join(f"c{number}: &c{number} [*c{number - 1}]\n" for number in range(1, 100))
    for text in (nested(MOST_LEVELS + 1), nested(900), nested(100_000), "c0: &c0 [1]\n" + chain, "- " * 60 + "x"):
        with pytest.raises(YamlLimitError, match="more than 50 levels of nesting"):
            parse_yaml(text)


@pytest.mark.parametrize(
    "value",
    [
        "2001-13-45",
        "!!int abc",
        "!!int ''",
        "!!float x",
        "!!bool perhaps",
        "!!timestamp now",
        "!!binary é",
        "1" * 5000,
        "!!python/name:os.system",
        "!!set [1]",
        "{[a]: b}",
        '"\\ud800"',
        "*nowhere",
        "\x00",
    ],
)
def test_a_value_that_does_not_fit_its_tag_is_a_yaml_error(value: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml(f"first: 1\nsecond: {value}\n")


def test_the_error_for_a_value_that_does_not_fit_its_tag_has_its_line() -> None:
    with pytest.raises(yaml.YAMLError, match="'abc' is no int") as refused:
        parse_yaml("first: 1\nsecond: !!int abc\n")
    assert "line 2, column 9" in str(refused.value)


def test_a_file_must_be_regular_small_and_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"

    def refused(content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(MissingInput) as error:
            read_yaml(path)
        return str(error.value)

    assert "holds more than 1 MiB" in refused(b"#" * (1 << 20) + b"\n")
    assert "Line 2 of" in refused("a: b\nc: é".encode("latin-1"))
    path.write_bytes(b"\xef\xbb\xbfa: b")
    content: Any = read_yaml(path)
    assert content == {"a": "b"}
