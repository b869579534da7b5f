"""Loader of problem sets from their files, the published ones also as `.xz` or `.gz`.

- humaneval: HumanEval.jsonl, as OpenAI publishes it (MIT)
- humaneval-hardest50: humaneval-py_hardest50.jsonl of Reflexion's repository, in the same format (MIT)
- mbpp, mbpp-sanitized: mbpp.jsonl and sanitized-mbpp.json, as Google publishes them (CC BY 4.0)
- multipl-e-{humaneval-python, mbpp-python, humaneval-rust, humaneval-rust-hardest50, mbpp-rust}: the jsonl files of
  Reflexion's repository that were made with MultiPL-E, whose licence forbids training
- NAME.jsonl: a user's own problems, such as LeetCode's hard ones, which cannot be redistributed

A line of a user's own file is an object; `language`, `preamble` and `solution` are optional:
    {"id": "two-sum", "prompt": "def two_sum(numbers, target):", "entry_point": "two_sum",
     "tests": ["assert two_sum([2, 7], 9) == [0, 1]"],
     "language": "python", "preamble": "import math", "solution": "def two_sum(numbers, target): ..."}

The prompt may end with the signature of a method, as LeetCode's do; then entry_point is the class.

Lines in HumanEval's and MBPP's form are read, too.

A Python test is any code with assertions, or definitions of tests: unittest's classes, pytest's functions, HumanEval's
`check(candidate)`. One that passes with solutions that compute nothing is refused before play. It may call functions of
the solution, create objects of its classes, as in `Solution().twoSum(...)`, and see lists change in place. A Rust test
is `assert_eq!(CALL, VALUE);`, `assert!(CALL == VALUE);`, `assert!(CALL);` or `assert!(!CALL);`, where CALL is only a
call of the function.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from retroformer.environments.programming.judging import empty_test, judge
from retroformer.environments.programming.problems import Problem, Verdict
from retroformer.environments.programming.python_source import (
    called_names,
    complete_test,
    definitions,
    parse,
    undefined_names,
)
from retroformer.environments.programming.rust_source import parse_check, split_tests
from retroformer.environments.tasksets import rows_by_id
from retroformer.errors import MissingInput
from retroformer.files.bounded import MIB, json_rows, parse_json, read_row, read_text

MULTIPL_E = "MultiPL-E's licence: no training"
_MULTIPL_E_KEYS = {"doctests", "stop_tokens"}
_LINE_BYTES = MIB
"""Maximum size of one problem. The longest published one, of MBPP, has 6 kB."""
_FILE_BYTES = 256 * MIB
"""Maximum size of a set, which is held in memory. MBPP, the largest, has 565 kB."""
_INSTRUCTION = "correct it, or get a fresh copy"

Row = dict[str, Any]
Entry = TypeVar("Entry")


class ProblemSet(NamedTuple):
    licence: str
    """Licence or origin of the problems; MULTIPL_E forbids training."""
    problems: tuple[Problem, ...]


class _SetFormat(NamedTuple):
    file: str
    licence: str
    problem: Callable[[Row], Problem]


def load(name: str, folder: Path) -> ProblemSet:
    """Return the set of this name from a folder, or a user's own file if the name ends in .jsonl.

    Raises MissingInput.
    """
    path = problem_file(name, folder)
    if name.endswith(".jsonl"):
        return _own(path)
    source = _SOURCES[name]
    rows = _whole(path, source.problem) if source.file.endswith(".json") else _lines(path, source.problem)
    problems = rows_by_id(rows, lambda problem: problem.id)
    return ProblemSet(source.licence, tuple(problems.values()))


def problem_file(name: str, folder: Path) -> Path:
    """Return the file of the set of this name. Raises MissingInput."""
    if name.endswith(".jsonl"):
        if not (folder / name).is_file():
            raise MissingInput(f"There is no file {folder / name} of problems.")
        return folder / name
    if name not in _SOURCES:
        raise MissingInput(
            f"No problem set {name!r}: choose one of {', '.join(_SOURCES)}, or a file of your own, .jsonl."
        )
    file = _SOURCES[name].file
    candidates = [folder / f"{prefix}{file}{ending}" for prefix in ("", "reflexion_") for ending in ("", ".xz", ".gz")]
    for path in candidates:
        if path.is_file():
            return path
    raise MissingInput(f"{folder} has no {file}, nor one that ends in .xz or .gz: put it there.")


def _own(path: Path) -> ProblemSet:
    rows = rows_by_id(
        _lines(path, lambda row: (own_problem(row), bool(_MULTIPL_E_KEYS & row.keys()))), lambda row: row[0].id
    )
    problems = tuple(problem for problem, _ in rows.values())
    translated = any(is_translated for _, is_translated in rows.values())
    return ProblemSet(MULTIPL_E if translated else "the user's own file", problems)


def require_checks(name: str, folder: Path) -> None:
    """Refuse a user's own file with a test that checks nothing, or that the problem's own solution does not pass.

    Runs tests, unlike `load`, which every process calls. Raises MissingInput, ServiceError, EnvironmentFailure.
    """

    def require_check(row: Row) -> None:
        problem = own_problem(row)
        results = judge(problem, problem.program(problem.solution)).results if problem.solution else ()
        if results and results[-1].verdict is not Verdict.PASSED:
            raise ValueError(
                f"problem {problem.id!r} has a solution that fails its test: {results[-1].feedback[:200]!r}"
            )
        if problem.language == "python" and (empty := empty_test(problem)) is not None:
            raise ValueError(
                f"problem {problem.id!r} has a test that checks nothing: every program passes {empty[:80]!r}"
            )

    if name.endswith(".jsonl"):
        tuple(_lines(problem_file(name, folder), require_check))


def _lines(path: Path, problem: Callable[[Row], Entry]) -> Iterator[tuple[str, Entry]]:
    return json_rows(path, problem, _INSTRUCTION, line_bytes=_LINE_BYTES, most_bytes=_FILE_BYTES)


def _whole(path: Path, problem: Callable[[Row], Entry]) -> Iterator[tuple[str, Entry]]:
    rows = parse_json(read_text(path, _FILE_BYTES), str(path))
    if not isinstance(rows, list):
        raise MissingInput(f"{path} cannot be read as problems (it is no list): {_INSTRUCTION}.")
    for number, row in enumerate(rows, start=1):
        where = f"Problem {number} of {path}"
        yield where, read_row(row, problem, _INSTRUCTION, where)


def _humaneval(row: Row) -> Problem:
    solution = row.get("canonical_solution")
    return Problem(
        id=row["task_id"],
        language="python",
        prompt=row["prompt"],
        entry_point=row["entry_point"],
        tests=tuple(complete_test(test, row["entry_point"]) for test in _texts(row["test"])),
        # A few tests use a helper that the prompt defines; a bare signature cannot be run.
        preamble=row["prompt"] if parse(row["prompt"]) else "",
        solution=None if solution is None else row["prompt"] + solution,
    )


def _multipl_e(row: Row, language: str) -> Problem:
    rust = language == "rust"
    return Problem(
        id=row["name"],
        language="rust" if rust else "python",
        prompt=row["prompt"],
        entry_point=row["entry_point"],
        tests=split_tests(row["test"]) if rust else (row["test"],),
        preamble="" if rust else row["prompt"],
    )


def _mbpp(row: Row) -> Problem:
    code = row["code"].replace("\r\n", "\n")
    tests = [*_texts(row["test_list"]), *_texts(row.get("challenge_test_list", ()))]
    function = _function_of(code, tests)
    text = row.get("prompt") or row["text"]
    setup = row.get("test_setup_code", "").replace("\r\n", "\n")
    return Problem(
        id=f"MBPP/{row['task_id']}",
        language="python",
        prompt=_signature(function, text),
        entry_point=function.name,
        tests=tuple(f"{setup}\n{test}".strip() for test in tests),
        preamble="\n".join(_texts(row.get("test_imports", ()))),
        solution=code,
    )


def _texts(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _function_of(code: str, tests: list[str]) -> ast.FunctionDef:
    """Return the function under test: of those the solution defines, the one that the first test calls."""
    tree, solution = parse("".join(tests[:1])), definitions(code)
    for name in sorted(called_names(tree) & solution.keys()) if tree else []:
        if isinstance(function := solution[name], ast.FunctionDef):
            return function
    raise ValueError(f"no function of the solution is called by {tests[:1]}")


def _signature(function: ast.FunctionDef, text: str) -> str:
    """Return the beginning of a program in HumanEval's form, from MBPP's sentence and its solution's signature."""
    sentence = text.strip().replace("\\", "\\\\").replace('"""', "'''")
    return f'def {function.name}({ast.unparse(function.args)}):\n    """{sentence}\n    """\n'


_SOURCES: dict[str, _SetFormat] = {
    "humaneval": _SetFormat("HumanEval.jsonl", "MIT", _humaneval),
    "humaneval-hardest50": _SetFormat("humaneval-py_hardest50.jsonl", "MIT", _humaneval),
    "mbpp": _SetFormat("mbpp.jsonl", "CC BY 4.0", _mbpp),
    "mbpp-sanitized": _SetFormat("sanitized-mbpp.json", "CC BY 4.0", _mbpp),
} | {
    f"multipl-e-{name}": _SetFormat(file, MULTIPL_E, partial(_multipl_e, language=language))
    for name, file, language in (
        ("humaneval-python", "humaneval-py.jsonl", "python"),
        ("mbpp-python", "mbpp-py.jsonl", "python"),
        ("humaneval-rust", "humaneval-rs.jsonl", "rust"),
        ("humaneval-rust-hardest50", "humaneval-rs-hardest50.jsonl", "rust"),
        ("mbpp-rust", "mbpp-rs.jsonl", "rust"),
    )
}


def own_problem(row: Row) -> Problem:
    """Return the problem of one line, in the form above, HumanEval's or MBPP's. Raises KeyError, ValueError."""
    if not (name := str(row.get("entry_point", "f"))).isidentifier():
        raise ValueError(f"entry_point {name[:80]!r} is not the name of a function, or of the class of a method")
    if "tests" not in row and "test_list" in row:
        problem = _mbpp(row)
    elif "tests" not in row and "test" in row:
        problem = _humaneval(row)
    else:
        names = Problem.model_fields.keys() & row.keys()
        fields = {name: row[name] for name in names} | {"tests": _texts(row["tests"])}
        problem = Problem.model_validate({"language": "python"} | fields)
    if not problem.tests:
        raise ValueError(f"problem {problem.id!r} has no tests")
    try:
        if problem.language == "rust":
            for test in problem.tests:
                parse_check(test, problem.entry_point)
            return problem
        tests = tuple(complete_test(test, problem.entry_point) for test in problem.tests)
        prompt = parse(problem.program(f"def {problem.entry_point}(): ..."))
        if prompt is not None and (missing := undefined_names(prompt)):
            raise ValueError(f"its prompt uses {min(missing)}, which nothing defines: import it there")
    except ValueError as error:
        raise ValueError(f"problem {problem.id!r} has a check that cannot be judged: {error}") from error
    return problem.model_copy(update={"tests": tests})
