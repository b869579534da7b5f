"""Divides tasks among the processes that work on one store: a task is leased to one process at a time.

A lease ends when its task is done, when its owner has not renewed it in time, or when its owner is a dead process on
this machine. If two processes still do the same task, only money is lost, as facts are stored once.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from retroformer.run.store.database import Database, insert_into
from retroformer.run.store.schema import LEASES

LEASE_SECONDS = 60.0
"""Time without renewal after which a process counts as dead, on this machine or another."""
RENEW_SECONDS = LEASE_SECONDS / 4


class Leases:
    """Leases of one process on the tasks of one experiment."""

    def __init__(
        self, database: Database, experiment: str, *, host: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._experiment, self._clock = database, experiment, clock
        self._host = host or socket.gethostname()
        self._place = f"{self._host}|{_pid_namespace()}"
        self._owner = f"{self._place}|{os.getpid()}|{_start_time(os.getpid())}|{uuid.uuid4().hex}"

    def take(self, arm: str, task_ids: Sequence[str], most: int) -> list[str]:
        """Lease up to `most` of these tasks that no other process works on. Return the leased ids in their order."""

        def work(connection: sa.Connection) -> list[str]:
            rows = [
                {"experiment": self._experiment, "arm": arm, "task_id": task_id, "owner": None, "expires_at": 0.0}
                for task_id in sorted(task_ids)
            ]
            connection.execute(insert_into(LEASES, connection).on_conflict_do_nothing(), rows)
            # Rows that another process has locked are skipped; SQLite has one writer at a time anyway.
            unlocked = (
                sa.select(LEASES.c.task_id, LEASES.c.owner, LEASES.c.expires_at)
                .where(self._rows(arm), LEASES.c.task_id.in_(task_ids))
                .with_for_update(skip_locked=True)
            )
            free = {row.task_id for row in connection.execute(unlocked) if self._is_free(row.owner, row.expires_at)}
            taken = [task_id for task_id in task_ids if task_id in free][:most]
            if taken:
                leased = {"owner": self._owner, "expires_at": self._clock() + LEASE_SECONDS}
                chosen = self._rows(arm) & LEASES.c.task_id.in_(taken)
                connection.execute(LEASES.update().where(chosen).values(**leased))
            unused = free.difference(taken)
            connection.execute(LEASES.delete().where(self._rows(arm), LEASES.c.task_id.in_(unused)))
            return taken

        return self._database.write(work) if task_ids else []

    def renew(self) -> None:
        """Extend all leases of this process by LEASE_SECONDS. It also shows whether the store answers."""
        later = self._clock() + LEASE_SECONDS
        mine = LEASES.c.owner == self._owner
        self._database.write(
            lambda connection: connection.execute(LEASES.update().where(mine).values(expires_at=later))
        )

    def release(self, arm: str, task_id: str) -> None:
        """Release the lease on a task, done or not."""
        mine = self._rows(arm) & (LEASES.c.task_id == task_id) & (LEASES.c.owner == self._owner)
        self._database.write(lambda connection: connection.execute(LEASES.delete().where(mine)))

    def release_all(self) -> None:
        """Release all leases of this process."""
        mine = LEASES.c.owner == self._owner
        self._database.write(lambda connection: connection.execute(LEASES.delete().where(mine)))

    def _rows(self, arm: str) -> sa.ColumnElement[bool]:
        return sa.and_(LEASES.c.experiment == self._experiment, LEASES.c.arm == arm)

    def _is_free(self, owner: str | None, expires_at: float) -> bool:
        # Own lease: a reply was lost with its connection. Expiry far in the future: some machine's clock was wrong.
        now = self._clock()
        if owner is None or owner == self._owner or not now <= expires_at <= now + 2 * LEASE_SECONDS:
            return True
        host, namespace, pid, started, _ = owner.split("|")
        return f"{host}|{namespace}" == self._place and _has_ended(int(pid), started)


def _has_ended(pid: int, started: str) -> bool:
    """Return True if a process of this machine has certainly ended: its PID is unused, or used by a later process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    now = _start_time(pid)
    return bool(started) and now not in ("", started)


def _start_time(pid: int) -> str:
    """Return a process's start time in clock ticks since boot, `ended` for a zombie, or "" if /proc lacks it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _pid_namespace() -> str:
    """Return the PID namespace, which distinguishes containers with the same host name but different processes."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
