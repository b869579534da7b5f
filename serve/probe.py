"""Asks a server of this machine for its health, through HTTP as its clients do."""

import contextlib
import http.client
from dataclasses import dataclass

HEALTH = "/health"
TIMEOUT_SECONDS = 10.0
"""A server that works answers in milliseconds; one on a crowded machine may take seconds."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the key that it asks for, if any."""

    host: str
    port: int
    key: str = ""

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def get(self, path: str, timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[int, bytes]:
        """Status and body of what it answers.

        Raises:
            OSError, HTTPException: it does not answer, or not in HTTP.
        """
        # Not urllib: a proxy that the environment names for the network must not be asked for this machine.
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_seconds)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.key}"} if self.key else {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def status(self, path: str, timeout_seconds: float = TIMEOUT_SECONDS) -> int | None:
        """Of what it answers; None where it does not."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get(path, timeout_seconds)[0]
        return None
