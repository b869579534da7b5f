"""Tests that live advice names the adapter that wrote it, as a real endpoint reports it."""

from contextlib import closing
from pathlib import Path

import retroformer as rf
from retroformer.run.provenance import folder_sha256
from retroformer.run.store import Store
from tests.serve.running import Endpoint
from tests.support.endpoint import Endpoint as ScriptedEndpoint


def authors(url: str) -> set[str | None]:
    with closing(Store(url, "agent")) as store:
        return {stored.reflection.author.adapter_sha256 for stored in store.stream_reflections("collect")}


def test_advice_of_our_own_server_names_its_adapter(
    endpoint: Endpoint, adapters: dict[str, Path], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/mine.db"
    with rf.Reflector(endpoint.url, store=url, max_new_tokens=4) as coach:
        for number in range(2):
            coach.advise(f"Open door {number}.", "The door stays shut.")
    assert authors(url) == {folder_sha256(adapters["first"])}


def test_advice_of_the_base_or_of_another_server_names_none(endpoint: Endpoint, tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("base", "other")]
    with rf.Reflector(endpoint.url, store=urls[0], model="base", max_new_tokens=4) as coach:
        coach.advise("Open the door.", "The door stays shut.")
    with ScriptedEndpoint(lambda body: "Knock.") as server, rf.Reflector(server.url, store=urls[1]) as coach:
        assert coach.advise("Open the door.", "The door stays shut.").text == "Knock."
    assert [authors(url) for url in urls] == [{None}, {None}]
