"""python -m retroformer play | export | import | recover EXPERIMENT.yaml ...; --help says more."""

import argparse
from pathlib import Path

from retroformer.config_file import load
from retroformer.errors import run_command
from retroformer.play import list_tasks, play


def main(arguments: list[str]) -> None:
    """Play an environment by hand, take the facts of a run out and in as Parquet files, or save a damaged store."""
    parser = argparse.ArgumentParser(prog="python -m retroformer", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser(
        "play", help="actions from standard input, one a line; observations to standard output"
    )
    exporting = commands.add_parser("export", help="write the facts of a run as Parquet files")
    importing = commands.add_parser("import", help="add exported facts to a run")
    recovering = commands.add_parser("recover", help="save what is readable of a damaged SQLite store into a new file")
    for command in (playing, exporting, importing, recovering):
        command.add_argument("experiment", type=Path, help="an experiment page, such as configs/alfworld.yaml")
    for command in (exporting, importing):
        command.add_argument("folder", type=Path, help="where the Parquet files are")
    for command in (playing, exporting, importing, recovering):
        command.add_argument(
            "overrides", nargs="*", default=[], metavar="key=value", help="such as environment.split=valid_seen"
        )
    which = playing.add_mutually_exclusive_group(required=True)
    which.add_argument("--list", action="store_true", help="print one task id a line")
    which.add_argument("--task", metavar="ID", help="play this task")
    playing.add_argument("--jsonl", action="store_true", help="one JSON object a step instead of text")
    # argparse takes no more positional words after an option; here they may stand anywhere.
    chosen, rest = parser.parse_known_args(arguments)
    if strange := [word for word in rest if "=" not in word or word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    experiment = load(chosen.experiment, [*chosen.overrides, *rest])
    if chosen.command == "recover":
        from retroformer.store.recover import recover

        saved = recover(experiment.store_url)
        print(
            f"{saved.trajectories} trajectories and {saved.reflections} reflections could be read and are in "
            f"{saved.path}: move the damaged file away, with the -wal and -shm files beside it, put this one in its "
            "place and run the last command again."
        )
    elif chosen.command != "play":
        from retroformer.parquet import export_run, import_run

        print({"export": export_run, "import": import_run}[chosen.command](experiment, chosen.folder))
    elif chosen.list:
        list_tasks(experiment)
    else:
        play(experiment, chosen.task, as_json=chosen.jsonl)


if __name__ == "__main__":
    run_command(main)
