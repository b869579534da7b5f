"""Health checks of a server on this machine, over HTTP as its clients do."""

import contextlib
import http.client
from dataclasses import dataclass

HEALTH = "/health"
TIMEOUT_SECONDS = 10.0
"""A working server responds in milliseconds, on a crowded machine in seconds."""


@dataclass(frozen=True)
class ServerAddress:
    """Host and port of a server, and the key that it requires, if any."""

    host: str
    port: int
    key: str = ""

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def get(self, path: str, timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[int, bytes]:
        """Return the status and the body of the response.

        Raises:
            OSError, HTTPException: the server does not respond, or not in HTTP.
        """
        # Not urllib, which would use the proxy that the environment names even for this machine.
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_seconds)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.key}"} if self.key else {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def status(self, path: str, timeout_seconds: float = TIMEOUT_SECONDS) -> int | None:
        """Return the status of the response; None without one."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get(path, timeout_seconds)[0]
        return None
