"""Copies and repetitions in texts that are short enough to count by hand."""

from retroformer.method.repetition import DistinctCounter, copied_share, n_grams

ATTEMPT = "Action 1: go to drawer 1\nAction 2: open drawer 1\nIt failed. Advice:"


def test_n_grams_have_lower_case_words_without_punctuation() -> None:
    assert n_grams("Go to: Drawer 1!", 3) == [("go", "to", "drawer"), ("to", "drawer", "1")]
    assert n_grams("too short", 3) == []


def test_distinct_counts_different_n_grams_of_all_texts() -> None:
    single, double = DistinctCounter(1), DistinctCounter(2)
    assert double.share == 0.0
    for text in ("look up", "Look up.", "look down", ""):
        single.add(text)
        double.add(text)
    assert (single.share, double.share) == (3 / 6, 2 / 3)  # look, up, down


def test_four_copied_words_in_a_row_count_as_a_copy() -> None:
    # Of: go to drawer 1 / to drawer 1 and / drawer 1 and take / 1 and take it, of which only the first is copied.
    assert copied_share("Go to drawer 1 and take it.", ATTEMPT) == 0.25
    assert copied_share("go to drawer", ATTEMPT) == 0.0
    assert copied_share("go to drawer 1", ATTEMPT, elsewhere="You may go to drawer 1.") == 0.0
