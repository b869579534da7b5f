"""Tests of how a model's text becomes a program and tests, in Python and Rust."""

import ast

import pytest

from retroformer.environments.programming.problems import Problem
from retroformer.environments.programming.python_source import assertions, controller_test, store_value
from retroformer.environments.programming.rust_source import complete_program, parse_test, result_type, split_tests

METHOD = "from typing import List\n\nclass Half:\n    def of(self, xs: List[int]) -> int:\n        "


@pytest.mark.parametrize(
    "body",
    [
        "    if xs:\n        return 2\n    return 0",
        "if xs:\n    return 2\nreturn 0",
        "if xs:\n        return 2\n    return 0",
        "        if xs:\n            return 2\n        return 0",
    ],
)
@pytest.mark.parametrize(
    ("prompt", "name", "call"),
    [
        ("def half(xs):", "half", "half([4])"),
        ('def half(xs):\n\t"""\n\tHalf.\n\t"""\n', "half", "half([4])"),
        (METHOD, "Half", "Half().of([4])"),
    ],
)
def test_a_body_continues_the_prompt_whatever_its_indentation(prompt: str, name: str, call: str, body: str) -> None:
    problem = Problem(id="half", language="python", prompt=prompt, entry_point=name, tests=())
    namespace: dict[str, object] = {}
    exec(problem.program(body), namespace)
    assert eval(call, namespace) == 2


def test_a_class_may_be_restated_and_keeps_the_imports_of_its_prompt() -> None:
    problem = Problem(id="half", language="python", prompt=METHOD, entry_point="Half", tests=())
    namespace: dict[str, object] = {}
    exec(problem.program("class Half:\n    def of(self, xs: List[int]) -> int:\n        return 2"), namespace)
    assert eval("Half().of([4])", namespace) == 2


@pytest.mark.parametrize("said", ['    """Half of x."""\n', ""])
def test_an_answer_is_the_function_or_a_continuation_of_the_prompt(said: str) -> None:
    problem = Problem(
        id="half", language="python", prompt=f"import math\n\ndef half(x):\n{said}", entry_point="half", tests=()
    )

    continued = problem.program("    return math.floor(x / 2)")
    whole = problem.program("def half(x):\n    return math.floor(x / 2)")

    for program in (continued, whole):
        namespace: dict[str, object] = {}
        exec(program, namespace)
        assert eval("half(5)", namespace) == 2


def test_tests_are_extracted_from_a_models_text_each_once() -> None:
    text = """Sure! Here are some tests:
1. assert add(1, 2) == 3
   assert add(
       2, 2) == 4, "four"
assert add(1, 2) == 3
assert True
assert add(1, 2) ==
print(add(5, 5))
Hope that helps; we assert add is right."""

    assert assertions(text, "add") == ("assert add(1, 2) == 3", "assert add(2, 2) == 4, 'four'")
    assert assertions("def test():\n    assert add(0, 0) == 0\n", "add") == ("assert add(0, 0) == 0",)
    assert assertions("\0 assert", "add") == ()


@pytest.mark.parametrize(
    ("test", "code"),
    [
        ("assert f(1) == 2, 'no'", "__seen__ = f(1)\nassert __seen__ == 2, 'no'"),
        ("assert f(1)", "__seen__ = f(1)\nassert __seen__"),
        ("assert not f(1)", "__seen__ = f(1)\nassert not __seen__"),
        ("assert 1 < f(1) < 3", "assert 1 < f(1) < 3"),
        ("x = 1\nassert f(x)", "x = 1\nassert f(x)"),
    ],
)
def test_an_assertion_stores_the_value_that_it_compares(test: str, code: str) -> None:
    assert store_value(test) == code


def test_a_prepared_test_lists_the_names_that_the_solution_must_define() -> None:
    test = "def check(c):\n    import os as o\n    y = [x for x in c(sum)]\n    assert sys.maxsize > o.x\ncheck(sum)"

    assert controller_test(4, test, "sum") == {"index": 4, "code": test, "names": ["sum", "sys"], "modules": ["sys"]}
    assert ast.parse(test)


def test_rust_assertions_are_found_through_brackets_in_strings_and_comments() -> None:
    text = 'fn main() {\n  assert_eq!(f(")", \'(\', r#"]"#), vec![1, 2]); // assert_eq!(\n  assert!(g(1) == (2, 3));\n}'

    first, second = split_tests(text)

    assert parse_test(first) == ('f(")", \'(\', r#"]"#)', "vec![1, 2]")
    assert parse_test(second) == ("g(1)", "(2, 3)")
    with pytest.raises(ValueError, match="is no `assert_eq"):
        parse_test("assert_ne!(f(1), 2);")


def test_adversarial_text_is_scanned_once() -> None:
    """Each text takes very long if every quote or assertion is followed to the end of the text."""
    endless = '"' + '\\"' * 400_000

    assert complete_program(f"fn f() {{ {endless}") == f"fn f() {{ {endless}\n}}"
    assert split_tests("assert!(" * 5_000) == ()
    assert split_tests("assert!(" * 5_000 + "1" + ")" * 5_000) == ("assert!(" * 5_000 + "1" + ")" * 5_000 + ";",)


def test_rust_brackets_are_closed_and_types_are_read() -> None:
    assert complete_program('fn f() { let a = "{"; [') == 'fn f() { let a = "{"; [\n]}'
    assert complete_program("fn f() {}") == "fn f() {}"
    assert result_type("fn f(a: (isize, bool)) -> Option<(isize, f64)> {", "f") == "Option<(isize, f64)>"
    assert result_type("fn f<'a>(a: &'a str) {", "f") == "()"
