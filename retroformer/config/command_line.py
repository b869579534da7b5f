"""Parts that the command lines of all stages share: arguments, default commands and usage errors.

Printing help must be fast, so this module imports only typer, and a command imports its libraries when it runs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

# Hidden from the table of arguments, since `example` explains them in words; usage lines show them.
ConfigFile = Annotated[Path, typer.Argument(metavar="EXPERIMENT.yaml", hidden=True)]
# typer's own parser refuses text that is not UTF-8; the config's parser also says where it is.
Overrides = Annotated[list[str], typer.Argument(metavar="key=value", hidden=True, default_factory=list, parser=str)]


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
        return super().resolve_command(ctx, args)

    def _means_default(self, args: Sequence[str]) -> bool:
        word = next((word for word in args if not word.startswith("-")), None)
        if word is None:
            return not {"-h", "--help"} & set(args)
        is_misspelt_command = word.isidentifier() and not Path(word).exists()
        return word not in self.commands and not is_misspelt_command


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
