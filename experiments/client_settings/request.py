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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.messages.calls import Cohort
from fedscout.experiments.client_settings import proxies
from fedscout.experiments.client_settings.tuning import CellResult, CellTuning, tune_table
from fedscout.experiments.config import StudyConfig, check_searchable, config_of, given_settings, merged_over
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.checks import folder_of_metric
from fedscout.experiments.studies.run_folder import differences, versions
from fedscout.experiments.studies.workers import Display
from fedscout.search.client_settings import read_settings_table, write_settings_table
from fedscout.strategies import parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

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
NOT_IN_FILE: dict[str, Any] = {"engine": True, "recommender": True, "client_settings": True, "federation": {"folder"}}
"""Parts of a configuration that do not affect a table and may describe a machine."""

HETEROGENEITIES = (0.2, 0.4, 0.6, 0.8)
"""The default rows of the grid, of heterogeneity or entropy."""

SEARCHERS = ("gp", "tpe", "random", "grid", "genetic")


@dataclass(frozen=True)
class CoarseTable:
    """A table to be refined, whose cells are kept.

    Attributes:
        path: Its file.
        tuned: What determined the results of its cells.
        results: Its cells, tuned.
    """

    path: Path
    tuned: Mapping[str, Any]
    results: tuple[CellResult, ...]


@dataclass(frozen=True)
class TableRequest:
    """A request to tune a table.

    Attributes:
        config: Data, model, training, search and seed.
        levels: Rows of the grid: heterogeneity or entropy in [0, 1], or values of the user's own metric; empty uses
            defaults of heterogeneity and entropy.
        quantities: Columns of the grid; None uses the source's, scaled down if there are too few proxy rows.
        num_clients: Proxy clients of a cell.
        patience: Evaluations without improvement that end a cell.
        threshold: τ of the table; None if clients do not report that they are farther from every cell.
        synthetic: Number of proxy rows to draw from the clients' statistics; None uses the server's rows.
        metric: Of the first axis: heterogeneity, entropy, or a function of the user's own.
        coarse: The table to refine; None tunes all cells.
    """

    config: StudyConfig
    levels: tuple[float, ...]
    quantities: tuple[int, ...] | None
    num_clients: int
    patience: int
    threshold: float | None
    synthetic: int | None
    metric: str = HETEROGENEITY
    coarse: CoarseTable | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS and ":" not in self.metric:
            raise ConfigurationError.of(
                "--metric", f"be one of {', '.join(METRICS)} or package.module:function", repr(self.metric)
            )
        allowed, low, high = ("in [0, 1]", 0.0, 1.0) if self.metric in METRICS else ("finite", -inf, inf)
        faults = [
            Fault("--heterogeneity", f"be {allowed}", value)
            for value in self.levels
            if not (low <= value <= high and isfinite(value))
        ]
        if not self.rows:
            faults.append(Fault("--heterogeneity", f"list values of {self.metric}"))
        faults += [Fault("--quantity", "be at least 1 row", value) for value in self.quantities or () if value < 1]
        if self.threshold is not None and not 0 <= self.threshold < inf:
            faults.append(Fault("--threshold", "be a distance, at least 0", f"{self.threshold:g}"))
        if faults:
            raise ConfigurationError(faults)

    @property
    def rows(self) -> tuple[float, ...]:
        """The rows of the grid, or the default ones; empty for a user's own metric without any."""
        return self.levels or (HETEROGENEITIES if self.metric in METRICS else ())


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
    federation = dict(given.get("federation") or {}) | ({} if proxy is None else {"server_dataset": proxy})
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
    search, training = config.search, config.training
    every = "be left out, as all proxy clients take part in every round"
    itself = "not be one that sets clients' rates and epochs itself, as fedex"
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
            ("strategy.kind", itself, _chooses_settings(config)),
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


@dataclass(frozen=True)
class TunedTable:
    """A table that has been written.

    Attributes:
        path: Its file.
        table: Its cells, in the order of the grid.
        provenance: As in the file.
    """

    path: Path
    table: SettingsTable
    provenance: Mapping[str, Any]


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
    config = request.config
    federation = build_federation(config.federation, config.model, config.detection.privacy)
    if federation.task_name != "classification":
        raise ConfigurationError.of(
            "federation.dataset", "have classes for a table of client settings", config.federation.dataset
        )
    if request.synthetic is not None:
        federation = replace(federation, server=proxies.synthetic_rows(federation, config, request.synthetic))
    if request.metric not in METRICS:
        folder_of_metric(request.metric, federation.num_classes)
    proxy = proxies.proxy_data(federation, config.seed, config.federation.server_dataset is not None)
    tuning = CellTuning(config, proxy, federation.model, request.num_clients, request.patience, request.metric)
    results = {} if request.coarse is None else tuned_cells(request.coarse, tuning)
    grid = proxies.finer_grid([*results], proxy, request.metric) if results else _grid(request, proxy)
    new = [place for place in grid if place not in results]
    if faults := [fault for place in new for fault in proxies.place_faults(place, proxy)]:
        raise ConfigurationError(faults[0])
    document = provenance(request, federation, tuning)
    check_output_file(out, document)
    folder = out.absolute().with_name(f"{out.stem}.tuning")
    results |= tune_table(tuning, new, folder, display, results, parallel, verbose, search_path)
    table = SettingsTable(tuple(results[place].cell for place in grid), request.threshold)
    cells = [{name: value for name, value in vars(results[place]).items() if name != "cell"} for place in grid]
    write_settings_table(out, table, {**document, "cells": cells})
    return TunedTable(out, table, {**document, "cells": cells})


def _grid(request: TableRequest, proxy: proxies.ProxyData) -> tuple[proxies.CellPosition, ...]:
    quantities = request.quantities
    if quantities is None and request.metric == HETEROGENEITY:
        held = [proxies.classes_of(level, proxy.num_classes) for level in request.rows]
        quantities = tuple(
            max(*held, quantity) for quantity in proxies.scaled(proxies.QUANTITIES, proxy.usual_rows(min(held)))
        )
    elif quantities is None:  # so that most classes have enough rows
        quantities = proxies.scaled(proxies.QUANTITIES, int(np.quantile(proxy.class_rows, 0.25)))
    return proxies.grid_of(request.rows, quantities, proxy.num_classes, request.metric)


def refinement_of(
    path: Path, out: Path, arguments: Sequence[str], file: Path | None = None, threshold: float | None = None
) -> TableRequest:
    """Return the request to refine a table.

    Args:
        path: A table that `fedscout tune-table` wrote.
        out: The new table.
        arguments: May only set paths and execution, which do not change results.
        file: A YAML file, overridden by the arguments.
        threshold: Replaces the table's, unless it is None.

    Raises:
        ConfigurationError: If the table was written otherwise, or the new one is the same file.
    """
    if out.absolute() == path.absolute():
        raise ConfigurationError.of("--out", "differ from --refine", f"{out} for both")
    table, stored = read_settings_table(path)
    try:
        results = tuple(CellResult(cell, **own) for cell, own in zip(table.cells, stored["cells"], strict=True))
        return TableRequest(
            config_of(merged_over(given_settings(arguments, file), stored["config"])),
            tuple(sorted({cell.heterogeneity for cell in table.cells})),
            None,
            stored["tuned"]["num_clients"],
            stored["tuned"]["patience"],
            table.threshold if threshold is None else threshold,
            stored["proxy"]["synthetic"],
            stored["metric"],
            CoarseTable(path, stored["tuned"], results),
        )
    except (TypeError, KeyError, ValueError) as error:
        must = "be a table that this version of fedscout tune-table wrote"
        raise ConfigurationError.of("--refine", must, path) from error


def tuned_cells(coarse: CoarseTable, tuning: CellTuning) -> dict[proxies.CellPosition, CellResult]:
    """Return the cells of a table by their position.

    Raises:
        ConfigurationError: If they were tuned with other settings or data.
    """
    if changes := differences(coarse.tuned, tuning.identity()):
        must, hint = f"be used with the settings and the data of {coarse.path}", "; ".join(changes[:4])
        raise ConfigurationError.of("--refine", must, hint=f"what differs: {hint}")
    positions = (
        proxies.grid_of([result.cell.heterogeneity], [result.cell.quantity], tuning.proxy.num_classes, tuning.metric)[0]
        for result in coarse.results
    )
    return dict(zip(positions, coarse.results, strict=True))


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
        "config": config.model_dump(mode="json", exclude=NOT_IN_FILE),
        "versions": versions(),
        **({} if request.coarse is None else {"refined": str(request.coarse.path)}),
    }


def check_output_file(out: Path, document: Mapping[str, Any]) -> None:
    """Check that the output file is new or a table of the same settings.

    Raises:
        ConfigurationError: With the differences.
    """
    if not out.exists():
        return
    _, stored = read_settings_table(out)
    before = {**stored.get("tuned", {}), "metric": stored.get("metric", HETEROGENEITY)}
    changes = differences(before, {**document["tuned"], "metric": document["metric"]})
    if changes := [change for change in changes if not change.startswith("proxy: ")] or changes[:1]:
        raise ConfigurationError.of(
            "--out",
            "be a new file or a table of the same settings",
            f"{out}, which differs in {'; '.join(changes[:4])}",
        )
