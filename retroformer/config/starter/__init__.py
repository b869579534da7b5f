"""First experiment of a new user: a toy agent, its tasks and a config, to be replaced piece by piece by their own."""

import shutil
from pathlib import Path

from retroformer.errors import ConfigError

FILES = ("agent.py", "tasks.jsonl", "agent.yaml")


def write_starter(folder: Path) -> str:
    """Write the files to a folder, which is created if necessary, and return what they are.

    Raises ConfigError: a file of that name is already there; nothing is written.
    """
    if there := [name for name in FILES if (folder / name).exists()]:
        raise ConfigError(f"{folder / there[0]} already exists: name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(Path(__file__).with_name(name), folder / name)
    return (
        f"{folder}: agent.py (a toy agent), tasks.jsonl (its tasks) and agent.yaml (the config). Collect, train and "
        "evaluate to see it improve; then put your own agent into agent.py and your own tasks into tasks.jsonl."
    )
