"""Pushes to and pulls from a hub over HTTP, by the commands in processes of their own and with the real client."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.integrations.remote.places import MANIFEST
from retroformer.integrations.remote.transfer import MANIFEST_BYTES
from retroformer.run.provenance import folder_sha256
from retroformer.run.store import open_store
from tests.support.hub import TOKEN, LocalHub, Repository, local_hub
from tests.support.waiting import becomes_true

ADAPTER = {"adapter_config.json", "adapter_model.safetensors", "README.md", "metrics.json", "config.yaml"}


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as running:
        yield running


def start(hub: LocalHub, folder: Path, *words: str, **environment: str) -> "subprocess.Popen[str]":
    """Start `retroformer WORDS` in a folder, logged in to the hub."""
    own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "retroformer", *words],
        cwd=folder,
        env=os.environ | {"HF_HOME": str(folder / "hf"), "no_proxy": "127.0.0.1"} | own | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: LocalHub, folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """Run `retroformer WORDS` in a folder; return its status and output."""
    process = start(hub, folder, *words, **environment)
    said, complained = process.communicate(timeout=300)
    return process.returncode, said, complained


def push_adapter(hub: LocalHub, home: Path, *options: str) -> None:
    status, _, complained = run(hub, home, "push", "config.yaml", "hf://me/advice", "--stage", "sft", *options)
    assert status == 0, complained


def test_an_adapter_travels_by_a_private_model_and_ratings_by_a_data_set(hub: LocalHub, home: Path, away: Path) -> None:
    push_adapter(hub, home, "--private")
    model = hub.repositories["model", "me/advice"]
    assert model.private
    assert set(hub.files("model", "me/advice")) == ADAPTER | {"retroformer.json"}
    assert len(model.commits) == 2  # The empty one, and one commit with all files.
    status, said, _ = run(hub, home, "push", "config.yaml", "hf://me/advice")
    assert (status, said.startswith("pushed the ratings of run tiny to hf://me/advice (")) == (0, True)
    assert "cases.parquet" in hub.files("dataset", "me/advice")

    status, said, complained = run(hub, away, "pull", "hf://me/advice", "config.yaml")
    assert (status, "the adapter sft is in runs/tiny/sft" in said) == (0, True), complained
    assert folder_sha256(away / "runs/tiny/sft") == folder_sha256(home / "runs/tiny/sft")
    status, said, complained = run(hub, away, "pull", "hf://datasets/me/advice", "config.yaml")
    assert (status, "3 of their facts new" in said) == (0, True), complained
    with closing(open_store(load(away / "config.yaml", [f"store=sqlite:///{away}/runs/tiny/experience.db"]))) as store:
        assert len(list(store.stream_trajectories("collect"))) == 2


@pytest.mark.slow
def test_a_killed_pull_leaves_no_folder_and_the_next_one_completes(hub: LocalHub, home: Path, away: Path) -> None:
    push_adapter(hub, home)
    hub.held = "adapter_model.safetensors"
    pulling = start(hub, away, "pull", "hf://me/advice", "theirs")
    assert becomes_true(lambda: f"HELD {hub.held}" in hub.requests or pulling.poll() is not None)
    pulling.send_signal(signal.SIGKILL)
    pulling.communicate()
    assert not (away / "theirs").exists()
    (leftover,) = away.glob(".theirs.*.pulling")
    shutil.rmtree(leftover)
    hub.held = ""
    status, _, complained = run(hub, away, "pull", "hf://me/advice", "theirs")
    assert status == 0, complained
    assert {path.name for path in (away / "theirs").iterdir()} == ADAPTER | {"retroformer.json"}


@pytest.mark.slow
def test_a_pull_reads_one_commit_and_an_older_one_by_its_name(hub: LocalHub, home: Path, away: Path) -> None:
    push_adapter(hub, home)
    model = hub.repositories["model", "me/advice"]
    first = model.hash_of(1)
    damaged = {**model.commits[1], "adapter_model.safetensors": b"cut"}
    model.commits.append(damaged)
    status, _, complained = run(hub, away, "pull", "hf://me/advice", "theirs")
    assert (status, complained.count("\n")) == (1, 1)
    assert "adapter_model.safetensors at hf://me/advice (3 bytes) is not as it was pushed" in complained
    status, said, complained = run(hub, away, "pull", f"hf://me/advice@{first}")
    assert (status, "the adapter sft is in advice: " in said) == (0, True), complained
    reads = [line for line in hub.requests if line.startswith("GET /me/advice/resolve/")]
    assert {line.split("/")[4] for line in reads} == {first, model.hash_of(2)}


def test_refusals_of_the_hub_are_one_sentence_without_the_token(hub: LocalHub, home: Path, away: Path) -> None:
    wrong = "hf_another-four-words"
    status, said, complained = run(hub, home, "push", "config.yaml", "hf://me/x", "--stage", "sft", HF_TOKEN=wrong)
    assert (status, said, complained.count("\n")) == (1, "", 1)
    assert "hf://me/x cannot be used" in complained
    assert wrong not in complained
    status, _, complained = run(hub, away, "pull", "hf://me/nothing", "theirs")
    assert (status, complained.count("\n")) == (1, 1)
    assert "No repository hf://me/nothing that you may read" in complained
    asked = len(hub.requests)
    status, _, complained = run(hub, away, "pull", "hf://me/nothing", "theirs", HF_HUB_OFFLINE="1")
    assert (status, "HF_HUB_OFFLINE is set, which forbids all calls" in complained) == (1, True)
    assert len(hub.requests) == asked
    assert not (away / "theirs").exists()


def test_a_file_that_is_too_large_is_not_copied(hub: LocalHub, away: Path) -> None:
    hub.repositories["model", "me/large"] = Repository(private=False, commits=[{MANIFEST: b" " * (MANIFEST_BYTES + 1)}])
    status, _, complained = run(hub, away, "pull", "hf://me/large", "theirs")
    assert (status, complained.count("\n")) == (1, 1)
    assert f"{MANIFEST} at hf://me/large has {MANIFEST_BYTES + 1} bytes, more than" in complained
    assert not [line for line in hub.requests if line.startswith("GET") and MANIFEST in line]


def test_a_public_repository_does_not_take_what_is_private(hub: LocalHub, home: Path) -> None:
    hub.repositories["model", "me/advice"] = Repository(private=False)
    status, _, complained = run(hub, home, "push", "config.yaml", "hf://me/advice", "--stage", "sft", "--private")
    assert (status, complained.count("\n")) == (1, 1)
    assert "hf://me/advice is a public repository" in complained
    assert hub.files("model", "me/advice") == {}
    assert not hub.objects
