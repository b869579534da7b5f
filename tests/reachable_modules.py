"""Modules of the package that a module imports, itself or through others."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path


def reachable_modules(name: str) -> set[str]:
    """Return the names of the module and of all modules of its package that it reaches by import statements.

    Raises:
        ValueError: a module imports by name at run time, which cannot be followed.
    """
    root, waiting, read = name.split(".")[0], [name], set[str]()
    while waiting:
        module = waiting.pop()
        if module in read or module.split(".")[0] != root:
            continue
        read.add(module)
        waiting += _imported_by(module)
    return read


def _imported_by(module: str) -> Iterator[str]:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), spec.parent)
            names = [source, *(f"{source}.{alias.name}" for alias in node.names)]
        if names == ["importlib"] or "importlib.import_module" in names:
            raise ValueError(f"{module} imports by name at run time")
        yield from filter(_is_module, names)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # Its parent is a module, not a package, so that it is a name in it.
        return False
