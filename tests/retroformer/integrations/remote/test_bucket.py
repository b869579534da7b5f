"""Pushes to and pulls from folders of fsspec: the same files arrive, and what is damaged or foreign is refused."""

import json
import shutil
import sys
from contextlib import chdir, closing
from hashlib import sha256
from pathlib import Path

import fsspec
import pytest
import yaml

from retroformer.cases.files import read_cases
from retroformer.config.file import load
from retroformer.errors import ConfigError, DamagedFile, MissingInput, ProvenanceError, RetroformerError
from retroformer.integrations.remote.commands import pull_app
from retroformer.integrations.remote.transfer import pull_to, push_run
from retroformer.method.rating import ratings
from retroformer.run.adapters import has_adapter
from retroformer.run.provenance import folder_sha256
from retroformer.run.store import open_store
from serve.served_names import served_names
from train.adapter import require_adapter

CONFIG = Path("config.yaml")
PUSHED = {"adapter_config.json", "adapter_model.safetensors", "README.md", "metrics.json", "config.yaml"}


@pytest.fixture
def bucket(home: Path, tmp_path: Path) -> Path:
    """Return a folder to which the adapter was pushed."""
    push_run(CONFIG, (), f"file://{tmp_path}/bucket", "sft")
    return tmp_path / "bucket"


def edit_manifest(bucket: Path, old: str, new: str) -> None:
    manifest = bucket / "retroformer.json"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))


def test_a_pushed_adapter_is_served_by_another_machine(home: Path, away: Path, tmp_path: Path) -> None:
    said = push_run(CONFIG, (), f"file://{tmp_path}/bucket", "sft")
    assert said.startswith(f"pushed the adapter sft of run tiny to file://{tmp_path}/bucket (6 files, ")
    assert {path.name for path in (tmp_path / "bucket").iterdir()} == PUSHED | {"retroformer.json"}
    with chdir(away):
        said = pull_to(f"file://{tmp_path}/bucket", CONFIG)
        assert said == "the adapter sft is in runs/tiny/sft: serve and eval of config.yaml find it as 'sft'"
        names = served_names(load(CONFIG))
        assert (names.adapters, names.aliases) == ({"sft": Path("runs/tiny/sft")}, {"reflector": "sft"})
        pulled = Path("runs/tiny/sft")
        require_adapter(pulled)
        assert folder_sha256(pulled) == folder_sha256(home / "runs/tiny/sft")
        assert (pulled / "README.md").read_text() == (home / "runs/tiny/sft/README.md").read_text()


def test_pushed_ratings_are_imported_into_another_store(home: Path, away: Path) -> None:
    assert push_run(CONFIG, (), "memory://ratings", None).startswith(
        "pushed the ratings of run tiny to memory://ratings"
    )
    with chdir(away):
        said = pull_to("memory://ratings", CONFIG)
        assert said.startswith("1 cases are in sqlite:///runs/tiny/experience.db, 3 of their facts new")
        with closing(open_store(load(CONFIG))) as store:
            assert [(rated.reflection.text, rated.rating) for rated in ratings(store, "collect", records=True)] == [
                ("Look in shelf 1.", 1.0)
            ]
        assert " 0 of their facts new" in pull_to("memory://ratings", CONFIG)
    uploaded = {path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/ratings")}
    assert uploaded == {"cases.parquet", "README.md", "config.yaml", "retroformer.json"}


def test_pushed_ratings_are_cases_for_other_programs(home: Path, tmp_path: Path) -> None:
    push_run(CONFIG, (), f"file://{tmp_path}/bucket", None)
    header = yaml.safe_load((tmp_path / "bucket/README.md").read_text().split("---\n")[1])
    assert [table["config_name"] for table in header["configs"]] == ["cases"]
    (case,) = read_cases(tmp_path / "bucket/cases.parquet")
    assert (case.task.id, case.advice and case.advice.text, case.rating) == ("mug", "Look in shelf 1.", 1.0)


def test_a_folder_that_is_not_named_is_called_as_the_address(bucket: Path, away: Path) -> None:
    shutil.copytree(bucket, bucket.parent / "team@corp/advice")
    with chdir(away):
        assert pull_to(f"file://{bucket.parent}/team@corp/advice/", None).startswith("the adapter sft is in advice:")
        said = pull_to(f"file://{bucket}", None)
        assert said == ("the adapter sft is in bucket: `serve.adapters: {sft: bucket}` in a config serves it")
        config = yaml.safe_load(CONFIG.read_text()) | {"serve": {"adapters": {"theirs": "bucket"}}}
        CONFIG.write_text(yaml.safe_dump(config))
        assert served_names(load(CONFIG)).adapters == {"theirs": Path("bucket")}


def test_pulling_again_changes_nothing_and_never_overwrites_other_files(bucket: Path, away: Path) -> None:
    with chdir(away):
        pull_to(f"file://{bucket}", Path("mine"))
        before = (away / "mine/metrics.json").stat().st_mtime_ns
        pull_to(f"file://{bucket}", Path("mine"))
        assert (away / "mine/metrics.json").stat().st_mtime_ns == before
        (away / "mine/adapter_model.safetensors").write_bytes(b"mine")
        with pytest.raises(
            ConfigError, match=r"^mine already holds other files than those at file://.*: move it away, or pull into"
        ):
            pull_to(f"file://{bucket}", Path("mine"))
        assert (away / "mine/adapter_model.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize("target", [".", "/", "..", "new/..", "file/advice"])
def test_what_is_no_folder_of_its_own_is_refused_in_one_sentence(target: str, bucket: Path, away: Path) -> None:
    (away / "file").touch()
    with chdir(away), pytest.raises(ConfigError, match=r"^[^\n]*(name one, such as|pull into another one)[^\n]*\.$"):
        pull_to(f"file://{bucket}", Path(target))


@pytest.mark.parametrize("other", ["empty", "absent"])
def test_a_pull_replaces_a_link_to_an_empty_folder_or_to_none(other: str, bucket: Path, away: Path) -> None:
    (away / "empty").mkdir()
    (away / "mine").symlink_to(other)
    with chdir(away):
        pull_to(f"file://{bucket}", Path("mine"))
    assert has_adapter(away / "mine")
    assert not (away / "mine").is_symlink()
    assert not list((away / "empty").iterdir())


def test_no_secret_and_no_address_of_the_store_is_pushed(home: Path, tmp_path: Path) -> None:
    stage = home / "runs/tiny/sft"
    config = yaml.safe_load((stage / "config.yaml").read_text())
    config["store"] = "postgresql://me:half-a-word@db.example/x"
    config["reflector"]["endpoint"]["base_url"] = "http://me:sesame-opens-it@127.0.0.1:1/v1?api_key=four-words-long"
    (stage / "config.yaml").write_text(yaml.safe_dump(config))
    metrics = json.loads((stage / "metrics.json").read_text())
    (stage / "metrics.json").write_text(json.dumps(metrics | {"where": "/home/somebody/runs"}))
    (stage / "notes.txt").write_text("mine alone")
    push_run(CONFIG, (), f"file://{tmp_path}/bucket", "sft")
    pushed = {path.name: path.read_bytes() for path in (tmp_path / "bucket").iterdir()}
    assert set(pushed) == PUSHED | {"retroformer.json"}
    for secret in (b"half-a-word", b"db.example", b"sesame-opens-it", b"four-words-long", b"somebody", b"mine alone"):
        assert not [name for name, content in pushed.items() if secret in content], secret
    assert yaml.safe_load(pushed["config.yaml"])["run"] == "tiny"


def test_a_link_out_of_the_folder_is_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "private.md").write_text("mine alone")
    (home / "runs/tiny/sft/README.md").unlink()
    (home / "runs/tiny/sft/README.md").symlink_to(tmp_path / "private.md")
    with pytest.raises(ConfigError, match=r"README\.md is a link to a file outside its folder, which is not pushed"):
        push_run(CONFIG, (), f"file://{tmp_path}/bucket", "sft")
    assert not (tmp_path / "bucket").exists()


def test_an_adapter_that_was_changed_after_training_is_not_pushed(home: Path, tmp_path: Path) -> None:
    settings = home / "runs/tiny/sft/adapter_config.json"
    settings.write_text(settings.read_text().replace('"r": 16', '"r": 17') + " ")
    with pytest.raises(ProvenanceError, match=r"has sha256 \w{12}, but had \w{12} after training: put the folder back"):
        push_run(CONFIG, (), f"file://{tmp_path}/bucket", "sft")


@pytest.mark.parametrize("cut", ["truncated", "altered", "longer", "missing"])
def test_a_damaged_file_is_refused_and_nothing_appears(cut: str, bucket: Path, away: Path) -> None:
    weights = bucket / "adapter_model.safetensors"
    content = weights.read_bytes()
    damaged = {
        "truncated": content[:-1],
        "altered": content[:-1] + bytes([content[-1] ^ 1]),
        "longer": content + b"more",
    }
    weights.unlink()
    if cut in damaged:
        weights.write_bytes(damaged[cut])
    with chdir(away), pytest.raises(DamagedFile, match=r"^adapter_model.safetensors at file://[^\n]*\.$"):
        pull_to(f"file://{bucket}", CONFIG)
    assert not list(away.glob("runs/tiny/*"))


@pytest.mark.parametrize(
    "name", ["../outside.json", "/tmp/outside.json", "a/b.json", "..\\outside.json", ".hidden.json", "code.py", "x.bin"]
)
def test_a_name_that_leaves_the_folder_or_holds_code_is_refused(name: str, bucket: Path, away: Path) -> None:
    manifest = json.loads((bucket / "retroformer.json").read_text())
    manifest["files"][name] = {"bytes": 2, "sha256": sha256(b"{}").hexdigest()}
    (bucket / "retroformer.json").write_text(json.dumps(manifest))
    with (
        chdir(away),
        pytest.raises(DamagedFile, match=r"^retroformer.json at file://.* is refused \(files\..*trust\.$"),
    ):
        pull_to(f"file://{bucket}", Path("mine"))
    assert not (away / "mine").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"name": "sft"', '"name": "../sft"'),
        ('"name": "sft"', '"name": "checkpoints"'),
        ('"adapter_model.safetensors"', '"other.safetensors"'),
        ('"format": 1', '"format": 2'),
        ('"kind": "adapter"', '"kind": "ratings"'),
        ("{", "[" * 100_000),
    ],
)
def test_a_manifest_of_another_form_is_refused(old: str, new: str, bucket: Path, away: Path) -> None:
    edit_manifest(bucket, old, new)
    with chdir(away), pytest.raises(DamagedFile, match=r"is refused|is too large"):
        pull_to(f"file://{bucket}", CONFIG)


def test_half_a_push_is_not_pulled(bucket: Path, away: Path) -> None:
    (bucket / "retroformer.json").unlink()
    with chdir(away), pytest.raises(MissingInput, match=r"^No retroformer.json at file://.*`retroformer push`\.$"):
        pull_to(f"file://{bucket}", Path("mine"))


def test_a_push_over_another_removes_the_old_manifest_first(bucket: Path, home: Path) -> None:
    """So that a push that is killed leaves an address that is refused, not a mixture."""
    weights = bucket / "adapter_model.safetensors"
    weights.unlink()
    weights.mkdir()  # The push fails here.
    with pytest.raises(RetroformerError, match="cannot be used"):
        push_run(CONFIG, (), f"file://{bucket}", "sft")
    assert not (bucket / "retroformer.json").exists()
    shutil.rmtree(weights)
    push_run(CONFIG, (), f"file://{bucket}", "sft")
    assert (bucket / "retroformer.json").exists()


@pytest.mark.parametrize(
    ("address", "stage", "private", "sentence"),
    [
        ("me/advice", "sft", False, "'me/advice' is not an address: write hf://OWNER/NAME"),
        ("memory://x", "stf", False, "--stage stf: no stage has this name; choose from warm, sft,"),
        ("memory://x", "ppo", False, "No adapter in runs/tiny/ppo: train it with `retroformer train ppo"),
        ("memory://x", "sft", True, "--private is for hf:// addresses"),
        ("hf://me", "sft", False, "hf://me is not a hub address"),
        ("hf://datasets/me/advice", "sft", False, "cannot hold what is pushed"),
        ("nothing://me:half-a-word@x/y", "sft", False, r"nothing://me:\*\*\*@x/y cannot be used .*Protocol not known"),
        ("gs://bucket/x", "sft", False, r"gs://bucket/x needs a package that is not installed: .*gcsfs"),
    ],
)
def test_what_cannot_be_pushed_is_one_sentence(
    address: str, stage: str, private: bool, sentence: str, home: Path
) -> None:
    with pytest.raises(RetroformerError, match=sentence) as refused:
        push_run(CONFIG, (), address, stage, private=private)
    assert "\n" not in str(refused.value)
    assert "half-a-word" not in str(refused.value)


def test_without_the_extra_the_sentence_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingInput, match=r"fsspec is not installed: run `pip install 'retroformer\[remote\]'`\.$"):
        pull_app(["memory://x"], standalone_mode=False)
