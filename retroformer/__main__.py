"""python -m retroformer play EXPERIMENT.yaml [key=value ...] --list | --task ID [--jsonl]."""

import argparse
from pathlib import Path

from retroformer.config import load
from retroformer.errors import run_command
from retroformer.play import list_tasks, play


def main(arguments: list[str]) -> None:
    """Try an environment by hand: actions from standard input, one a line; observations to standard output."""
    parser = argparse.ArgumentParser(prog="python -m retroformer", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser("play", help="play one task, or list the tasks of a split")
    playing.add_argument("experiment", type=Path, help="an experiment page, such as configs/alfworld.yaml")
    playing.add_argument("overrides", nargs="*", metavar="key=value", help="such as environment.split=valid_seen")
    which = playing.add_mutually_exclusive_group(required=True)
    which.add_argument("--list", action="store_true", help="print one task id a line")
    which.add_argument("--task", metavar="ID", help="play this task")
    playing.add_argument("--jsonl", action="store_true", help="one JSON object a step instead of text")
    # argparse takes no more positional words after an option; here they may stand anywhere.
    chosen, rest = parser.parse_known_args(arguments)
    if strange := [word for word in rest if "=" not in word or word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    chosen.overrides += rest
    experiment = load(chosen.experiment, chosen.overrides)
    if chosen.list:
        list_tasks(experiment)
    else:
        play(experiment, chosen.task, as_json=chosen.jsonl)


if __name__ == "__main__":
    run_command(main)
