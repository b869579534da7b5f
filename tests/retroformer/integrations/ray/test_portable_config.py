"""A config reaches another process whole, with the passwords and keys that only the first one has."""

import os
import pickle
from pathlib import Path

import pytest

from retroformer.config.file import load_configs
from retroformer.integrations.ray.backend import PortableConfig
from tests.support.runs import ROOT

STORE = "postgresql+psycopg://user:hidden-word@db.example/facts"


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/*.yaml")), ids=lambda path: path.stem)
def test_every_config_of_the_project_arrives_as_it_was(path: Path) -> None:
    for config in load_configs(path, [f"store={STORE}"]):
        arrived = pickle.loads(pickle.dumps(PortableConfig.of(config))).unpacked()
        assert arrived == config
        assert arrived.experiment.store_url.secret_url() == STORE
        assert "hidden-word" not in repr(arrived.experiment)


def test_the_keys_that_the_config_names_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_configs(ROOT / "configs/demo.yaml", ["actor.endpoint.api_key_env=KEY_OF_THE_ACTOR"])[0]
    monkeypatch.setenv("KEY_OF_THE_ACTOR", "abc")
    monkeypatch.setenv("ANOTHER_KEY", "def")
    sent = PortableConfig.of(config)
    assert sent.keys.get("KEY_OF_THE_ACTOR") == "abc"
    assert "ANOTHER_KEY" not in sent.keys
    monkeypatch.delenv("KEY_OF_THE_ACTOR")
    sent.unpacked()
    assert os.environ["KEY_OF_THE_ACTOR"] == "abc"
