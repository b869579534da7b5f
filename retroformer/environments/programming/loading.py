"""Problem sets from their files, each also as `.xz` or `.gz`.

- humaneval: HumanEval.jsonl, as OpenAI publishes it (MIT)
- humaneval-hardest50: humaneval-py_hardest50.jsonl of Reflexion's repository, in the same format (MIT)
- mbpp, mbpp-sanitized: mbpp.jsonl and sanitized-mbpp.json, as Google publishes them (CC BY 4.0)
- multipl-e-{humaneval-python, mbpp-python, humaneval-rust, humaneval-rust-hardest50, mbpp-rust}: the jsonl files of
  Reflexion's repository that were made with MultiPL-E, whose licence forbids training
- NAME.jsonl: a user's own file, see `own_file.py`
"""

import ast
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from retroformer.environments.programming.own_file import own_problem
from retroformer.environments.programming.problems import Problem, ProblemSet
from retroformer.environments.programming.rust_source import split_tests
from retroformer.environments.programming.syntax import called, functions, parsed
from retroformer.errors import MissingInput

_MULTIPL_E = "MultiPL-E's licence: no training"
_MULTIPL_E_KEYS = {"doctests", "stop_tokens"}
_OPENERS: dict[str, Callable[..., IO[str]]] = {"": open, ".xz": lzma.open, ".gz": gzip.open}

Row = dict[str, Any]


class _Source(NamedTuple):
    file: str
    licence: str
    may_train: bool
    problem: Callable[[Row], Problem]


def load(name: str, folder: Path) -> ProblemSet:
    """The set of this name from a folder, or a user's own file where the name ends in .jsonl.

    Raises:
        MissingInput: there is no such set or file, or it is damaged.
    """
    path = problem_file(name, folder)
    if name.endswith(".jsonl"):
        return _own(path)
    source = _SOURCES[name]
    with _shape_of(path):
        problems = tuple(source.problem(row) for row in _rows(path))
    return ProblemSet(name=name, licence=source.licence, may_train=source.may_train, problems=problems)


def problem_file(name: str, folder: Path) -> Path:
    """The file of the set of this name. Raises MissingInput."""
    if name.endswith(".jsonl"):
        if not (folder / name).is_file():
            raise MissingInput(f"There is no file {folder / name} of problems.")
        return folder / name
    if name not in _SOURCES:
        raise MissingInput(f"No problem set {name!r}: known are {', '.join(_SOURCES)}, or a file of your own, .jsonl.")
    return _path(folder, _SOURCES[name].file)


def _own(path: Path) -> ProblemSet:
    with _shape_of(path):
        rows = list(_rows(path))
        problems = tuple(own_problem(row) for row in rows)
    translated = any(_MULTIPL_E_KEYS & row.keys() for row in rows)
    licence = _MULTIPL_E if translated else "the user's own file"
    return ProblemSet(name=path.stem, licence=licence, may_train=not translated, problems=problems)


def _path(folder: Path, file: str) -> Path:
    candidates = [folder / f"{prefix}{file}{ending}" for prefix in ("", "reflexion_") for ending in _OPENERS]
    for path in candidates:
        if path.is_file():
            return path
    raise MissingInput(f"{folder} has no {file}, nor one that ends in .xz or .gz: put it there.")


def _rows(path: Path) -> Iterator[Row]:
    opener = _OPENERS.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as file:
        if path.name.removesuffix(path.suffix if path.suffix in _OPENERS else "").endswith(".json"):
            yield from json.load(file)
            return
        for line in file:
            if line.strip():
                yield json.loads(line)


@contextmanager
def _shape_of(path: Path) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise MissingInput(f"A problem in {path} has no {error}: get a fresh copy, or correct it.") from error
    except (ValueError, TypeError, AttributeError, EOFError, lzma.LZMAError, OSError) as error:
        raise MissingInput(f"{path} cannot be read as problems ({error}): get a fresh copy, or correct it.") from error


def _humaneval(row: Row) -> Problem:
    return Problem(
        id=row["task_id"],
        language="python",
        prompt=row["prompt"],
        entry_point=row["entry_point"],
        tests=(f"{row['test']}\ncheck({row['entry_point']})\n",),
        # A few tests use a helper that the prompt defines.
        preamble=row["prompt"],
        solution=row["prompt"] + row["canonical_solution"],
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
    tests = [*row["test_list"], *row.get("challenge_test_list", ())]
    function = _function_of(code, tests)
    text = row.get("prompt") or row["text"]
    setup = row.get("test_setup_code", "").replace("\r\n", "\n")
    return Problem(
        id=f"MBPP/{row['task_id']}",
        language="python",
        prompt=_signature(function, text),
        entry_point=function.name,
        tests=tuple(f"{setup}\n{test}".strip() for test in tests),
        preamble="\n".join(row.get("test_imports", ())),
        solution=code,
    )


def _function_of(code: str, tests: list[str]) -> ast.FunctionDef:
    """The function that the tests are about: of those the solution defines, the one that the first test calls."""
    tree, defined = parsed(tests[0]), functions(code)
    names = sorted(called(tree) & defined.keys()) if tree else []
    if not names:
        raise ValueError(f"no function of the solution is called by {tests[0]!r}")
    return defined[names[0]]


def _signature(function: ast.FunctionDef, text: str) -> str:
    """The beginning of a program as HumanEval has it, from MBPP's sentence and its solution's signature."""
    sentence = text.strip().replace("\\", "\\\\").replace('"""', "'''")
    return f'def {function.name}({ast.unparse(function.args)}):\n    """{sentence}\n    """\n'


_SOURCES: dict[str, _Source] = {
    "humaneval": _Source("HumanEval.jsonl", "MIT", True, _humaneval),
    "humaneval-hardest50": _Source("humaneval-py_hardest50.jsonl", "MIT", True, _humaneval),
    "mbpp": _Source("mbpp.jsonl", "CC BY 4.0", True, _mbpp),
    "mbpp-sanitized": _Source("sanitized-mbpp.json", "CC BY 4.0", True, _mbpp),
} | {
    f"multipl-e-{name}": _Source(file, _MULTIPL_E, False, partial(_multipl_e, language=language))
    for name, file, language in (
        ("humaneval-python", "humaneval-py.jsonl", "python"),
        ("mbpp-python", "mbpp-py.jsonl", "python"),
        ("humaneval-rust", "humaneval-rs.jsonl", "rust"),
        ("humaneval-rust-hardest50", "humaneval-rs-hardest50.jsonl", "rust"),
        ("mbpp-rust", "mbpp-rs.jsonl", "rust"),
    )
}
