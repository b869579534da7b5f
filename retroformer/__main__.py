"""`retroformer`: one command for the four stages, for playing by hand, and for the facts of a run."""

from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup
from typer.main import get_command

from retroformer.config.command_line import Commands, ConfigFile, Overrides, call, example, make_app
from retroformer.config.imports import Stage, load_plugin, plugin_names, stage_package
from retroformer.errors import ConfigError, MissingInput, run_command

STAGES: tuple[Stage, ...] = get_args(Stage)
EVAL_COMMANDS = ("try", "rounds", "promote", "rollback", "promotions", "monitor", "view")
"""Commands of the stage `eval` that are called by their own names."""
PLUGINS = "retroformer.commands"
"""Entry point group of added commands, NAME = "module:app" of a `typer.Typer`. Our own names take precedence."""


class RetroformerCommands(Commands):
    """The commands of the stages, each imported on use, then those of this module, then those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = [*STAGES, *EVAL_COMMANDS, *super().list_commands(ctx)]
        return own + [name for name in plugin_names(PLUGINS) if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for stage in STAGES:
            if cmd_name == stage or (stage == "eval" and cmd_name in EVAL_COMMANDS):
                command: Any = get_command(import_module(f"{stage_package(stage)}.__main__").app)
                return command.get_command(ctx, cmd_name) if stage == "eval" else command
        return super().get_command(ctx, cmd_name) or _plugin_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in help; a plugin that cannot be loaded is a sentence below the list."""
        loaded, faults = dict[str, Any](), list[str]()
        for name in self.list_commands(ctx):
            try:
                loaded[name] = self.get_command(ctx, name)
            except (ConfigError, MissingInput) as error:
                faults.append(str(error))
        TyperGroup(commands=loaded).format_commands(ctx, formatter)
        for fault in faults:
            formatter.write_paragraph()
            formatter.write_text(fault)


def _plugin_command(name: str) -> Any:
    """Return the command that a package adds under this name; None if none does. Raises ConfigError, MissingInput."""
    if name not in plugin_names(PLUGINS):
        return None
    added = load_plugin(PLUGINS, name, "command")
    try:
        return get_command(added)
    except (RuntimeError, AttributeError):
        raise MissingInput(f"The command {name!r} is no typer.Typer app with a command.") from None


app = make_app(
    "Train a small open model to give a frozen language agent advice that makes its next attempt better.",
    RetroformerCommands,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"retroformer {metadata.version('retroformer')}")
        raise typer.Exit


@app.callback(options_metavar="[--version]")
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="FOLDER is this folder unless you name another.\n\nExample: retroformer init mine")
def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the files.")] = Path()) -> str:
    """Write a first experiment: a toy agent, its tasks and a config that runs.

    Reads nothing. Writes agent.py, tasks.jsonl and agent.yaml to FOLDER.
    """
    from retroformer.config.starter import write_starter

    print(write_starter(folder))
    return f"{'' if folder == Path() else f'cd {folder} && '}retroformer collect agent.yaml"


@app.command(options_metavar="--list | --task ID [--jsonl]", epilog=example("play configs/alfworld.yaml --list"))
def play(
    config: ConfigFile,
    overrides: Overrides,
    *,
    list_ids: Annotated[bool, typer.Option("--list", help="Print the task ids, one per line.")] = False,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Play this task.", parser=str)] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per step instead of text.")] = False,
) -> None:
    """Play an environment by hand.

    Reads actions from standard input, one per line. Writes observations to standard output.
    """
    if list_ids is (task is not None):
        raise typer.BadParameter("give either --list or --task ID.")
    from retroformer.config.file import load
    from retroformer.run import by_hand

    experiment = load(config, overrides)
    if task is None:
        by_hand.list_tasks(experiment)
    else:
        by_hand.play(experiment, task, as_json=jsonl)


@app.command(
    options_metavar="[--task ID] [--arm NAME] [--json]",
    epilog="RUN is a config, the folder of a run (runs/NAME) or the file of its store. Each key=value replaces an "
    "entry of the config.\n\nExample: retroformer show configs/demo.yaml --task ID",
)
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Config, folder or store of the run.")],
    overrides: Overrides,
    *,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Show the stories of this task.", parser=str)] = None,
    arm: Annotated[str | None, typer.Option(metavar="NAME", help="Show this arm only.", parser=str)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per story instead of text.")] = False,
) -> None:
    """Show what happened: attempts, the advice on them, the retries and the ratings.

    Reads the store of the run. Writes the list of stories, or those of one task, to standard output.
    """
    from retroformer.coach.stories.runs import open_runs
    from retroformer.coach.stories.show import show_lines

    with open_runs(run, overrides) as runs:
        for line in show_lines(runs, task, arm, as_json=as_json):
            print(line)


@app.command(options_metavar="[--format NAME] [--exact]", epilog=example("export configs/agent.yaml cases.jsonl"))
def export(
    config: ConfigFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the cases, such as cases.jsonl.")],
    overrides: Overrides,
    *,
    name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="cases (.jsonl) or parquet (.parquet).")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Write all facts, as the store has them, so that import restores them.")
    ] = False,
) -> None:
    """Write the cases of a run to a file.

    Reads the store of the run. Writes FILE, which appears complete or not at all.
    """
    from retroformer.cases.export_cases import export_cases
    from retroformer.config.file import load

    print(export_cases(load(config, overrides), file, name, exact=exact))


@app.command(
    "import",
    options_metavar="[--format NAME] [--score NAME] [--json]",
    epilog=example("import configs/agent.yaml cases.jsonl run=imported"),
)
def import_(
    config: ConfigFile,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File of cases, or the file or folder of a format.")],
    overrides: Overrides,
    *,
    name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="cases, parquet, otlp, inspect or another format.")
    ] = None,
    score: Annotated[
        str | None, typer.Option("--score", metavar="NAME", help="Score that rates an attempt, if there are several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as a last line of JSON.")] = False,
) -> None:
    """Add cases, or another program's records, to a run.

    Reads PATH. Writes its attempts, advice and ratings to the store of the run, all or none.
    """
    from retroformer.cases.import_cases import import_cases
    from retroformer.config.file import load

    print(import_cases(load(config, overrides), path, name, score, as_json=as_json))


@app.command(epilog=example("recover configs/demo.yaml"))
def recover(config: ConfigFile, overrides: Overrides) -> None:
    """Save the readable facts of a damaged SQLite store.

    Reads the store of the run. Writes a new file beside it, and explains how to replace the damaged file.
    """
    from retroformer.config.file import load_domains
    from retroformer.run.store.damage import recover

    saved = recover(load_domains(config, overrides)[0].store_url)
    print(
        f"{saved.trajectories} trajectories and {saved.reflections} reflections could be read and are in "
        f"{saved.path}, and at least {saved.lost} facts are lost: move the damaged file away, with the -wal and -shm "
        "files beside it, put this one in its place and run the last command again."
    )


def main(arguments: list[str], program: str = "python -m retroformer") -> None:
    call(app, program, arguments)


def console() -> None:
    """Run the console command `retroformer`."""
    run_command(partial(main, program="retroformer"))


if __name__ == "__main__":
    run_command(main)
