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
from collections.abc import Iterable, Mapping, Sequence
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
from fedscout.search.client_settings import read_settings_table
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
        allowed, low, high = ("in [0, 1]", 0.0, 1.0) if self.metric in LEVELS else ("finite", -inf, inf)
        values = self.heterogeneities or LEVELS.get(self.metric) or ()
        faults = [
            Fault("--heterogeneity", f"be {allowed}", value)
            for value in values
            if not (low <= value <= high and isfinite(value))
        ]
        if not values:
            faults.append(Fault("--heterogeneity", f"list values of {self.metric}"))
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
    search, training, every = (
        config.search,
        config.training,
        "be left out, as all proxy clients take part in every round",
    )
    fixed = [name for name in CLIENT_PARAMETERS if (config.strategy or {}).get(name) is not None]
    others = search.objective != "accuracy" or search.validation_fraction
    faults = [
        Fault(key, must)
        for key, must, is_wrong in (
            ("strategy", f"not set what the table tunes: {', '.join(fixed)}", fixed),
            ("search.strategies", "be left out, as strategy.kind is the clients'", search.strategies != ("fedavg",)),
            ("search.kind", f"be one of {', '.join(SEARCHERS)} for a table", search.kind not in SEARCHERS),
            ("search.objective and search.validation_fraction", "be left out, as proxy rows are the test data", others),
            ("selection", every, config.selection is not None),
            ("search.selection", every, search.selection is not None),
            ("training.fraction_train", every, training.fraction_train != 1),
            ("training.scored_clients", every, training.scored_clients is not None),
            (
                "strategy.kind",
                "not be one that sets clients' rates and epochs itself, as fedex",
                _chooses_settings(config),
            ),
            ("client_settings", "be left out, as tuning uses no other table", config.client_settings.kind is not None),
        )
        if is_wrong
    ]
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
    if request.metric != HETEROGENEITY:  # default columns are scaled so that most classes have enough rows
        quantities = request.quantities or scaled(QUANTITIES, int(np.quantile(tuning.proxy.class_rows, 0.25)))
        return metric_grid(request.metric, request.levels, quantities, tuning.proxy.num_classes)
    held = [classes_of(value, tuning.proxy.num_classes) for value in request.levels]
    if request.quantities is not None:
        return grid_of(held, request.quantities)
    fitting = scaled(QUANTITIES, tuning.proxy.usual_rows(min(held)))
    return grid_of(held, [max(*held, quantity) for quantity in fitting])


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


def refine_table(
    path: Path,
    arguments: Sequence[str],
    file: Path | None,
    threshold: float | None,
    out: Path,
    display: Display,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> TunedTable:
    """Tune the additional cells of a finer table, resuming an earlier run, and write all cells.

    Args:
        path: A table that `fedscout tune-table` wrote.
        arguments: May only set paths and execution, which do not change results.
        file: A YAML file, overridden by the arguments.
        threshold: Replaces the table's, unless it is None.
        out: The new table.
        display: Progress callbacks.
        parallel: Maximum number of parallel cells.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own code.

    Raises:
        UserError: If the table was written otherwise or for other settings, or the request can't be fulfilled.
    """
    if out.absolute() == path.absolute():
        raise ConfigurationError.of("--out", "differ from --refine", f"{out} for both")
    table, stored = read_settings_table(path)
    try:
        results = [CellResult(cell, **own) for cell, own in zip(table.cells, stored["cells"], strict=True)]
        tuned, metric = stored["tuned"], stored["metric"]
        request = TableRequest(
            config_of(merged_over(given_settings(arguments, file), stored["config"])),
            tuple(sorted({cell.heterogeneity for cell in table.cells})),
            num_clients=tuned["num_clients"],
            patience=tuned["patience"],
            threshold=table.threshold if threshold is None else threshold,
            synthetic=stored["proxy"]["synthetic"],
            metric=metric,
        )
    except (TypeError, KeyError) as error:
        raise ConfigurationError.of(
            "--refine", "be a table that this version of fedscout tune-table wrote", path
        ) from error
    federation, tuning = prepared(request)
    if changes := differences(tuned, tuning.identity()):
        raise ConfigurationError.of(
            "--refine",
            f"be used with the settings and the data of {path}",
            hint=f"what differs: {'; '.join(changes[:4])}",
        )
    document = {**provenance(request, federation, tuning), "refined": str(path)}
    check_output_file(out, document)
    known = {}
    for result in results:
        level, quantity, num_classes = result.cell.heterogeneity, result.cell.quantity, tuning.proxy.num_classes
        place = CellPosition(classes_of(level, num_classes), quantity)
        if metric != HETEROGENEITY:
            (place,) = metric_grid(metric, [level], [quantity], num_classes)
        known[place] = result
    grid, folder = finer_grid([*known], tuning.proxy), folder_of(out)
    new = [place for place in grid if place not in known]
    planned = plan_cells(tuning, new, folder, {place: result.setting for place, result in known.items()})
    known |= tune_table(tuning, planned, folder, display, parallel, verbose, search_path)
    return write_tuned(out, [known[place] for place in grid], document, request.threshold)


def finer_grid(places: Sequence[CellPosition], proxy: ProxyData) -> tuple[CellPosition, ...]:
    """Return the refined grid, columns before rows, as far as there are enough proxy rows; omitted cells are logged."""
    row, num_classes = places[0].row, proxy.num_classes
    quantities = {place.quantity for place in places}
    levels: set[float] = {place.num_classes if place.row is None else place.row.value for place in places}
    finer: tuple[float, ...]
    finer = refined_classes(map(int, levels), num_classes) if row is None else refined_values(row.metric, levels)

    def grid(rows: Iterable[float], columns: Sequence[int]) -> tuple[CellPosition, ...]:
        if row is None:
            return grid_of(map(int, rows), columns)
        return metric_grid(row.metric, rows, columns, num_classes, among=finer)

    def fits(rows: Iterable[float], columns: Sequence[int]) -> bool:
        return not any(place_faults(place, proxy) for place in grid(rows, columns))

    wanted = refined_quantities(quantities)
    feasible = [quantity for quantity in wanted if quantity in quantities or fits(levels, [quantity])]
    feasible_levels = [level for level in finer if level in levels or fits([level], feasible)]
    left_out = [f"quantity {quantity}" for quantity in wanted if quantity not in feasible]
    left_out += [
        f"heterogeneity {index_of(int(level), num_classes):.2f}" if row is None else f"{row.metric} {level:.3g}"
        for level in finer
        if level not in feasible_levels
    ]
    if left_out:
        logger.warning("there are too few proxy rows for %s, which the finer grid omits", ", ".join(left_out))
    return grid(feasible_levels, feasible)
