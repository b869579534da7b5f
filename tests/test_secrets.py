"""No secret is written anywhere: the whole loop runs with marked secrets, and all files and outputs are searched."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.support.endpoint import Endpoint
from tests.support.processes import watched_command_lines
from tests.support.raw_server import RawServer, Request, Write, http
from tests.support.runs import HOUSEHOLD

ROOT = Path(__file__).parents[1]
API_KEY = "sk-MARKED-of-the-endpoint-1a2b3c"
PASSWORD = "MARKED/of the address@4d5e"  # Must be quoted in a URL, so it has several spellings.
QUERY_KEY = "MARKED-of-the-query-6f7a"
STORE_PASSWORD = "MARKED-of-the-store-8b9c"
SERVE_KEY = "sk-MARKED-of-our-server-0d1e"
SECRETS = (API_KEY, PASSWORD, QUERY_KEY, STORE_PASSWORD, SERVE_KEY)
SPELLINGS = {
    spelling.encode()
    for secret in SECRETS
    for spelling in (secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1])
} | {b64encode(f"me:{PASSWORD}".encode()), b"MARKED"}
_PATIENCE_SECONDS = 600.0
"""Longer than anything takes here on a loaded machine."""


def found_in(content: bytes) -> list[bytes]:
    return [spelling for spelling in SPELLINGS if spelling in content]


def leaks(folder: Path) -> dict[str, list[bytes]]:
    """Return the files below `folder` that hold a secret, with Parquet decoded."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files, "nothing was written"
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    for path in files:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            contents[f"{path.name} unpacked"] = str(pyarrow.parquet.read_table(path).to_pylist()).encode()
    return {name: leaks for name, content in contents.items() if (leaks := found_in(content))}


class Workplace:
    """Folder with a config, in which commands run with the keys in their environment."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(config, sort_keys=False))
        self.command_lines: set[str] = set()

    def start(self, room: str, *arguments: str) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "SOME_KEY": API_KEY,
            "KEYS_OF_OUR_SERVER": SERVE_KEY,
        }
        # Warnings and debug output of libraries are searched, too.
        command = [sys.executable, "-m", room, *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment | {"OPENAI_LOG": "debug"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, room: str, *arguments: str, status: int = 0) -> str:
        """Return the command's output; check that it and all command lines of its processes hold no secret."""
        process = self.start(room, *arguments)
        with watched_command_lines(process.pid) as seen:
            out, err = process.communicate(timeout=_PATIENCE_SECONDS)
        said = out + err
        self.command_lines |= seen
        assert process.returncode == status, said
        assert not found_in(said.encode()), said
        # A child that was just forked still shows its parent's command line.
        typed = " ".join(map(str, process.args))
        assert not [line for line in seen if found_in(line.encode()) and line.strip() != typed]
        return said


def config_for(host: str) -> dict[str, Any]:
    """Return the config of the household experiment with a password, a key and a query in the reflector's address."""
    url = f"http://me:{quote(PASSWORD, safe='')}@{host}/v1?api_key={QUERY_KEY}"
    config: dict[str, Any] = json.loads(json.dumps(HOUSEHOLD))
    config["loop"]["trials"] = 2
    config["reflector"]["endpoint"] |= {"base_url": url, "api_key_env": "SOME_KEY"}
    return config


@pytest.fixture
def remote() -> Iterator[Endpoint]:
    with Endpoint() as server:
        yield server


def rows(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def test_collecting_evaluating_and_exporting_leave_no_secret_behind(tmp_path: Path, remote: Endpoint) -> None:
    workplace = Workplace(tmp_path, config_for(remote.url.removeprefix("http://").removesuffix("/v1")))
    assert "rated" in workplace.run("collect", "config.yaml")
    workplace.run("collect", "config.yaml", "--dry-run")
    assert "report" in workplace.run("eval", "config.yaml")
    assert "cases are in" in workplace.run("retroformer", "export", "config.yaml", "runs/all.jsonl", "--exact")
    assert "cases are in" in workplace.run("retroformer", "import", "config.yaml", "runs/all.jsonl", "run=again")
    assert leaks(tmp_path / "runs") == {}
    hidden = f"http://me:***@127.0.0.1:{re.findall(r':([0-9]+)/', remote.url)[0]}/v1?api_key=***"
    written = rows(
        tmp_path / "runs/toy/experience.db", "select distinct record ->> '$.author.endpoint' from reflections"
    )
    assert (hidden,) in written
    assert hidden in (tmp_path / "runs/toy/eval/report.md").read_text()
    assert remote.requests


def test_a_key_that_an_endpoint_repeats_is_not_stored_in_a_cause(tmp_path: Path) -> None:
    def refuse(request: Request, write: Write) -> None:
        said = f"Incorrect API key provided: {API_KEY} ({request.headers['authorization']}, {request.path})"
        write(http("401 Unauthorized", json.dumps({"error": {"message": said}}).encode()))

    with RawServer(refuse) as server:
        workplace = Workplace(tmp_path, config_for(server.host))
        said = workplace.run("collect", "config.yaml", status=1)
        assert server.requests
    assert "answered 401: Incorrect API key provided: ***" in said
    causes = {cause for (cause,) in rows(tmp_path / "runs/toy/experience.db", "select cause from invalids")}
    assert all("Incorrect API key provided: *** (" in cause for cause in causes)
    assert causes
    assert leaks(tmp_path / "runs") == {}


def test_a_store_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    workplace = Workplace(tmp_path, config_for("127.0.0.1:1"))
    store = f"postgresql+psycopg://me:{STORE_PASSWORD}@127.0.0.1:1/retroformer?sslpassword={QUERY_KEY}"
    for command in (
        ["collect", "config.yaml"],
        ["eval", "config.yaml"],
        ["retroformer", "export", "config.yaml", "out.jsonl"],
    ):
        said = workplace.run(*command, f"store={store}", status=1)
        assert "The store postgresql+psycopg://me:***@127.0.0.1:1/retroformer?sslpassword=***" in said


def test_a_store_password_is_sent_and_its_echo_is_hidden(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sent: list[bytes] = []
        database = threading.Thread(target=_refuse_a_password, args=(listening, sent), daemon=True)
        database.start()
        port = listening.getsockname()[1]
        store = (
            f"postgresql+psycopg://me:{STORE_PASSWORD}@127.0.0.1:{port}/retroformer?sslmode=disable&gssencmode=disable"
        )
        said = Workplace(tmp_path, config_for("127.0.0.1:1")).run("collect", "config.yaml", f"store={store}", status=1)
        database.join(_PATIENCE_SECONDS)
    assert sent == [STORE_PASSWORD.encode()]
    assert f"The store postgresql+psycopg://me:***@127.0.0.1:{port}/retroformer?" in said
    assert "no user has the password ***" in said


def _refuse_a_password(listening: socket.socket, sent: list[bytes]) -> None:
    """Speak PostgreSQL's protocol, version 3: request the password in clear text, and repeat it in the refusal."""

    def message() -> bytes:
        return reading.read(int.from_bytes(reading.read(4)) - 4)

    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as reading:
        message()
        connection.sendall(b"R" + (8).to_bytes(4) + (3).to_bytes(4))
        assert reading.read(1) == b"p"
        sent.append(message().removesuffix(b"\0"))
        error = b"SFATAL\0C28P01\0Mno user has the password " + sent[0] + b"\0\0"
        connection.sendall(b"E" + (len(error) + 4).to_bytes(4) + error)


@pytest.mark.slow
def test_training_and_serving_leave_no_secret_behind(tmp_path: Path, remote: Endpoint) -> None:
    pytest.importorskip("torch")
    from tests.train.world import save_tiny_model

    config = config_for(remote.url.removeprefix("http://").removesuffix("/v1"))
    quick = {"learning_rate": 3e-3}
    config["collect"] |= {"written": 4}
    config["train"] = {
        "base_model": str(save_tiny_model(tmp_path / "base")),
        "quantization": "none",
        "dtype": "float32",
        "batch_size": 2,
        "micro_batch_tokens": 200,
        "sft": quick,
        "generation": {"base_url": config["reflector"]["endpoint"]["base_url"], "api_key_env": "SOME_KEY"},
    }
    workplace = Workplace(tmp_path, config)
    workplace.run("collect", "warm", "config.yaml")
    workplace.run("train", "warm", "config.yaml")
    for name in ("config.yaml", "metrics.json", "README.md"):
        assert (tmp_path / "runs/toy/warm" / name).is_file()
    assert "http://me:***@127.0.0.1" in (tmp_path / "runs/toy/warm/config.yaml").read_text()
    _evaluate_with_own_server(workplace, config["reflector"]["endpoint"]["base_url"])
    _serve(workplace)
    assert leaks(tmp_path / "runs") == {}


def _evaluate_with_own_server(workplace: Workplace, url: str) -> None:
    """Evaluate with the stage's own server, whose command line every user of the machine can see."""
    words = [
        *("reflector.endpoint.base_url=null", "reflector.endpoint.model=warm", "eval.tasks=2", "loop.actions=3"),
        *("evaluator.kind=model", f"actor.endpoint={{base_url: '{url}', model: big, api_key_env: SOME_KEY}}"),
        "eval.arms={no reflection: {kind: none}, warm: {kind: model, model: warm}}",
    ]
    workplace.run(
        "eval", "config.yaml", "run=own", f"serve.adapters={{warm: {workplace.folder}/runs/toy/warm}}", *words
    )
    serving = [line for line in workplace.command_lines if " -m serve config.yaml " in line]
    assert serving, "the server was not seen"


def _serve(workplace: Workplace) -> None:
    process = workplace.start("serve", "config.yaml", "serve.port=0", "serve.api_key_env=KEYS_OF_OUR_SERVER")
    assert process.stdout is not None
    with watched_command_lines(process.pid) as seen:
        line = process.stdout.readline()
        assert " at " in line, process.communicate()[1]
        assert _status(line.split(" at ")[1].strip(), SERVE_KEY) == 200
        assert _status(line.split(" at ")[1].strip(), f"{SERVE_KEY}-and-more") == 401
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert not found_in((line + out + err).encode())
    assert not [words for words in seen if found_in(words.encode())]


def _status(url: str, key: str) -> int:
    """Return the status of the answer to a request with this key; check that the answer does not hold it."""
    body = {"model": "warm", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 2}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        answer: Any = urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        assert not found_in(answer.read())
        return int(answer.status)
