"""Tests of the public API: its listing is complete, all of it is documented and typed, and importing it is fast."""

import inspect
import re
import subprocess
import sys
import typing

import pytest

import retroformer
from tests.support.runs import ROOT

HEAVY = {"torch", "pydantic", "openai", "sqlalchemy", "pyarrow", "numpy"}


def public_functions() -> dict[str, typing.Any]:
    """Return the public functions and the public methods of public classes, by name."""
    functions: dict[str, typing.Any] = {}
    for name in retroformer.__all__:
        member = getattr(retroformer, name)
        if inspect.isfunction(member):
            functions[name] = member
            continue
        own = {
            f"{name}.{method}": function for method, function in vars(member).items() if inspect.isfunction(function)
        }
        functions |= {full: function for full, function in own.items() if not full.split(".")[1].startswith("_")}
    return functions


def test_the_page_lists_exactly_the_public_names() -> None:
    listed = re.findall(r"^::: retroformer\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(retroformer.__all__)


def test_the_public_names_are_sorted_and_exist() -> None:
    assert retroformer.__all__ == sorted(retroformer.__all__)
    assert all(getattr(retroformer, name).__module__.startswith("retroformer.") for name in retroformer.__all__)
    assert set(retroformer.__all__) <= set(dir(retroformer))
    with pytest.raises(AttributeError, match="no attribute 'Coach'"):
        retroformer.Coach  # noqa: B018


def test_everything_public_has_a_docstring_and_annotations() -> None:
    assert all(inspect.getdoc(getattr(retroformer, name)) for name in retroformer.__all__)
    functions = public_functions()
    assert {"Reflector.improve", "read_cases"} <= set(functions)
    for name, function in functions.items():
        assert inspect.getdoc(function), name
        arguments = [each for each in inspect.signature(function).parameters if each != "self"]
        assert {*arguments, "return"} <= set(typing.get_type_hints(function)), name
    assert (ROOT / "retroformer/py.typed").is_file()


def test_importing_the_package_loads_no_library_and_reading_cases_no_torch() -> None:
    code = f"import sys, retroformer as rf\nprint({HEAVY!r} & set(sys.modules))\n"
    code += "rf.Reflector, rf.read_cases, rf.Case\nprint({'torch', 'transformers', 'openai'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nset()\n"
