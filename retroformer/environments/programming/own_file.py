"""Loader of a user's own problems, such as LeetCode's hard ones, which cannot be redistributed.

One JSON object a line; `language`, `preamble` and `solution` are optional:
    {"id": "two-sum", "prompt": "def two_sum(numbers, target):", "entry_point": "two_sum",
     "tests": ["assert two_sum([2, 7], 9) == [0, 1]"],
     "language": "python", "preamble": "import math", "solution": "def two_sum(numbers, target): ..."}

The prompt may end with the signature of a method, as LeetCode's do; then entry_point is the class.

A Python test is any code with assertions; it may call functions of the solution, create objects of its classes, as in
`Solution().twoSum(...)`, and see lists change in place. A Rust test is `assert_eq!(CALL, VALUE);`,
`assert!(CALL == VALUE);`, `assert!(CALL);` or `assert!(!CALL);`, where CALL is only a call of the function.
"""

from typing import Any

from retroformer.environments.programming.problems import Problem
from retroformer.environments.programming.rust_source import parse_check


def own_problem(row: dict[str, Any]) -> Problem:
    """Return the problem of one line. Raises KeyError, ValueError."""
    if not row["tests"]:
        raise ValueError(f"problem {row['id']!r} has no tests")
    if row.get("language") == "rust":
        _require_rust_checks(row["id"], row["tests"], row["entry_point"])
    return Problem(
        id=row["id"],
        language=row.get("language", "python"),
        prompt=row["prompt"],
        entry_point=row["entry_point"],
        tests=tuple(row["tests"]),
        preamble=row.get("preamble", ""),
        solution=row.get("solution"),
    )


def _require_rust_checks(problem: str, tests: list[str], entry_point: str) -> None:
    for test in tests:
        try:
            parse_check(test, entry_point)
        except ValueError as error:
            raise ValueError(f"problem {problem!r} has a check that cannot be judged: {error}") from error
