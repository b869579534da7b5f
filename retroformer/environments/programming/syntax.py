"""Reading Python that others wrote, without running it."""

import ast
import warnings


def parsed(code: str) -> ast.Module | None:
    """The syntax tree, or None where the code is not Python."""
    with warnings.catch_warnings():
        # Such as an escape sequence that a later Python will refuse: the author's affair.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def functions(code: str) -> dict[str, ast.FunctionDef]:
    """The functions that a module defines at its top level, by name; none where it is not Python."""
    tree = parsed(code)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)} if tree else {}


def called(node: ast.AST) -> set[str]:
    """Names of the functions that are called somewhere in this, by name alone."""
    return {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
