"""A table of client settings made finer: cells between and beyond those that it has, tuned and never interpolated.

FedCust: of a client farther than τ from every cell nothing but that arrives, so the server can't refine "there". It
refines the whole grid and extends its ends. Settings that are interpolated cost about 15 % of the accuracy in the
source's Fig. 4, so each new cell is tuned; it begins with what its neighbours have. Cells that there were stay.

An end is extended as far as the proxy rows reach: what they can't fill is left out, and said.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedscout.engine.contracts.settings_lookup import HETEROGENEITY
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config.config_file import config_of, given_settings, laid_over
from fedscout.experiments.studies.run_folder import differences
from fedscout.experiments.studies.settings_tables.cell_tuning import CellResult
from fedscout.experiments.studies.settings_tables.proxy_clients import place_faults
from fedscout.experiments.studies.settings_tables.proxy_data import ProxyData
from fedscout.experiments.studies.settings_tables.settings_grid import (
    Place,
    classes_of,
    grid_of,
    index_of,
    metric_grid,
    refined_classes,
    refined_quantities,
    refined_values,
)
from fedscout.experiments.studies.settings_tables.table_request import (
    TableRequest,
    prepared,
    provenance,
    refuse_foreign,
)
from fedscout.experiments.studies.settings_tables.table_tuning import (
    TunedTable,
    TuningDisplay,
    folder_of,
    plan_cells,
    tune_table,
    write_tuned,
)
from fedscout.search.settings_table_file import read_settings_table

logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class CoarseTable:
    """A table that `fedscout tune-table` wrote.

    Attributes:
        path: Its file.
        results: Its cells with what is told of them, in order.
        tuned: What decided the result of every cell.
        request: What was asked of it.
    """

    path: Path
    results: tuple[CellResult, ...]
    tuned: Mapping[str, Any]
    request: TableRequest


def read_coarse(path: Path, arguments: Sequence[str] = (), file: Path | None = None) -> CoarseTable:
    """Return a table and what was asked of it; arguments may say where data lie and how to work, and change no result.

    Raises:
        ConfigurationError: If it is none that was tuned.
    """
    table, told = read_settings_table(path)
    tuned, stored = told.get("tuned"), told.get("config")
    if not isinstance(tuned, dict) or not isinstance(stored, dict) or not {"num_clients", "patience"} <= {*tuned}:
        raise ConfigurationError(Fault("--refine", "be a table that fedscout tune-table wrote", path))
    try:
        results = tuple(CellResult(cell, **beside) for cell, beside in zip(table.cells, told["cells"], strict=True))
    except TypeError as error:
        raise ConfigurationError(f"--refine must be a table of this version, got {path}: {error}") from error
    config = config_of(laid_over(given_settings(arguments, file), stored))
    counts: dict[str, Any] = {"num_clients": int(tuned["num_clients"]), "patience": int(tuned["patience"])}
    counts["synthetic"] = told.get("proxy", {}).get("synthetic")
    counts["metric"] = told.get("metric", HETEROGENEITY)
    counts["heterogeneities"] = tuple(sorted({cell.heterogeneity for cell in table.cells}))
    return CoarseTable(path, results, tuned, TableRequest(config, threshold=table.threshold, **counts))


def refine_table(
    coarse: CoarseTable,
    out: Path,
    display: TuningDisplay,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> TunedTable:
    """Tune the cells that a finer table has more, or the rest of them, and write all.

    Raises:
        UserError: If something that was asked for can't be done.
    """
    if out.absolute() == coarse.path.absolute():
        raise ConfigurationError(Fault("--out", "be another file than --refine", f"{out} for both"))
    federation, tuning = prepared(coarse.request)
    if changes := differences(coarse.tuned, tuning.identity()):
        raise ConfigurationError(
            Fault(
                "--refine",
                f"go on with the settings and the data of {coarse.path}",
                hint=f"what differs: {'; '.join(changes[:4])}",
            )
        )
    told = {**provenance(coarse.request, federation, tuning), "refined": str(coarse.path)}
    refuse_foreign(out, told)
    num_classes = tuning.proxy.num_classes
    known = {_place(result, num_classes, coarse.request.metric): result for result in coarse.results}
    grid = finer_grid([*known], tuning.proxy)
    new = [place for place in grid if place not in known]
    folder = folder_of(out)
    planned = plan_cells(tuning, new, folder, {place: result.setting for place, result in known.items()})
    found = {**known, **tune_table(tuning, planned, folder, display, parallel, verbose, search_path)}
    return write_tuned(out, [found[place] for place in grid], told, coarse.request.threshold)


def finer_grid(places: Sequence[Place], proxy: ProxyData) -> tuple[Place, ...]:
    """Return the refined grid of another, as far as the proxy rows can fill it; what is left out is told."""
    if places[0].row is not None:
        return _finer_metric_grid(places, proxy)
    held, quantities = {place.num_classes for place in places}, {place.quantity for place in places}
    wanted_held, wanted = refined_classes(held, proxy.num_classes), refined_quantities(quantities)

    def fits(classes: Sequence[int], rows: Sequence[int]) -> bool:
        return not any(place_faults(place, proxy) for place in grid_of(classes, rows))

    kept = [quantity for quantity in wanted if quantity in quantities or fits([*held], [quantity])]
    kept_held = [count for count in wanted_held if count in held or fits([count], kept)]
    left_out = [f"quantity {quantity}" for quantity in wanted if quantity not in kept]
    left_out += [
        f"heterogeneity {index_of(count, proxy.num_classes):.2f}" for count in wanted_held if count not in kept_held
    ]
    if left_out:
        logger.warning("the proxy rows do not reach for %s, which the finer grid is without", ", ".join(left_out))
    return grid_of(kept_held, kept)


def _finer_metric_grid(places: Sequence[Place], proxy: ProxyData) -> tuple[Place, ...]:
    """Return the refined grid of entropy or a metric of one's own: columns, then rows, that proxy rows can fill."""
    first = places[0].row
    assert first is not None, "of a metric"
    quantities, metric, num_classes = {place.quantity for place in places}, first.metric, proxy.num_classes
    values = {place.row.value for place in places if place.row is not None}
    wanted_values, wanted = refined_values(metric, values), refined_quantities(quantities)

    def grid(held: Sequence[float], rows: Sequence[int]) -> tuple[Place, ...]:
        return metric_grid(metric, held, rows, num_classes, among=wanted_values)

    def fits(held: Sequence[float], rows: Sequence[int]) -> bool:
        return not any(place_faults(place, proxy) for place in grid(held, rows))

    kept = [quantity for quantity in wanted if quantity in quantities or fits([*values], [quantity])]
    kept_values = [value for value in wanted_values if value in values or fits([value], kept)]
    left_out = [f"quantity {quantity}" for quantity in wanted if quantity not in kept]
    left_out += [f"{metric} {value:.3g}" for value in wanted_values if value not in kept_values]
    if left_out:
        logger.warning("the proxy rows do not reach for %s, which the finer grid is without", ", ".join(left_out))
    return grid(kept_values, kept)


def with_threshold(coarse: CoarseTable, threshold: float | None) -> CoarseTable:
    """Return the same with another τ, if one is given."""
    return coarse if threshold is None else replace(coarse, request=replace(coarse.request, threshold=threshold))


def _place(result: CellResult, num_classes: int, metric: str) -> Place:
    if metric != HETEROGENEITY:
        (place,) = metric_grid(metric, [result.cell.heterogeneity], [result.cell.quantity], num_classes)
        return place
    return Place(classes_of(result.cell.heterogeneity, num_classes), result.cell.quantity)
