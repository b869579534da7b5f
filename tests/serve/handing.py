"""An endpoint that loads adapters while it runs, and the requests that a trainer sends to it."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from tests.serve.running import KEYS, Endpoint

KEY = KEYS[0]
ASKED: dict[str, Any] = {"prompt": [1, 10, 30, 40], "max_tokens": 6, "seed": 7, "stop_token_ids": [2], "logprobs": 0}


class World(NamedTuple):
    """An endpoint that serves `configured` from the start, and the folders of adapters."""

    endpoint: Endpoint
    adapters: dict[str, Path]

    def ask(
        self, path: str, body: dict[str, Any] | None = None, key: str = KEY, kind: str = "application/json"
    ) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Authorization": f"Bearer {key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint.url}{path}", data, headers)) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def load(self, name: str, folder: Path) -> tuple[int, Any]:
        return self.ask("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload(self, name: str) -> tuple[int, Any]:
        return self.ask("/unload_lora_adapter", {"lora_name": name})

    def draw(self, model: str, **changes: Any) -> tuple[list[int], list[float]]:
        status, answer = self.ask("/completions", {**ASKED, "model": model, **changes})
        assert status == 200, answer
        (choice,) = answer["choices"]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def models(self) -> set[str]:
        return {model["id"] for model in self.ask("/models")[1]["data"]}
