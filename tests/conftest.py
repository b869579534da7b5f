"""Fixtures that tests of several folders share."""

import os
from collections.abc import Iterator

import pytest

from tests.support.postgres import (
    PostgresDatabase,
    PostgresServer,
    database_on,
    find_programs,
    require_programs,
    server_of,
)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of the session; use the fixture `postgres` for a database of the test's own."""
    with server_of(require_programs(find_programs(), os.environ)) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database; `postgres.server` can be stopped and started by the test."""
    with database_on(postgres_server) as database:
        yield database
