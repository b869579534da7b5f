import hashlib
import json
from pathlib import Path

import pytest

from retroformer.run.adapters import adapter_folder
from retroformer.run.provenance import folder_sha256


def test_a_bare_name_is_an_adapter_of_the_package_unless_there_is_such_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packaged = adapter_folder(Path("household"))
    assert packaged.is_absolute()
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= {
        file.name for file in packaged.iterdir()
    }
    Path("household").mkdir()
    assert adapter_folder(Path("household")) == Path("household")


@pytest.mark.parametrize("named", ["runs/a/ppo", "nobody", "/household", ".."])
def test_any_other_adapter_name_is_used_as_a_path(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert adapter_folder(Path(named)) == Path(named)


@pytest.mark.parametrize("name", ["household", "reflector"])
def test_the_card_of_a_shipped_adapter_gives_its_hashes(name: str) -> None:
    folder = adapter_folder(Path(name))
    card = (folder / "README.md").read_text()
    assert folder_sha256(folder) in card
    assert hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest() in card
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20e6
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "embedded"
