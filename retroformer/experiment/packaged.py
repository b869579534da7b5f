"""Adapters and configs that come with the package."""

from importlib import resources
from pathlib import Path


def adapter_folder(named: Path) -> Path:
    """Return the folder of an adapter that a config names by path, or by the bare name of a shipped adapter."""
    packaged = Path(str(resources.files("retroformer") / "adapters" / named.name))
    is_bare = named.parts == (named.name,)
    return packaged if is_bare and packaged.is_dir() and not named.is_dir() else named


def packaged_configs() -> list[Path]:
    """Return the configs in an installed wheel, those at the top of their folder first; none in a checkout."""
    folder = Path(str(resources.files("retroformer") / "configs"))
    return sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.parts), path))
