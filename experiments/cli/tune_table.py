"""`fedscout tune-table`: a table of client settings, tuned cell by cell on rows that no client holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, Verbose, prepare, user_folders

Number = TypeVar("Number", int, float)

OutFile = Annotated[
    Path, typer.Option("--out", "-o", help="File of the table; its logs lie beside it, in NAME.tuning.")
]
Heterogeneity = Annotated[
    str | None, typer.Option("--heterogeneity", help="Rows of the grid, in [0, 1]; 0.2,0.4,0.6,0.8 if left out.")
]
Quantity = Annotated[
    str | None,
    typer.Option(
        "--quantity",
        help="Its columns: training rows of a client; 100,200,400,600,800,1000 if left out, or as many in the same "
        "proportions as the proxy rows carry.",
    ),
]
Proxy = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        help="Another data set that the proxy rows are of; a share of the clients' own, 0.3 or federation.server_rows, "
        "if left out.",
    ),
]
Clients = Annotated[int, typer.Option("--clients", min=1, max=1000, help="Proxy clients of a cell.")]
Patience = Annotated[int, typer.Option("--patience", min=1, help="Settings without gain after which a cell ends.")]
Parallel = Annotated[int | None, typer.Option("--parallel", "-p", min=1, help="Cells at once; one a CPU if left out.")]
Refine = Annotated[
    Path | None,
    typer.Option("--refine", help="A table, which is refined and extended: its cells stay, new ones are tuned."),
]


def tune_table(
    out: OutFile,
    settings: Settings = None,
    config_file: ConfigFile = None,
    heterogeneity: Heterogeneity = None,
    quantity: Quantity = None,
    proxy: Proxy = None,
    clients: Clients = 5,
    patience: Patience = 5,
    parallel: Parallel = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Tune the settings of clients by how heterogeneous and how many their rows are, such as --out hrt.parquet."""
    prepare(verbose)
    from fedscout.experiments.reports.console import out_console, show_json
    from fedscout.experiments.reports.tuning_console import TuningProgress, show_table, table_document
    from fedscout.experiments.studies.settings_tables.settings_grid import HETEROGENEITIES
    from fedscout.experiments.studies.settings_tables.table_request import TableRequest, make_table, read_config

    request = TableRequest(
        read_config(settings or [], config_file, proxy),
        HETEROGENEITIES if heterogeneity is None else _numbers("--heterogeneity", heterogeneity, float),
        None if quantity is None else _numbers("--quantity", quantity, int),
        clients,
        patience,
    )
    progress = TuningProgress()
    with progress.live():
        tuned = make_table(request, out, progress.display(), parallel, verbose, user_folders())
    if as_json:
        show_json(table_document(tuned))
    else:
        show_table(out_console(), tuned)


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Return numbers that commas separate.

    Raises:
        ConfigurationError: If they are none.
    """
    from fedscout.engine.errors import ConfigurationError

    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigurationError(f"{option} must be {what} separated by commas, got {text!r}") from None
