"""Requests for a client-settings table, and how a table is tuned.

A table has other defaults than a study, from its source where that specifies them: twenty rounds, a Gaussian process,
sequential evaluation, rates from 1e-5 to 0.8, batches from 4 to 64, epochs from 1 to 30. Deviation: at most twenty
evaluations per cell, where the source continues as long as there is improvement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from fedscout.engine.contracts.client_table import SettingsTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.messages.calls import Cohort
from fedscout.experiments.client_settings.proxies import (
    QUANTITIES,
    CellPosition,
    ProxyData,
    classes_of,
    grid_of,
    place_faults,
    proxy_data,
    scaled,
    synthetic_rows,
)
from fedscout.experiments.client_settings.tuning import CellTuning, plan_cells, tune_table
from fedscout.experiments.config import StudyConfig, check_searchable, config_of, given_settings, merged_over
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.run_folder import differences, versions
from fedscout.experiments.studies.workers import Display
from fedscout.search.settings_table_file import read_settings_table, write_settings_table
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
SEARCHERS = ("gp", "tpe", "random", "genetic")


@dataclass(frozen=True)
class TableRequest:
    """A request to tune a table.

    Attributes:
        config: Data, model, training, search and seed.
        heterogeneities: Rows of the grid, in [0, 1].
        quantities: Columns of the grid; None uses the source's, scaled down if there are too few proxy rows.
        num_clients: Proxy clients of a cell.
        patience: Evaluations without improvement that end a cell.
        threshold: τ of the table; None if clients do not report that they are farther from every cell.
        synthetic: Number of proxy rows to draw from the clients' statistics; None uses the server's rows.
    """

    config: StudyConfig
    heterogeneities: tuple[float, ...]
    quantities: tuple[int, ...] | None
    num_clients: int
    patience: int
    threshold: float | None
    synthetic: int | None

    def __post_init__(self) -> None:
        faults = [
            Fault("--heterogeneity", "be in [0, 1]", value) for value in self.heterogeneities if not 0 <= value <= 1
        ]
        faults += [Fault("--quantity", "be at least 1 row", value) for value in self.quantities or () if value < 1]
        if self.threshold is not None and not 0 <= self.threshold < inf:
            faults.append(Fault("--threshold", "be a distance, at least 0", f"{self.threshold:g}"))
        if faults:
            raise ConfigurationError(faults)


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
        federation = replace(federation, server=synthetic_rows(federation, config, request.synthetic))
    proxy = proxy_data(federation, config.seed, config.federation.server_dataset is not None)
    tuning = CellTuning(config, proxy, federation.model, request.num_clients, request.patience)
    grid = _grid(request, proxy)
    if faults := [fault for place in grid for fault in place_faults(place, proxy)]:
        raise ConfigurationError(faults[0])
    document = provenance(request, federation, tuning)
    check_output_file(out, document)
    folder = out.absolute().with_name(f"{out.stem}.tuning")
    results = tune_table(tuning, plan_cells(tuning, grid, folder), folder, display, parallel, verbose, search_path)
    table = SettingsTable(tuple(results[place].cell for place in grid), request.threshold)
    cells = [{name: value for name, value in vars(results[place]).items() if name != "cell"} for place in grid]
    write_settings_table(out, table, {**document, "cells": cells})
    return TunedTable(out, table, {**document, "cells": cells})


def _grid(request: TableRequest, proxy: ProxyData) -> tuple[CellPosition, ...]:
    held = [classes_of(value, proxy.num_classes) for value in request.heterogeneities]
    if request.quantities is not None:
        return grid_of(held, request.quantities)
    fitting = scaled(QUANTITIES, proxy.usual_rows(min(held)))
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
        "config": config.model_dump(mode="json", include={"federation"}, exclude={"federation": {"folder"}}),
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
    changes = differences(stored.get("tuned", {}), told["tuned"])
    if changes := [change for change in changes if not change.startswith("proxy: ")] or changes[:1]:
        raise ConfigurationError.of(
            "--out",
            "be a new file or a table of the same settings",
            f"{out}, which differs in {'; '.join(changes[:4])}",
        )
