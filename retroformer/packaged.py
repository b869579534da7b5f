"""Adapters that come with the package, in retroformer/adapters."""

from importlib import resources
from pathlib import Path


def adapter_folder(named: Path) -> Path:
    """The folder of an adapter that a page names: by path, or by the bare name of one that comes with the package."""
    packaged = Path(str(resources.files("retroformer") / "adapters" / named.name))
    is_bare = named.parts == (named.name,)
    return packaged if is_bare and packaged.is_dir() and not named.is_dir() else named
