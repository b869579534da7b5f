"""Tests of what the gateway refuses, and of a provider that is down."""

import socket
from pathlib import Path

import httpx
import pytest

from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, ServiceError
from tests.support.gateway import gateway, write_gateway_config
from tests.support.runs import open_config

pytest.importorskip("aiohttp")
service = pytest.importorskip("retroformer.integrations.gateway.service")


def run(folder: Path, *overrides: str, port: int = 0) -> None:
    config = open_config(write_gateway_config(folder, "http://127.0.0.1:9/v1"), *overrides)
    service.run(config, upstream=SecretUrl("http://127.0.0.1:9/v1"), port=port, unadvised=0.1)


def test_a_provider_that_is_down_is_a_502_whose_sentence_shows_no_password(tmp_path: Path) -> None:
    config = write_gateway_config(tmp_path, "http://127.0.0.1:9/v1")
    with gateway(config, "http://me:a-long-password@127.0.0.1:9/v1") as running:
        for base in (running.of_run("down"), f"http://{running.host}/v1"):
            answer = httpx.post(f"{base}/chat/completions", json={"messages": [{"role": "user", "content": "Hi."}]})
            assert answer.status_code == 502
            sentence = answer.json()["error"]["message"]
            assert sentence == (
                "The provider at http://me:***@127.0.0.1:9/v1 cannot be reached (Connection refused): check --upstream "
                "and the network."
            )
        told = httpx.post(f"http://{running.host}/runs/down/score", json={"invalid": True}).json()
        assert told["trial"] == 0


def test_the_config_must_be_of_an_agent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment\.name is 'alfworld'.*set environment.name to agent\.$"):
        run(tmp_path, "environment.name=alfworld")


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"^Port {port} of 127\.0\.0\.1 cannot be used \(.*another with --port"):
            run(tmp_path, port=port)
