"""Ways to obtain clients' settings, including FedCust's table, and the accuracy of training with them.

Tuning on a seed never uses the rows that test it on that seed: proxy rows are the server's, and clients tune on
validation rows split from their training rows. So tuning is repeated for each seed, and an interval over seeds includes
its variance. Results of cells are logged by a digest of everything that determines them, and reused.

Each way is a function of a `SettingsTuning` and returns the number of tuning steps as well. One setting is sent to the
clients as a table, too, so that clients are weighted equally under all of them. Settings for each client, by hand or by
its own search, are not measured.

- `table`: FedCust, or the same with another grid, proxy data or strategy; refined, with the cells between and
beyond tuned as well; shuffled, the tuned settings randomly permuted over the cells; or interpolated, of which six cells
are tuned and the others interpolated (log rate, log batch, epochs).
- `random_table`: as many cells, with settings drawn from the ranges.
- `one_for_all`: one setting, tuned by the federation itself on its clients' validation rows.
- `reinforced`: FedRL. The source describes it only as rates adapted by reinforcement. Here the policy is a distribution
over nine rates between a quarter and four times the global one, reinforced in each round by the clients' validation
rows (FedEx's exponentiated gradient, Khodak et al. 2021, with rates alone).

FedCust's clients are six quantities by four degrees of heterogeneity, equally many of each. In the suite each group is
one client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedscout.engine.contracts.client_table import HETEROGENEITY, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial
from fedscout.experiments.client_settings.proxies import (
    CellPosition,
    ProxyData,
    finer_grid,
    grid_of,
    proxy_data,
    synthetic_rows,
)
from fedscout.experiments.client_settings.tuning import CellResult, CellTuning, Setting, search_setting, tune_table
from fedscout.experiments.config import StudyConfig, check_searchable
from fedscout.experiments.grids.catalogue import BENCHMARK
from fedscout.experiments.grids.cells import CellContext, CellValues, best_round, failures_of, split_ratio
from fedscout.experiments.grids.experiment import Cell, Settings, arguments
from fedscout.experiments.grids.federation_runner import FederationRunner, built_federation, open_federation
from fedscout.experiments.studies.workers import Display
from fedscout.search.confirmation.runs import resolution
from fedscout.search.ledger import best_of
from fedscout.search.study import study_space
from fedscout.strategies import FedAvgSpec, StrategySpec, parse_strategy

TABLES = "tables"
"""Folder of the logs of cells."""

PROXY_ROUNDS = 20
VALIDATION_SHARE = 0.2
UNIFORM = FedAvgSpec(sample_scaling="uniform")
"""With a table all clients have equal weights, and so they do when one setting is tuned for all."""


@dataclass(frozen=True)
class Tuned:
    """The clients' settings and the cost of tuning them in steps: a full training of one client with one setting.

    Attributes:
        lookup: The table; None if a strategy chooses.
        proxy_steps: Steps of proxy clients, which the server holds.
        client_steps: Steps of the clients themselves.
        strategy: The strategy to train in place of the configured one.
        setting: The study's setting, if there is no table.
    """

    lookup: SettingsLookup | None
    proxy_steps: int = 0
    client_steps: int = 0
    strategy: StrategySpec | None = None
    setting: Setting | None = None


@dataclass(frozen=True)
class SettingsTuning:
    """Tuning of client settings for one federation on one seed, and training with them.

    Attributes:
        runner: Of the federation's trials.
        seed: Of tuning and training.
        out: Folder of the logs of cells.
        note: Called with a description of the next step.
        metric: Of the table's first axis.
        levels: Values of the first axis; empty uses the levels by which the federation is partitioned.
        quantities: Training rows of a client; empty uses those of the partition.
    """

    runner: FederationRunner
    seed: int
    out: Path
    note: Callable[[str], None] = lambda _: None
    metric: str = HETEROGENEITY
    levels: tuple[float, ...] = ()
    quantities: tuple[int, ...] = ()

    @cached_property
    def config(self) -> StudyConfig:
        """The study's configuration on this seed."""
        return self.runner.config.model_copy(update={"seed": self.seed})

    @cached_property
    def proxy(self) -> ProxyData:
        """The proxy data, which are the server's rows."""
        return proxy_data(self.runner.federation, self.seed, of_another=False)

    @cached_property
    def grid(self) -> tuple[CellPosition, ...]:
        """The cells of the table, one for each group of clients."""
        partition, share = self.config.federation.partition, 1 - self.config.training.test_fraction
        quantities = self.quantities or [round(share * rows) for rows in partition.quantities]
        return self.grid_at(self.levels or partition.levels, quantities)

    def grid_at(self, levels: Iterable[float], quantities: Iterable[int]) -> tuple[CellPosition, ...]:
        """Return the full grid of some heterogeneities and quantities."""
        return grid_of(levels, quantities, self.proxy.num_classes, self.metric)

    def coarser_grid(self, num_levels: int, num_quantities: int) -> tuple[CellPosition, ...]:
        """Return a grid of fewer cells: the ends and evenly spaced values between, or the middle for one value."""
        levels = self.levels or self.config.federation.partition.levels
        quantities = sorted({place.quantity for place in self.grid})
        return self.grid_at(
            [0.5] if num_levels == 1 else _spread(levels, num_levels),
            [round(np.mean(quantities))] if num_quantities == 1 else _spread(quantities, num_quantities),
        )

    def lookup(self, settings: Mapping[CellPosition, Setting]) -> SettingsLookup:
        """Return the table with these settings at these positions."""
        num_classes, cells = self.proxy.num_classes, settings.items()
        table_cells = (SettingsCell(at.heterogeneity(num_classes), at.quantity, *setting) for at, setting in cells)
        return SettingsLookup(SettingsTable(tuple(table_cells)), self.metric)

    def tuning(self, proxy: ProxyData | None = None, strategy: str | None = None) -> CellTuning:
        """Return the tuning of cells by a strategy."""
        training = self.config.training
        changes = {
            "training": training.model_copy(update={"num_rounds": min(PROXY_ROUNDS, training.num_rounds)}),
            "strategy": None if strategy is None else {"kind": strategy},
        }
        config = self.config.model_copy(update=changes)
        return CellTuning(config, proxy or self.proxy, self.runner.federation.model, metric=self.metric)

    def tuned(
        self, tuning: CellTuning, cells: Sequence[CellPosition], known: Mapping[CellPosition, CellResult] | None = None
    ) -> dict[CellPosition, CellResult]:
        """Tune cells on proxy clients, and return the result of each.

        Args:
            tuning: The shared settings.
            cells: Their positions.
            known: Tuned cells whose settings are tried first.
        """
        texts = [f"  cell of {cell.num_classes} classes and {cell.quantity} rows" for cell in cells]
        display = Display(ended=lambda position: self.note(texts[position]))
        return tune_table(tuning, cells, self.out / TABLES, display, known)

    def grid_within(self, threshold: float) -> tuple[CellPosition, ...]:
        """Return a grid of four cells, refined until every client has a cell within τ, but at most four times."""
        federation, training = self.runner.federation, self.config.training
        counts = []
        for client in range(federation.num_clients):
            own = federation.client_data(client).own
            split = federation.split_rows(client, own.labels[own.rows], self.seed, training.test_fraction, 0.0)
            counts.append(own.part(split.train).label_counts(federation.num_classes))
        grid = self.coarser_grid(2, 2)
        for _ in range(MOST_REFINEMENTS):
            lookup = self.lookup(dict.fromkeys(grid, (1.0, 1, 1)))
            lookup = replace(lookup, table=replace(lookup.table, threshold=threshold))
            if not any(lookup.reports_far(own, self.seed, client) for client, own in enumerate(counts)):
                break
            grid = finer_grid(grid, self.proxy, self.metric)
        return grid

    def tuned_for_all(self) -> tuple[Setting, int]:
        """Return the one setting that is best on the clients' validation rows, and the steps of clients."""
        search = self.config.search.model_copy(update={"validation_fraction": VALIDATION_SHARE})
        config = self.config.model_copy(update={"search": search})
        trials = search_setting(config, self.runner.ledger(config), (), 5, self.seed, UNIFORM)
        best = best_of(trials)  # without one, the configured settings
        setting = setting_of(UNIFORM if best is None else best.spec, self.config)
        return setting, len(trials) * self.runner.federation.num_clients

    def trial(self, settings: Tuned, strategy: StrategySpec) -> Trial:
        """Return the training with some settings, scored on test rows."""
        ledger = self.runner.ledger(self.config)
        trial_settings = ledger.facts.trial("confirmation", settings.strategy or strategy)
        session = replace(trial_settings.session, client_table=settings.lookup)
        if settings.setting is not None:
            changes = dict(zip(("learning_rate", "batch_size", "local_epochs"), settings.setting, strict=True))
            session = replace(session, training=session.training.model_copy(update=changes))
        (trial,) = ledger.run([replace(trial_settings, session=session)])
        return trial


def setting_of(spec: StrategySpec, config: StudyConfig) -> Setting:
    """Return the clients' settings of a configuration."""
    training = spec.local_training(config.training.local())
    return training.learning_rate, training.batch_size, training.local_epochs


MOST_REFINEMENTS = 4

INTERPOLATED = (2, 3)
"""Heterogeneities and quantities of the tuned cells of an interpolated table."""


def worse_proxies(tuning: SettingsTuning, how: str) -> ProxyData:
    """Return degraded proxy rows.

    Args:
        tuning: Of a federation.
        how: `mislabelled`: two fifths have a random label, including scoring rows; `meaningless`: all have, so that
            nothing can be learnt; `synthetic`: as many rows, drawn from the class means and the covariance that clients
            report; `few`: a quarter of the rows, training and scoring; `usual`: the server's rows unchanged.
    """
    proxy = tuning.proxy
    if how == "synthetic":
        drawn = synthetic_rows(tuning.runner.federation, tuning.config, len(proxy.labels))
        return proxy_data(replace(tuning.runner.federation, server=drawn), tuning.seed, of_another=False)
    if how == "few":
        generator = stream(tuning.seed, "few-proxies")
        trained = np.sort(generator.permutation(proxy.num_trained)[: proxy.num_trained // 4])
        scored_per_class = proxy.num_scored // proxy.num_classes
        by_class = np.arange(proxy.num_trained, len(proxy.labels)).reshape(-1, scored_per_class)
        scored = by_class[:, : max(1, scored_per_class // 4)].ravel()
        rows = np.concatenate([trained, scored])
        return replace(proxy, features=proxy.features[rows], labels=proxy.labels[rows], num_scored=len(scored))
    if how == "usual":
        return proxy
    generator = stream(tuning.seed, "relabelled-proxies")
    drawn_labels = generator.permutation(proxy.labels)
    chosen = generator.random(len(drawn_labels)) < {"mislabelled": 0.4, "meaningless": 1.0}[how]
    return replace(proxy, labels=np.where(chosen, drawn_labels, proxy.labels))


def table(
    tuning: SettingsTuning,
    *,
    grid: tuple[int, int] | None = None,
    proxies: str = "usual",
    strategy: str | None = None,
    change: Literal["refined", "shuffled", "interpolated"] | None = None,
) -> Tuned:
    """Return the table tuned on proxy clients, with a change described in the module."""
    cells_tuning = tuning.tuning(worse_proxies(tuning, proxies), strategy)
    cells = tuning.coarser_grid(*INTERPOLATED) if change == "interpolated" else tuning.grid
    results = tuning.tuned(cells_tuning, cells if grid is None else tuning.coarser_grid(*grid))
    if change == "refined":
        finer = finer_grid([*results], tuning.proxy, tuning.metric)
        results |= tuning.tuned(cells_tuning, [place for place in finer if place not in results], results)
        results = {place: results[place] for place in finer}
    settings = {place: result.setting for place, result in results.items()}
    if change == "shuffled":
        order = stream(tuning.seed, "shuffled-table").permutation(len(settings))
        tuned = [*settings.values()]
        settings = {place: tuned[index] for place, index in zip(settings, order, strict=True)}
    elif change == "interpolated":
        settings = _interpolated(settings, tuning.grid)
    steps = cells_tuning.num_clients * sum(result.trials for result in results.values())
    return Tuned(tuning.lookup(settings), proxy_steps=steps)


def _interpolated(
    settings: Mapping[CellPosition, Setting], grid: Sequence[CellPosition]
) -> dict[CellPosition, Setting]:
    """Return the settings of a grid by linear interpolation between tuned cells."""
    from scipy.interpolate import LinearNDInterpolator

    values = np.array([[np.log(rate), np.log(batch), epochs] for rate, batch, epochs in settings.values()])
    tuned, wanted = ([[place.num_classes, place.quantity] for place in places] for places in (settings, grid))
    between = LinearNDInterpolator(np.array(tuned, np.float64), values, rescale=True)(np.array(wanted, np.float64))
    return {
        place: (float(np.exp(rate)), round(float(np.exp(batch))), round(float(epochs)))
        for place, (rate, batch, epochs) in zip(grid, between, strict=True)
    }


def random_table(tuning: SettingsTuning) -> Tuned:
    """Return a table of settings drawn from the ranges of the search."""
    generator = stream(tuning.seed, "random-settings")
    space = study_space(tuning.config.search, tuning.runner.ledger(tuning.config).facts)
    return Tuned(tuning.lookup({place: setting_of(space.random(generator), tuning.config) for place in tuning.grid}))


def one_for_all(tuning: SettingsTuning) -> Tuned:
    """Return one setting for all clients, as a table of one cell."""
    setting, steps = tuning.tuned_for_all()
    return Tuned(tuning.lookup({tuning.grid[0]: setting}), client_steps=steps)


def reinforced(tuning: SettingsTuning) -> Tuned:
    """Return FedRL, with rates around the one setting for all clients."""
    setting, steps = tuning.tuned_for_all()
    document = {"kind": "fedex", "sample_scaling": "uniform", "epochs_factor": 1.0, "batch_factor": 1.0}
    return Tuned(None, client_steps=steps, strategy=parse_strategy(document), setting=setting)


WAYS: Mapping[str, Callable[..., Tuned]] = {way.__name__: way for way in (table, random_table, one_for_all, reinforced)}


def _spread(values: Sequence[Any], count: int) -> list[Any]:
    return [values[round(position)] for position in np.linspace(0, len(values) - 1, count)]


@contextmanager
def _tunings(
    cell: Cell, settings: Settings, context: CellContext, **axes: Any
) -> Iterator[tuple[StudyConfig, list[SettingsTuning]]]:
    """Yield the configuration of a column, and its tuning on every seed."""
    built = built_federation(cell[1], arguments(settings), context.settings)
    check_searchable(built.config)
    with open_federation(built, context.folder) as runner:
        out = context.folder / BENCHMARK
        yield built.config, [SettingsTuning(runner, seed, out, context.note, **axes) for seed in context.fresh_seeds]


def settings_cell(
    cell: Cell,
    settings: Settings,
    context: CellContext,
    *,
    way: str,
    trained: str = UNIFORM.kind,
    axes: Mapping[str, Any] | None = None,
    **options: Any,
) -> CellValues:
    """Return the accuracy of the best round of a strategy with client settings that are obtained anew on every seed.

    A seed fixes split, initial model and batches, so an interval includes the variance of tuning. All trials are
    logged, and each training runs once.

    Args:
        cell: Row and column.
        settings: Of the column.
        context: Seeds, settings and folder.
        way: Of `WAYS`.
        trained: The kind of strategy.
        axes: Metric, levels and quantities of the table, if they are not those of the partition.
        options: Of the way.
    """
    with _tunings(cell, settings, context, **(axes or {})) as (config, tunings):
        spec = UNIFORM if trained == UNIFORM.kind else parse_strategy(trained)
        tuned = [WAYS[way](tuning, **options) for tuning in tunings]
        trials = [tuning.trial(own, spec) for tuning, own in zip(tunings, tuned, strict=True)]
    return CellValues(
        values=tuple(best_round(trial, tunings[0].runner.facts.guessing) for trial in trials),
        test_to_train=split_ratio(config),
        resolution=resolution([trials]),
        failures=failures_of(trials),
        figures={
            "steps of proxy clients": tuple(float(own.proxy_steps) for own in tuned),
            "steps of clients": tuple(float(own.client_steps) for own in tuned),
        },
    )


def tuned_rate(cell: Cell, settings: Settings, context: CellContext) -> CellValues:
    """Return the best client learning rate of a table of one cell."""
    with _tunings(cell, settings, context) as (_, tunings):
        results = [tuning.tuned(tuning.tuning(), tuning.grid)[tuning.grid[0]] for tuning in tunings]
    return CellValues(values=tuple(result.cell.learning_rate for result in results))


def num_cells(cell: Cell, settings: Settings, context: CellContext, *, threshold: float) -> CellValues:
    """Return the number of cells of a table that is refined as far as τ demands."""
    with _tunings(cell, settings, context) as (_, tunings):
        cells = tuple(float(len(tuning.grid_within(threshold))) for tuning in tunings)
    return CellValues(values=cells, resolution=1.0)
