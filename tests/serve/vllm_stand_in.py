"""A program with the routes of `vllm serve` and its known faults, which writes the hash of the adapter that it used.

Usage: vllm_stand_in.py serve BASE --port PORT ... Faults are switched on and off by POST /faults.
"""

import hashlib
import itertools
import json
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

FAULTS = ("stale", "one replica", "in flight", "lost answer")
"""stale: a name that is loaded again answers as before. one replica: every fourth adapter is loaded by one of the two
servers of the address. in flight: every twentieth answer is that of another adapter. lost answer: every seventh adapter
is loaded, and the connection closed."""


def digest(folder: Path) -> str:
    """Return what the stand-in writes with the adapter in `folder`."""
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()[:16]


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    base = Path()
    length = 0
    faults: ClassVar[set[str]] = set()
    replicas: ClassVar[list[dict[str, tuple[str, str]]]] = [{}, {}]
    """Folder and digest of each adapter by name, for each of two servers behind the address."""
    cache: ClassVar[dict[str, str]] = {}
    loads, answers = itertools.count(1), itertools.count(1)
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str) -> None:
        self.send({"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status)

    def setup(self) -> None:
        super().setup()
        self.adapters = self.replicas[random.randrange(2)]

    def allowed(self) -> bool:
        key = os.environ.get("VLLM_API_KEY")
        if key is None or self.headers["Authorization"] == f"Bearer {key}":
            return True
        self.refuse(401, "Unauthorized")
        return False

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.send({})
        if self.path == "/version":
            return self.send({"version": "stand-in"})
        if self.path == "/arguments":
            return self.send(
                [sys.argv[1:], {name: os.environ.get(name) for name in ("VLLM_ALLOW_RUNTIME_LORA_UPDATING",)}]
            )
        if not self.allowed():
            return None
        base = {"id": "base", "root": str(self.base), "parent": None, "max_model_len": self.length}
        loras = [{"id": name, "root": path, "parent": "base"} for name, (path, _) in self.adapters.items()]
        return self.send({"object": "list", "data": [base, *loras]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/faults":
            self.faults.clear()
            self.faults.update(body)
            return self.send({})
        if not self.allowed():
            return None
        with self.lock:
            if self.path == "/v1/load_lora_adapter":
                return self.load(body["lora_name"], Path(body["lora_path"]))
            if self.path == "/v1/unload_lora_adapter":
                known = [adapters.pop(body["lora_name"], None) for adapters in self.replicas]
                return self.send("Success") if any(known) else self.refuse(404, "cannot be found")
            answer = self.answer(body)
        if answer is None:
            return self.refuse(404, f"The model `{body['model']}` does not exist.")
        time.sleep(0.002)
        return self.send(answer)

    def load(self, name: str, folder: Path) -> None:
        if name == "base" or name in self.adapters:
            return self.refuse(400, f"The lora adapter '{name}' has already been loaded.")
        number = next(self.loads)
        both = not ("one replica" in self.faults and number % 4 == 0)
        for adapters in self.replicas if both else [self.adapters]:
            adapters[name] = str(folder), digest(folder)
        if "lost answer" in self.faults and number % 7 == 0:
            self.close_connection = True
            return None
        return self.send(f"Success: LoRA adapter '{name}' added successfully.")

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        name = body["model"]
        if name != "base" and name not in self.adapters:
            return None
        if "in flight" in self.faults and next(self.answers) % 20 == 0:
            name = next((other for other in self.adapters if other != name), "base")
        text = "base" if name == "base" else self.adapters[name][1]
        if "stale" in self.faults:
            text = self.cache.setdefault(name, text)
        tokens = list(text.encode())[: body["max_tokens"]]
        log_probs = [-value / 50 for value in tokens]
        choice = {
            "text": text,
            "finish_reason": "stop",
            "token_ids": tokens,
            "logprobs": {"token_logprobs": log_probs} if body.get("logprobs") is not None else None,
        }
        return {"model": name, "choices": [{**choice, "index": index} for index in range(body.get("n") or 1)]}


class Threads(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main(arguments: list[str]) -> None:
    options = dict(itertools.pairwise(arguments))
    Server.base, Server.length = Path(arguments[1]), int(options.get("--max-model-len", 512))
    Threads(("127.0.0.1", int(options["--port"])), Server).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
