"""Tests of where a server listens."""

import socket
from urllib.parse import urlsplit

import pytest

from retroformer.endpoint.request_guard import address_of, listen
from tests.support.endpoint import require_ipv6


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_server_on_any_host_is_reached_at_its_address(host: str) -> None:
    if ":" in host:
        require_ipv6()
    with listen(0, host) as listening:
        address = urlsplit(address_of(host, listening.getsockname()[1]))
        with socket.create_connection((address.hostname, address.port), timeout=10) as client:
            accepted, sender = listening.accept()
            accepted.close()
            assert sender == client.getsockname()
