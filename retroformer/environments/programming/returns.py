"""Graded return of a stored attempt at a programming task, from the results that its last observation shows.

The store has the result of each of the agent's own tests, but of the hidden tests only whether all passed.
"""

from collections import Counter
from itertools import takewhile

from retroformer.environments.programming.environment import NONE, TESTS_FAILED, TESTS_PASSED, UNCOMPILED
from retroformer.records import Outcome, Trajectory


def share_of_tests(attempt: Trajectory) -> float:
    """Return 1 if the task is solved, else the share of tests passed, the hidden ones together counting as one test.

    So a program that passes all five of its own tests but not the hidden ones has a return of 5/6. Without a program,
    or without own tests, it is 0.
    """
    if attempt.outcome is Outcome.SUCCESS:
        return 1.0
    results = own_results(attempt.steps[-1].observation) if attempt.steps else Counter[str]()
    return results[TESTS_PASSED] / (results.total() + 1)


def own_results(observation: str) -> Counter[str]:
    """Count the agent's own tests below each heading of the answer to a program; empty for another answer."""
    results, heading = Counter[str](), ""
    lines = observation.split("\n")
    if lines[0] != TESTS_PASSED or TESTS_FAILED not in lines:
        return results
    for line in takewhile(lambda line: line != UNCOMPILED, lines):
        if line in (TESTS_PASSED, TESTS_FAILED):
            heading = line
        elif line != NONE:
            results[heading] += 1
    return results
