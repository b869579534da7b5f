"""With this folder on a process's path, no package can be imported that a bare machine with a card lacks."""

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

INSTALLED = ("torch", "transformers", "accelerate", "peft")
WHEELS = Path(__file__).parents[3] / "benchmarks/gpu/wheels.txt"
OURS = ("benchmarks", "retroformer", "serve", "tests", "train")


def block() -> set[str]:
    """Block the packages; return their names."""
    allowed = _with_requirements([*INSTALLED, *re.findall(r"^[\w-]+(?===)", WHEELS.read_text(), re.MULTILINE)])
    blocked = set[str]()
    for module, owners in metadata.packages_distributions().items():
        names = set(map(_name, owners))
        if module not in OURS and not names & allowed:
            sys.modules[module] = None  # type: ignore[assignment]
            blocked |= names
    return blocked


def _with_requirements(names: list[str]) -> set[str]:
    found, left = set[str](), list(map(_name, names))
    while left:
        name = left.pop()
        try:
            needs = [] if name in found else list(map(Requirement, metadata.requires(name) or ()))
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        left += [_name(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


sys.stderr.write(f"blocked: {' '.join(sorted(block()))}\n")
