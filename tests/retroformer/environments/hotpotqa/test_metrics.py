"""Tests of answer scores against gold answers, with numbers worked by hand."""

from collections.abc import Callable

import pytest

from retroformer.environments.hotpotqa.metrics import ENGLISH, exact_match, f1, f1_without_stop_words, normalize


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Dark Tower", "dark tower"),
        ("Papa Gino's", "papa ginos"),
        ("U.S.", "us"),
        ("a", ""),
        ("Anthem", "anthem"),
        ("San Francisco, California\n", "san francisco california"),
    ],
)
def test_case_punctuation_articles_and_blanks_are_ignored(answer: str, normal: str) -> None:
    assert normalize(answer) == normal


def test_exact_match_compares_normalised_answers() -> None:
    assert exact_match("Jonny Craig", 'Jonny" Craig')
    assert exact_match("the Cold War (1947-91)", "Cold War (194791)")
    assert not exact_match("Cold War", "the Cold War (1947-91)")


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    # 2 of 3 words of the answer and 2 of 4 of the gold: 2 * 2 / (3 + 4).
    assert f1("security and workplace", "cleaning, catering and security") == pytest.approx(4 / 7)


def test_the_paper_s_f1_does_not_count_stop_words() -> None:
    # Without "and": 1 of 2 and 1 of 3.
    assert f1_without_stop_words("security and workplace", "cleaning, catering and security") == pytest.approx(2 / 5)


def test_a_shared_preposition_earns_nothing_in_the_paper_s_f1() -> None:
    assert f1("a poem of Homer", "chronological collection of critical quotations") == pytest.approx(2 / 8)
    assert f1_without_stop_words("a poem of Homer", "chronological collection of critical quotations") == 0


def test_a_word_counts_as_often_as_both_have_it() -> None:
    # "new york" is twice in the answer, once in the gold.
    assert f1_without_stop_words("New York New York", "New York") == pytest.approx(2 * 2 / (4 + 2))


@pytest.mark.parametrize("score", [f1, f1_without_stop_words])
def test_yes_and_no_are_right_as_a_whole_or_worth_nothing(score: Callable[[str, str], float]) -> None:
    assert score("Yes.", "yes") == 1
    assert score("no one", "no") == 0
    assert score("no", "no one") == 0


@pytest.mark.parametrize("score", [f1, f1_without_stop_words])
def test_equal_answers_score_one_even_without_words(score: Callable[[str, str], float]) -> None:
    assert score("The Who", "the who") == 1
    assert score("It", "it") == 1
    assert score("A", "the") == 1


def test_if_one_side_has_only_stop_words_all_words_count() -> None:
    # "who" against "who band": 1 of 1 and 1 of 2.
    assert f1_without_stop_words("The Who", "The Who band") == pytest.approx(2 / 3)
    assert f1_without_stop_words("Paris", "The Who") == 0


def test_words_that_can_be_answers_are_not_stop_words() -> None:
    assert ENGLISH.isdisjoint({"yes", "no", "one", "i", "us", "may", "will", "t", "d"})
    assert {"the", "of", "and", "who", "not"} <= ENGLISH
    assert f1_without_stop_words("Will Smith", "Will Young") == pytest.approx(1 / 2)
