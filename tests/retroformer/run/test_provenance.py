import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.errors import MissingInput
from retroformer.run.provenance import chat_template_sha256, code_version, folder_sha256, package_versions


def adapter(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def test_an_adapters_hash_is_that_of_its_configuration_and_weights(tmp_path: Path) -> None:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    lines = "".join(f"{name} {hashlib.sha256(content).hexdigest()}\n" for name, content in files.items())
    assert folder_sha256(adapter(tmp_path / "a")) == hashlib.sha256(lines.encode()).hexdigest()


def test_files_beside_an_adapter_do_not_change_its_hash(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    before = folder_sha256(folder)
    (folder / "README.md").write_text("A card.")
    (folder / "trainer_state.json").write_text("{}")
    (folder / "optimizer.safetensors").write_bytes(b"moments")
    adapter(folder / "checkpoint-50", b"older weights")
    assert folder_sha256(folder) == before


def test_other_weights_have_another_hash_in_any_folder(tmp_path: Path) -> None:
    first, same, other = (
        adapter(tmp_path / name, weights) for name, weights in (("a", b"1"), ("b", b"1"), ("c", b"2"))
    )
    assert folder_sha256(first) == folder_sha256(same) != folder_sha256(other)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_each_file_that_determines_a_model_changes_its_hash(tmp_path: Path, name: str) -> None:
    for file in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / file).write_text(file)
    before = folder_sha256(tmp_path)
    (tmp_path / name).write_text("changed")
    assert folder_sha256(tmp_path) != before


def test_a_folder_without_weights_is_a_missing_input(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MissingInput, match="No model or adapter in"):
        folder_sha256(tmp_path)


def test_the_hash_of_the_chat_template_is_that_of_its_text(tmp_path: Path) -> None:
    template = "{{ messages[0]['content'] }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    assert chat_template_sha256(tmp_path) == hashlib.sha256(template.encode()).hexdigest()


def test_the_code_version_is_its_commit_and_unknown_outside_git(tmp_path: Path) -> None:
    assert code_version(tmp_path).commit == "unknown"
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "One"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    clean = code_version(tmp_path)
    assert len(clean.commit) == 40
    assert not clean.dirty
    (tmp_path / "file").write_text("two")
    assert code_version(tmp_path).dirty
    assert code_version(tmp_path).commit == clean.commit


def test_only_versions_of_installed_packages_are_given() -> None:
    assert set(package_versions(["pydantic", "no-such-package-anywhere"])) == {"pydantic"}


def test_importing_it_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, retroformer.run.provenance, retroformer.endpoint.own_server, retroformer.models.embedded;"
        "print({'torch', 'transformers', 'openai', 'httpx'} & set(sys.modules))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "set()"
