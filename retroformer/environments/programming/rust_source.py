"""Rust tests as text, and the programs that are made of them.

A test is `assert_eq!(CALL, VALUE);` or `assert!(CALL);`. Two programs are built: one has the judged code and the calls,
and tells what came out; the other has the expected values alone. Since the judged code never meets the expected
values, nothing it does, be it exiting, panicking or implementing `PartialEq` its own way, makes an answer right.
"""

import re
from typing import NamedTuple

from retroformer.environments.programming.inside.warden import ANSWER_DESCRIPTOR

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_QUOTED = re.compile(r"""r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{\w+\}|x\w\w|.)|[^'\\])'|//[^\n]*""", re.DOTALL)


class RustTest(NamedTuple):
    """What is called, and what is expected of it."""

    call: str
    value: str


def split_tests(text: str) -> tuple[str, ...]:
    """The assertions in what a model wrote, or in a test program's `main`, each once, in order."""
    found = []
    for match in re.finditer(r"\bassert(?:_eq)?!\s*\(", text):
        end = _closing(text, match.end() - 1)
        if end is not None:
            found.append(text[match.start() : end + 1] + ";")
    return tuple(dict.fromkeys(found))


def parse_test(test: str) -> RustTest:
    """The two sides of one assertion. Raises ValueError where it is none."""
    match = re.fullmatch(r"\s*assert(_eq)?!\s*\((.*)\)\s*;?\s*", test, re.DOTALL)
    sides = _arguments(match[2]) if match else []
    if match and match[1] and len(sides) >= 2:
        return RustTest(sides[0], sides[1])
    if match and not match[1] and sides:
        return RustTest(sides[0], "true")
    raise ValueError(f"{test!r} is no `assert_eq!(CALL, VALUE);` or `assert!(CALL);`")


def _skip(text: str, at: int) -> int:
    """Where the string, character or comment that begins at `at` ends; `at` itself if none does."""
    match = _QUOTED.match(text, at)
    return match.end() if match else at


def _closing(text: str, start: int) -> int | None:
    """Where the bracket that opens at `start` closes."""
    expected: list[str] = []
    at = start
    while at < len(text):
        after = _skip(text, at)
        if after > at:
            at = after
            continue
        character = text[at]
        if character in _CLOSING:
            expected.append(_CLOSING[character])
        elif expected and character == expected[-1]:
            expected.pop()
            if not expected:
                return at
        at += 1
    return None


def _arguments(text: str) -> list[str]:
    """Split at the commas outside of all brackets."""
    parts, start, at = [], 0, 0
    while at < len(text):
        after = _skip(text, at)
        if after > at:
            at = after
            continue
        if text[at] in _CLOSING:
            at = _closing(text, at) or len(text)
        elif text[at] == ",":
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def completed(program: str) -> str:
    """With the brackets closed that are open at its end: some completions stop before the last one."""
    closing: list[str] = []
    at = 0
    while at < len(program):
        after = _skip(program, at)
        if after > at:
            at = after
            continue
        if program[at] in _CLOSING:
            closing.append(_CLOSING[program[at]])
        elif closing and program[at] == closing[-1]:
            closing.pop()
        at += 1
    return program + "\n" + "".join(reversed(closing)) if closing else program


def result_type(signature: str, entry_point: str) -> str:
    """What the function returns, as the prompt declares it; `()` where it says nothing. Raises ValueError."""
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


def answering(program: str, entry_point: str, calls: list[str], kind: str) -> str:
    """A program that, called with a number, tells what the call of that number gives, as a value of `kind`."""
    arms = "\n".join(
        f"            {index} => {{ let value: {type_of(call, entry_point, kind)} = {call}; "
        "crate::shown_value::tell(crate::shown_value::Shown::shown(&value)) }"
        for index, call in enumerate(calls)
    )
    return f"""{_QUIET}{_SHOW}
mod solution {{
    {program}
    {_IMPORTS}
    pub fn answer(number: usize) {{
        let candidate = {entry_point};
        match number {{
{arms}
            _ => {{}}
        }}
    }}
}}
fn main() {{ solution::answer(std::env::args().nth(1).unwrap().parse().unwrap()) }}
"""


def expecting(values: list[tuple[str, str]]) -> str:
    """A program that tells all expected values, given with their types, a line each."""
    lines = "\n".join(
        f"    told.push({{ let value: {kind} = {value}; shown_value::Shown::shown(&value) }});"
        for value, kind in values
    )
    return f"""{_QUIET}{_SHOW}
{_IMPORTS}
fn main() {{
    let mut told: Vec<String> = Vec::new();
{lines}
    shown_value::tell(told.join("\\n"));
}}
"""


def calls(call: str, entry_point: str) -> bool:
    """Whether the function is called in it: a test that does not call it tells nothing."""
    return re.search(rf"\b(?:candidate|{re.escape(entry_point)})\s*\(", call) is not None


def type_of(call: str, entry_point: str, kind: str) -> str:
    """Of a call of the function itself as it is declared; of anything made of it, whatever it is."""
    match = re.match(rf"\s*(?:candidate|{re.escape(entry_point)})\s*\(", call)
    direct = match is not None and _closing(call, match.end() - 1) == len(call.rstrip()) - 1
    return kind if direct else "_"
