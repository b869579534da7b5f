"""What travels: the files of an adapter or of a run's ratings, and their manifest of sizes and hashes.

Everything lies in one flat folder. `retroformer.json` lists the other files; it is written last and read first.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from retroformer.errors import DamagedFile
from retroformer.experiment.adapters import FOLDER_NAME
from retroformer.files.bounded_file import sha256
from retroformer.provenance import ADAPTER_FILES
from retroformer.records import Record

MANIFEST = "retroformer.json"
MANIFEST_BYTES = 1 << 20
"""Largest size of a manifest."""
RATINGS_FILES = ("trajectories.parquet", "reflections.parquet")

FileName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\.(json|jsonl|md|parquet|safetensors|yaml)$")
]
"""A file beside the manifest, in a format that holds data alone: no path, no pickle, no code."""


class FileFacts(Record):
    """Size and hash of a file."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Record):
    """Content of `retroformer.json`."""

    format: Literal[1] = 1
    kind: Literal["adapter", "ratings"]
    name: str
    """For an adapter its folder below runs/RUN, such as `sft`, `sft-2` or `sft-rated`; for ratings the run."""
    files: dict[FileName, FileFacts]

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        needed = ADAPTER_FILES if self.kind == "adapter" else RATINGS_FILES
        if missing := [name for name in needed if name not in self.files]:
            raise ValueError(f"{missing[0]} is not listed")
        if self.kind == "adapter" and not FOLDER_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a stage's adapter")
        return self


class Contents(NamedTuple):
    """Files to push, by their names at the address."""

    kind: Literal["adapter", "ratings"]
    name: str
    files: Mapping[str, Path]

    def manifest(self) -> Manifest:
        """Read and hash the files."""
        facts = {name: facts_of(path) for name, path in sorted(self.files.items())}
        return Manifest(kind=self.kind, name=self.name, files=facts)


def facts_of(path: Path) -> FileFacts:
    return FileFacts(bytes=path.stat().st_size, sha256=sha256(path).hexdigest())


def parse_manifest(text: bytes, address: str) -> Manifest:
    """Parse the manifest at an address. Raises DamagedFile."""
    try:
        return Manifest.model_validate(json.loads(text))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        reason = f"{place}: {fault['msg']}" if place else fault["msg"]
    except (ValueError, RecursionError):
        reason = "it is not JSON"
    raise DamagedFile(
        f"{MANIFEST} at {address} is refused ({reason}): push again with `retroformer push`, and pull only from "
        "addresses that you trust."
    ) from None


def require_sound(folder: Path, manifest: Manifest, address: str) -> None:
    """Compare the files in a folder with the manifest. Raises DamagedFile."""
    for name, facts in manifest.files.items():
        path = folder / name
        found = facts_of(path) if path.is_file() else None
        if found != facts:
            state = "is missing" if found is None else f"({found.bytes} bytes) is not as it was pushed"
            raise DamagedFile(f"{name} at {address} {state}: run the command again, or push again.")
