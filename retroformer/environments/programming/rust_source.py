"""Rust tests as text, and the programs generated from them.

A test is `assert_eq!(CALL, VALUE);`, `assert!(CALL == VALUE);`, `assert!(CALL);` or `assert!(!CALL);`. Two programs are
generated: one has the judged code and the calls, and prints the results; the other has only the expected values. The
judged code never has access to the expected values, neither as values nor as text that it could include at compile
time, so exiting, panicking or a custom `PartialEq` cannot make an answer right.
"""

import re
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from retroformer.environments.programming.jail.supervisor import ANSWER_DESCRIPTOR

PROGRAM = "program.rs"
"""Name of the file with `main`."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_RAW = re.compile(r'r(#*)"')
_STRING = re.compile(r"""b?"(?:\\.|[^"\\])*+""" r'(")?', re.DOTALL)
_CHARACTER_OR_COMMENT = re.compile(r"""b?'(?:\\(?:u\{\w+\}|x\w\w|.)|[^'\\])'|//[^\n]*+""", re.DOTALL)
_OPERATORS = re.compile(r"<<=|>>=|[=!<>]=|=>|&&|\|\|")


_ASSERTION = re.compile(r"\bassert(?:_eq)?!\s*\(")
_WHOLE_ASSERTION = re.compile(r"\s*assert(_eq)?!\s*\(")
_UNCLOSED = 50
"""Maximum number of unterminated assertions skipped in a text; each is searched to the end of the text."""
FORMS = "`assert_eq!(CALL, VALUE);`, `assert!(CALL == VALUE);`, `assert!(CALL);` or `assert!(!CALL);`"


class RustTest(NamedTuple):
    """Call in a test, and its expected value."""

    call: str
    value: str


def split_tests(text: str) -> tuple[str, ...]:
    """Return the assertions in a model's text, or in a test program's `main`, each once, in order."""
    assertions: dict[str, None] = {}
    at = unclosed = 0
    while unclosed <= _UNCLOSED and (match := _ASSERTION.search(text, at)):
        end = _closing(text, match.end() - 1)
        if end is None:
            unclosed += 1
            at = match.end()
        else:
            assertions[text[match.start() : end + 1] + ";"] = None
            at = end
    return tuple(assertions)


def parse_test(test: str) -> RustTest:
    """Return the two sides of one assertion. Raises ValueError if the text is not an assertion."""
    match = _WHOLE_ASSERTION.match(test)
    end = _closing(test, match.end() - 1) if match else None
    if match is None or end is None or test[end + 1 :].strip() not in ("", ";"):
        raise ValueError(f"{test!r} is no {FORMS}")
    sides = _arguments(test[match.end() : end])
    if match[1] and len(sides) >= 2:
        return RustTest(sides[0], sides[1])
    if match[1] or not sides:
        raise ValueError(f"{test!r} is no {FORMS}")
    operators = _operators(sides[0])
    if [operator for operator, _ in operators] == ["=="]:
        at = operators[0][1]
        return RustTest(sides[0][:at].strip(), sides[0][at + 2 :].strip())
    if sides[0].startswith("!") and not operators:
        return RustTest(sides[0][1:].strip(), "false")
    return RustTest(sides[0], "true")


def parse_check(test: str, entry_point: str) -> RustTest:
    """Return the call and the expected value of a check that decides on a program; the call may be on either side.

    Raises ValueError.
    """
    sides = parse_test(test)
    if not is_call(sides.call, entry_point):
        sides = RustTest(sides.value, sides.call)
    if not is_call(sides.call, entry_point) or calls(sides.value, entry_point):
        raise ValueError(f"{test!r} is no {FORMS}, where CALL is a call of {entry_point} and VALUE has none")
    return sides


def _operators(text: str) -> list[tuple[str, int]]:
    """Return comparison and similar operators outside all brackets, with their positions."""
    operators, end = list[tuple[str, int]](), 0
    for at, _, closing in _scan(text):
        if at >= end and not closing and (match := _OPERATORS.match(text, at)):
            operators.append((match[0], at))
            end = match.end()
    return operators


def _scan(text: str, at: int = 0) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each character outside strings and comments, with its position and the brackets that are open after it.

    An open bracket is given as the one that closes it. A closing bracket that does not match is like any character.
    """
    closing: list[str] = []
    while at < len(text):
        after = _skip(text, at)
        if after > at:
            at = after
            continue
        if text[at] in _CLOSING:
            closing.append(_CLOSING[text[at]])
        elif closing and text[at] == closing[-1]:
            closing.pop()
        yield at, text[at], closing
        at += 1


def _skip(text: str, at: int) -> int:
    """Return the end of the string, character or comment that begins at `at`; `at` itself if none does."""
    if text[at] not in "rb\"'/":
        return at
    if raw := _RAW.match(text, at):
        end = text.find('"' + raw[1], raw.end())
        return at if end < 0 else end + 1 + len(raw[1])
    if at < _endless(text) and (string := _STRING.match(text, at)):
        if string[1]:
            return string.end()
        _open[text] = at
        return at
    match = _CHARACTER_OR_COMMENT.match(text, at)
    return match.end() if match else at


_open: dict[str, int] = {}
"""Start of an unterminated string per text. Each later quote is escaped inside it, so it has no end either."""


def _endless(text: str) -> int:
    if len(_open) > 1 and text not in _open:
        _open.clear()
    return _open.get(text, len(text))


def _closing(text: str, start: int) -> int | None:
    """Return the position of the bracket that closes the one at `start`."""
    return next((at for at, _, closing in _scan(text, start) if not closing), None)


def _arguments(text: str) -> list[str]:
    """Split at the commas outside all brackets."""
    commas = [at for at, character, closing in _scan(text) if character == "," and not closing]
    parts = (text[start + 1 : end] for start, end in pairwise([-1, *commas, len(text)]))
    return [part.strip() for part in parts if part.strip()]


def complete_program(program: str) -> str:
    """Return the program with its open brackets closed: some completions stop before the last one."""
    closing = next((closing for _, _, closing in deque(_scan(program), maxlen=1)), None)
    return f"{program}\n{''.join(reversed(closing))}" if closing else program


def result_type(signature: str, entry_point: str) -> str:
    """Return the function's type as the prompt declares it; `()` if it declares none. Raises ValueError."""
    match = re.search(rf"\bfn\s+{re.escape(entry_point)}\b[^(]*", signature)
    end = _closing(signature, match.end()) if match else None
    if end is None:
        raise ValueError(f"the prompt does not declare {entry_point!r}")
    declared = re.match(r"\s*->\s*([^{]+)", signature[end + 1 :])
    return declared[1].strip() if declared else "()"


# Values as text, the same for equal values: maps and sets sorted, no minus before a zero.
_SHOW = """
mod shown_value {
    use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
    pub trait Shown { fn shown(&self) -> String; }
    macro_rules! as_debug { ($($kind:ty),*) => { $(impl Shown for $kind {
        fn shown(&self) -> String { format!("{:?}", self) } })* } }
    as_debug!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char, str, String, ());
    macro_rules! as_float { ($($kind:ty),*) => { $(impl Shown for $kind {
        fn shown(&self) -> String { format!("{:?}", self + 0.0) } })* } }
    as_float!(f32, f64);
    fn joined<'a, T: Shown + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<String> {
        items.map(|item| item.shown()).collect() }
    fn listed<'a, T: Shown + 'a>(items: impl Iterator<Item = &'a T>) -> String {
        format!("[{}]", joined(items).join(", ")) }
    fn sorted(mut items: Vec<String>) -> String { items.sort(); format!("{{{}}}", items.join(", ")) }
    impl<T: Shown> Shown for [T] { fn shown(&self) -> String { listed(self.iter()) } }
    impl<T: Shown> Shown for Vec<T> { fn shown(&self) -> String { self.as_slice().shown() } }
    impl<T: Shown, const N: usize> Shown for [T; N] { fn shown(&self) -> String { self.as_slice().shown() } }
    impl<T: Shown> Shown for VecDeque<T> { fn shown(&self) -> String { listed(self.iter()) } }
    impl<T: Shown + ?Sized> Shown for &T { fn shown(&self) -> String { (**self).shown() } }
    impl<T: Shown + ?Sized> Shown for Box<T> { fn shown(&self) -> String { (**self).shown() } }
    impl<T: Shown> Shown for Option<T> { fn shown(&self) -> String {
        match self { Some(value) => format!("Some({})", value.shown()), None => "None".to_string() } } }
    impl<T: Shown, E: Shown> Shown for Result<T, E> { fn shown(&self) -> String {
        match self {
            Ok(value) => format!("Ok({})", value.shown()),
            Err(value) => format!("Err({})", value.shown()) } } }
    impl<K: Shown, V: Shown> Shown for HashMap<K, V> { fn shown(&self) -> String {
        sorted(self.iter().map(|(key, value)| format!("{}: {}", key.shown(), value.shown())).collect()) } }
    impl<K: Shown, V: Shown> Shown for BTreeMap<K, V> { fn shown(&self) -> String {
        sorted(self.iter().map(|(key, value)| format!("{}: {}", key.shown(), value.shown())).collect()) } }
    impl<T: Shown> Shown for HashSet<T> { fn shown(&self) -> String { sorted(joined(self.iter())) } }
    impl<T: Shown> Shown for BTreeSet<T> { fn shown(&self) -> String { sorted(joined(self.iter())) } }
    macro_rules! as_tuple { ($($name:ident $index:tt),*) => { impl<$($name: Shown),*> Shown for ($($name,)*) {
        fn shown(&self) -> String { format!("({})", [$(self.$index.shown()),*].join(", ")) } } } }
    as_tuple!(A 0);
    as_tuple!(A 0, B 1);
    as_tuple!(A 0, B 1, C 2);
    as_tuple!(A 0, B 1, C 2, D 3);
    as_tuple!(A 0, B 1, C 2, D 3, E 4);
    as_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
    pub fn tell(text: String) {
        use std::io::Write;
        use std::os::fd::FromRawFd;
        let mut file = unsafe { std::fs::File::from_raw_fd(DESCRIPTOR) };
        file.write_all(text.as_bytes()).unwrap();
        std::process::exit(0);
    }
}
""".replace("DESCRIPTOR", str(ANSWER_DESCRIPTOR))
_IMPORTS = "#[allow(unused_imports)] use std::collections::*;"
_QUIET = "#![allow(warnings)]\n"


def answer_files(program: str, entry_point: str, calls: list[str], kind: str) -> dict[str, str]:
    """Return the files of a program that, given an index as argument, prints the result of that call as a `kind`.

    The judged code begins the file `solution.rs`, so the compiler's line numbers are those of the code.
    """
    arms = "\n".join(
        f"        {index} => {{\n            let value: {type_of(call, entry_point, kind)} = {call};\n"
        "            crate::shown_value::tell(crate::shown_value::Shown::shown(&value))\n        }"
        for index, call in enumerate(calls)
    )
    solution = f"""{program}
{_IMPORTS}
pub fn answer(number: usize) {{
    let candidate = {entry_point};
    match number {{
{arms}
        _ => {{}}
    }}
}}
"""
    main = "fn main() { solution::answer(std::env::args().nth(1).unwrap().parse().unwrap()) }"
    return {PROGRAM: f"{_QUIET}{_SHOW}\nmod solution;\n{main}\n", "solution.rs": solution}


def expectation_files(values: list[tuple[str, str]], comparable: bool = False) -> dict[str, str]:
    """Return the file of a program that prints all expected values, given with their types, one per line.

    comparable: a value may be of any type that compares with its type, as a literal does with a String.
    """
    lines = "\n".join(
        f"    told.push(comparable::<{kind}, _>({value}));"
        if comparable and kind != "_"
        else f"    told.push({{ let value: {kind} = {value}; shown_value::Shown::shown(&value) }});"
        for value, kind in values
    )
    main = f"""{_QUIET}{_SHOW}
{_IMPORTS}
fn comparable<K: PartialEq<V>, V: shown_value::Shown>(value: V) -> String {{ value.shown() }}
fn main() {{
    let mut told: Vec<String> = Vec::new();
{lines}
    shown_value::tell(told.join("\\n"));
}}
"""
    return {PROGRAM: main}


def calls(call: str, entry_point: str) -> bool:
    """Return True if the text calls the function: a test that does not call it checks nothing."""
    return re.search(rf"\b(?:candidate|{re.escape(entry_point)})\s*\(", call) is not None


def is_call(expression: str, entry_point: str) -> bool:
    """Return True if the text is only a call of the function."""
    match = re.match(rf"\s*(?:candidate|{re.escape(entry_point)})\s*\(", expression)
    return match is not None and _closing(expression, match.end() - 1) == len(expression.rstrip()) - 1


def type_of(call: str, entry_point: str, kind: str) -> str:
    """Return the declared type for a direct call of the function; `_` (inferred) for any other expression."""
    return kind if is_call(call, entry_point) else "_"
