"""Tests of the addresses of stores: what is not a database that keeps its facts is refused in one sentence."""

from pathlib import Path

import pytest

from retroformer.errors import StoreError
from retroformer.run.store import Store


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:m?mode=memory&uri=true"])
def test_a_store_in_memory_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match="names no file, so nothing would be kept"):
        Store(address, "riddles")


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/run",
        "gs://bucket/x.db",
        "sqlite:///s3://bucket/x.db",
        "mysql://me:half-a-word@host/x",
        "x.db",
        "no url",
    ],
)
def test_a_store_that_is_no_database_is_refused_and_nothing_is_written(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        StoreError, match=r"^A store is an SQLite file or .*`retroformer push` and `pull` .* a bucket\.$"
    ) as refused:
        Store(address, "riddles")
    assert "half-a-word" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_password_with_an_at_sign_is_refused_without_being_shown() -> None:
    with pytest.raises(StoreError, match="password with an @ in it: write that as %40") as refused:
        Store("postgresql+psycopg://me:half-a@secret-half@127.0.0.1:1/postgres", "riddles")
    assert "secret-half" not in str(refused.value)


def test_an_address_with_an_invalid_port_is_one_sentence() -> None:
    with pytest.raises(StoreError, match="cannot be read: check its port"):
        Store("postgresql+psycopg://me@127.0.0.1:port/postgres", "riddles")
