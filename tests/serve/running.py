"""A real `python -m serve` as a child process, and small adapters for it."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
BODY_BYTES = 100_000
PATIENCE_SECONDS = 300.0
"""Longer than any answer takes here on a loaded machine."""
KEYS = ("sesame-3f9c", "other key")
"""What the endpoint `keyed` asks for."""
LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""


class Endpoint:
    """A running `python -m serve`, its address and its log folder."""

    def __init__(self, process: subprocess.Popen[str], line: str, logs: Path) -> None:
        self.process = process
        self.line = line
        self.logs = logs
        self.url = line.split(" at ")[1]

    def pid_of(self, module: str) -> int:
        """The process of this endpoint that runs `module`."""
        for path in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                words = (path.parent / "cmdline").read_text().split("\0")
                if f"PPid:\t{self.process.pid}\n" in path.read_text() and module in words:
                    return int(path.parent.name)
        raise AssertionError(f"no process of this endpoint runs {module}")

    @property
    def worker_url(self) -> str:
        """Where its worker listens, which any process of this machine can find out."""
        pid = self.pid_of("serve.worker")
        own = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and f"socket:[{inode}]" in own:
                return f"http://127.0.0.1:{int(local.split(':')[1], 16)}"
        raise AssertionError("its worker does not listen")

    def load(self, key: str = "none") -> int:
        """Answers that its worker says it works on."""
        root = self.url.removesuffix("/v1")
        return int(httpx.get(f"{root}/load", headers={"Authorization": f"Bearer {key}"}).json()["server_load"])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def start(folder: Path, *overrides: str, page: str) -> subprocess.Popen[str]:
    """`python -m serve` in `folder`, where the experiment page is written first."""
    (folder / "page.yaml").write_text(page)
    return subprocess.Popen(
        [sys.executable, "-m", "serve", "page.yaml", *overrides, "--until-input-closes"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def page(base: Path, adapters: dict[str, Path], port: int = 0) -> str:
    named = ", ".join(f"{name}: {folder}" for name, folder in adapters.items())
    return f"""
run: served
environment: {{name: alfworld}}
train: {{base_model: {base}}}
serve: {{port: {port}, body_bytes: {BODY_BYTES}, adapters: {{{named}}}}}
"""


def make_adapter(base: Path, folder: Path, seed: int) -> Path:
    """A small LoRA adapter with random weights that are not zero, as if it had been trained."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft asks transformers by an old name.
        model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
        config = LoraConfig(r=4, lora_alpha=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        get_peft_model(model, config).save_pretrained(str(folder))
    return folder


def children(pid: int) -> Sequence[int]:
    """Processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def runs(pid: int) -> bool:
    """Whether a process exists and is more than a zombie that nobody has waited for."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def send(endpoint: Endpoint, head: str, body: bytes = b"") -> bytes:
    """What the server sends back to these bytes until it closes the connection."""
    host, port = endpoint.url.removeprefix("http://").removesuffix("/v1").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + body)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def status_of(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found, answer[:200]
    return int(found[1])


def becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False
