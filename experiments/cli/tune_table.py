"""`fedscout tune-table`: a table of client settings, tuned cell by cell on rows that no client holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, Verbose, prepare, user_folders

Number = TypeVar("Number", int, float)

OPTIONS = {"heterogeneities": "--heterogeneity", "quantities": "--quantity", "num_clients": "--clients"}
"""Where an option is not named as what it gives."""

OutFile = Annotated[
    Path, typer.Option("--out", "-o", help="File of the table; its logs lie beside it, in NAME.tuning.")
]
Heterogeneity = Annotated[
    str | None,
    typer.Option(
        "--heterogeneity",
        help="Rows of the grid, in [0, 1]; 0.2,0.4,0.6,0.8 if left out.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="heterogeneity, entropy, or package.module:function of (class counts, rows), whose values --heterogeneity "
        "then says.",
    ),
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
Synthetic = Annotated[
    int | None,
    typer.Option(
        "--synthetic",
        min=1,
        help="So many proxy rows, drawn by class from the means and the covariance that clients tell of.",
    ),
]
Clients = Annotated[int | None, typer.Option("--clients", min=1, max=1000, help="Proxy clients of a cell; 5.")]
Patience = Annotated[
    int | None, typer.Option("--patience", min=1, help="Settings without gain after which a cell ends; 5.")
]
Threshold = Annotated[
    float | None,
    typer.Option("--threshold", help="Distance from every cell beyond which a client says so; never if left out."),
]
Parallel = Annotated[int | None, typer.Option("--parallel", "-p", min=1, help="Cells at once; one a CPU if left out.")]
Refine = Annotated[
    Path | None,
    typer.Option("--refine", help="A table, which is refined and extended: its cells stay, new ones are tuned."),
]


def tune_table(
    out: OutFile,
    settings: Settings = None,
    config_file: ConfigFile = None,
    metric: Metric = None,
    heterogeneity: Heterogeneity = None,
    quantity: Quantity = None,
    proxy: Proxy = None,
    synthetic: Synthetic = None,
    clients: Clients = None,
    patience: Patience = None,
    threshold: Threshold = None,
    refine: Refine = None,
    parallel: Parallel = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Tune the settings of clients by how heterogeneous and how many their rows are, such as --out hrt.parquet."""
    prepare(verbose)
    from fedscout.experiments.reports.console import out_console, show_json
    from fedscout.experiments.reports.tuning_console import TuningProgress, show_table, table_document
    from fedscout.experiments.studies.settings_tables.table_refinement import read_coarse, refine_table, with_threshold
    from fedscout.experiments.studies.settings_tables.table_request import TableRequest, make_table, read_config

    given = {
        "heterogeneities": _numbers("--heterogeneity", heterogeneity, float),
        "quantities": _numbers("--quantity", quantity, int),
        "synthetic": synthetic,
        "num_clients": clients,
        "patience": patience,
        "metric": metric,
    }
    if refine is None:
        config = read_config(settings or [], config_file, proxy, synthetic is not None)
        asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        work = partial(make_table, TableRequest(config, threshold=threshold, **asked), out)
    else:
        _refuse_beside_refine({**given, "proxy": proxy})
        coarse = read_coarse(refine, settings or [], config_file)
        work = partial(refine_table, with_threshold(coarse, threshold), out)
    progress = TuningProgress()
    with progress.live():
        tuned = work(progress.display(), parallel, verbose, user_folders())
    if as_json:
        show_json(table_document(tuned))
    else:
        show_table(out_console(), tuned)


def _refuse_beside_refine(asked: Mapping[str, object]) -> None:
    """Refuse options whose values are those of the table that is refined.

    Raises:
        ConfigurationError: With all of them.
    """
    from fedscout.engine.errors import ConfigurationError

    given = [OPTIONS.get(name, f"--{name}") for name, value in asked.items() if value is not None]
    if given:
        raise ConfigurationError(Fault(", ".join(given), "be left out with --refine, whose table says it"))


def _numbers(option: str, text: str | None, kind: Callable[[str], Number]) -> tuple[Number, ...] | None:
    """Return numbers that commas separate; None of no text.

    Raises:
        ConfigurationError: If they are none.
    """
    from fedscout.engine.errors import ConfigurationError

    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigurationError(Fault(option, f"be {what} separated by commas", repr(text))) from None
