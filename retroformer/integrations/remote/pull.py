"""Pulls what `push` wrote: everything is copied and verified first, then put in its place in one step."""

import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.experiment.file import load, load_domains
from retroformer.files import durable
from retroformer.files.durable import ABANDONED_SECONDS
from retroformer.parquet import import_run

from .address import open_remote
from .contents import MANIFEST, MANIFEST_BYTES, Manifest, parse_manifest, require_sound
from .transport import Remote


def pull_to(address: str, target: Path | None, *, if_pushed: bool = False) -> str:
    """Copy an adapter or ratings to a folder, or to the run of a config. Return a sentence that says where they are.

    Raises:
        ConfigError: the address or the config is wrong, or the folder holds other files.
        MissingInput: nothing was pushed to the address and `if_pushed` is False, or a package is missing.
        DamagedFile: a file is not as it was pushed.
        RemoteError: the address cannot be read.
    """
    remote = open_remote(address)
    if if_pushed and not _was_pushed(remote):
        return f"nothing was pushed to {remote.address}"
    if target is not None and (target.suffix in (".yaml", ".yml") or target.is_file()):
        return _pull_to_run(remote, target)
    folder = target or Path(remote.address.partition("@")[0].rstrip("/").rpartition("/")[2] or "pulled")
    manifest = _copy(remote, folder)
    if manifest.kind == "ratings":
        return (
            f"the ratings of run {manifest.name} are in {folder}: `retroformer import EXPERIMENT.yaml {folder}` adds "
            "them to a run"
        )
    return (
        f"the adapter {manifest.name} is in {folder}: `serve.adapters: {{{manifest.name}: {folder}}}` in a config "
        "serves it"
    )


def _was_pushed(remote: Remote) -> bool:
    """Return True if there is a manifest. Raises DamagedFile, RemoteError."""
    with TemporaryDirectory(prefix="retroformer-pull-") as scratch:
        try:
            _manifest(remote, Path(scratch))
        except MissingInput:
            return False
    return True


def _pull_to_run(remote: Remote, config: Path) -> str:
    experiment = load_domains(config)[0]
    with TemporaryDirectory(prefix="retroformer-pull-") as scratch:
        manifest, _ = _manifest(remote, Path(scratch))
        if manifest.kind == "ratings":
            copied = Path(scratch) / "ratings"
            _copy(remote, copied)
            return import_run(load(config), copied)
    folder = experiment.folder / manifest.name
    _copy(remote, folder)
    return f"the adapter {manifest.name} is in {folder}: serve and eval of {config} find it as {manifest.name!r}"


def _copy(remote: Remote, folder: Path) -> Manifest:
    """Copy all files to a new folder, which appears complete or not at all. Return their manifest.

    Raises:
        ConfigError: the folder holds other files.
        DamagedFile, MissingInput, RemoteError
    """
    _remove_abandoned(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.pulling")
    unfinished.mkdir()
    try:
        manifest, text = _manifest(remote, unfinished)
        if _holds(folder, manifest, remote.address):
            return manifest
        for name, facts in manifest.files.items():
            try:
                remote.read(name, unfinished / name, facts.bytes)
            except MissingInput:
                raise DamagedFile(
                    f"{name} at {remote.address} is missing, although {MANIFEST} lists it: push again."
                ) from None
        require_sound(unfinished, manifest, remote.address)
        (unfinished / MANIFEST).write_bytes(text)
        durable.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return manifest


def _manifest(remote: Remote, scratch: Path) -> tuple[Manifest, bytes]:
    """Read the manifest by way of a file in `scratch`. Raises MissingInput, DamagedFile, RemoteError."""
    path = scratch / MANIFEST
    remote.read(MANIFEST, path, MANIFEST_BYTES)
    if path.stat().st_size > MANIFEST_BYTES:
        raise DamagedFile(f"{MANIFEST} at {remote.address} is too large: it was not written by `retroformer push`.")
    text = path.read_bytes()
    return parse_manifest(text, remote.address), text


def _holds(folder: Path, manifest: Manifest, address: str) -> bool:
    """Return True if the folder holds these very files, False if it is empty or missing.

    Raises:
        ConfigError: it holds others.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    with suppress(DamagedFile, OSError):
        if parse_manifest((folder / MANIFEST).read_bytes(), address) == manifest:
            require_sound(folder, manifest, address)
            return True
    raise ConfigError(
        f"{folder} already holds other files than those at {address}: move it away, or pull into another folder."
    )


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed pulls into this folder have left."""
    for leftover in folder.parent.glob(f".{folder.name}.*-*.pulling"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
