"""Requests for a client-settings table, and how a table is tuned from scratch or refined.

A table has other defaults than a study, from its source where that specifies them: twenty rounds, a Gaussian process,
sequential evaluation, rates from 1e-5 to 0.8, batches from 4 to 64, epochs from 1 to 30. Deviation: at most twenty
evaluations per cell, where the source continues as long as there is improvement.

A table is refined by cells between and beyond the existing ones. FedCust: of a client farther than τ from every cell
only that fact reaches the server, so it can't refine locally; it refines the whole grid and extends its ends.
Interpolated settings cost about 15 % of the accuracy in the source's Fig. 4, so each new cell is tuned, starting with
its neighbours' settings. Existing cells are unchanged. The ends are extended as far as there are enough proxy rows;
cells that can't be filled are left out with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.contracts.client_table import HETEROGENEITY
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.messages.calls import Cohort
from fedscout.experiments.client_settings.proxies import (
    LEVELS,
    QUANTITIES,
    CellPosition,
    MetricRow,
    ProxyData,
    classes_of,
    grid_of,
    index_of,
    metric_grid,
    place_faults,
    proxy_data,
    refined_classes,
    refined_quantities,
    refined_values,
    scaled,
    synthetic_rows,
)
from fedscout.experiments.client_settings.tuning import (
    CellResult,
    CellTuning,
    TunedTable,
    folder_of,
    plan_cells,
    tune_table,
    write_tuned,
)
from fedscout.experiments.config import StudyConfig, check_searchable, config_of, given_settings, merged_over
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.client_settings import folder_of_metric
from fedscout.experiments.studies.run_folder import differences, versions
from fedscout.experiments.studies.workers import Display
from fedscout.search.settings_table_file import read_settings_table
from fedscout.strategies import parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

logger = logging.getLogger("fedscout")

PROXY_SHARE = 0.3
"""Default fraction of the data set that the server holds."""

DEFAULTS: Mapping[str, Any] = {
    "training": {"num_rounds": 20},
    "search": {
        "kind": "gp",
        "budget": 20,
        "generation_size": 1,
        "strategies": ["fedavg"],
        "client_ranges": {
            "learning_rate": {"low": 1e-5, "high": 0.8, "log": True},
            "batch_size": {"low": 4, "high": 64, "log": True},
            "local_epochs": {"low": 1, "high": 30},
        },
    },
}
EXCLUDED_FROM_FILE: dict[str, Any] = {
    "engine": True,
    "recommender": True,
    "client_settings": True,
    "federation": {"folder"},
}
"""Parts of a configuration that do not affect a table and may describe a machine."""

SEARCHERS = ("gp", "tpe", "random", "genetic")


@dataclass(frozen=True)
class TableRequest:
    """A request to tune a table.

    Attributes:
        config: Data, model, training, search and seed.
        heterogeneities: Rows of the grid: heterogeneity or entropy in [0, 1], or values of the user's own metric; None
            uses the metric's defaults.
        quantities: Columns of the grid; None uses the source's, scaled down if there are too few proxy rows.
        num_clients: Proxy clients of a cell.
        patience: Evaluations without improvement that end a cell.
        threshold: τ of the table; None if clients do not report that they are farther from every cell.
        synthetic: Number of proxy rows to draw from the clients' statistics; None uses the server's rows.
        metric: Of the first axis: heterogeneity, entropy, or a function of the user's own.
    """

    config: StudyConfig
    heterogeneities: tuple[float, ...] | None = None
    quantities: tuple[int, ...] | None = None
    num_clients: int = 5
    patience: int = 5
    threshold: float | None = None
    synthetic: int | None = None
    metric: str = HETEROGENEITY

    def __post_init__(self) -> None:
        if self.metric not in LEVELS and ":" not in self.metric:
            raise ConfigurationError.of(
                "--metric", f"be one of {', '.join(LEVELS)} or package.module:function", repr(self.metric)
            )
        faults = []
        if self.metric not in LEVELS:
            if not self.heterogeneities or not all(map(isfinite, self.heterogeneities)):
                values = "none" if self.heterogeneities is None else ", ".join(map(str, self.heterogeneities))
                faults.append(Fault("--heterogeneity", f"list values of {self.metric}", values))
        else:
            outside = [value for value in self.levels if not 0 <= value <= 1]
            faults += [Fault("--heterogeneity", "be in [0, 1]", f"{value:g}") for value in outside]
        faults += [Fault("--quantity", "be at least 1 row", value) for value in self.quantities or () if value < 1]
        if self.threshold is not None and not 0 <= self.threshold < inf:
            faults.append(Fault("--threshold", "be a distance, at least 0", f"{self.threshold:g}"))
        if faults:
            raise ConfigurationError(faults)

    @property
    def levels(self) -> tuple[float, ...]:
        """The rows of the grid."""
        return self.heterogeneities or LEVELS[self.metric]


def read_config(
    arguments: Sequence[str], file: Path | None = None, proxy: str | None = None, synthetic: bool = False
) -> StudyConfig:
    """Return the configuration of a table: the given settings over a table's defaults.

    Args:
        arguments: As of any command.
        file: A YAML file, overridden by the arguments.
        proxy: Another data set as the source of the proxy rows; None uses the arguments'.
        synthetic: Whether proxy rows are synthetic, so that the server needs none.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    given = merged_over(given_settings(arguments, file), DEFAULTS)
    proxy_settings = {} if proxy is None else {"server_dataset": proxy}
    federation = {**dict(given.get("federation") or {}), **proxy_settings}
    has_rows = federation.get("server_rows") is not None or federation.get("server_dataset") is not None
    if synthetic and has_rows:
        raise ConfigurationError.of("--synthetic", "be left out if the server has its own rows for a table")
    if not synthetic:
        federation |= {"server_labels": True} | ({} if has_rows else {"server_rows": PROXY_SHARE})
    config = config_of({**given, "federation": federation})
    _check(config)
    return config


def _check(config: StudyConfig) -> None:
    """Check that a table can be tuned with a configuration.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    check_searchable(config.model_copy(update={"strategy": None}))
    faults = []
    if fixed := [name for name in CLIENT_PARAMETERS if (config.strategy or {}).get(name) is not None]:
        faults.append(Fault("strategy", "not set what the table tunes", ", ".join(fixed)))
    if config.search.strategies != ("fedavg",):
        faults.append(Fault("search.strategies", "be left out", hint="strategy.kind names the proxy clients' strategy"))
    if config.search.kind not in SEARCHERS:
        faults.append(Fault("search.kind", f"be one of {', '.join(SEARCHERS)} for a table", config.search.kind))
    if config.search.objectives != ("accuracy",) or config.search.validation_fraction:
        faults.append(
            Fault("search.objective and search.validation_fraction", "be left out, as proxy rows are the test data")
        )
    is_set_by_key = {
        "selection": config.selection is not None,
        "search.selection": config.search.selection is not None,
        "training.fraction_train": config.training.fraction_train != 1,
        "training.scored_clients": config.training.scored_clients is not None,
    }
    faults += [
        Fault(key, "be left out, as all proxy clients of a table train and evaluate in every round")
        for key, is_set in is_set_by_key.items()
        if is_set
    ]
    if _chooses_settings(config):
        faults.append(
            Fault("strategy.kind", "not be one that sets clients' rates and epochs itself, as fedex and fedpop do")
        )
    if config.client_settings.kind is not None:
        faults.append(Fault("client_settings", "be left out, as tuning uses no other table"))
    if faults:
        raise ConfigurationError(faults)


def _chooses_settings(config: StudyConfig) -> bool:
    """Return whether the strategy itself chooses clients' settings, which excludes a table."""
    if config.strategy is None or "kind" not in config.strategy:
        return False
    rate = config.training.learning_rate
    cohort = Cohort(num_clients=2, num_sampled=2, client_learning_rate=rate, server_rows=None, server_labels=True)
    strategy = parse_strategy(config.strategy)
    return strategy.unavailable(cohort) is None and strategy.unavailable(replace(cohort, own_settings=True)) is not None


def make_table(
    request: TableRequest,
    out: Path,
    display: Display,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> TunedTable:
    """Tune a table, resuming an earlier run, and write it.

    Raises:
        UserError: If the request can't be fulfilled; before any training where possible.
    """
    federation, tuning = prepared(request)
    grid = _grid(request, tuning)
    if faults := [fault for place in grid for fault in place_faults(place, tuning.proxy)]:
        raise ConfigurationError(faults[0])
    _check_batches(request.config, grid)
    document = provenance(request, federation, tuning)
    check_output_file(out, document)
    folder = folder_of(out)
    results = tune_table(tuning, plan_cells(tuning, grid, folder), folder, display, parallel, verbose, search_path)
    return write_tuned(out, [results[place] for place in grid], document, request.threshold)


def prepared(request: TableRequest) -> tuple[Federation, CellTuning]:
    """Return the built federation, and the tuning with its proxy rows."""
    config = request.config
    federation = build_federation(config.federation, config.model, config.detection.privacy)
    if federation.task_name != "classification":
        raise ConfigurationError.of(
            "federation.dataset", "have classes for a table of client settings", config.federation.dataset
        )
    if request.synthetic is not None:
        federation = replace(federation, server=synthetic_rows(federation, config, request.synthetic))
    if request.metric not in LEVELS:
        folder_of_metric(request.metric, federation.num_classes)
    proxy = proxy_data(federation, config.seed, config.federation.server_dataset is not None)
    tuning = CellTuning(config, proxy, federation.model, request.num_clients, request.patience, request.metric)
    return federation, tuning


def _grid(request: TableRequest, tuning: CellTuning) -> tuple[CellPosition, ...]:
    if request.metric != HETEROGENEITY:
        return _metric_grid(request, tuning.proxy)
    held = [classes_of(value, tuning.proxy.num_classes) for value in request.levels]
    if request.quantities is not None:
        return grid_of(held, request.quantities)
    fitting = scaled(QUANTITIES, tuning.proxy.usual_rows(min(held)))
    return grid_of(held, [max(*held, quantity) for quantity in fitting])


def _metric_grid(request: TableRequest, proxy: ProxyData) -> tuple[CellPosition, ...]:
    """Return the grid of another metric; default columns are scaled so that most classes have enough rows."""
    quantities = request.quantities or scaled(QUANTITIES, int(np.quantile(proxy.class_rows, 0.25)))
    return metric_grid(request.metric, request.levels, quantities, proxy.num_classes)


def _check_batches(config: StudyConfig, grid: Sequence[CellPosition]) -> None:
    """Check that batch sizes do not exceed the rows of a proxy client; warn if part of the range does.

    A batch holds at most a client's rows, so a larger one is the same setting. This bounds the memory of a batch by
    that of the rows; the clients' available memory is unknown here.

    Raises:
        ConfigurationError: If the whole range exceeds them.
    """
    batches, most = config.search.client_ranges.batch_size, max(place.quantity for place in grid)
    if batches is None or batches.high <= most:
        return
    if batches.low > most:
        raise ConfigurationError.of(
            "search.client_ranges.batch_size",
            f"start at {most} rows or fewer, the largest quantity of the grid",
            f"low {batches.low}",
        )
    logger.warning(
        "batches of %s to %s rows hold all rows of a client in every cell, so search.client_ranges.batch_size may end "
        "at the smaller number",
        *(most, batches.high),
    )


def provenance(request: TableRequest, federation: Federation, tuning: CellTuning) -> dict[str, Any]:
    """Return the provenance of a table, as JSON-serialisable values."""
    config, proxy = request.config, tuning.proxy
    data = config.federation
    return {
        "dataset": data.dataset,
        "model": config.model.kind,
        "trained_model": federation.facts["model"],
        "num_classes": federation.num_classes,
        "metric": request.metric,
        "strategy": str((config.strategy or {}).get("kind", "fedavg")),
        "seed": config.seed,
        "proxy": {
            "dataset": data.server_dataset or data.dataset,
            "synthetic": request.synthetic,
            "server_rows": data.server_rows,
            "federation_seed": data.seed,
            "num_rows": len(proxy.labels),
            "num_scored": proxy.num_scored,
            "num_left_out": proxy.num_left_out,
        },
        "tuned": tuning.identity(),
        "config": config.model_dump(mode="json", exclude=EXCLUDED_FROM_FILE),
        "versions": versions(),
    }


def check_output_file(out: Path, told: Mapping[str, Any]) -> None:
    """Check that the output file is new or a table of the same settings.

    Raises:
        ConfigurationError: With the differences.
    """
    if not out.exists():
        return
    _, stored = read_settings_table(out)
    tuned, named = stored.get("tuned", {}), {"metric": stored.get("metric", HETEROGENEITY)}
    changes = differences({**tuned, **named}, {**told["tuned"], "metric": told["metric"]})
    if changes := [change for change in changes if not change.startswith("proxy: ")] or changes[:1]:
        raise ConfigurationError.of(
            "--out",
            "be a new file or a table of the same settings",
            f"{out}, which differs in {'; '.join(changes[:4])}",
        )


@dataclass(frozen=True)
class CoarseTable:
    """A table that `fedscout tune-table` wrote.

    Attributes:
        path: Its file.
        results: The results of its cells, in order.
        tuned: The settings that determine the results of all cells.
        request: The request that it was tuned for.
    """

    path: Path
    results: tuple[CellResult, ...]
    tuned: Mapping[str, Any]
    request: TableRequest


def read_coarse(
    path: Path, arguments: Sequence[str] = (), file: Path | None = None, threshold: float | None = None
) -> CoarseTable:
    """Return a table and its request; arguments may only set paths and execution, which do not change results.

    A `threshold` replaces the table's.

    Raises:
        ConfigurationError: If it was not written by `fedscout tune-table`.
    """
    table, stored_provenance = read_settings_table(path)
    tuned, stored = stored_provenance.get("tuned"), stored_provenance.get("config")
    if not isinstance(tuned, dict) or not isinstance(stored, dict) or not {"num_clients", "patience"} <= {*tuned}:
        raise ConfigurationError.of("--refine", "be a table that fedscout tune-table wrote", path)
    try:
        results = tuple(
            CellResult(cell, **fields) for cell, fields in zip(table.cells, stored_provenance["cells"], strict=True)
        )
    except TypeError as error:
        raise ConfigurationError.of("--refine", "be a table of this version", f"{path}: {error}") from error
    config = config_of(merged_over(given_settings(arguments, file), stored))
    request_fields: dict[str, Any] = {"num_clients": int(tuned["num_clients"]), "patience": int(tuned["patience"])}
    request_fields["synthetic"] = stored_provenance.get("proxy", {}).get("synthetic")
    request_fields["metric"] = stored_provenance.get("metric", HETEROGENEITY)
    request_fields["heterogeneities"] = tuple(sorted({cell.heterogeneity for cell in table.cells}))
    request_fields["threshold"] = table.threshold if threshold is None else threshold
    return CoarseTable(path, results, tuned, TableRequest(config, **request_fields))


def refine_table(
    coarse: CoarseTable,
    out: Path,
    display: Display,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> TunedTable:
    """Tune the additional cells of a finer table, resuming an earlier run, and write all cells.

    Raises:
        UserError: If the request can't be fulfilled.
    """
    if out.absolute() == coarse.path.absolute():
        raise ConfigurationError.of("--out", "differ from --refine", f"{out} for both")
    federation, tuning = prepared(coarse.request)
    if changes := differences(coarse.tuned, tuning.identity()):
        raise ConfigurationError.of(
            "--refine",
            f"be used with the settings and the data of {coarse.path}",
            hint=f"what differs: {'; '.join(changes[:4])}",
        )
    document = {**provenance(coarse.request, federation, tuning), "refined": str(coarse.path)}
    check_output_file(out, document)
    num_classes = tuning.proxy.num_classes
    known = {_place(result, num_classes, coarse.request.metric): result for result in coarse.results}
    grid = finer_grid([*known], tuning.proxy)
    new = [place for place in grid if place not in known]
    folder = folder_of(out)
    planned = plan_cells(tuning, new, folder, {place: result.setting for place, result in known.items()})
    results = {**known, **tune_table(tuning, planned, folder, display, parallel, verbose, search_path)}
    return write_tuned(out, [results[place] for place in grid], document, coarse.request.threshold)


def finer_grid(places: Sequence[CellPosition], proxy: ProxyData) -> tuple[CellPosition, ...]:
    """Return the refined grid, columns before rows, as far as there are enough proxy rows; omitted cells are logged."""
    row, num_classes = places[0].row, proxy.num_classes
    quantities, levels = {place.quantity for place in places}, {_level(place) for place in places}
    wanted, wanted_levels = refined_quantities(quantities), _refined_levels(row, levels, num_classes)

    def grid(rows: Iterable[float], columns: Sequence[int]) -> tuple[CellPosition, ...]:
        if row is None:
            return grid_of(map(int, rows), columns)
        return metric_grid(row.metric, rows, columns, num_classes, among=wanted_levels)

    def fits(rows: Iterable[float], columns: Sequence[int]) -> bool:
        return not any(place_faults(place, proxy) for place in grid(rows, columns))

    feasible = [quantity for quantity in wanted if quantity in quantities or fits(levels, [quantity])]
    feasible_levels = [level for level in wanted_levels if level in levels or fits([level], feasible)]
    left_out = [f"quantity {quantity}" for quantity in wanted if quantity not in feasible]
    left_out += [
        f"heterogeneity {index_of(int(level), num_classes):.2f}" if row is None else f"{row.metric} {level:.3g}"
        for level in wanted_levels
        if level not in feasible_levels
    ]
    if left_out:
        logger.warning("there are too few proxy rows for %s, which the finer grid omits", ", ".join(left_out))
    return grid(feasible_levels, feasible)


def _level(place: CellPosition) -> float:
    return place.num_classes if place.row is None else place.row.value


def _refined_levels(row: MetricRow | None, levels: Collection[float], num_classes: int) -> tuple[float, ...]:
    return refined_classes(map(int, levels), num_classes) if row is None else refined_values(row.metric, levels)


def _place(result: CellResult, num_classes: int, metric: str) -> CellPosition:
    if metric != HETEROGENEITY:
        (place,) = metric_grid(metric, [result.cell.heterogeneity], [result.cell.quantity], num_classes)
        return place
    return CellPosition(classes_of(result.cell.heterogeneity, num_classes), result.cell.quantity)
