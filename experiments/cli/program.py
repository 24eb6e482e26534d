"""The `fedscout` command: its subcommands, and the handling of their errors.

Heavy imports are deferred, so that help and usage errors are fast. Exit codes: 0 success; 1 a bug in the program or a
library, a failing language model, or a study that can't continue now; 2 an error that the user can fix, one line each
on standard error; 128 + number when ended by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated

import click
import typer

from fedscout.engine.errors import ConfigurationError, EngineError, Fault, LanguageModelError, UserError
from fedscout.engine.runtime.processes import signal_exit
from fedscout.experiments.cli import bench, many_studies, others, studies
from fedscout.experiments.cli.options import FAILED
from fedscout.experiments.text import tell

USER_ERROR = 2
INTERRUPTED = 130
NOT_NOW = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
UNUSABLE_PATH = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.EEXIST, errno.ENOTDIR),
    *(errno.EISDIR, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENXIO),
)

app = typer.Typer(
    name="fedscout",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=False,  # click does
    help="Chooses a federated-learning aggregation strategy based on how the clients' data differ. "
    "`fedscout run` without arguments is the demo.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(studies.run, studies.detect, others.describe, studies.recommend, studies.search, many_studies.sweep),
    *(studies.train, others.predict, many_studies.tune_table, others.strategies, others.scenarios, others.trials),
    *(others.report, others.plot, bench.reproduce, others.export, others.app, others.mcp, others.keys),
):
    app.command()(command)
app.add_typer(bench.bench)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"fedscout {version('fedscout')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Disable colours, like NO_COLOR=1.")] = False,
) -> None:
    """Options before the command."""
    del version
    if no_color:
        os.environ["NO_COLOR"] = "1"


@cache
def _program() -> click.Command:
    """Return the click commands, cached as building them takes longer than most commands."""
    return typer.main.get_command(app)


def exit_code(arguments: Sequence[str] | None, signals: Sequence[int]) -> int:
    """Run a command line and return its exit code; `signals` is filled by the signal handler."""
    lines: Sequence[str] = ()
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        _refuse_bytes(words)
        code = _program()(args=words, prog_name="fedscout", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 0
    except (BrokenPipeError, SystemExit) as error:  # typer makes the second of the first
        if not signals:
            with suppress(OSError):
                sys.stderr.close()
            return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        code = INTERRUPTED  # a pipe to a process that the signal has ended, such as one of Ray's
    except (Exception, KeyboardInterrupt) as error:
        code, lines = (
            (INTERRUPTED, ()) if signals else _code_and_lines(error)
        )  # what a signal has caused looks like anything
    if code == INTERRUPTED:  # which typer makes of a KeyboardInterrupt
        code, line = signal_exit(next(iter(signals), signal.SIGINT))
        lines = [line]
    for line in lines:
        with suppress(OSError):  # the terminal may be gone
            tell(line)
    return code if isinstance(code, int) else 0


def _code_and_lines(error: BaseException) -> tuple[int, Sequence[str]]:
    """Return exit code and lines for an expected error; unexpected ones are raised again."""
    match error:
        case click.ClickException():
            return error.exit_code, [_one_line(error)]
        case UserError():
            return FAILED if isinstance(error, LanguageModelError) else USER_ERROR, error.faults
        case EngineError():
            return FAILED, [f"{error}; finished trials are in the log, and the same command continues the study"]
        case KeyboardInterrupt() | click.exceptions.Abort():
            return INTERRUPTED, ()
        case MemoryError():
            return FAILED, ["out of memory; use fewer rows (federation.max_rows), clients or hosts at a time"]
        case OSError() if error.errno in NOT_NOW or (error.errno in UNUSABLE_PATH and error.filename):
            return _code_and_lines_of_file(error)
    raise error


def _code_and_lines_of_file(error: OSError) -> tuple[int, Sequence[str]]:
    if error.errno in UNUSABLE_PATH:
        return USER_ERROR, [f"{error.filename} can't be used as a path: {error.strerror}"]
    with suppress(OSError):  # what could not be printed would be tried again at exit
        sys.stdout.close()
    return FAILED, [f"{error.filename or 'standard output'} can't be written: {error.strerror}"]


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Check that all arguments are valid UTF-8, as others can't be written to the files of a study.

    Raises:
        ConfigurationError: If an argument is not.
    """
    undecoded = [argument for argument in arguments if argument.encode(errors="ignore").decode() != argument]
    if undecoded:
        raise ConfigurationError([Fault("an argument", "be valid UTF-8", argument) for argument in undecoded])


def _one_line(error: click.ClickException) -> str:
    """Return the error in the command line, and how to get help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "fedscout"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text} (see {command} --help)"
