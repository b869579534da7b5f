"""Parser of foreign Python code, which it does not run.

It finds which statements are tests and which names they need, and makes them store the checked value.
"""

import ast
import builtins
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from retroformer.environments.programming.jail.tester import SEEN


def parse(code: str) -> ast.Module | None:
    """Return the syntax tree, or None if the code is not Python."""
    with warnings.catch_warnings():
        # For example an escape sequence that a later Python will refuse: a matter for the author.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def definitions(code: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Return the functions and classes that a module defines at its top level, by name; none if it is not Python."""
    tree = parse(code)
    body = tree.body if tree else []
    return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def called_names(node: ast.AST) -> set[str]:
    return {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


_BUILTINS = frozenset(dir(builtins))


def assertions(text: str, entry_point: str) -> tuple[str, ...]:
    """Return the tests in a model's text: assert statements that parse and call the function, each once, in order.

    Other text is skipped. Reflexion (section 4.3) also filters by the syntax tree; requiring a call of the function is
    our addition, since `assert True` tests nothing.
    """
    tests = (_text_of(statement) for statement in _statements(text) if entry_point in called_names(statement))
    return tuple(dict.fromkeys(text for text in tests if text is not None))


def _text_of(node: ast.AST) -> str | None:
    """Return the code of a syntax tree; None if its nesting is too deep, or a number too large, to write as text."""
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        return None


def _statements(text: str) -> Iterator[ast.Assert]:
    tree = parse(text)
    if tree is not None:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Assert))
        return
    lines = text.splitlines()
    for start, line in enumerate(lines):
        # An assertion in the middle of prose may span several lines: take the shortest run that parses.
        begins = line.find("assert ")
        if begins < 0:
            continue
        for end in range(start + 1, min(start + 20, len(lines)) + 1):
            tree = parse("\n".join([line[begins:], *lines[start + 1 : end]]))
            if tree is not None:
                yield from (node for node in tree.body if isinstance(node, ast.Assert))
                break


def store_value(test: str) -> str:
    """Return the same test, changed to store the compared value under SEEN, so that a failure can show it.

    Only a single assert statement is changed; a comparison with more than two sides is not.
    """
    tree = parse(test)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        return test
    statement = tree.body[0]
    condition = statement.test
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        seen, condition.operand = condition.operand, _stored_value()
    elif isinstance(condition, ast.Compare) and len(condition.comparators) == 1:
        seen, condition.left = condition.left, _stored_value()
    elif isinstance(condition, ast.Compare):
        return test
    else:
        seen, statement.test = condition, _stored_value()
    keep = ast.Assign(targets=[ast.Name(SEEN, ast.Store())], value=seen)
    keep.lineno = statement.lineno
    return _text_of(ast.Module([keep, statement], [])) or test


def _stored_value() -> ast.Name:
    return ast.Name(SEEN, ast.Load())


def controller_test(index: int, test: str, entry_point: str) -> dict[str, Any]:
    """Return a test in the controller's format, with the names that it uses and does not define.

    names: names from the preamble, else functions of the solution, even if named like a built-in.
    modules: standard library modules that the test relies on the solution to import.
    """
    code = store_value(test)
    tree = parse(code) or ast.Module([], [])
    names = undefined_names(tree) | (_used_names(tree) & {entry_point})
    owners = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {node.id for node in owners if isinstance(node, ast.Name)} & names & sys.stdlib_module_names
    return {"index": index, "code": code, "names": sorted(names), "modules": sorted(modules - {entry_point})}


def undefined_names(tree: ast.AST) -> set[str]:
    """Return the names that code uses, and neither defines nor gets from Python."""
    bound = _bound_names(tree)
    return set() if "*" in bound else _used_names(tree) - bound - _BUILTINS


def _used_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def complete_test(test: str, entry_point: str) -> str:
    """Return a test that runs what it defines, as its author meant: what nobody calls is called at the end.

    That is unittest's and pytest's classes, functions without an argument, and HumanEval's `check(candidate)`. Raises
    ValueError for text that is not Python, and for code that cannot run in the sandbox.
    """
    tree = parse(test)
    if tree is None:
        raise ValueError(f"the test {test[:80]!r} is not Python")
    body: list[ast.stmt] = [statement for part in tree.body for statement in _without_runner(part)]
    used = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
    calls, cases = list[str](), set[str]()
    for part in body:
        bases = [ast.unparse(base) for base in part.bases] if isinstance(part, ast.ClassDef) else []
        if isinstance(part, ast.ClassDef) and any(base.endswith("TestCase") or base in cases for base in bases):
            cases.add(part.name)
            calls.append(_UNITTEST.format(name=part.name))
        elif getattr(part, "name", None) not in used:
            calls.append(_call(part, entry_point))
    is_complete = body == tree.body and not any(calls)
    tree = ast.Module([*body, *ast.parse("\n".join(calls)).body], [])
    for node in ast.walk(tree):
        _require_runnable(node)
    return test if is_complete else ast.unparse(tree)


def _require_runnable(node: ast.AST) -> None:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    modules += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
    for module in modules:
        if module.split(".")[0] not in sys.stdlib_module_names:
            raise ValueError(f"the test imports {module}, which the sandbox does not have")
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _EXITS:
        raise ValueError(f"the test ends its process with {ast.unparse(node)}")
    if isinstance(node, ast.FunctionDef) and node.name in _PYTEST_SETUPS:
        raise ValueError(f"the test defines {node.name}, which pytest alone calls")


_EXITS = ("exit", "quit", "sys.exit", "os._exit")
_PYTEST_SETUPS = ("setup_method", "setup_class", "setup_function", "setup_module")
_UNITTEST = """
import unittest
unittest_result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase({name}).run(unittest_result)
assert unittest_result.wasSuccessful(), [*unittest_result.failures, *unittest_result.errors][0][1]
"""


def _without_runner(statement: ast.stmt) -> list[ast.stmt]:
    """Return what a test module runs as a program, without the call of unittest's runner."""
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
        return [inner for part in statement.body for inner in _without_runner(part)]
    return [] if re.match(r"\w+\.main\(", ast.unparse(statement)) else [statement]


def _call(node: ast.stmt, entry_point: str) -> str:
    """Return the code that runs a definition of tests; empty for any other statement."""
    if isinstance(node, ast.ClassDef):
        methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
        return "\n".join(f"{node.name}().{name}()" for name in methods if name.startswith("test"))
    if not isinstance(node, ast.FunctionDef):
        return ""
    if not (node.name.startswith(("check", "test")) or any(isinstance(part, ast.Assert) for part in ast.walk(node))):
        return ""
    required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
    return {0: f"{node.name}()", 1: f"{node.name}({entry_point})"}.get(required, "")


def _bound_names(tree: ast.AST) -> set[str]:
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        # Definitions, exceptions that are caught, captures of `match`, and type parameters.
        elif isinstance(name := getattr(node, "name", None) or getattr(node, "rest", None), str):
            bound.add(name)
    return bound
