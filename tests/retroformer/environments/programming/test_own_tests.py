"""Which of an agent's own tests are kept: a sample of the valid ones, the same at every attempt."""

from collections import Counter

from retroformer.environments.programming.judging import select_tests
from retroformer.environments.programming.problems import Problem
from tests.retroformer.environments.programming.test_judging_rust import MAXIMUM, needs_rust

DOUBLE = Problem(id="double", language="python", prompt="def double(n):\n", entry_point="double", tests=())
VALID = tuple(f"assert double({number}) == {2 * number}" for number in range(8))
WRITTEN = "\n".join((*VALID[:4], "assert 1 == 1", "assert double(", *VALID[4:]))


def test_tests_are_kept_in_text_order_and_all_of_them_if_they_are_few() -> None:
    assert select_tests(DOUBLE, WRITTEN, 8, seed=0) == VALID
    assert select_tests(DOUBLE, "\n".join(VALID[:3]), 6, seed=0) == VALID[:3]
    for seed in range(50):
        kept = select_tests(DOUBLE, WRITTEN, 3, seed)
        assert len(kept) == 3
        assert list(kept) == sorted(kept, key=VALID.index)


def test_every_valid_test_is_kept_as_often_as_any_other() -> None:
    counts = Counter(test for seed in range(400) for test in select_tests(DOUBLE, WRITTEN, 3, seed))
    # 3 of 8 are kept: 150 of 400 draws expected, with a standard deviation below 10.
    assert counts.keys() == set(VALID)
    assert all(110 < count < 190 for count in counts.values())


def test_other_tasks_keep_other_tests_of_the_same_text() -> None:
    samples = {
        select_tests(DOUBLE.model_copy(update={"id": f"double-{number}"}), WRITTEN, 3, seed=0) for number in range(10)
    }
    assert len(samples) > 1


def test_the_sample_does_not_change_with_tests_that_are_not_in_it() -> None:
    kept = select_tests(DOUBLE, WRITTEN, 3, seed=0)
    dropped = next(test for test in VALID if test not in kept)
    assert select_tests(DOUBLE, WRITTEN.replace(f"{dropped}\n", ""), 3, seed=0) == kept


@needs_rust
def test_a_sample_of_rust_tests_leaves_out_those_that_do_not_compile() -> None:
    valid = [f"assert_eq!(maximum(vec![{number}]), {number});" for number in range(4)]
    text = "\n".join([valid[0], "assert_eq!(maximum(true), 1);", *valid[1:]])
    samples = [select_tests(MAXIMUM, text, 2, seed) for seed in range(3)]
    assert all(len(kept) == 2 and set(kept) <= set(valid) for kept in samples)
    assert select_tests(MAXIMUM, text, 2, seed=0) == samples[0]
