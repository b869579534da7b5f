"""Tests of problem sets: their content, how an answer becomes a program, and which sets may be used for training."""

import json
import lzma
from pathlib import Path

import pytest

from retroformer.environments.hotpotqa.data import Folder
from retroformer.environments.programming import extras
from retroformer.environments.programming.environment import Programming
from retroformer.environments.programming.judging import judge
from retroformer.environments.programming.loading import load
from retroformer.environments.programming.problems import Verdict
from retroformer.environments.programming.python_source import parse
from retroformer.environments.registry import fingerprint, taskset
from retroformer.errors import ConfigError, EnvironmentFailure, MissingInput
from retroformer.method.records import Task
from tests.support.data import DATA, needs_data

PROBLEMS = DATA / "programming"

SIZES = {
    "humaneval": 164,
    "humaneval-hardest50": 50,
    "mbpp": 974,
    "mbpp-sanitized": 427,
    "multipl-e-humaneval-python": 161,
    "multipl-e-mbpp-python": 397,
    "multipl-e-humaneval-rust": 156,
    "multipl-e-humaneval-rust-hardest50": 50,
    "multipl-e-mbpp-rust": 354,
}
needs_problems = needs_data("programming")


@needs_problems
@pytest.mark.parametrize("name", SIZES)
def test_a_set_has_all_its_problems_each_with_tests_and_an_id_of_its_own(name: str) -> None:
    problems = load(name, PROBLEMS).problems

    assert len(problems) == SIZES[name]
    assert len({problem.id for problem in problems}) == SIZES[name]
    assert all(problem.tests and problem.entry_point in problem.prompt for problem in problems)


@needs_problems
@pytest.mark.parametrize("name", ["humaneval", "mbpp", "mbpp-sanitized"])
def test_a_python_prompt_is_the_beginning_of_a_program_and_names_no_hidden_test(name: str) -> None:
    for problem in load(name, PROBLEMS).problems:
        assert parse(problem.prompt) is not None
        assert not any(test in problem.prompt for test in problem.tests)


@needs_problems
@pytest.mark.parametrize("name", SIZES)
def test_sets_made_with_multipl_e_are_refused_for_training(name: str) -> None:
    section = Programming(data=PROBLEMS, split=name)

    if name.startswith("multipl-e"):
        with pytest.raises(ConfigError, match=f"{name} is for evaluation only .MultiPL-E's licence"):
            extras.refuse_training(section)
    else:
        extras.refuse_training(section)


def test_a_file_of_multipl_e_is_recognised_under_another_name(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "def a():", "entry_point": "a", "tests": ["assert a()"], "stop_tokens": []}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))

    with pytest.raises(ConfigError, match=r"mine\.jsonl is for evaluation only"):
        extras.refuse_training(Programming(data=tmp_path, split="mine.jsonl"))


@needs_problems
def test_mbpp_rust_completions_stop_before_the_last_bracket_and_are_complete_program() -> None:
    problem = load("multipl-e-mbpp-rust", PROBLEMS).problems[3]

    program = problem.program("    n % 11 == 0")

    assert program.endswith("n % 11 == 0\n}")
    assert len(problem.tests) == 3


def test_a_set_may_be_compressed_or_not(tmp_path: Path) -> None:
    row = {
        "task_id": 1,
        "text": 'Say "hi" \\ """',
        "code": "def hi(name,\r\n        n=2):\r\n    return name * n",
        "test_list": ["assert hi('a') == 'aa'"],
        "test_setup_code": "",
    }
    (tmp_path / "mbpp.jsonl.xz").write_bytes(lzma.compress(json.dumps(row).encode()))

    (problem,) = load("mbpp", tmp_path).problems

    assert problem.prompt == 'def hi(name, n=2):\n    """Say "hi" \\\\ \'\'\'\n    """\n'
    assert (problem.id, problem.entry_point, problem.tests) == ("MBPP/1", "hi", ("assert hi('a') == 'aa'",))


def test_a_published_set_is_known_by_its_file(tmp_path: Path) -> None:
    section, row = Programming(data=tmp_path, split="humaneval"), "{}\n"
    (tmp_path / "HumanEval.jsonl").write_text(row)
    (tmp_path / "notes").write_text("one")
    before = fingerprint(section)
    (tmp_path / "notes").write_text("another")
    assert fingerprint(section) == before
    (tmp_path / "HumanEval.jsonl").write_text(row * 2)
    assert fingerprint(section) != before


def test_the_error_for_an_unknown_set_lists_the_sets(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="No problem set 'humanevil': choose one of humaneval, "):
        load("humanevil", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"has no HumanEval\.jsonl, nor one that ends in \.xz or \.gz: put it there"):
        load("humaneval", tmp_path)
    with pytest.raises(MissingInput, match=r"There is no file .*hard\.jsonl"):
        load("hard.jsonl", tmp_path)


OWN = {"id": "a", "prompt": "def a():", "entry_point": "a", "tests": ["assert a() == 1"]}


def test_a_problem_that_comes_again_counts_once_and_another_of_its_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(OWN)}\n{json.dumps(OWN)}")
    assert len(load("mine.jsonl", tmp_path).problems) == 1

    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(OWN)}\n{json.dumps(OWN | {'tests': ['assert a() == 2']})}")
    with pytest.raises(MissingInput, match=r"Line 2 of .*mine\.jsonl: Line 1 of .*mine\.jsonl has the id 'a', too"):
        load("mine.jsonl", tmp_path)


@pytest.mark.parametrize("identity", ["", "a\0", "a" * 8000])
def test_an_id_that_no_store_holds_is_refused_with_its_line(tmp_path: Path, identity: str) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps(OWN | {"id": identity}))
    with pytest.raises(MissingInput, match=r"Line 1 of .*mine\.jsonl: id "):
        load("mine.jsonl", tmp_path)
    (tmp_path / "questions.jsonl").write_text(json.dumps({"id": identity, "question": "a?", "answer": "b"}))
    with pytest.raises(MissingInput, match=r"Line 1 of .*questions\.jsonl: id "):
        Folder(tmp_path).split("all")


def test_a_problem_that_is_added_to_a_file_leaves_the_conditions_of_the_others(tmp_path: Path) -> None:
    section = Programming(data=tmp_path, split="mine.jsonl")

    def facts(*rows: dict[str, object]) -> tuple[str, Task]:
        (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return fingerprint(section), taskset(section).tasks()[0]

    before = facts(OWN)
    assert before == facts(OWN, OWN | {"id": "b"})
    _, changed = facts(OWN | {"tests": ["assert a() == 2"]})
    assert changed.sha256 != before[1].sha256
    with pytest.raises(EnvironmentFailure, match="has changed since it was played"):
        taskset(section).environment().reset(before[1])


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"id": "a"}', '{"id": "a", "prompt": "", "entry_point": "a", "tests": []}', "1"]
)
def test_a_damaged_file_of_problems_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.jsonl").write_text(text)

    with pytest.raises(MissingInput, match=r"mine\.jsonl"):
        load("mine.jsonl", tmp_path)


HALF: dict[str, object] = {"id": "h", "prompt": "def half(x):", "entry_point": "half"}
CLASS: dict[str, object] = {"id": "c", "prompt": "class Half:\n    def of(self, x):", "entry_point": "Half"}
LEETCODE = "class Half:\n    def of(self, xs: List[int]) -> int:\n        "
RIGHT = "def half(x):\n    return x // 2"
BASE_CASE = """
import unittest
class Base(unittest.TestCase):
    def setUp(self):
        self.four = 4
class HalfTest(Base):
    def test_four(self):
        self.assertEqual(half(self.four), 2)
"""
CASE = "class HalfTest(unittest.TestCase):\n    def test_four(self):\n        self.assertEqual(half(4), 2)\n"
HELPERS = """
async def helper(x):
    match x:
        case [first, *others]:
            return helper(first), others
        case {"x": _, **named} as whole:
            return named, whole
"""
HUMANEVAL = {
    "task_id": "h",
    "prompt": "def half(x):\n",
    "entry_point": "half",
    "canonical_solution": "    return x // 2",
}


@pytest.mark.parametrize(
    "row",
    [
        HALF | {"tests": ["assert half(4) == 2", "assert half(6) == 3"]},
        HALF | {"tests": "for x in range(3):\n    assert half(2 * x) == x"},
        HALF | {"tests": ["def check(candidate):\n    for x in (2, 4):\n        assert candidate(x) == x / 2"]},
        HALF | {"tests": ["def verify(function):\n    assert function(4) == 2\nverify(half)"]},
        HALF | {"tests": ["def test_four():\n    assert half(4) == 2"]},
        HALF | {"tests": ["class TestHalf:\n    def test_four(self):\n        assert half(4) == 2"]},
        HALF | {"tests": [f"import unittest\n{CASE}"]},
        HALF | {"tests": [f"import unittest\n{CASE}\nif __name__ == '__main__':\n    unittest.main()"]},
        HALF | {"tests": ["def same(a, b):\n    assert a == b\ndef test_four():\n    same(half(4), 2)"]},
        HALF | {"tests": ["def check(candidate):\n    if candidate(4) != 2:\n        raise ValueError"]},
        HALF | {"tests": ["def check(f):\n    assert f(4) == 2\ndef test_check():\n    check(half)"]},
        HALF | {"tests": [BASE_CASE]},
        HALF | {"tests": [f"import unittest as ut\n{CASE.replace('unittest', 'ut')}ut.main(verbosity=2)"]},
        HALF
        | {
            "tests": [
                f"import unittest\n{CASE}suite = unittest.defaultTestLoader.loadTestsFromTestCase(HalfTest)\n"
                "unittest.TextTestRunner().run(suite)"
            ]
        },
        HALF | {"tests": ["def test():\n    assert half(4) == 2\nif __name__ == '__main__':\n    test()"]},
        HALF | {"tests": ["try:\n    half('a')\nexcept TypeError:\n    pass\nelse:\n    assert False"]},
        HALF | {"tests": ["assert half(4) in (2, 2.0)", "assert half(0) is not None and not half(0)"]},
        HALF | {"tests": ["assert half(4) == 2"], "prompt": f"{HELPERS}def half(x):"},
        HUMANEVAL | {"test": "METADATA = {}\ndef check(candidate):\n    assert True\n    assert candidate(4) == 2\n"},
        {
            "task_id": 1,
            "text": "Halve.",
            "code": RIGHT,
            "test_setup_code": "FOUR = 4",
            "test_list": ["assert half(FOUR) == 2"],
            "challenge_test_list": ["assert half(1) == 0"],
        },
        {
            "task_id": 1,
            "prompt": "Halve.",
            "code": RIGHT,
            "test_imports": "import math",
            "test_list": "assert half(4) == math.sqrt(4)",
            "test": "import numpy as np\nassert half(4) == 2",
        },
        HUMANEVAL | {"test": ["def check(candidate):\n    assert candidate(4) == 2"]},
    ],
)
def test_own_tests_in_every_known_form_pass_the_right_program_and_fail_a_wrong_one(
    tmp_path: Path, row: dict[str, object]
) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))

    (problem,) = load("mine.jsonl", tmp_path).problems

    assert judge(problem, RIGHT).verdict is Verdict.PASSED
    assert judge(problem, "def half(x):\n    return x").verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (HALF | {"tests": {"input": "4", "output": "2"}}, "valid tuple"),
        (HALF | {"tests": [{"input": "4", "output": "2"}]}, "valid string"),
        (HALF | {"input_output": '{"inputs": ["4"], "outputs": ["2"]}'}, "no 'tests'"),
        (HALF | {"tests": ["assert half(4) == 2", ">>> half(4)\n2"]}, "not Python"),
        *(
            (row | {"entry_point": name}, "is not the name of a function, or of the class")
            for name in ("half(", "", "Half().of", "Half.of", 7)
            for row in (
                HALF | {"tests": ["assert half(4) == 2"]},
                HUMANEVAL | {"test": "def check(f):\n    assert f(4)"},
            )
        ),
        (HALF | {"tests": ["import pytest\ndef test():\n    assert half(4) == 2"]}, "imports pytest"),
        (HALF | {"tests": ["from solution import half\nassert half(4) == 2"]}, "imports solution"),
        (HALF | {"tests": ["assert half(4) == 2\nexit(0)"]}, "ends its process"),
        *(
            (HALF | {"tests": [f"{where}\n  def {name}(self):\n    self.x = 4"]}, f"defines {name}, which pytest alone")
            for where, name in (("class TestHalf:", "setup_method"), ("class TestHalf:", "setup_class"))
        ),
        ({"task_id": 1, "text": "Halve.", "code": RIGHT, "test_list": []}, r"no function .* is called by \[\]"),
        *(
            (HALF | {"tests": ["assert half(4) == 2", test]}, "checks nothing")
            for test in (
                "",
                "half(4)",
                "half(4) == 2",
                "print(half(4) == 2)",
                "assert True",
                "assert (half(4) == 2, 'wrong')",
                "assert 1 + 1 == 2",
                "assert half(4) or True",
                "assert callable(half)",
                "if False:\n    assert half(4) == 2",
                "try:\n    assert half(4) == 2\nexcept Exception:\n    pass",
                "async def test():\n    assert half(4) == 2",
                "def half(x):\n    return 2\nassert half(4) == 2",
                "def compare(first, second):\n    assert first == second",
                "def check(candidate):\n    return\n    assert candidate(4) == 2",
                'def test():\n    """\n    >>> half(4)\n    2\n    """',
                "import unittest\nclass HalfTest(unittest.TestCase):\n    def four(self):\n        assert half(4) == 2",
            )
        ),
        (CLASS | {"tests": ["print(Half().of(4) == 2)"]}, "checks nothing"),
        (
            CLASS | {"prompt": LEETCODE, "tests": ["assert Half().of([4]) == 2"]},
            "prompt uses List, which nothing defines",
        ),
        (
            HALF | {"tests": ["assert half(4) == 3"], "solution": RIGHT},
            "has a solution that fails its test: .*came out as 2",
        ),
        (HUMANEVAL | {"test": "def check(candidate):\n    assert candidate(4) == 3"}, "has a solution that fails"),
        (HUMANEVAL | {"test": "def check(candidate):\n    candidate(4) == 2\ncheck(half)"}, "checks nothing"),
    ],
)
def test_own_tests_that_cannot_fail_or_be_run_are_refused_with_line_and_problem(
    tmp_path: Path, row: dict[str, object], why: str
) -> None:
    good = CLASS | {"tests": ["assert Half().of(4) == 2"]}
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n")

    with pytest.raises(MissingInput, match=rf"Line 2 of .*mine\.jsonl.*{why}"):
        extras.require_machine(Programming(data=tmp_path, split="mine.jsonl"))


def test_loading_own_problems_runs_no_tests_so_that_each_process_may_do_it(tmp_path: Path) -> None:
    row = HALF | {"tests": ["half(4)"]}  # Only a run could tell that it checks nothing.
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))

    assert load("mine.jsonl", tmp_path).problems[0].tests == ("half(4)",)
