"""Tests of the verdicts on Python programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from retroformer.environments.programming import sandbox
from retroformer.environments.programming.judging import check, judge
from retroformer.environments.programming.loading import load
from retroformer.environments.programming.problems import Problem, ProgramJudgement, Verdict
from retroformer.environments.programming.sandbox import Limits
from tests.support.data import DATA, needs_data
from tests.support.killing import children_of

PROBLEMS = DATA / "programming"
needs_problems = needs_data("programming")
TIGHT = Limits(cpu_seconds=1, wall_seconds=60.0)
"""Limits for code that computes: wall-clock time ends nothing, even on a busy machine."""


def _problem(*tests: str, entry_point: str = "f", preamble: str = "") -> Problem:
    return Problem(id="one", language="python", prompt="", entry_point=entry_point, tests=tests, preamble=preamble)


def _outputs(judgement: ProgramJudgement) -> list[tuple[str, str]]:
    return [(test.verdict.value, test.output) for test in judgement.results]


def _all_pass(problems: Sequence[Problem]) -> None:
    solved = [problem for problem in problems if problem.solution is not None]
    with ThreadPoolExecutor(4) as pool:
        judgements = list(pool.map(lambda problem: judge(problem, problem.solution or ""), solved))
    assert solved
    assert [
        problem.id
        for problem, judgement in zip(solved, judgements, strict=True)
        if judgement.verdict is not Verdict.PASSED
    ] == []


@needs_problems
def test_all_solutions_of_humaneval_pass() -> None:
    _all_pass(load("humaneval", PROBLEMS).problems)


@needs_problems
def test_an_eighth_of_the_sanitised_mbpp_solutions_pass() -> None:
    _all_pass(load("mbpp-sanitized", PROBLEMS).problems[::8])


@needs_problems
@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("mbpp-sanitized", 427), ("mbpp", 974)])
def test_every_solution_passes(name: str, count: int) -> None:
    problems = load(name, PROBLEMS).problems

    assert len(problems) == count
    _all_pass(problems)


def test_hidden_tests_are_run_up_to_the_first_that_fails() -> None:
    problem = _problem("assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9")

    judgement = judge(problem, "def f(x):\n    return x")

    assert _outputs(judgement) == [("passed", ""), ("wrong", "2")]
    assert judgement.verdict is Verdict.WRONG
    assert judge(problem, "def f(x):\n    return x * x").verdict is Verdict.PASSED


def test_no_test_is_not_a_success() -> None:
    assert judge(_problem(), "").verdict == Verdict.HARNESS


def test_each_test_of_an_agents_own_is_run_and_reported_separately() -> None:
    program = (
        "seen = []\ndef f(x):\n    seen.append(x)\n"
        "    if x == 2:\n        while True: pass\n"
        "    if x == 3:\n        raise KeyError('three')\n"
        "    if x == 4:\n        raise SystemExit\n    return len(seen)\n"
    )
    tests = ("assert f(1) == 1", "assert f(2) == 1", "assert f(3) == 1", "assert f(4)", "assert f(5) == 6")

    judgement = check(_problem(), program, tests, TIGHT)

    assert [test.feedback for test in judgement.results] == [
        "assert f(1) == 1  # passed",
        "assert f(2) == 1  # failed: no answer within 1 s",
        "assert f(3) == 1  # failed: KeyError: 'three' (line 7)",
        "assert f(4)  # failed: SystemExit: (line 9)",
        "assert f(5) == 6  # failed: came out as 1",
    ]


def test_a_test_that_ends_its_process_is_a_failure_of_that_test_alone() -> None:
    tests = ("assert f(1) == 1", "import os; os._exit(0); f(1)", "assert f(1) == 1")

    judgement = check(_problem(), "def f(x):\n    return x", tests)

    verdicts = [test.verdict for test in judgement.results]
    assert verdicts == [Verdict.PASSED, Verdict.HARNESS, Verdict.PASSED]


def test_a_test_that_never_ends_is_a_timeout_and_the_next_one_is_run() -> None:
    start = time.monotonic()
    ends = judge(_problem("assert f(1) == 1"), "def f(x):\n    return x")
    # A busy machine makes the second test wait, too.
    limits = Limits(cpu_seconds=1, wall_seconds=max(2.0, 20 * (time.monotonic() - start)))

    tests = ("while f(1): pass", "f(1)\nwhile True: pass", "assert f(3) == 4")
    judgement = check(_problem(), "def f(x):\n    return x", tests, limits)

    assert ends.verdict is Verdict.PASSED
    assert [test.verdict for test in judgement.results] == [Verdict.TIMEOUT, Verdict.TIMEOUT, Verdict.WRONG]


def test_a_test_that_disturbs_its_process_fails_alone() -> None:
    disturb = """
import gc, socket
for found in [found for found in gc.get_objects() if isinstance(found, socket.socket)]:
    try:
        found.send(b'x' * 99)
    except OSError:
        pass
"""

    judgement = check(_problem(), "def f(x):\n    return x", (disturb, "assert f(1) == 1"))

    assert [test.verdict for test in judgement.results] == [Verdict.HARNESS, Verdict.PASSED]


def test_a_test_has_no_authority_over_what_is_started() -> None:
    """The test asks on each of its other sockets for a second candidate and for a program with compiler's rights."""
    ask = """
import gc, os, socket, stat, sys
wire = sys.modules["jail.wire"]
testers = [found for found in gc.get_objects() if type(found).__name__ == "Tester"]
needed = {line.fileno() for found in testers for line in (found._channel, found._reports)}
program = {}, ["/bin/sh"], {}, True
obeyed = 0
for descriptor in range(64):
    try:
        if descriptor in needed or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            continue
        line = socket.socket(fileno=os.dup(descriptor))
        line.settimeout(1)
        for order in (("start", ""), ("solution", ""), ("command", *program), ("command", *program, None)):
            wire.send(line, order)
            obeyed += bool(line.recv(1 << 16))
    except OSError:
        pass
os._exit(100 + obeyed)
"""
    ((verdict, output),) = _outputs(check(_problem(), "def f(x):\n    return x", (ask,)))

    assert (verdict, output) == ("harness", "the test's process ended itself with exit status 100 before it reported")


def test_tests_of_an_agents_own_may_start_no_process_and_compute_no_longer_than_programs() -> None:
    tests = ("import os\nos.fork()\nassert f(1) == 1", "f(1)\nwhile True: pass", "len(bytearray(1 << 34))\nf(1)")

    judgement = check(_problem(), "def f(x):\n    return x", tests, TIGHT)

    (fork, loop, memory) = _outputs(judgement)
    assert fork[0] == "wrong"
    assert "PermissionError" in fork[1]
    assert loop == ("timeout", "no answer within 1 s")
    assert memory[0] == "wrong"
    assert "MemoryError" in memory[1]


def test_an_answer_too_deep_to_be_passed_is_the_programs_own_failure() -> None:
    deep = "def f(x):\n    for _ in range(148):\n        x = [x]\n    return x"
    test = "assert f([[[[f(0)]]]]) == 1"

    judgement = judge(_problem(test), deep)

    assert judgement.verdict == Verdict.CRASH


def test_an_unconfined_program_is_not_run_and_the_harness_reports_it() -> None:
    more_files_than_any_file_system_holds = Limits(files=1 << 62)

    judgement = judge(_problem("assert f(1) == 1"), "def f(x):\n    return x", more_files_than_any_file_system_holds)

    assert judgement.verdict == Verdict.HARNESS
    assert "the jail broke down: OSError: [Errno 22] mounting on /work" in judgement.results[0].output


KILL = """
import os
for number in [-1, *range(2, 3000)]:
    try:
        os.kill(number, 9)
    except OSError:
        pass
f(1)
"""
FLOOD = """
import gc, socket, sys
for line in [found for found in gc.get_objects() if isinstance(found, socket.socket)]:
    try:
        {}
    except OSError:
        pass
f(1)
"""


def test_a_test_that_kills_or_floods_everything_within_reach_fails_alone() -> None:
    flood = FLOOD.format("line.sendall(bytes(1 << 20))")
    forge = FLOOD.format("[sys.modules['jail.wire'].send(line, ('passed', '')) for _ in range(9)]")
    tests = (KILL, flood, forge, "assert f(1) == 1", "assert f(2) == 1")

    judgement = check(_problem(), "def f(x):\n    return x", tests)

    assert [test.verdict for test in judgement.results[3:]] == [Verdict.PASSED, Verdict.WRONG]
    assert [test.verdict for test in judgement.results[:2]] == [Verdict.HARNESS, Verdict.HARNESS]


def test_an_endless_value_is_the_programs_own_failure() -> None:
    judgement = judge(_problem("assert list(f(1)) == [1]"), "def f(x):\n    return range(10**12)")

    assert _outputs(judgement) == [("wrong", "MemoryError: ")]


PLAIN_VALUES = (
    "None, True, -7, 10**40, 0.1, -0.0, float('inf'), 1+2j, 'a\\ud800\\u00e9', b'\\xff', bytearray(b'ab'), (), [[]], "
    "{1: {2, 3}, (4,): frozenset({5})}, range(3), [None, (1.5,)]"
)


IMPORTS = "from datetime import *\nfrom decimal import Decimal\nfrom fractions import Fraction"
LIBRARY_VALUES = (
    "Decimal('0.10'), Fraction(-1, 3), Fraction(2), date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4), "
    "datetime(2024, 1, 1, tzinfo=timezone.utc), time(23, 59), timedelta(days=-1, microseconds=1)"
)


def test_plain_values_cross_unchanged_in_both_directions() -> None:
    test = (
        f"{IMPORTS}\nfor value in ({PLAIN_VALUES}, {LIBRARY_VALUES}):\n"
        "    assert f(value) == value and type(f(value)) is type(value), value\n"
        "nan = f(float('nan'))\nassert nan != nan\nassert str(f(-0.0)) == '-0.0'\n"
    )

    assert _outputs(judge(_problem(test), "def f(x):\n    return x")) == [("passed", "")]


def test_values_of_other_kinds_arrive_as_their_content() -> None:
    program = """
import collections, enum
class Colour(enum.IntEnum):
    RED = 3
def f(kind):
    return {
        'counter': collections.Counter('aab'),
        'map': map(abs, [-1]),
        'keys': {1: 2}.keys(),
        'named': collections.namedtuple('P', 'x y')(1, 2),
        'enum': Colour.RED,
        'queue': collections.deque([1]),
    }[kind]
"""
    test = """
import collections
assert f('counter') == {'a': 2, 'b': 1}
assert f('map') != [1] and list(f('map')) == [1]
assert f('keys') == {1} and f('named') == (1, 2) and f('enum') == 3
assert f('queue') == collections.deque([1])
"""

    assert _outputs(judge(_problem(test), program)) == [("passed", "")]


def test_output_of_code_can_be_stored_and_shown() -> None:
    judgement = judge(_problem("assert f(1) == 2"), "def f(x):\n    raise ValueError('a\\0b\\ud800\\x1b[31m\\u00e9')")

    assert judgement.results[0].output == "ValueError: a\\x00b\\ud800\\x1b[31m\u00e9 (line 2)"


def test_a_list_changed_in_place_is_seen_by_the_test() -> None:
    test = "items = [3, 1, 2]\nassert f(items) is None\nassert items == [1, 2, 3]"

    assert judge(_problem(test), "def f(items):\n    items.sort()").verdict is Verdict.PASSED
    assert judge(_problem(test), "def f(items):\n    items = sorted(items)").verdict == Verdict.WRONG


def test_a_test_may_make_and_use_objects_of_the_solutions_classes() -> None:
    program = (
        "class Node:\n    def __init__(self, value, left=None):\n        self.value, self.left = value, left\n"
        "class Solution:\n    def depth(self, node):\n        return 1 + self.depth(node.left) if node else 0\n"
    )
    test = (
        "root = Node(1)\nroot.left = Node(2, left=Node(3))\nassert root.left.value == 2\n"
        "assert Solution().depth(root) == 3"
    )

    assert _outputs(judge(_problem(test, entry_point="Solution"), program)) == [("passed", "")]


def test_an_expected_exception_has_the_right_type() -> None:
    test = (
        "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    assert 'zero' in str(error)\nelse:\n    assert False"
    )

    assert judge(_problem(test), "def f(x):\n    return 1 / x").verdict is Verdict.PASSED
    assert judge(_problem(test), "def f(x):\n    return x").verdict == Verdict.WRONG


def test_passing_a_function_of_the_test_is_refused_with_a_reason() -> None:
    ((verdict, output),) = _outputs(judge(_problem("assert f(lambda x: x)"), "def f(x):\n    return x(1)"))

    assert (verdict, output) == ("harness", "a value of type function cannot be passed to the solution")


def test_a_solution_may_be_called_like_a_built_in_function_and_use_a_file_of_its_own() -> None:
    program = "def sum(a, b):\n    open('note', 'w').write(str(a + b))\n    return int(open('note').read())"

    assert judge(_problem("assert sum(2, 3) == 5", entry_point="sum"), program).verdict is Verdict.PASSED


def test_judgements_are_deterministic() -> None:
    program = "import random\ndef f():\n    return [random.random(), sorted({'a', 'b', 'c'}, key=hash), hash('x')]"

    first, second = (check(_problem(), program, ("assert f() == 0",)).results[0].output for _ in range(2))

    assert first == second
    assert "'a'" in first


def _judge_three(number: int) -> list[bool]:
    problem = _problem(f"assert f({number}) == {number + 1}")
    return [
        judge(problem, f"def f(x):\n    return x + {increment}").verdict is Verdict.PASSED for increment in (1, 2, 1)
    ]


def test_many_threads_and_processes_may_judge_at_once() -> None:
    expected = [[True, False, True]] * 4

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(_judge_three, range(4))) == expected
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(_judge_three, range(4))) == expected


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    problem = _problem("assert f(1) == 1")
    sandbox.require()
    servers = [
        child for child in children_of(os.getpid()) if b"fork_server" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    for server in servers:
        os.kill(server, signal.SIGKILL)

    assert servers
    assert judge(problem, "def f(x):\n    return x").verdict is Verdict.PASSED


def test_without_user_namespaces_the_error_says_what_is_missing() -> None:
    code = "from retroformer.environments.programming import sandbox; sandbox.require()"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    command = ["unshare", "-Ur", "sh", "-c", f'{forbid} && exec "$0" -c "$1"', sys.executable, code]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    if "max_user_namespaces" in result.stderr or "unshare" in result.stderr:
        pytest.skip("this test needs user namespaces, to take them away")
    assert result.returncode == 1
    assert "ServiceError: Candidate code cannot be isolated here: new user namespace: " in result.stderr
    assert "It needs Linux 5.12 or newer and user namespaces: allow them" in result.stderr
