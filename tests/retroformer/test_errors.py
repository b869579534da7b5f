"""Test how a command ends: an expected error is one sentence and status 1, a bug is a traceback."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer import errors

ROOT = Path(__file__).parents[2]


def run(body: str, **streams: object) -> subprocess.CompletedProcess[str]:
    """Run a command with this body in a separate process."""
    code = f"import errno\nfrom retroformer.errors import *\ndef main(arguments):\n    {body}\nrun_command(main)\n"
    options = {"stdout": subprocess.PIPE} | streams
    return subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=300, **options
    )  # type: ignore[call-overload, no-any-return]


def test_a_successful_command_ends_with_status_0() -> None:
    done = run("print('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_an_expected_error_is_one_sentence_and_status_1() -> None:
    done = run("raise MissingInput('No experiment config at x: name one.')")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "No experiment config at x: name one.\n")


def test_a_bug_shows_its_traceback() -> None:
    done = run("1 / 0")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_an_interrupted_command_says_how_to_continue() -> None:
    done = run("raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (
        1,
        "Stopped. Finished work is stored: run the same command again to go on.\n",
    )


def test_a_full_disk_is_one_sentence_that_names_the_file() -> None:
    done = run("raise OSError(errno.ENOSPC, 'No space left on device', 'runs/toy/report.md')")
    assert (done.returncode, done.stderr) == (
        1,
        "The disk is full (runs/toy/report.md): free space and run the same command again.\n",
    )


@pytest.mark.parametrize(
    ("number", "said"),
    [("EDQUOT", "The quota of disk space"), ("EROFS", "The disk is read-only"), ("EACCES", "Permission is denied")],
)
def test_an_unwritable_file_is_named_in_one_sentence(number: str, said: str) -> None:
    done = run(f"raise OSError(errno.{number}, 'No', 'runs/toy/report.md')")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{said}")
    assert "(runs/toy/report.md)" in done.stderr
    assert done.stderr.endswith(" and run the same command again.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_into_a_full_disk_is_one_sentence_even_when_it_is_buffered() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("print('a report')", stdout=full)
    assert (done.returncode, done.stderr) == (
        1,
        "The disk is full (while writing): free space and run the same command again.\n",
    )


@pytest.mark.parametrize("body", ["print('a')", "print('a', flush=True)", "print('a' * 10**6)"])
def test_a_closed_pipe_causes_no_message(body: str) -> None:
    reading = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reading.wait()
    done = run(body, stdout=reading.stdin)
    assert reading.stdin is not None
    reading.stdin.close()
    assert (done.returncode, done.stderr) == (1, "")


def test_every_error_is_in_the_documented_tree_and_also_a_builtin_error() -> None:
    ours = [
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.RetroformerError)
    ]
    assert len(ours) >= 11
    for kind in ours:
        assert kind.__name__ in str(errors.__doc__)
        python = [base for base in kind.__mro__ if base.__module__ == "builtins" and base is not object]
        assert python[0] is not Exception or kind is errors.RetroformerError
