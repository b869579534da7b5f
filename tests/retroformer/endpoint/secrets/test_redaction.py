"""Test that registered secrets are hidden in messages, logs, tracebacks and output, and other text is unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.endpoint.secrets.redaction import keep_secret, redact, redact_data
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, EndpointFailure, MissingInput, RetroformerError, StoreError

ROOT = Path(__file__).parents[3]
KEY = "sk-marked-4711/abc+def=="


def run(body: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that registers the key and then does this."""
    code = (
        "import logging, os, sys, warnings, threading\n"
        "from retroformer.errors import *\n"
        "from retroformer.endpoint.secrets.redaction import keep_secret\n"
        f"KEY = {KEY!r}\n"
        f"def main(arguments):\n    keep_secret(KEY)\n    {body}\n"
        "run_command(main)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, **environment},
    )


WRITES = (
    "print('the key is', KEY)",
    "sys.stdout.writelines([KEY])",
    "print(KEY, file=sys.stderr)",
    "logging.warning('the key %s', KEY)",
    "logging.warning(f'the key {KEY}')",
    "logging.getLogger('a.library').error('the keys %s', [KEY])",
    "logging.warning('fields %(key)s', {'key': KEY})",
    "try: raise ValueError(KEY)\n    except ValueError: logging.exception('it failed')",
    "warnings.warn(KEY)",
    "thread = threading.Thread(target=lambda: int(KEY)); thread.start(); thread.join()",
)


def test_nothing_that_a_command_writes_holds_a_key() -> None:
    done = run("\n    ".join(WRITES))
    said = done.stdout + done.stderr
    assert said.count("***") >= len(WRITES)
    assert "sk-marked" not in said


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError(f'a bug: {KEY}')",
        "raise ConfigError(f'wrong: {KEY}')",
        "raise OSError(28, 'No space left', f'/runs/{KEY}')",
        "sys.exit(f'it ends with {KEY}')",
        "import argparse; argparse.ArgumentParser().parse_args([KEY])",
    ],
)
def test_a_command_that_ends_shows_no_key(body: str) -> None:
    done = run(body)
    said = done.stdout + done.stderr
    assert "***" in said
    assert "sk-marked" not in said


def test_a_library_with_its_own_log_stream_logs_no_key(tmp_path: Path) -> None:
    log = tmp_path / "library.log"
    body = f"logger = logging.getLogger('library'); logger.addHandler(logging.FileHandler({str(log)!r})); "
    run(
        body + "logger.warning('the key %s', KEY)\n    try: int(KEY)\n    except ValueError: logger.exception('failed')"
    )
    assert log.read_text().count("***") == 2
    assert "sk-marked" not in log.read_text()


def test_an_unregistered_password_in_a_url_is_hidden_in_error_messages() -> None:
    said = run("raise ValueError('cannot connect to postgresql://me:hunter2@db/x')").stderr
    assert "cannot connect to postgresql://me:***@db/x" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer {}", "b'authorization: bearer {}'", "X-Api-Key: {}", "('x-api-key', '{}')", "sk-{}"],
)
def test_an_unregistered_key_in_a_header_is_hidden_in_error_messages(header: str) -> None:
    hidden = str(EndpointFailure(f"Bad header {header.format('aBc-unregistered')!s}."))
    assert "registered" not in hidden
    assert "***" in hidden


def test_other_output_and_logs_of_a_command_are_unchanged() -> None:
    done = run("print('a %s', 3, end='!'); logging.warning('%d of %s', 3, 'four'); sys.stdout.flush()")
    assert done.stdout == "a %s 3!"
    assert done.stderr == "WARNING root: 3 of four\n"


def test_mismatched_arguments_of_a_log_message_are_still_reported() -> None:
    assert "not all arguments converted" in run("logging.warning('three', 3)").stderr


@pytest.mark.parametrize("kind", [RetroformerError, ConfigError, MissingInput, StoreError, EndpointFailure])
def test_an_error_holds_no_secret_from_the_moment_it_is_made(kind: type[RetroformerError]) -> None:
    keep_secret(KEY)
    error = kind(f"It said {KEY} at https://user:pw@host/v1.")
    assert str(error) == "It said *** at https://user:***@host/v1."
    assert "marked" not in repr(error)


@pytest.mark.parametrize(
    "spelling",
    [
        KEY,
        "sk-marked-4711%2Fabc%2Bdef%3D%3D",
        "sk-marked-4711/abc%2Bdef%3D%3D",
        json.dumps(KEY),
        repr(KEY),
    ],
)
def test_a_secret_is_hidden_in_every_spelling(spelling: str) -> None:
    keep_secret(KEY)
    assert "4711" not in redact(f"it said {spelling}!")


def test_a_password_of_a_url_is_hidden_decoded_and_in_a_header() -> None:
    SecretUrl("https://me:p%40ss%20word%22@host/v1")
    for spelling in ("p%40ss%20word%22", 'p@ss word"', "bWU6cEBzcyB3b3JkIg=="):
        assert redact(f"({spelling})") == "(***)"


def test_a_lone_user_of_a_web_address_counts_as_a_key_and_is_hidden_in_a_header() -> None:
    SecretUrl("https://sk-lone-user@host/v1")
    assert redact("(sk-lone-user) (c2stbG9uZS11c2VyOg==)") == "(***) (***)"


def test_a_key_that_is_not_utf_8_is_hidden() -> None:
    keep_secret("sk-odd-\udc80-\ud800-key")
    assert redact("it is sk-odd-\udc80-\ud800-key") == "it is ***"


def test_the_longer_of_two_overlapping_secrets_is_hidden_whole() -> None:
    keep_secret("marked-begin")
    keep_secret("marked-begin-and-more")
    assert redact("marked-begin-and-more marked-begin") == "*** ***"


def test_a_short_secret_is_hidden_only_in_its_place() -> None:
    url = SecretUrl("https://me:none@host/v1")
    assert redact(f"none at {url.secret_url()}") == "none at https://me:***@host/v1"


def test_the_text_of_a_task_is_changed_only_where_it_holds_keys() -> None:
    keep_secret(KEY)
    SecretUrl("postgresql://me:marked-pw@db/x")
    text = "connect('postgresql://me:marked-pw@db/x') or https://a:b@c?key=d"
    assert redact_data(text) == text
    assert redact_data(f"{text} {KEY}") == f"{text} ***"
    assert "marked-pw" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://127.0.0.1:8000/v1 and me@host",
        "see https://host:8000/a@b, or http://[::1]:80/x",
        "at 10:30 mail to me@host.org",
        "a?b=c&d=e",
        "monkey=3; keys: a=b",
    ],
)
def test_text_without_credentials_is_unchanged(text: str) -> None:
    assert redact(text) == text
