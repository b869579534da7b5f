"""What every user of the machine can see of processes: their command lines, children and listening addresses."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PAUSE_SECONDS = 0.02
_LISTEN = "0A"


@contextmanager
def watched_command_lines(of: int) -> Iterator[set[str]]:
    """Collect the command lines of the descendants of the process `of`; complete when the context ends."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while True:
            for pid in descendants(of):
                with suppress(OSError):
                    seen.add(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " "))
            if over.wait(_PAUSE_SECONDS):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def descendants(pid: int) -> list[int]:
    """Return the process ids of all children, their children, and so on."""
    below = list[int]()
    with suppress(OSError):  # A process may end while it is read.
        for children in list(Path(f"/proc/{pid}/task").glob("*/children")):
            with suppress(OSError):
                for child in children.read_text().split():
                    below += [int(child), *descendants(int(child))]
    return below


def listening_at(port: int) -> set[str]:
    """Return the addresses of this machine, as /proc shows them, at which a process listens on a port."""
    tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    sockets = (line.split() for table in tables for line in table)
    at = [local.split(":") for _, local, _, state, *_ in sockets if state == _LISTEN]
    return {
        socket.inet_ntoa(bytes.fromhex(host)[::-1]) if len(host) == 8 else host
        for host, at_port in at
        if int(at_port, 16) == port
    }
