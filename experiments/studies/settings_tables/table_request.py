"""What is asked of a table of client settings, and how it becomes one: made anew, or refined.

The defaults of a study are those of choosing a strategy; a table has others, from its source where that leaves room:
twenty rounds, a Gaussian process, one setting after the other, rates from 1e-5 to 0.8, batches from 4 to 64, epochs
from 1 to 30. Deviation: at most twenty evaluations a cell, where the source would go on as long as there is gain.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.contracts.settings_lookup import HETEROGENEITY
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config.config_file import config_of, given_settings, laid_over
from fedscout.experiments.config.study_config import StudyConfig, check_searchable
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.studies.client_settings import folder_of_metric
from fedscout.experiments.studies.run_folder import differences
from fedscout.experiments.studies.settings_tables.cell_tuning import CellTuning
from fedscout.experiments.studies.settings_tables.proxy_clients import place_faults
from fedscout.experiments.studies.settings_tables.proxy_data import ProxyData, proxy_data
from fedscout.experiments.studies.settings_tables.settings_grid import (
    LEVELS,
    QUANTITIES,
    Place,
    classes_of,
    grid_of,
    metric_grid,
    scaled,
)
from fedscout.experiments.studies.settings_tables.synthetic_rows import synthetic_rows
from fedscout.experiments.studies.settings_tables.table_tuning import (
    TunedTable,
    TuningDisplay,
    folder_of,
    plan_cells,
    tune_table,
    write_tuned,
)
from fedscout.experiments.studies.versions import versions
from fedscout.search.settings_table_file import read_settings_table
from fedscout.strategies import parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

logger = logging.getLogger("fedscout")

PROXY_SHARE = 0.3
"""Of the data set, which the server holds where nothing else is said."""

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
NOT_TOLD: dict[str, Any] = {"engine": True, "recommender": True, "client_settings": True, "federation": {"folder"}}
"""What of a configuration says nothing of a table, and may tell of a machine."""

SEARCHERS = ("gp", "tpe", "random", "genetic")


@dataclass(frozen=True)
class TableRequest:
    """What is asked.

    Attributes:
        config: Data, model, training, search and seed.
        heterogeneities: Of the rows of the grid, in [0, 1], as are entropies, or values of the user's own metric;
            None takes those of the metric.
        quantities: Of its columns; None takes the source's, made smaller where the proxy rows do not reach.
        num_clients: Proxy clients of a cell.
        patience: Evaluations without gain that end a cell.
        threshold: τ of the table; None has no client tell how far it is.
        synthetic: Proxy rows that are drawn by what clients tell of themselves; None takes the server's rows.
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
            raise ConfigurationError(
                Fault("--metric", f"be one of {', '.join(LEVELS)} or package.module:function", repr(self.metric))
            )
        faults = []
        if self.metric not in LEVELS:
            if not self.heterogeneities or not all(map(isfinite, self.heterogeneities)):
                given = "none" if self.heterogeneities is None else ", ".join(map(str, self.heterogeneities))
                faults.append(Fault("--heterogeneity", f"say values that {self.metric} gives", given))
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
    """Return the configuration of a table: what is given over a table's defaults.

    Args:
        arguments: As of any command.
        file: A YAML file under all arguments.
        proxy: Another data set that the proxy rows are of; None leaves it to the arguments.
        synthetic: Whether they are drawn, so that the server needs none.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    given = laid_over(given_settings(arguments, file), DEFAULTS)
    own = {} if proxy is None else {"server_dataset": proxy}
    federation = {**dict(given.get("federation") or {}), **own}
    has_rows = federation.get("server_rows") is not None or federation.get("server_dataset") is not None
    if synthetic and has_rows:
        raise ConfigurationError(Fault("--synthetic", "be left out where the server has rows of its own for a table"))
    if not synthetic:
        federation |= {"server_labels": True} | ({} if has_rows else {"server_rows": PROXY_SHARE})
    config = config_of({**given, "federation": federation})
    _check(config)
    return config


def _check(config: StudyConfig) -> None:
    """Refuse what a table can't be tuned by."""
    check_searchable(config.model_copy(update={"strategy": None}))
    faults = []
    if told := [name for name in CLIENT_PARAMETERS if (config.strategy or {}).get(name) is not None]:
        faults.append(Fault("strategy", "not say what a table is tuned for", ", ".join(told)))
    if config.federation.dataset in ENVIRONMENTS or config.federation.predicts_quantity:
        faults.append(
            Fault("federation.dataset", "be of classes for a table of client settings", config.federation.dataset)
        )
    if config.search.strategies != ("fedavg",):
        faults.append(
            Fault(
                "search.strategies", "be left out", hint="strategy.kind says what trains the proxy clients of a table"
            )
        )
    if config.search.kind not in SEARCHERS:
        faults.append(Fault("search.kind", f"be one of {', '.join(SEARCHERS)} for a table", config.search.kind))
    if config.search.objectives != ("accuracy",) or config.search.validation_fraction:
        faults.append(
            Fault("search.objective and search.validation_fraction", "be left out: proxy rows score a setting")
        )
    everybody = {
        "selection": config.selection is not None,
        "search.selection": config.search.selection is not None,
        "training.fraction_train": config.training.fraction_train != 1,
        "training.scored_clients": config.training.scored_clients is not None,
    }
    faults += [
        Fault(key, "be left out, as all proxy clients of a table train and score in every round")
        for key, is_said in everybody.items()
        if is_said
    ]
    if _chooses_settings(config):
        faults.append(
            Fault("strategy.kind", "leave clients' rates and epochs to a table, and fedex and fedpop choose them")
        )
    if config.client_settings.kind is not None:
        faults.append(Fault("client_settings", "be left out, as a table is tuned without one"))
    if faults:
        raise ConfigurationError(faults)


def _chooses_settings(config: StudyConfig) -> bool:
    """Return whether the strategy is one that can't be where clients have settings of their own."""
    if config.strategy is None or "kind" not in config.strategy:
        return False
    rate = config.training.learning_rate
    alike = Cohort(num_clients=2, num_sampled=2, client_learning_rate=rate, server_rows=None, server_labels=True)
    strategy = parse_strategy(config.strategy)
    return strategy.unavailable(alike) is None and strategy.unavailable(replace(alike, own_settings=True)) is not None


def make_table(
    request: TableRequest,
    out: Path,
    display: TuningDisplay,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> TunedTable:
    """Tune a table, or the rest of it, and write it.

    Raises:
        UserError: If something that was asked for can't be done; before anything is trained where possible.
    """
    federation, tuning = prepared(request)
    grid = _grid(request, tuning)
    if faults := [fault for place in grid for fault in place_faults(place, tuning.proxy)]:
        raise ConfigurationError(faults[0])
    _check_batches(request.config, grid)
    told = provenance(request, federation, tuning)
    refuse_foreign(out, told)
    folder = folder_of(out)
    results = tune_table(tuning, plan_cells(tuning, grid, folder), folder, display, parallel, verbose, search_path)
    return write_tuned(out, [results[place] for place in grid], told, request.threshold)


def prepared(request: TableRequest) -> tuple[Federation, CellTuning]:
    """Build the federation, and take its proxy rows."""
    config = request.config
    federation = build_federation(config.federation, config.model, config.detection.privacy)
    if request.synthetic is not None:
        federation = replace(federation, server=synthetic_rows(federation, config, request.synthetic))
    if request.metric not in LEVELS:
        folder_of_metric(request.metric, federation.num_classes)
    proxy = proxy_data(federation, config.seed, config.federation.server_dataset is not None)
    tuning = CellTuning(config, proxy, federation.model, request.num_clients, request.patience, request.metric)
    return federation, tuning


def _grid(request: TableRequest, tuning: CellTuning) -> tuple[Place, ...]:
    if request.metric != HETEROGENEITY:
        return _metric_grid(request, tuning.proxy)
    held = [classes_of(value, tuning.proxy.num_classes) for value in request.levels]
    if request.quantities is not None:
        return grid_of(held, request.quantities)
    fitting = scaled(QUANTITIES, tuning.proxy.usual_rows(min(held)))
    return grid_of(held, [max(*held, quantity) for quantity in fitting])


def _metric_grid(request: TableRequest, proxy: ProxyData) -> tuple[Place, ...]:
    """Return the grid of any other metric; columns that are left out are such that most classes have the rows."""
    quantities = request.quantities or scaled(QUANTITIES, int(np.quantile(proxy.class_rows, 0.25)))
    return metric_grid(request.metric, request.levels, quantities, proxy.num_classes)


def _check_batches(config: StudyConfig, grid: Sequence[Place]) -> None:
    """Refuse batches that no proxy client has the rows for, and say where some of a range are such.

    A batch holds at most a client's rows, so a larger one is the same setting again. That bounds its memory by that of
    the rows; how much memory clients have, nobody knows here.

    Raises:
        ConfigurationError: If all of the range are.
    """
    batches, most = config.search.client_ranges.batch_size, max(place.quantity for place in grid)
    if batches is None or batches.high <= most:
        return
    if batches.low > most:
        raise ConfigurationError(
            Fault(
                "search.client_ranges.batch_size",
                f"begin with at most {most} rows, which clients of the largest quantity hold",
                f"low {batches.low}",
            )
        )
    logger.warning(
        "batches of %s to %s rows are all the rows of a client in every cell; search.client_ranges.batch_size may end "
        "there",
        *(most, batches.high),
    )


def provenance(request: TableRequest, federation: Federation, tuning: CellTuning) -> dict[str, Any]:
    """Return where a table comes from, as JSON can hold it."""
    config, proxy = request.config, tuning.proxy
    of = config.federation
    return {
        "dataset": of.dataset,
        "model": config.model.kind,
        "trained_model": federation.facts["model"],
        "num_classes": federation.num_classes,
        "metric": request.metric,
        "strategy": str((config.strategy or {}).get("kind", "fedavg")),
        "seed": config.seed,
        "proxy": {
            "dataset": of.server_dataset or of.dataset,
            "synthetic": request.synthetic,
            "server_rows": of.server_rows,
            "federation_seed": of.seed,
            "num_rows": len(proxy.labels),
            "num_scored": proxy.num_scored,
            "num_left_out": proxy.num_left_out,
        },
        "tuned": tuning.identity(),
        "config": config.model_dump(mode="json", exclude=NOT_TOLD),
        "versions": versions(),
    }


def refuse_foreign(out: Path, told: Mapping[str, Any]) -> None:
    """Refuse to write over what is no table of the same settings.

    Raises:
        ConfigurationError: With what differs.
    """
    if not out.exists():
        return
    _, there = read_settings_table(out)
    tuned, named = there.get("tuned", {}), {"metric": there.get("metric", HETEROGENEITY)}
    changes = differences({**tuned, **named}, {**told["tuned"], "metric": told["metric"]})
    if changes := [change for change in changes if not change.startswith("proxy: ")] or changes[:1]:
        raise ConfigurationError(
            f"--out must be a new file or a table of the same settings, got {out}, of which differ: "
            f"{'; '.join(changes[:4])}"
        )
