"""Tests of parsing actions from lines of all kinds."""

import pytest

from retroformer.environments.hotpotqa.environment import Action, parse, unquoted


@pytest.mark.parametrize(
    "text",
    [
        "Search[Opry Mills]",
        "  search [ Opry   Mills ] ",
        "SEARCH[Opry Mills",
        "`Search[Opry Mills]`",
        '"Search[Opry Mills]"',
        "Action 2: Search[Opry Mills]",
        "> Search[Opry Mills].",
        "Search[Opry Mills], Search[Nashville]",
        "**Search[Opry Mills]**",
    ],
)
def test_a_search_is_parsed_in_any_spelling(text: str) -> None:
    assert parse(text) == Action("search", "Opry Mills")


def test_the_other_verbs_and_brackets_inside() -> None:
    assert parse("lookup[born [in]]") == Action("lookup", "born [in]")
    assert parse("Finish[Lacoste, France]") == Action("finish", "Lacoste, France")


@pytest.mark.parametrize("text", ["think: I need more", "Thought 3: I need more", "Thought: x", "think[more]"])
def test_a_thought_is_no_action(text: str) -> None:
    assert parse(text) == Action("think")


@pytest.mark.parametrize(
    "text", ["", "   ", "Compare[a and b]", "Search", "Search[]", "Finish[  ", "Opry Mills", "\x00"]
)
def test_anything_else_is_invalid(text: str) -> None:
    assert parse(text) == Action("invalid")


def test_paired_quotes_are_removed() -> None:
    assert unquoted('"Awaken, My Love!"') == "Awaken, My Love!"
    assert unquoted("'Allo 'Allo!") == "'Allo 'Allo!"
    assert unquoted('"') == '"'
