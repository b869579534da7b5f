"""Tests of tokenising and stemming as in Lucene's English analysis, and of the similarity of short texts."""

import time

import pytest

from retroformer.environments.webshop.data import approximate_nouns
from retroformer.environments.webshop.environment import alike
from retroformer.environments.webshop.search import stem, words


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        # From the paper, one per rule.
        *(("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("agreed", "agre"), ("feed", "feed")),
        *(
            ("plastered", "plaster"),
            ("bled", "bled"),
            ("motoring", "motor"),
            ("sing", "sing"),
            ("conflated", "conflat"),
        ),
        *(("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("happy", "happi"), ("sky", "sky")),
        *(("relational", "relat"), ("conditional", "condit"), ("digitizer", "digit"), ("sensibiliti", "sensibl")),
        *(("triplicate", "triplic"), ("hopeful", "hope"), ("goodness", "good"), ("revival", "reviv")),
        *(("replacement", "replac"), ("adoption", "adopt"), ("probate", "probat"), ("rate", "rate"), ("cease", "ceas")),
        *(("controll", "control"), ("roll", "roll"), ("toy", "toi"), ("opinion", "opinion")),
        # The author's later changes.
        *(("possibly", "possibl"), ("archaeology", "archaeolog"), ("is", "is"), ("as", "as")),
        # A character that is not a letter counts as a consonant.
        *(("1080p", "1080p"), ("4ks", "4k"), ("x2ing", "x2ing"), ("ies", "i")),
    ],
)
def test_a_word_has_porters_stem(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Women's shoes, the women\u2019s", ["women", "shoe", "women"]),
        ("wi-fi 3.5mm 1,000.5 10:30", ["wi", "fi", "3.5mm", "1,000.5", "10", "30"]),
        ("a.b.c. x:y x,y", ["a.b.c", "x:y", "x", "y"]),
        ("_ __ __a_1_ a_", ["__a_1_", "a_"]),
        (
            "\u65e5\u672c\u3001 \u30c6\u30b9\u30c8 \u3042\u3044",
            ["\u65e5", "\u672c", "\u30c6\u30b9\u30c8", "\u3042", "\u3044"],
        ),
        ("\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 hot", ["\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "hot"]),
        (
            "ok\U0001f44d\U0001f3fd\U0001f525 \u2122 \u2605",
            ["ok", "\U0001f44d\U0001f3fd", "\U0001f525", "\u2122", "\u2605"],
        ),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1fa\U0001f1f8", None),
        ("cafe\u0301s 50\u2019s", ["cafe\u0301", "50", "s"]),
        ("- + | $ % \u200b \u2606", []),
    ],
)
def test_a_text_is_cut_into_words_as_unicode_says(text: str, expected: list[str] | None) -> None:
    family_and_flag = [text[:5], text[5:]]
    assert words(text) == (family_and_flag if expected is None else expected)


def test_a_word_of_more_than_255_letters_is_cut() -> None:
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]


@pytest.mark.parametrize("unit", ["_", "a.", "\u0301", "a\u0301.", "\U0001f44d\u200d", "\U0001f1fa", "1,", "[", "_-"])
def test_time_is_linear_in_the_length_of_the_text(unit: str) -> None:
    words(unit * 1000)
    began = time.process_time()
    words(unit * (300_000 // len(unit)))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("first", "second", "are_alike"),
    [
        ("long lasting", "lasting long", True),
        ("size 8", "8", True),
        # "black" against "black" + " " + "steel": 5 of 5 + 11 letters are the same on either side, so 71%.
        ("black red", "black steel", False),
        ("a", "", False),
        # 6 of 7 letters on either side: 85.7%, in whole numbers 86.
        ("abcdefg", "abcdefx", True),
        # 20 of 23 and of 24 letters: 85.1%, in whole numbers 85, which is not above 85.
        ("a" * 20 + "bbb", "a" * 20 + "cccc", False),
    ],
)
def test_similarity_is_the_share_of_common_words(first: str, second: str, are_alike: bool) -> None:
    assert alike(first, second) is alike(second, first) is are_alike


def test_similarity_ignores_case_signs_and_letters_of_latin_1() -> None:
    assert alike("('color', 'Red')", "red")
    assert alike("caf\xe9 noir", "caf noir")
    assert not alike("black", "red")
    assert not alike("\xe9", "\xe9")


def test_without_a_table_a_titles_nouns_are_its_words_except_function_words_and_units() -> None:
    assert approximate_nouns("Oak Lamp with 2 Oak Legs, 60 pcs") == ("oak", "lamp", "oak", "legs")
