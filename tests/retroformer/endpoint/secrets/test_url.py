"""Test that a URL in the config can connect, and never shows its credentials in any text that is written."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from retroformer.config.conditions import conditions
from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.config.sections.base import Endpoint
from retroformer.config.sections.train import Generation
from retroformer.endpoint.secrets.url import SecretUrl, json_with_secrets
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.errors import ConfigError

CONFIG = "run: toy\nenvironment: {name: alfworld, source: generated}\n"


@pytest.mark.parametrize(
    ("whole", "shown"),
    [
        ("https://user:pw@host/v1", "https://user:***@host/v1"),
        ("http://user:pw@127.0.0.1:8000/v1", "http://user:***@127.0.0.1:8000/v1"),
        ("https://user:p%40w@[::1]:8000/v1", "https://user:***@[::1]:8000/v1"),
        ("https://user:p@w@host/v1", "https://user:***@host/v1"),
        ("https://user:p/w@host/v1", "https://user:***@host/v1"),
        ("https://user:p:w@host", "https://user:***@host"),
        ("https://:pw@host/v1", "https://:***@host/v1"),
        ("https://sk-key@host/v1", "https://***@host/v1"),
        ("https://sk-key:@host/v1", "https://***@host/v1"),
        ("user:pw@host:8000/v1", "user:***@host:8000/v1"),
        ("https://host/v1?api_key=pw&version=2", "https://host/v1?api_key=***&version=2"),
        ("https://host/v1?version=2&TOKEN=p;w", "https://host/v1?version=2&TOKEN=***"),
        ("https://host/v1?x-subscription-key=pw#top", "https://host/v1?x-subscription-key=***"),
        ("postgresql://me:pw@db:5432/x", "postgresql://me:***@db:5432/x"),
        ("postgresql+psycopg://me:1/2@db/x", "postgresql+psycopg://me:***@db/x"),
        ("postgresql://me:p#w@db/x", "postgresql://me:***@db/x"),
        ("postgresql://db/x?user=me&password=pw", "postgresql://db/x?user=me&password=***"),
        ("postgresql://db/x?sslpassword=pw&sslmode=require", "postgresql://db/x?sslpassword=***&sslmode=require"),
        ("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dpw", "mssql+pyodbc:///?odbc_connect=***"),
    ],
)
def test_credentials_are_hidden_wherever_they_stand(whole: str, shown: str) -> None:
    url = SecretUrl(whole)
    assert (str(url), url.secret_url()) == (shown, whole)


@pytest.mark.parametrize(
    "url",
    [
        "nowhere",
        "http://127.0.0.1:8000/v1",
        "http://[::1]:8000/v1",
        "https://host:8000/users/@me",
        "postgresql://me@db/x",
        "postgresql://db:5432/x",
        "sqlite:///runs/toy/experience.db",
        "sqlite:////home/me@home/a:b/x.db?a=b",
        "sqlite://",
    ],
)
def test_a_url_without_credentials_is_shown_as_it_is(url: str) -> None:
    assert str(SecretUrl(url)) == SecretUrl(url).secret_url() == url


def forms_of(section: Any) -> list[str]:
    config = section.model_dump()
    return [
        str(section),
        repr(section),
        str(config),
        repr(config),
        f"{config}",
        json.dumps(config, default=str),
        section.model_dump_json(),
        yaml.safe_dump(section.model_dump(mode="json")),
    ]


@pytest.mark.parametrize(
    "section",
    [
        Endpoint(base_url=SecretUrl("https://user:pw-marked@host/v1")),
        Generation(base_url=SecretUrl("https://user:pw-marked@host/v1")),
        Hotpotqa(wikipedia=SecretUrl("https://user:pw-marked@host/w/api.php")),
    ],
)
def test_no_form_of_a_section_holds_the_password(section: Any) -> None:
    for form in forms_of(section):
        assert "pw-marked" not in form
        assert "user:***@host" in form


def test_no_form_of_an_experiment_holds_a_password(tmp_path: Path) -> None:
    experiment = experiment_with_secrets(tmp_path)
    forms = [*forms_of(experiment), str(experiment.store_url), repr(conditions(experiment))]
    assert not [form for form in forms if "marked" in form]
    assert "postgresql://me:***@db/x" in forms[0]


def experiment_with_secrets(folder: Path) -> Experiment:
    path = folder / "config.yaml"
    path.write_text(CONFIG)
    return load(
        path,
        [
            "store=postgresql://me:marked-store@db/x",
            "actor.endpoint.base_url=https://user:marked-actor@host/v1",
            "reflector.endpoint.base_url=https://host/v1?api_key=marked-reflector",
            "eval.actors={other: {base_url: 'https://user:marked-other@host/v1'}}",
            "train.generation.base_url=https://user:marked-ppo@host/v1",
        ],
    )


def test_an_experiment_can_connect(tmp_path: Path) -> None:
    experiment = experiment_with_secrets(tmp_path)
    assert experiment.store_url.secret_url() == "postgresql://me:marked-store@db/x"
    endpoint = experiment.actor.endpoint
    again = Endpoint(**endpoint.model_dump())
    copied = copy.deepcopy(endpoint.model_copy(update={"model": "other"}, deep=True))
    for section in (endpoint, again, copied):
        assert isinstance(section.base_url, SecretUrl)
        assert section.base_url.secret_url() == "https://user:marked-actor@host/v1"


def test_a_child_process_receives_the_whole_url_on_request() -> None:
    section = Hotpotqa(wikipedia=SecretUrl("https://user:pw-marked@host/w/api.php"))
    dumped = json.loads(json_with_secrets(section.model_dump()))
    assert dumped["wikipedia"] == "https://user:pw-marked@host/w/api.php"
    assert Hotpotqa(**dumped).wikipedia.secret_url() == "https://user:pw-marked@host/w/api.php"


def test_credentials_are_not_a_condition_of_an_experiment(tmp_path: Path) -> None:
    first, other = SecretUrl("https://user:one@host/v1"), SecretUrl("https://user:other@host/v1")
    assert first == other
    assert hash(first) == hash(other)
    assert first != SecretUrl("https://user:one@elsewhere/v1")


@pytest.mark.parametrize("url", ["https://user:***@host/v1", "https://***@host/v1", "https://host/v1?api_key=***"])
def test_a_url_copied_from_a_report_is_refused_until_its_secret_is_filled_in(tmp_path: Path, url: str) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match=r"base_url: Its password or key is left out: write it in place of \*\*\*"):
        load(tmp_path / "config.yaml", [f"actor.endpoint.base_url={url}"])


@pytest.mark.parametrize(
    "url", ["http://host:port/v1", "http://[x/v1", "http://h\0/v1", "http://h:99999/v1", "http://me:mark/ed@host/v1"]
)
def test_an_impossible_address_is_refused_without_showing_its_password(tmp_path: Path, url: str) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match="base_url: It is not an address: write it as in http://") as error:
        load(tmp_path / "config.yaml", [f"actor.endpoint.base_url={url}"])
    assert "mark" not in str(error.value)


def test_the_address_of_a_wiki_must_be_a_web_address(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("run: toy\nenvironment: {name: hotpotqa}\n")
    for wrong in ("ftp://host/w/api.php", "https://host/w/api.php?a=b"):
        with pytest.raises(ConfigError, match=r"environment\.wikipedia: String should match pattern"):
            load(tmp_path / "config.yaml", [f"environment.wikipedia={wrong}"])


@pytest.mark.parametrize("value", ["3", "[a]", "{a: b}"])
def test_a_url_must_be_a_text(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match="store: Input should be a valid string"):
        load(tmp_path / "config.yaml", [f"store={value}"])


@pytest.mark.parametrize(
    "override",
    [
        "actor.endpoint.base_urll=https://me:marked-pw@host/v1",
        "actor.endpoint=https://me:marked-pw@host/v1",
        "https://me:marked-pw@host/v1",
        "run.store=https://me:marked-pw@host/v1",
        "loop.trials=https://marked-pw@host/v1",
        "eval.split=[3, 'https://host/v1?token=marked-pw']",
    ],
)
def test_an_error_on_the_command_line_hides_the_password(tmp_path: Path, override: str) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "config.yaml", [override])
    assert "marked" not in str(error.value)
