"""Tests of the sentences at the front of a report."""

import re
from pathlib import Path

import pytest

from eval.report.files import read_report
from tests.support.evaluations import CONFIG, write_evaluation


def test_the_headline_is_made_of_sentences_that_can_be_quoted(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert (
        "- **trained** solves 80.0% of 10 tasks within 2 attempts, 60.0 points more than *no reflection* (95% interval "
        "over tasks: 30.0 to 90.0; p = 0.0312)." in text
    )
    assert (
        "- The data do not show a difference between **hopeless** (20.0% of 10 tasks within 2 attempts) and "
        "*no reflection*: 0.0 points (95% interval over tasks: 0.0 to 0.0; p = 1.0000)." in text
    )


def test_the_headline_begins_with_what_training_was_worth(folder: Path) -> None:
    sentences = [line for line in (folder / "report.md").read_text().splitlines() if line.startswith("- ")]
    assert sentences[0].startswith(
        "- **trained** solves 80.0% of 10 tasks within 2 attempts, 60.0 points more than *hopeless* (95% interval"
    ), "the base writes the advice of this arm"
    assert sum("**trained**" in sentence for sentence in sentences) == 2


def test_of_several_trained_arms_only_the_last_is_also_compared_with_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.replace("    trained:", "    earlier: {kind: model, model: sft}\n    trained:")
    wins = {"eval/no reflection": 0, "eval/earlier": 6, "eval/trained": 6, "eval/hopeless": 0}
    conclusion = read_report(write_evaluation(config, wins)).conclusion
    assert [sentence.arms for sentence in conclusion] == [
        ("trained", "hopeless"),
        ("earlier", "hopeless"),
        ("trained", "no reflection"),
        ("hopeless", "no reflection"),
    ]


def test_the_headline_compares_the_arms_of_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}
    text = (write_evaluation(f"{CONFIG.rstrip()}\n  examples: [trained, hopeless]\n", wins) / "report.md").read_text()
    assert (
        "- **hopeless** solves 20.0% of 10 tasks within 2 attempts, 60.0 points fewer than *trained* (95% interval "
        "over tasks: 30.0 to 90.0; p = 0.0312)." in text
    )


def test_an_interval_above_0_is_no_claim_where_the_exact_test_of_two_models_disagrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 5, "eval/hopeless": 0}
    text = (write_evaluation(CONFIG, wins) / "report.md").read_text()
    # Five tasks that only one arm solved: 2 / 2**5.
    assert "- The data do not show a difference between **trained** (70.0% of 10 tasks within 2 attempts) and" in text
    assert "50.0 points (95% interval over tasks: 20.0 to 80.0; p = 0.0625)." in text


def test_pooled_seeds_claim_a_difference_if_the_interval_over_seeds_and_tasks_excludes_0(pooled: str) -> None:
    # The exact test of ppo-2 alone, with three tasks, has p = 2 / 2**3.
    claim = (
        r"- \*\*trained\*\* solves 65.0% of 10 tasks within 2 attempts, 45.0 points more than \*no reflection\* "
        r"\(95% interval over training seeds and tasks: 1\d.0 to \d\d.0\)\."
    )
    assert re.search(claim, pooled)
