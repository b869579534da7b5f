"""Parts that the command lines of all stages share: arguments, default commands and usage errors.

Printing help must be fast, so this module imports only typer, and a command imports its libraries when it runs.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

# Hidden from the table of arguments, since `example` explains them in words; usage lines show them.
ConfigFile = Annotated[Path, typer.Argument(metavar="EXPERIMENT.yaml", hidden=True)]
# typer's own parser refuses text that is not UTF-8; the config's parser also says where it is.
Overrides = Annotated[list[str], typer.Argument(metavar="key=value", hidden=True, default_factory=list, parser=str)]


CONSOLE = "retroformer"
"""Program whose commands end with the next one; `python -m STAGE` is for scripts."""
NEXT: Mapping[str, str] = MappingProxyType(
    {
        "try": "init mine",
        "collect rate": "train sft {config}",
        "collect rate --dry-run": "collect {config}",
        "collect warm": "train warm {config}",
        "train actor": "serve {config}",
        "train warm": "collect {config}",
        "train reward": "train ppo {config}",
        **dict.fromkeys(("train sft", "train ppo", "train dpo", "train grpo", "train sac"), "eval {config}"),
        "train plan": "collect {config}",
        "train merge": "train gguf {config} {stage}",
        "train gguf": "view {config}",
        "rounds": "eval {config}",
        "promote": "serve {config}",
        "rollback": "promotions {config}",
        "promotions": "serve {config}",
        "show": "view {run}",
        "export": "view {config}",
        "import": "train sft {config}",
        "recover": "show {config}",
        "gepa": "eval {config}",
        "push": "view {config}",
        "ray-train": "eval {config}",
    }
)
"""Command to run after each one, by its words; `init` and `eval` return theirs, and those that serve have none."""


class Commands(TyperGroup):
    """Command group that answers an unknown command with the list of its commands."""

    default: ClassVar[str | None] = None
    """Command that runs if the first word is a config, as in `STAGE EXPERIMENT.yaml`; None: a command is required."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command before a config, or before options alone."""
        if not args:
            ctx.fail(f"Name a command: {', '.join(self.list_commands(ctx))}.")
        if self.default is not None and self._means_default(args):
            args = [self.default, *args]
        # Adding the help option makes typer import pydantic, which takes half of the time of `--help`.
        self.add_help_option = args[0].startswith("-")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command: {args[0]!r}. Choose from {', '.join(self.list_commands(ctx))}.")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.callback and ctx.find_root().info_name == CONSOLE:
            words = f"{ctx.command_path} {name}".partition(" ")[2]
            command.callback = partial(_call_and_say_next, command.callback, words)
        return name, command, rest

    def _means_default(self, args: Sequence[str]) -> bool:
        word = next((word for word in args if not word.startswith("-")), None)
        if word is None:
            return not {"-h", "--help"} & set(args)
        is_misspelt_command = word.isidentifier() and not Path(word).exists()
        return word not in self.commands and not is_misspelt_command


def _call_and_say_next(command: Callable[..., str | None], words: str, **arguments: Any) -> None:
    """Run a command, and end with a line that names the next one, unless its output is for a program."""
    following = command(**arguments)
    if any(arguments.get(name) for name in ("as_json", "jsonl", "list_ids")):
        return
    words += " --dry-run" * bool(arguments.get("dry_run"))
    if following is None and words in NEXT:
        shown = {name: shlex.quote(str(value)) for name, value in arguments.items()}
        overrides = arguments.get("overrides", ()) if "{config}" in NEXT[words] else ()
        following = " ".join((CONSOLE, NEXT[words].format(**shown), *map(shlex.quote, overrides)))
    if following:
        typer.echo(f"Next: {following}")


def make_app(description: str | None = None, group: type[Commands] = Commands) -> typer.Typer:
    """Return an app without commands. Its help and errors are plain text, for logs and pipes."""
    return typer.Typer(
        cls=group,
        help=description,
        options_metavar="",
        subcommand_metavar="COMMAND ...",
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def example(words: str) -> str:
    """Return the end of a command's help: the common arguments, and an example of the command line."""
    return (
        "EXPERIMENT.yaml is the experiment's config. Each key=value replaces one of its entries, as in run=try2.\n\n"
        f"Example: retroformer {words}"
    )


def call(app: typer.Typer, program: str, words: Sequence[str]) -> None:
    """Run the command that `words` name; `program` is the text before them in usage lines. Wrong words exit with 2."""
    command = get_command(app)
    # `command.main` would end the process itself and hide interrupts from `run_command`.
    try:
        with command.make_context(program, list(words)) as context:
            command.invoke(context)
    except typer.Exit:
        return  # Help has been printed.
    except typer.TyperException as error:
        wrong = getattr(error, "ctx", None)
        typer.echo("\n".join([error.format_message(), wrong.get_usage()] if wrong else [str(error)]), err=True)
        sys.exit(error.exit_code)
