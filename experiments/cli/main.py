"""`fedscout`: the commands, and what happens to their errors.

Nothing heavy is imported here, so that help and mistakes are answered at once. Exit codes: 0 done; 1 a defect of the
program or of a library; 2 something the user can mend, one line each on standard error; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import bench, detect, keys, run, search, strategies, train, trials
from experiments.package_roots import check_package_roots, own_packages_first

if TYPE_CHECKING:
    import click

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="fedscout",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Chooses a federated-learning aggregation strategy from how the clients' data differ. "
    "`fedscout run` without arguments is the demo.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(detect.detect)
app.command()(search.search)
app.command()(train.train)
app.command()(strategies.strategies)
app.command()(trials.trials)
app.command()(keys.keys)
app.add_typer(bench.bench)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"fedscout {version('fedscout')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What may stand before a command."""


def _exit_code(arguments: Sequence[str] | None) -> int:
    """Run one command line."""
    import click

    from engine.errors import EngineError, UserError

    try:
        check_package_roots()
        given = None if arguments is None else list(arguments)
        code = app(args=given, prog_name="fedscout", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 0
    except click.ClickException as error:
        print(f"fedscout: {_one_line(error)}", file=sys.stderr)
        return error.exit_code
    except UserError as error:
        for fault in error.faults:
            print(f"fedscout: {fault}", file=sys.stderr)
        return USER_ERROR
    except EngineError as error:
        print(f"fedscout: {error}; what finished is in the log, and the same command goes on", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    if code == INTERRUPTED:  # which typer makes of Ctrl-C
        print("fedscout: interrupted; the same command goes on where this one stopped", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _one_line(error: click.ClickException) -> str:
    """Return what is wrong with the command line, and where help is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "fedscout"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text} (see {command} --help)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: In place of the process's own.
    """
    own_packages_first()
    sys.exit(_exit_code(arguments))


if __name__ == "__main__":
    main()
