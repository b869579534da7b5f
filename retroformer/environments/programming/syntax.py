"""Parser of foreign Python code, which it does not run."""

import ast
import warnings


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
    """Return the names of the functions that are called in this node by plain name."""
    return {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
