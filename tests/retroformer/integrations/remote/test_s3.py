"""Pushes to and pulls from an S3 server: moto's, in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.run.provenance import folder_sha256

pytest.importorskip("moto", reason="the S3 server of the tests is not installed")
s3fs = pytest.importorskip("s3fs", reason="fsspec's package for S3 is not installed")

SECRET = "an-aws-key-of-four-words"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Start a server; yield the variables with which clients find it."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert server.stderr is not None
    address = next(match[0] for line in server.stderr if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
    variables = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET}
    try:
        yield os.environ | variables | {"AWS_DEFAULT_REGION": "us-east-1", "no_proxy": "127.0.0.1"}
    finally:
        server.terminate()
        server.communicate()


def run(folder: Path, variables: dict[str, str], *code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *code], cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def test_an_adapter_travels_by_a_bucket(s3: dict[str, str], home: Path, away: Path) -> None:
    push = ("-m", "retroformer", "push", "config.yaml", "s3://advice/of/mine", "--stage", "sft")
    refused = run(home, s3, *push)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert "s3://advice/of/mine cannot be used" in refused.stderr  # A bucket that was mistyped is not created.
    assert SECRET not in refused.stderr

    made = run(home, s3, "-c", "import s3fs; s3fs.S3FileSystem().mkdir('advice')")
    assert made.returncode == 0, made.stderr
    pushed = run(home, s3, *push)
    assert (pushed.returncode, pushed.stderr) == (0, ""), pushed.stderr
    pulled = run(away, s3, "-m", "retroformer", "pull", "s3://advice/of/mine", "config.yaml")
    assert pulled.returncode == 0, pulled.stderr
    assert folder_sha256(away / "runs/tiny/sft") == folder_sha256(home / "runs/tiny/sft")
