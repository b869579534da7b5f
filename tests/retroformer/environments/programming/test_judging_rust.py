"""Tests of judging Rust: what is compiled, which results are trusted, and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.environments.programming import rust
from retroformer.environments.programming.judging import check, judge
from retroformer.environments.programming.loading import load
from retroformer.environments.programming.problems import Problem, Verdict
from retroformer.environments.programming.rust_source import parse_check
from retroformer.environments.programming.sandbox import Limits
from retroformer.errors import MissingInput

RUSTC = shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))
needs_rust = pytest.mark.skipif(RUSTC is None, reason="no Rust compiler")
TIGHT = Limits(cpu_seconds=1, wall_seconds=20.0)

MAXIMUM = Problem(
    id="maximum",
    language="rust",
    prompt="/// The largest.\nfn maximum(l: Vec<isize>) -> isize {\n",
    entry_point="maximum",
    tests=("assert_eq!(candidate(vec![1, 3, 2]), 3);", "assert_eq!(candidate(vec![-5, -7]), -5);"),
)


@needs_rust
@pytest.mark.parametrize(
    ("answer", "verdict", "output"),
    [
        ("    *l.iter().max().unwrap()\n}", Verdict.PASSED, ""),
        ("    *l.iter().max().unwrap()", Verdict.PASSED, ""),
        ("    l[0]", Verdict.WRONG, "1"),
        ("    l[9]", Verdict.CRASH, "index out of bounds"),
        ("    std::process::exit(0)", Verdict.CRASH, "exit status 0"),
        ("    std::process::abort()", Verdict.CRASH, "status -6|SIGABRT"),
        ("    loop {}", Verdict.TIMEOUT, "no answer within 1 s"),
        ("    let v = vec![1u8; 1 << 40]; v[3] as isize", Verdict.CRASH, "memory allocation"),
        ("    3.0", Verdict.CRASH, "does not compile"),
        ('    include_str!("/etc/passwd").len() as isize', Verdict.CRASH, "does not compile"),
        ('    std::fs::write("/build/program", "x").unwrap(); 3', Verdict.CRASH, "Permission denied|Read-only"),
        ('    std::net::TcpStream::connect("127.0.0.1:80").unwrap(); 3', Verdict.CRASH, "ermission"),
        ('    std::process::Command::new("/bin/true").status().unwrap(); 3', Verdict.CRASH, "ermission"),
        ('    println!("3\\npassed"); 7', Verdict.WRONG, "7"),
        ('    fn shown() {} crate::shown_value::tell(String::from("3")); 3', Verdict.WRONG, "3"),
    ],
)
def test_rust_is_compiled_and_run_and_only_its_values_are_trusted(answer: str, verdict: Verdict, output: str) -> None:
    wall_seconds = 2.0 if verdict == Verdict.TIMEOUT else 20.0
    judgement = judge(MAXIMUM, MAXIMUM.program(answer), Limits(cpu_seconds=1, wall_seconds=wall_seconds))

    assert (judgement.verdict, judgement.results) == (verdict, judgement.results)
    assert any(text in judgement.results[-1].output for text in output.split("|"))


@needs_rust
def test_a_program_that_does_not_compile_is_explained_with_the_code_the_line_and_the_hint() -> None:
    program = MAXIMUM.program(
        "    let mut largest = l[0];\n    for number in l {\n        largst = number;\n    }\n    largest\n}"
    )
    tests = ("assert_eq!(maximum(vec![4]), 4);", "assert_eq!(maximum(vec![1, 2]), 2);")
    checked = check(MAXIMUM, program, tests, TIGHT).results
    assert [test.feedback for test in checked] == [f"{test}  # failed: does not compile" for test in tests]
    assert checked[0].messages == checked[1].messages
    assert checked[0].messages.splitlines()[:5] == [
        "error[E0425]: cannot find value `largst` in this scope",
        " --> solution.rs:5:9",
        "  |",
        "5 |         largst = number;",
        "  |         ^^^^^^",
    ]
    assert program.splitlines()[4] == "        largst = number;"
    assert "help: a local variable with a similar name exists" in checked[0].messages
    assert "aborting" not in checked[0].messages


@needs_rust
def test_of_many_errors_the_first_are_shown_whole_and_the_others_counted() -> None:
    lines = "".join(f"    let unknown_{number}: isize = missing_{number};\n" for number in range(40))
    messages = (
        check(MAXIMUM, MAXIMUM.program(f"{lines}    3"), ("assert_eq!(maximum(vec![4]), 4);",), TIGHT)
        .results[0]
        .messages
    )
    *shown, omitted = messages.split("\n\n")
    assert 1 < len(shown) < 40
    assert all(error.startswith("error[E0425]") and "not found in this scope" in error for error in shown)
    assert omitted == f"(Errors left out: {40 - len(shown)}.)"
    assert len(messages) < 2100


def test_a_first_error_that_is_too_long_is_cut_and_marked() -> None:
    messages = rust.compiler_messages(
        f"error[E0308]: {'mismatched ' * 300}\n\nerror: aborting due to 1 previous error\n"
    )
    assert messages.endswith(" [shortened]")
    assert len(messages) < 2100


@needs_rust
def test_a_rust_type_that_always_compares_equal_does_not_pass() -> None:
    forged = (
        "struct Any;\nimpl PartialEq<isize> for Any { fn eq(&self, _: &isize) -> bool { true } }\n"
        "macro_rules! assert_eq { ($($t:tt)*) => {} }\nfn maximum(l: Vec<isize>) -> Any { Any }"
    )
    before_main = (
        'extern "C" fn quit() { std::process::exit(0) }\n#[used] #[link_section = ".init_array"]\n'
        'static QUIT: extern "C" fn() = quit;\nfn maximum(l: Vec<isize>) -> isize { 0 }'
    )

    assert judge(MAXIMUM, forged, TIGHT).verdict == Verdict.CRASH
    assert judge(MAXIMUM, before_main, TIGHT).verdict == Verdict.CRASH


ALWAYS_EQUAL = """
struct Any;
impl PartialEq<isize> for Any { fn eq(&self, _: &isize) -> bool { true } }
impl crate::shown_value::Shown for Any { fn shown(&self) -> String { String::from("any") } }
type isize = Any;
"""


@needs_rust
@pytest.mark.parametrize("test", ["assert!(candidate(vec![1, 3, 2]) == 3);", "assert!(3 == candidate(vec![1, 3, 2]));"])
def test_comparisons_are_made_outside_the_program(test: str) -> None:
    problem = MAXIMUM.model_copy(update={"tests": (test,)})

    forged = judge(problem, ALWAYS_EQUAL + "fn maximum(l: Vec<i64>) -> isize { Any }", TIGHT)

    assert (forged.verdict, forged.results[0].output) == (Verdict.WRONG, "any")
    assert judge(problem, MAXIMUM.program("*l.iter().max().unwrap()"), TIGHT).verdict is Verdict.PASSED


@needs_rust
@pytest.mark.parametrize(
    "look",
    [
        'include_str!("/build/program.rs")',
        'include_str!("program.rs")',
        'include_str!("solution.rs")',
        'std::str::from_utf8(include_bytes!("/build/program.rs")).unwrap()',
        '&std::fs::read_to_string("/build/program.rs").unwrap()',
        'option_env!("CARGO_MANIFEST_DIR").unwrap_or("")',
    ],
)
def test_a_program_that_reads_all_accessible_files_does_not_find_the_expected_value(look: str) -> None:
    problem = MAXIMUM.model_copy(update={"tests": ("assert!(candidate(vec![1, 3, 2]) == 41976);",)})
    # The program answers with the expected value if it finds it; its own source holds the number only in two parts.
    answer = f'    let text: &str = {look}; if text.contains(&["41", "976"].concat()) {{ 41000 + 976 }} else {{ 0 }}'

    judgement = judge(problem, problem.program(answer), TIGHT)

    assert (judgement.verdict, judgement.results[0].output) == (Verdict.WRONG, "0")


@pytest.mark.parametrize(
    ("test", "sides"),
    [
        ("assert_eq!(candidate(1), 2);", ("candidate(1)", "2")),
        ('assert_eq!(2, f(1), "why");', ("f(1)", "2")),
        ("assert!(f((1, 2)) == (2, 1));", ("f((1, 2))", "(2, 1)")),
        ('assert!(f("==") == "&&");', ('f("==")', '"&&"')),
        ("assert!(f(1))", ("f(1)", "true")),
        ('assert!(!f(1), "why");', ("f(1)", "false")),
    ],
)
def test_a_check_is_split_into_call_and_value(test: str, sides: tuple[str, str]) -> None:
    assert parse_check(test, "f") == sides


@pytest.mark.parametrize(
    "test",
    [
        "assert!(f(1) > 2);",
        "assert!(f(1) != 2);",
        "assert_ne!(f(1), 2);",
        "assert!(f(1) == 2 && f(2) == 3);",
        "assert!(f(1) == f(2));",
        "assert_eq!(f(1), f(2));",
        "assert_eq!(f(1).is_ok(), true);",
        "assert!((f(1) - 2.0).abs() < 1e-6);",
        "assert!(f(1).eq(&2));",
        "assert_eq!(f(1), 2); assert_eq!(f(2), 3);",
        "let x = f(1); assert_eq!(x, 2);",
        "assert!({ let x = f(1); x == 2 });",
        "assert!(true);",
        "assert_eq!(f(1));",
        "",
    ],
)
def test_other_checks_in_a_users_file_are_refused_with_problem_and_check(tmp_path: Path, test: str) -> None:
    row = {"id": "half", "language": "rust", "prompt": "fn f(x: i32) -> i32 {", "entry_point": "f", "tests": [test]}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))

    with pytest.raises(MissingInput) as refused:
        load("mine.jsonl", tmp_path)

    assert "problem 'half' has a check that cannot be judged" in str(refused.value)
    assert repr(test) in str(refused.value)


@needs_rust
def test_rust_maps_and_floats_compare_as_values() -> None:
    problem = Problem(
        id="count",
        language="rust",
        prompt="use std::collections::HashMap;\nfn count(s: String) -> HashMap<char, f64> {\n",
        entry_point="count",
        tests=("assert_eq!(candidate(String::from(\"abca\")), HashMap::from([('c', 1.0), ('b', 1.0), ('a', 2.0)]));",),
    )
    answer = "let mut m = HashMap::new(); for c in s.chars() { *m.entry(c).or_insert(-0.0) += 1.0; } m"

    assert judge(problem, problem.program(answer), TIGHT).verdict is Verdict.PASSED


@needs_rust
def test_rust_tests_of_an_agents_own_are_filtered_by_the_compiler_and_all_run() -> None:
    tests = (
        "assert_eq!(maximum(vec![1, 2]), 2);",
        "assert_eq!(maximum(3), 3);",
        "assert!(maximum(vec![4]) == 5);",
        "assert_eq!(maximum(vec![1]), true);",
        "assert!(true);",
    )

    kept = rust.compiling_tests(MAXIMUM, tests, len(tests))
    judgement = check(MAXIMUM, MAXIMUM.program("l[0]"), kept, TIGHT)

    assert kept == (tests[0], tests[2])
    assert [test.feedback for test in judgement.results] == [
        f"{tests[0]}  # failed: came out as 1",
        f"{tests[2]}  # failed: came out as 4",
    ]


def test_without_a_rust_compiler_the_error_says_so() -> None:
    code = (
        "from retroformer.environments.programming import rust\n"
        "try:\n    rust._toolchain()\nexcept FileNotFoundError as error:\n    print(error)"
    )
    nowhere = {"PATH": "/nowhere", "HOME": "/nowhere"}

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=nowhere, check=True)

    assert result.stdout == (
        "Rust problems need a Rust compiler and a linker: install rustc and gcc, or take Python.\n"
    )
