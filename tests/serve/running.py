"""Helpers that run a real `retroformer serve` as a child process, with small adapters."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 300.0
"""Upper bound for any response on a loaded machine."""
KEYS = ("sesame-3f9c", "other key")
"""API keys of the endpoint `keyed`."""


class Endpoint:
    """A running `retroformer serve`, its address and its log folder."""

    def __init__(self, process: subprocess.Popen[str], line: str, logs: Path) -> None:
        self.process = process
        self.line = line
        self.logs = logs
        self.url = line.split(" at ")[1]

    def pid_of(self, module: str) -> int:
        """Return the process of this endpoint that runs `module`."""
        for path in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                words = (path.parent / "cmdline").read_text().split("\0")
                if f"PPid:\t{self.process.pid}\n" in path.read_text() and module in words:
                    return int(path.parent.name)
        raise AssertionError(f"no process of this endpoint runs {module}")

    def load(self, key: str = "none") -> int:
        """Return the number of answers in progress, as it reports it."""
        root = self.url.removesuffix("/v1")
        return int(
            http_request("GET", f"{root}/load", headers={"Authorization": f"Bearer {key}"}).json()["server_load"]
        )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def start(folder: Path, *overrides: str, config: str) -> subprocess.Popen[str]:
    """Write the experiment config to `folder` and start `retroformer serve` there."""
    (folder / "config.yaml").write_text(config)
    return subprocess.Popen(
        [sys.executable, "-m", "serve", "config.yaml", *overrides, "--until-input-closes"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ready_line(process: subprocess.Popen[str]) -> str:
    """Return the line that it prints once it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert " at " in line, process.communicate()[1]
    return line


def tiny_config(base: Path, settings: str = "", port: int = 0) -> str:
    """Return the config of a run named `tiny`, with these settings of its server."""
    more = f", {settings}" if settings else ""
    return f"""
run: tiny
environment: {{name: alfworld}}
train: {{base_model: {base}, quantization: none}}
serve: {{port: {port}{more}}}
"""


def served_config(base: Path, adapters: dict[str, Path], port: int = 0) -> str:
    named = ", ".join(f"{name}: {folder}" for name, folder in adapters.items())
    return f"""
run: served
environment: {{name: alfworld}}
train: {{base_model: {base}}}
serve: {{port: {port}, adapters: {{{named}}}}}
"""


def make_adapter(base: Path, folder: Path, seed: int) -> Path:
    """Write a small LoRA adapter with random non-zero weights, as if it had been trained."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with warnings.catch_warnings(
        action="ignore", category=FutureWarning
    ):  # peft uses a deprecated name of transformers.
        model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
        config = LoraConfig(r=4, lora_alpha=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        get_peft_model(model, config).save_pretrained(str(folder))
    return folder


def save_sketch(base: Path, folder: Path) -> Path:
    """Save a model with the tokenizer of `base` and few random weights, whose text makes no sense and does not repeat.

    Whatever is wrong in its memory, its batches or its adapters changes what it writes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    for file in base.iterdir():
        if "token" in file.name or "chat_template" in file.name:
            (folder / file.name).symlink_to(file)
    config = AutoConfig.from_pretrained(base)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 64, 128, 2
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 16
    config.initializer_range, config.dtype = 0.3, "float32"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def children(pid: int) -> Sequence[int]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def runs(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def connect(endpoint: Endpoint) -> socket.socket:
    """Open a connection that has sent nothing."""
    host, port = endpoint.url.removeprefix("http://").removesuffix("/v1").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def send(endpoint: Endpoint, head: str, body: bytes = b"") -> bytes:
    """Return all that the server sends back to these bytes until it closes the connection."""
    with connect(endpoint) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + body)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def http_request(method: str, url: str, **options: Any) -> httpx.Response:
    """Send a request without httpx's default certificates, whose reading takes 0.05 seconds each time."""
    return httpx.request(method, url, verify=False, timeout=PATIENCE_SECONDS, **options)


def status_of(answer: bytes) -> int:
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert match, answer[:200]
    return int(match[1])
