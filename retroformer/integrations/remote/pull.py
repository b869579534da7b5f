"""Pulls what `push` wrote: everything is copied and verified first, then put in its place in one step."""

import glob
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from retroformer.cases.import_cases import import_cases
from retroformer.config.file import load, load_domains
from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.files import durable

from .places import MANIFEST, Place
from .push import CASES, MANIFEST_BYTES, Manifest, parse_manifest, require_sound


def pull_to(address: str, target: Path | None, *, if_pushed: bool = False) -> str:
    """Copy an adapter or ratings to a folder, or to the run of a config. Return a sentence that says where they are.

    Raises:
        ConfigError: the address or the config is wrong, or the folder holds other files.
        MissingInput: nothing was pushed to the address and `if_pushed` is False, or a package is missing.
        DamagedFile: a file is not as it was pushed.
        RemoteError: the address cannot be read.
    """
    place = Place(address)
    with TemporaryDirectory(prefix="retroformer-pull-") as scratch:
        listed = Path(scratch) / MANIFEST
        try:
            place.pin()
            place.download(MANIFEST, listed, MANIFEST_BYTES)
        except MissingInput:
            if if_pushed:
                return f"nothing was pushed to {place.address}"
            raise
        manifest = parse_manifest(listed, place.address)
        if target is not None and (target.suffix in (".yaml", ".yml") or target.is_file()):
            return _pull_to_run(place, manifest, target, Path(scratch))
    folder = target or Path(place.address.partition("@")[0].rstrip("/").rpartition("/")[2] or "pulled")
    _copy(place, manifest, folder)
    if manifest.kind == "ratings":
        return (
            f"the ratings of run {manifest.name} are in {folder}: `retroformer import EXPERIMENT.yaml "
            f"{folder / CASES}` adds them to a run"
        )
    return (
        f"the adapter {manifest.name} is in {folder}: `serve.adapters: {{{manifest.name}: {folder}}}` in a config "
        "serves it"
    )


def _pull_to_run(place: Place, manifest: Manifest, config: Path, scratch: Path) -> str:
    if manifest.kind == "ratings":
        _copy(place, manifest, scratch / "ratings")
        return import_cases(load(config), scratch / "ratings" / CASES)
    folder = load_domains(config)[0].folder / manifest.name
    _copy(place, manifest, folder)
    return f"the adapter {manifest.name} is in {folder}: serve and eval of {config} find it as {manifest.name!r}"


def _copy(place: Place, manifest: Manifest, folder: Path) -> None:
    """Copy all files to a new folder, which appears complete or not at all.

    Raises:
        ConfigError: the folder holds other files.
        DamagedFile, RemoteError
    """
    for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.*-*.pulling"):  # Of killed pulls.
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > durable.ABANDONED_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
    if _holds(folder, manifest, place.address):
        return
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.pulling")
    unfinished.mkdir(parents=True)
    try:
        for name, facts in manifest.files.items():
            with suppress(MissingInput):
                place.download(name, unfinished / name, facts.bytes)
        require_sound(unfinished, manifest, place.address)
        manifest.write(unfinished)
        durable.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _holds(folder: Path, manifest: Manifest, address: str) -> bool:
    """Return True if the folder holds these very files, False if it is empty or missing.

    Raises:
        ConfigError: it holds others.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    with suppress(DamagedFile, OSError):
        if parse_manifest(folder / MANIFEST, address) == manifest:
            require_sound(folder, manifest, address)
            return True
    raise ConfigError(
        f"{folder} already holds other files than those at {address}: move it away, or pull into another folder."
    )
