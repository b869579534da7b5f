"""Parser of foreign Python code, which it does not run.

It finds which statements are tests and which names they need, and makes them store the checked value.
"""

import ast
import builtins
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from retroformer.environments.programming.jail.tester import SEEN


def parsed(code: str) -> ast.Module | None:
    """Return the syntax tree, or None if the code is not Python."""
    with warnings.catch_warnings():
        # For example an escape sequence that a later Python will refuse: a matter for the author.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def functions(code: str) -> dict[str, ast.FunctionDef]:
    """Return the functions that a module defines at its top level, by name; none if it is not Python."""
    tree = parsed(code)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)} if tree else {}


def defined(code: str) -> set[str]:
    """Return the names of the functions and classes that a module defines at its top level."""
    tree = parsed(code)
    body = tree.body if tree else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def called(node: ast.AST) -> set[str]:
    return {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


_BUILTINS = frozenset(dir(builtins))


def assertions(text: str, entry_point: str) -> tuple[str, ...]:
    """Return the tests in a model's text: assert statements that parse and call the function, each once, in order.

    Other text is skipped. Reflexion (section 4.3) also filters by the syntax tree; requiring a call of the function is
    our addition, since `assert True` tests nothing.
    """
    tests = (_text_of(statement) for statement in _statements(text) if entry_point in called(statement))
    return tuple(dict.fromkeys(text for text in tests if text is not None))


def _text_of(node: ast.AST) -> str | None:
    """Return the code of a syntax tree; None if its nesting is too deep, or a number too large, to write as text."""
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        return None


def _statements(text: str) -> Iterator[ast.Assert]:
    tree = parsed(text)
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
            tree = parsed("\n".join([line[begins:], *lines[start + 1 : end]]))
            if tree is not None:
                yield from (node for node in tree.body if isinstance(node, ast.Assert))
                break


def keeping_value(test: str) -> str:
    """Return the same test, changed to store the compared value under SEEN, so that a failure can show it.

    Only a single assert statement is changed; a comparison with more than two sides is not.
    """
    tree = parsed(test)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        return test
    statement = tree.body[0]
    condition = statement.test
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        seen, condition.operand = condition.operand, _seen()
    elif isinstance(condition, ast.Compare) and len(condition.comparators) == 1:
        seen, condition.left = condition.left, _seen()
    elif isinstance(condition, ast.Compare):
        return test
    else:
        seen, statement.test = condition, _seen()
    keep = ast.Assign(targets=[ast.Name(SEEN, ast.Store())], value=seen)
    keep.lineno = statement.lineno
    return _text_of(ast.Module([keep, statement], [])) or test


def _seen() -> ast.Name:
    return ast.Name(SEEN, ast.Load())


def prepared(index: int, test: str, entry_point: str) -> dict[str, Any]:
    """Return a test in the controller's format, with the names that it uses and does not define.

    names: names from the preamble, else functions of the solution, even if named like a built-in.
    modules: standard library modules that the test relies on the solution to import.
    """
    code = keeping_value(test)
    tree = parsed(code) or ast.Module([], [])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    names = (used - _bound(tree) - _BUILTINS) | (used & {entry_point})
    owners = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {node.id for node in owners if isinstance(node, ast.Name)} & names & sys.stdlib_module_names
    return {"index": index, "code": code, "names": sorted(names), "modules": sorted(modules - {entry_point})}


def _bound(tree: ast.AST) -> set[str]:
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return bound
