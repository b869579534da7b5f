"""Provenance of answers: hashes of base, adapter and chat template, commit of the code, and package versions."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from pydantic import JsonValue

from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import MissingInput
from retroformer.method.records import Record
from retroformer.models.base_files import weight_files
from retroformer.models.prompt_template import prompt_template

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS)
MODEL_FILES = ("config.json", "tokenizer*", "*.jinja")
"""Files that define a model beside its weights."""
PACKAGES = ("retroformer", "torch", "transformers", "peft", "trl", "bitsandbytes", "fschat", "httpx", "alfworld")


def trained_sha256(adapter: str | None, reward: str | None) -> str | None:
    """Return one hash of a model's trained parts: its adapter's hash, or with a reward model a hash of both hashes."""
    return adapter if reward is None else hashlib.sha256(f"{adapter} {reward}".encode()).hexdigest()


class ServedModel(Record):
    """Model under one name of an endpoint. `adapter_sha256` is None for the plain base."""

    base_sha256: str
    adapter_sha256: str | None
    chat_template_sha256: str
    reward_sha256: str | None = None
    """Hash of the reward model's adapter, for a best-of-n name; None otherwise."""

    @property
    def trained_sha256(self) -> str | None:
        """Hash of all its trained parts; None for the plain base."""
        return trained_sha256(self.adapter_sha256, self.reward_sha256)


class Provenance(Record):
    """Models that an endpoint serves, by name."""

    models: dict[str, ServedModel]
    dtype: str
    quantization: str = "none"
    """Quantisation of the base's weights, such as `nf4`."""
    versions: dict[str, str]


class CodeVersion(Record):
    """Commit that is checked out; `unknown` outside git."""

    commit: str
    dirty: bool
    """True if tracked files differ from the commit."""


Proven = Mapping[SecretUrl | None, Provenance]
"""Models of servers that can say what they serve, by address; None is the experiment's own server."""
NOT_PROVEN: Proven = MappingProxyType({})


def folder_sha256(folder: Path) -> str:
    """Return the hash of the names and contents of the files in `folder` that define its model or adapter.

    For an adapter these are its config and weights; for a model its weights, config, tokenizer and chat template. Other
    files do not change the hash. Raises MissingInput if `folder` holds neither.
    """
    is_adapter = (folder / ADAPTER_FILES[0]).is_file()
    weights = [path for path in (folder / ADAPTER_WEIGHTS,) if path.is_file()] if is_adapter else weight_files(folder)
    if not weights:
        raise MissingInput(
            f"No model or adapter in {str(folder)!r}: expected a folder with .safetensors or .bin files."
        )
    patterns = ADAPTER_FILES if is_adapter else MODEL_FILES
    files = [path for path in folder.glob("*") if path.is_file() and any(fnmatch(path.name, name) for name in patterns)]
    return files_sha256({path.name: path for path in (*files, *weights)})


def files_sha256(files: Mapping[str, Path]) -> str:
    """Return the hash of these names and the contents of their files, in the order of the names. Raises OSError."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def numbered_sha256(files: Sequence[Path]) -> str:
    """Return the start of the hash of these files in their order. Raises OSError."""
    # Numbers tell files of the same name apart; folders are left out, since they differ from machine to machine.
    return files_sha256({f"{number} {file.name}": file for number, file in enumerate(files)})[:16]


def chat_template_sha256(folder: Path, settings: Mapping[str, JsonValue] | None = None) -> str:
    """Return the hash of the template that writes the prompts of the model in `folder` with these settings."""
    return hashlib.sha256(prompt_template(folder, settings).encode()).hexdigest()


def code_version(folder: Path = Path(__file__).parent) -> CodeVersion:
    """Return the commit of the checkout that `folder` belongs to, by default that of this code."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return CodeVersion(commit="unknown", dirty=False)
    return CodeVersion(commit=commit, dirty=bool(_git(folder, "status", "--porcelain", "--untracked-files=no")))


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the installed packages among `names`."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
