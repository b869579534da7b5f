"""Modules of the package that a module imports, itself or through others."""

import ast
from importlib.util import find_spec
from pathlib import Path


def reachable_modules(name: str) -> set[str]:
    """Return the names of the module and of all modules of its package that it reaches."""
    root, waiting, read = name.split(".")[0], [name], set[str]()
    while waiting:
        module = waiting.pop()
        if module in read:
            continue
        read.add(module)
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            waiting += [imported for imported in names if imported and imported.split(".")[0] == root]
    return read
