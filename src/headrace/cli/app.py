"""Common behaviour of all commands: --quiet, --verbose and error messages."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from headrace import __version__
from headrace.cli import console, errors

F = TypeVar("F", bound=Callable[..., Any])


def _set_level(level: console.Level, wanted: bool) -> None:
    if wanted:
        console.set_level(level)


def _set_quiet(wanted: bool) -> None:
    _set_level(console.Level.QUIET, wanted)


def _set_verbose(wanted: bool) -> None:
    _set_level(console.Level.VERBOSE, wanted)


def _verbosity_options() -> list[Any]:
    """The two options as typer creates them, which differs between its versions."""
    probe = typer.Typer()

    @probe.command()
    def ask(
        quiet: Annotated[
            bool,
            typer.Option(
                "--quiet",
                "-q",
                help="Print only results and errors.",
                callback=_set_quiet,
                is_eager=True,
                expose_value=False,
            ),
        ] = False,
        verbose: Annotated[
            bool,
            typer.Option(
                "--verbose",
                "-v",
                help="Print times and tracebacks too.",
                callback=_set_verbose,
                is_eager=True,
                expose_value=False,
            ),
        ] = False,
    ) -> None: ...

    return [p for p in typer.main.get_command(probe).params if p.name in ("quiet", "verbose")]


_VERBOSITY_OPTIONS = _verbosity_options()


def _with_verbosity(params: Any) -> list[Any]:
    """Parameters with the two options before the last, which is --help."""
    *own, last = params
    found = [*own, *_VERBOSITY_OPTIONS, last]
    for param in found:
        # A flag takes no value: show no type in its help.
        if getattr(param, "is_flag", False) and param.metavar is None:
            vars(param)["metavar"] = ""
    return found


def _name_command(error: Any, ctx: Any) -> None:
    """Set the command of a usage error; typer's parser does not always."""
    if getattr(error, "ctx", None) is None:
        error.ctx = ctx


class Verb(TyperCommand):
    """A command with --quiet and --verbose."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        try:
            return super().parse_args(ctx, args)
        except errors.UsageError as error:
            _name_command(error, ctx)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with `--verbose` print versions first."""
        console.detail(f"headrace {__version__}, Python {platform.python_version()}, {sys.prefix}")
        return super().invoke(ctx)

    def get_params(self, ctx: Any) -> Any:
        """Its own parameters, the two options, and --help."""
        return _with_verbosity(super().get_params(ctx))


class Verbs(TyperGroup):
    """A group of commands; turns exceptions into messages and exit codes."""

    def get_params(self, ctx: Any) -> Any:
        """Its own parameters, the two options, and --help."""
        found = _with_verbosity(super().get_params(ctx))
        for param in found:
            # The documentation shows the script.
            if param.name == "show_completion":
                vars(param)["hidden"] = True
            if param.name == "install_completion":
                vars(param)["help"] = "Install completion for this shell."
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name; raises `SpecError` if there is none."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            known = [name for name, command in self.commands.items() if not command.hidden]
            raise errors.no_such_command(args[0], ctx.command_path, known)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; expected errors end it with a message."""
        if ctx.parent is not None:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except Exception as error:
            found = errors.as_headrace_error(error)
            if found is None or (found is not error and os.environ.get("HEADRACE_DEBUG")):
                raise
            found.__cause__ = None if found is error else error
            errors.print_error(found, ctx.invoked_subcommand or "")
            raise typer.Exit(found.exit_code) from None
        finally:
            console.detail("done")

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Run the command line and exit with its exit code."""
        console.begin()
        more["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*args, **more)
        try:
            code = super().main(*args, **more)
        except errors.UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the help has been shown
                sys.exit(2)
            found = errors.usage_error(error)
            path = getattr(getattr(error, "ctx", None), "command_path", "headrace")
            errors.print_error(found, "".join(path.split()[1:2]))
            sys.exit(found.exit_code)
        except typer.Abort:
            typer.echo("interrupted", err=True)
            sys.exit(errors.INTERRUPTED_EXIT_CODE)
        sys.exit(code if isinstance(code, int) else 0)


class VerbApp(typer.Typer):
    """A typer app whose commands are `Verb`s."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Verbs, no_args_is_help=True, **settings)

    def command(self, *args: Any, **settings: Any) -> Callable[[F], F]:
        """Register a command."""
        return super().command(*args, cls=Verb, **settings)
