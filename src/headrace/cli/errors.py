"""Error messages of the command line: a problem, a remedy, a page of the documentation."""

from __future__ import annotations

import difflib
import errno
import re
import traceback
from typing import Any

import typer

from headrace.cli import console
from headrace.core.errors import (
    DOCS_URL,
    ERRORS_PAGE,
    HeadraceError,
    MissingExtraError,
    SpecError,
)

BUG_EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h: the program itself failed."""

INTERRUPTED_EXIT_CODE = 130
"""128 plus the number of SIGINT."""

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Raised by typer for an invalid command line; some versions bundle their own click."""

PAGES = {
    "cluster": "howto/clusters.md#discover",
    "dashboard": "howto/reports.md#prometheus-and-grafana",
    "estimate": "howto/memory.md",
    "explain": "reference/planner.md#explain",
    "export": "howto/inference.md",
    "graph": "howto/graphs.md",
    "infer": "howto/inference.md",
    "init": "howto/runs.md#write-the-input-files",
    "logs": "howto/reports.md#logs",
    "partition": "howto/graphs.md",
    "plan": "reference/planner.md",
    "profile": "howto/runs.md#profile",
    "report": "howto/reports.md",
    "run": "howto/runs.md",
    "schema": "reference/files.md",
    "simulate": "reference/simulator.md",
    "status": "howto/reports.md#watch-a-run",
    "stores": "howto/sweeps.md#stores-that-outlive-a-run",
    "sweep": "howto/sweeps.md",
    "testbed": "howto/testbed.md",
    "top": "howto/reports.md#watch-a-run",
    "trace": "howto/reports.md",
}
"""Documentation page of each command."""

_EXTRAS = {
    "cryptography": "train",
    "kaminpar": "partition",
    "matplotlib": "report",
    "mlflow": "track",
    "optuna": "sweep",
    "ortools": "exact",
    "pyarrow": "partition",
    "pymetis": "partition",
    "pyroute2": "shape",
    "ray": "train",
    "safetensors": "train",
    "tensorboard": "track",
    "torch": "train",
    "torch_geometric": "train",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SCRIPT_VERBS = ("run", "profile", "estimate", "sweep")


def print_error(error: HeadraceError, verb: str) -> None:
    """Print an error with a documentation page: its own, or that of the command `verb`."""
    if console.is_verbose() and (error.__traceback__ or error.__cause__):
        typer.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    page = error.page or PAGES.get(verb, ERRORS_PAGE)
    console.print_error(error.problem, error.remedy, DOCS_URL + page)


def as_headrace_error(error: Exception) -> HeadraceError | None:
    """The error as a `HeadraceError` if users can fix it."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").split(".")[0]
        if package in _EXTRAS:
            extra = _EXTRAS[package]
            return MissingExtraError(
                f"{package} is not installed", f"pip install 'headrace[{extra}]'"
            )
    if isinstance(error, MemoryError):
        return HeadraceError(
            "not enough memory on this machine",
            "close other programs, or use a machine with more memory",
        )
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return HeadraceError(
            "the port is in use by another program",
            "stop it (`ss -tlnp` lists listening programs), or choose another port",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return HeadraceError(
            f"no space left on the disk to write {error.filename or 'a file'}",
            "free some space, or write to another disk",
        )
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return SpecError(
            f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}",
            "check the path and its permissions",
        )
    if "no locator available" in str(error):  # numba has no writable cache directory
        return HeadraceError(
            "numba has no writable directory for compiled code",
            "set NUMBA_CACHE_DIR to a writable directory",
        )
    return None


def bug(error: Exception) -> HeadraceError:
    """An unexpected error."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return HeadraceError(
        f"this is a bug in headrace ({what})",
        "run it again with --verbose and report the output",
    )


def no_such_command(word: str, path: str, known: list[str]) -> SpecError:
    """Error for an unknown command."""
    likely = difflib.get_close_matches(word, known, n=1)
    remedy = (
        f"did you mean `{path} {likely[0]}`?" if likely else f"choose one of {', '.join(known)}"
    )
    return SpecError(f"there is no command '{path} {word}'", remedy)


def usage_error(error: Any) -> SpecError:
    """Error for an invalid command line, from typer's error."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "headrace"
    shows_how = f"see `{path} --help`"
    option = getattr(error, "option_name", "")
    if hasattr(error, "possibilities"):
        return SpecError(f"{path} has no option {option}", _other_option(error, path))
    param = getattr(error, "param", None)
    if param is None:
        if option:
            return SpecError(f"{option} needs a value", shows_how)
        text = str(error.format_message()).rstrip(".")
        if "unexpected extra argument" in text and path.split()[-1] in _SCRIPT_VERBS:
            shows_how = "put -- before the arguments of the script"
        return SpecError(f"{path}: {text[:1].lower()}{text[1:]}", shows_how)
    is_argument = param.param_type_name == "argument"
    metavar = param.metavar or param.name.upper()
    name = metavar if is_argument else max(param.opts, key=len)
    if type(error).__name__ == "MissingParameter":
        what = name if is_argument else f"{name} {metavar}"
        return SpecError(f"{path}: {name} is missing", f"add {what}; {shows_how}")
    reason = re.sub(r"^Input should be ", "it should be ", str(error.message))
    reason = re.sub(r", unable to parse.*", "", reason).rstrip(".")
    least = getattr(param, "min", None)
    if least is None:
        least = getattr(getattr(param, "type", None), "min", None)
    remedy = f"give a number of at least {least:g}" if least is not None else shows_how
    return SpecError(f"{path}: invalid value of {name}: {reason}", remedy)


def _other_option(error: Any, path: str) -> str:
    words = path.split()
    known = [opt for param in error.ctx.command.get_params(error.ctx) for opt in param.opts]
    likely = difflib.get_close_matches(error.option_name, known, n=1, cutoff=0.6)
    if likely:
        return f"did you mean {likely[0]}?"
    if words[-1] in _SCRIPT_VERBS:
        return f"put -- before the arguments of the script, as in `-- {error.option_name}`"
    return f"`{path} --help` lists the options"
