"""What exactly answered: hashes of base, adapter and chat template, the commit of the code, versions of packages."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retroformer.best_of import trained_sha256
from retroformer.chat_template import chat_template
from retroformer.errors import MissingInput
from retroformer.records import Record

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MODEL_FILES = ("*.safetensors", "config.json", "tokenizer*", "*.jinja")
PACKAGES = ("retroformer", "torch", "transformers", "peft", "trl", "bitsandbytes", "fschat", "openai", "alfworld")


class ServedModel(Record):
    """One name of an endpoint. `adapter_sha256` is None where the plain base answers."""

    base_sha256: str
    adapter_sha256: str | None
    chat_template_sha256: str
    reward_sha256: str | None = None
    """Of the reward model's adapter, where the answer is the best of several by its scores."""

    @property
    def trained_sha256(self) -> str | None:
        """Of all that was trained of it; None where the plain base answers."""
        return trained_sha256(self.adapter_sha256, self.reward_sha256)


class Provenance(Record):
    """What an endpoint serves, by every name it answers to."""

    models: dict[str, ServedModel]
    dtype: str
    quantization: str = "none"
    """How the weights of the base are packed, such as `nf4`."""
    versions: dict[str, str]


class CodeVersion(Record):
    """The commit that is checked out; `unknown` outside git."""

    commit: str
    dirty: bool
    """Tracked files differ from the commit."""


def folder_sha256(folder: Path) -> str:
    """Of the names and contents of the files in `folder` that determine how its model or adapter behaves.

    An adapter is its configuration and weights; a model is its weights, configuration, tokenizer and chat template.
    A README, a training state or a folder of checkpoints beside them changes nothing.

    Raises:
        MissingInput: `folder` holds neither.
    """
    patterns = ADAPTER_FILES if (folder / ADAPTER_FILES[0]).is_file() else MODEL_FILES
    files = [path for path in folder.glob("*") if path.is_file() and any(fnmatch(path.name, name) for name in patterns)]
    if not any(path.suffix == ".safetensors" for path in files):
        raise MissingInput(f"No model or adapter in {str(folder)!r}: expected a folder with .safetensors files.")
    return files_sha256({path.name: path for path in files})


def files_sha256(files: Mapping[str, Path]) -> str:
    """Of the contents of these files under these names, in the order of the names. Raises OSError."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def chat_template_sha256(folder: Path) -> str:
    return hashlib.sha256(chat_template(folder).encode()).hexdigest()


def code_version(folder: Path = Path(__file__).parent) -> CodeVersion:
    """The commit of the checkout that `folder` belongs to, by default the one that this code runs from."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return CodeVersion(commit="unknown", dirty=False)
    return CodeVersion(commit=commit, dirty=bool(_git(folder, "status", "--porcelain", "--untracked-files=no")))


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of those of `names` that are installed."""
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
