"""Ways to obtain clients' settings, including FedCust's table, and the accuracy of training with them.

Tuning on a seed never uses the rows that test it on that seed: proxy rows are the server's, and clients tune on
validation rows split from their training rows. So tuning is repeated for each seed, and an interval over seeds includes
its variance. Results of cells and clients are logged by a digest of everything that determines them, and reused.

Each way is a function of a `SettingsTuning` and of the kind of strategy to train, and returns the number of tuning
steps as well. A table, or a setting for each client, is sent to the clients as a table, so that clients are weighted
equally under all of them.

- `table`: FedCust, or the same with another search, grid or proxy data; `own_table`: tuned with the strategy that it is
used for; `finer_table`: refined, with the cells between and beyond tuned as well.
- `random_table`: as many cells, with settings drawn from the ranges; `shuffled_table`: the tuned settings, randomly
permuted over the cells. `interpolated_table`: six cells are tuned, the others interpolated (log rate, log batch,
epochs).
- `one_for_all`: one setting, tuned by the federation itself on its clients' validation rows.
- `every_client`: Bayesian optimisation by each client alone, on its own rows (the source's Fig. 8a).
- `by_hand`: settings for each client by trials of the whole federation: for one client after the other, twice and half
its epochs and 2.5 times more and less of its rate are tried, and kept if validation rows improve. It starts with the
table.
- `reinforced`: FedRL. The source describes it only as rates adapted by reinforcement. Here the policy is a distribution
over nine rates between a quarter and four times the global one, reinforced in each round by the clients' validation
rows (FedEx's exponentiated gradient, Khodak et al. 2021, with rates alone).

FedCust's clients are six quantities by four degrees of heterogeneity, equally many of each. In the suite each group is
one client, so that a setting for each client is a table, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_table import (
    SettingsCell,
    SettingsLookup,
    SettingsTable,
    heterogeneity_index,
)
from fedscout.engine.data.client import Partition
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import FITNESS_ROUNDS, Trial, TrialSettings
from fedscout.experiments.client_settings.proxies import (
    CellPosition,
    ProxyData,
    classes_of,
    grid_of,
    proxy_data,
    synthetic_rows,
)
from fedscout.experiments.client_settings.request import finer_grid
from fedscout.experiments.client_settings.tuning import (
    CellResult,
    CellTuning,
    Setting,
    plan_cells,
    search_setting,
    tune_federation,
    tune_table,
)
from fedscout.experiments.config import StudyConfig, check_searchable
from fedscout.experiments.grids.catalogue import BENCHMARK
from fedscout.experiments.grids.cells import (
    CellByCell,
    CellContext,
    CellValues,
    best_round,
    chance_level,
    failures_of,
    split_ratio,
)
from fedscout.experiments.grids.experiment import Cell, arguments
from fedscout.experiments.grids.federation_runner import FederationRunner, built_federation, open_federation
from fedscout.experiments.studies.workers import Display
from fedscout.search.confirmation.runs import resolution
from fedscout.search.ledger import best_of
from fedscout.search.study import study_space
from fedscout.strategies import FedAvgSpec, StrategySpec, parse_strategy

TABLES, CLIENTS = "tables", "clients"
"""Folders of the logs of cells, and of clients that are tuned alone."""

PROXY_ROUNDS = 20
VALIDATION_SHARE = 0.2
UNIFORM = FedAvgSpec(sample_scaling="uniform")
"""With a table all clients have equal weights, and so they do when one setting is tuned for all."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
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
        out: Folder of the logs of cells, and of clients that tune alone.
        note: Called with a description of the next step.
    """

    runner: FederationRunner
    seed: int
    out: Path
    note: Note = lambda _: None

    @property
    def levels(self) -> tuple[float, ...]:
        """Heterogeneity of the clients' groups."""
        return tuple(self.config.federation.partition.levels)

    @property
    def quantities(self) -> tuple[int, ...]:
        """Training rows of the clients' groups."""
        share = 1 - self.config.training.test_fraction
        return tuple(round(share * rows) for rows in self.config.federation.partition.quantities)

    @property
    def num_clients(self) -> int:
        """Clients of the federation."""
        return self.runner.federation.num_clients

    @cached_property
    def config(self) -> StudyConfig:
        """The study's configuration on this seed."""
        return self.runner.config.model_copy(update={"seed": self.seed})

    @cached_property
    def validating(self) -> StudyConfig:
        """The configuration with validation rows, split from the clients' training rows."""
        search = self.config.search.model_copy(update={"validation_fraction": VALIDATION_SHARE})
        return self.config.model_copy(update={"search": search})

    @cached_property
    def proxy(self) -> ProxyData:
        """The proxy data, which are the server's rows."""
        return proxy_data(self.runner.federation, self.seed, of_another=False)

    @cached_property
    def grid(self) -> tuple[CellPosition, ...]:
        """The cells of the table, one for each group of clients."""
        held = [classes_of(level, self.proxy.num_classes) for level in self.levels]
        return grid_of(held, self.quantities)

    def tuning(self, proxy: ProxyData | None = None, strategy: str | None = None, **search: Any) -> CellTuning:
        """Return the tuning of cells; `search` overrides the configured search."""
        rounds = min(PROXY_ROUNDS, self.config.training.num_rounds)
        changed = {
            "training": self.config.training.model_copy(update={"num_rounds": rounds}),
            "search": self.config.search.model_copy(update=search),
            "strategy": None if strategy is None else {"kind": strategy},
        }
        patience = search.get("budget", 5) if search.get("kind") == "grid" else 5
        config = self.config.model_copy(update=changed)
        return CellTuning(config, proxy or self.proxy, self.runner.federation.model, patience=patience)

    def tuned(
        self, tuning: CellTuning, cells: Sequence[CellPosition], known: Mapping[CellPosition, CellResult] | None = None
    ) -> dict[CellPosition, CellResult]:
        """Tune cells on proxy clients, and return the result of each.

        Args:
            tuning: The shared settings.
            cells: Their positions.
            known: Tuned cells whose settings are tried first.
        """
        folder = self.out / TABLES
        planned = plan_cells(tuning, cells, folder, {place: result.setting for place, result in (known or {}).items()})
        display = Display(ended=lambda position: self.note(f"  cell {planned[position].folder.name}"))
        return tune_table(tuning, planned, folder, display)

    def train_rows(self, client: int, validation_share: float = 0.0) -> IntArray:
        """Return the indices of a client's training rows on this seed."""
        federation, training = self.runner.federation, self.config.training
        rows = federation.partition.client(client)
        split = federation.split_rows(
            client, federation.labels[rows], self.seed, training.test_fraction, validation_share
        )
        return np.asarray(rows[split.train])

    def table_for_each(self, settings: Sequence[Setting], validation_share: float = 0.0) -> SettingsLookup:
        """Return the table that gives each client its own setting: a cell at its position."""
        places = [self.place(client, validation_share) for client in range(self.num_clients)]
        cells = [SettingsCell(hi, rows, *setting) for (hi, rows), setting in zip(places, settings, strict=True)]
        return SettingsLookup(SettingsTable(tuple(cells)))

    def place(self, client: int, validation_share: float = 0.0) -> tuple[float, int]:
        """Return a client's heterogeneity and its number of training rows."""
        rows = self.train_rows(client, validation_share)
        labels = self.runner.federation.labels[rows]
        return heterogeneity_index(np.bincount(labels, minlength=self.runner.federation.num_classes)), len(rows)

    def tuned_alone(self, client: int) -> tuple[Setting, int]:
        """Return the best setting for a client that trains alone, and the number of evaluations."""
        federation, tuning = self.runner.federation, self.tuning()
        rows = self.train_rows(client)
        single_client = replace(
            federation, partition=Partition.from_lists([rows]), server=None, name=f"client {client}"
        )
        changed = {
            "training": tuning.config.training.model_copy(update={"fraction_train": 1.0}),
            "federation": tuning.config.federation.model_copy(update={"num_clients": 1, "server_rows": None}),
        }
        identity = [tuning.identity(), client, rows.tolist(), self.runner.data_digest]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        folder = (self.out / CLIENTS / digest[:16]).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        config = tuning.config.model_copy(update=changed)
        trials = tune_federation(single_client, config, tuning.patience, (), digest, folder, digest)
        return setting_of(best_of(trials), config), len(trials)

    def tuned_for_all(self) -> tuple[Setting, int]:
        """Return the one setting that is best on the clients' validation rows, and the evaluations."""
        ledger = self.runner.ledger(self.validating)
        trials = search_setting(self.validating, ledger, (), 5, self.seed, UNIFORM)
        return setting_of(best_of(trials), self.config), len(trials)

    def validated(self, lookup: SettingsLookup) -> float:
        """Return the score of a table on the clients' validation rows; 0 if the training fails."""
        ledger = self.runner.ledger(self.validating)
        (trial,) = ledger.run([_with_settings(ledger.facts.trial("search", FedAvgSpec()), Settings(lookup))])
        return trial.fitness

    def trial(self, settings: Settings, strategy: StrategySpec) -> Trial:
        """Return the training with some settings, scored on test rows."""
        ledger = self.runner.ledger(self.config)
        trial_settings = ledger.facts.trial("confirmation", settings.strategy or strategy)
        (trial,) = ledger.run([_with_settings(trial_settings, settings)])
        return trial


def _with_settings(asked: TrialSettings, settings: Settings) -> TrialSettings:
    """Return a trial whose clients train with some settings."""
    session = asked.session
    if settings.setting is not None:
        rate, batch, epochs = settings.setting
        changes = {"learning_rate": rate, "batch_size": batch, "local_epochs": epochs}
        session = replace(session, training=session.training.model_copy(update=changes))
    return replace(asked, session=replace(session, client_table=settings.lookup))


def setting_of(best: Trial | None, config: StudyConfig) -> Setting:
    """Return the settings of a trial; without one, the configured settings."""
    configured = config.training.local()
    training = configured if best is None else best.spec.local_training(configured)
    return training.learning_rate, training.batch_size, training.local_epochs


Way = Callable[..., Settings]
"""A function of a `SettingsTuning`, the kind of the trained strategy, and a row's options."""

SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "gp": {},
    "random": {"kind": "random"},
    "grid": {"kind": "grid", "grid_points": 3, "budget": 27},
}
RATE_STEP, EPOCHS_STEP = 2.5, 2


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
        scored = (
            np.arange(proxy.num_trained, len(proxy.labels))
            .reshape(-1, scored_per_class)[:, : max(1, scored_per_class // 4)]
            .reshape(-1)
        )
        rows = np.concatenate([trained, scored])
        return replace(proxy, features=proxy.features[rows], labels=proxy.labels[rows], num_scored=len(scored))
    share = {"usual": 0.0, "mislabelled": 0.4, "meaningless": 1.0}[how]
    if share == 0:
        return proxy
    generator = stream(tuning.seed, "relabelled-proxies")
    drawn_labels = generator.permutation(proxy.labels)
    chosen = generator.random(len(drawn_labels)) < share
    return replace(proxy, labels=np.where(chosen, drawn_labels, proxy.labels))


def table(
    tuning: SettingsTuning,
    _: str,
    *,
    search: str = "gp",
    grid: tuple[int, int] | None = None,
    proxies: str = "usual",
    strategy: str | None = None,
) -> Settings:
    """Return the table tuned on proxy clients."""
    cells_tuning = tuning.tuning(worse_proxies(tuning, proxies), strategy, **SEARCHES[search])
    cells = tuning.grid if grid is None else coarser_grid(tuning, *grid)
    return _settings_of_cells(tuning.tuned(cells_tuning, cells).values(), cells_tuning)


def own_table(tuning: SettingsTuning, kind: str) -> Settings:
    """Return the table tuned with the strategy that it is used for."""
    return table(tuning, kind, strategy=None if kind == "fedavg" else kind)


def finer_table(tuning: SettingsTuning, _: str, *, grid: tuple[int, int] | None = None) -> Settings:
    """Return a table refined as by `fedscout tune-table --refine`: between its cells and beyond its ends."""
    cells_tuning = tuning.tuning()
    coarse = tuning.tuned(cells_tuning, tuning.grid if grid is None else coarser_grid(tuning, *grid))
    finer = finer_grid([*coarse], tuning.proxy)
    results = {**coarse, **tuning.tuned(cells_tuning, [place for place in finer if place not in coarse], coarse)}
    return _settings_of_cells([results[place] for place in finer], cells_tuning)


def random_table(tuning: SettingsTuning, _: str) -> Settings:
    """Return a table of settings drawn from the ranges of the search."""
    generator = stream(tuning.seed, "random-settings")
    space = study_space(tuning.config.search, tuning.runner.ledger(tuning.config).facts)
    drawn = [space.random(generator).local_training(tuning.config.training.local()) for _ in tuning.grid]
    settings = [(training.learning_rate, training.batch_size, training.local_epochs) for training in drawn]
    return Settings(_table_at(tuning, tuning.grid, settings))


def shuffled_table(tuning: SettingsTuning, kind: str) -> Settings:
    """Return the tuned table with its settings randomly permuted over the cells."""
    tuned = table(tuning, kind)
    settings = settings_in(tuned)
    order = stream(tuning.seed, "shuffled-table").permutation(len(settings))
    return replace(tuned, lookup=_table_at(tuning, tuning.grid, [settings[index] for index in order]))


def interpolated_table(tuning: SettingsTuning, _: str) -> Settings:
    """Return a table whose ends and middle column are tuned, and whose other cells are interpolated."""
    from scipy.interpolate import LinearNDInterpolator

    tuned_positions = coarser_grid(tuning, 2, 3)
    cells_tuning = tuning.tuning()
    results = tuning.tuned(cells_tuning, tuned_positions)
    settings = [results[place].setting for place in tuned_positions]
    values = np.array([[np.log(rate), np.log(batch), epochs] for rate, batch, epochs in settings])
    between = LinearNDInterpolator(_axes(tuned_positions), values, rescale=True)(_axes(tuning.grid))
    interpolated = [
        (float(np.exp(rate)), round(float(np.exp(batch))), round(float(epochs))) for rate, batch, epochs in between
    ]
    return replace(
        _settings_of_cells(results.values(), cells_tuning), lookup=_table_at(tuning, tuning.grid, interpolated)
    )


def one_for_all(tuning: SettingsTuning, _: str) -> Settings:
    """Return one setting for all clients, as a table of one cell."""
    setting, tried = tuning.tuned_for_all()
    lookup = _table_at(tuning, tuning.grid[:1], [setting])
    return Settings(lookup, client_steps=tried * tuning.num_clients)


def every_client(tuning: SettingsTuning, _: str) -> Settings:
    """Return settings that each client tunes alone."""
    results = []
    for client in range(tuning.num_clients):
        tuning.note(f"  client {client}: tuned alone")
        results.append(tuning.tuned_alone(client))
    lookup = tuning.table_for_each([setting for setting, _ in results])
    return Settings(lookup, client_steps=sum(tried for _, tried in results))


def by_hand(tuning: SettingsTuning, kind: str) -> Settings:
    """Return settings for each client, tuned by trials of the whole federation."""
    initial = table(tuning, kind)
    assert initial.lookup is not None
    client_cells = [initial.lookup.table.nearest(*tuning.place(client)) for client in range(tuning.num_clients)]
    best = [(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in client_cells]
    score, tried = tuning.validated(tuning.table_for_each(best, VALIDATION_SHARE)), 1
    for client in range(tuning.num_clients):
        tuning.note(f"  client {client}: tuned by hand")
        for candidate in _neighbouring_settings(best[client]):
            settings = [*best[:client], candidate, *best[client + 1 :]]
            candidate_score = tuning.validated(tuning.table_for_each(settings, VALIDATION_SHARE))
            tried += 1
            if candidate_score > score:
                best, score = settings, candidate_score
    client_steps = tried * tuning.num_clients
    return Settings(tuning.table_for_each(best), initial.proxy_steps, client_steps)


def reinforced(tuning: SettingsTuning, _: str) -> Settings:
    """Return FedRL, with rates around the one setting for all clients."""
    setting, tried = tuning.tuned_for_all()
    document = {"kind": "fedex", "sample_scaling": "uniform", "epochs_factor": 1.0, "batch_factor": 1.0}
    return Settings(None, client_steps=tried * tuning.num_clients, strategy=parse_strategy(document), setting=setting)


WAYS: Mapping[str, Way] = {
    way.__name__: way
    for way in (
        table,
        own_table,
        finer_table,
        random_table,
        shuffled_table,
        interpolated_table,
        one_for_all,
        every_client,
        by_hand,
        reinforced,
    )
}


def settings_in(found: Settings) -> list[Setting]:
    """Return the settings of a table's cells."""
    assert found.lookup is not None
    return [(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in found.lookup.table.cells]


def _settings_of_cells(results: Iterable[CellResult], tuning: CellTuning) -> Settings:
    tuned = list(results)
    lookup = SettingsLookup(SettingsTable(tuple(result.cell for result in tuned)))
    return Settings(lookup, proxy_steps=tuning.num_clients * sum(result.trials for result in tuned))


def _table_at(tuning: SettingsTuning, places: Sequence[CellPosition], settings: Sequence[Setting]) -> SettingsLookup:
    """Return the table with these settings at these positions."""
    num_classes = tuning.proxy.num_classes
    cells = [
        SettingsCell(place.heterogeneity(num_classes), place.quantity, *setting)
        for place, setting in zip(places, settings, strict=True)
    ]
    return SettingsLookup(SettingsTable(tuple(cells)))


def coarser_grid(tuning: SettingsTuning, num_levels: int, num_quantities: int) -> tuple[CellPosition, ...]:
    """Return a grid of fewer cells: the ends and evenly spaced values between, or the middle for one value."""
    levels = [0.5] if num_levels == 1 else _spread(tuning.levels, num_levels)
    held = [classes_of(level, tuning.proxy.num_classes) for level in levels]
    mean = [round(np.mean(tuning.quantities))]
    return grid_of(held, mean if num_quantities == 1 else _spread(tuning.quantities, num_quantities))


def _spread(values: Sequence[Any], count: int) -> list[Any]:
    return [values[round(position)] for position in np.linspace(0, len(values) - 1, count)]


def _axes(places: Sequence[CellPosition]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[place.num_classes, place.quantity] for place in places], np.float64)


def _neighbouring_settings(setting: Setting) -> list[Setting]:
    """Return the neighbouring settings to try."""
    rate, batch, epochs = setting
    return [
        (rate * RATE_STEP, batch, epochs),
        (rate / RATE_STEP, batch, epochs),
        (rate, batch, epochs * EPOCHS_STEP),
        (rate, batch, max(1, epochs // EPOCHS_STEP)),
    ]


@dataclass(frozen=True)
class SettingsCells(CellByCell):
    """Accuracy of the best round, by ways to obtain settings (rows, of kind `given`) and federations (columns).

    A seed fixes split, initial model and batches, and the tuning is repeated on it, so an interval includes the
    variance of tuning. All trials are logged, and each training runs once.

    Attributes:
        rows: Rows to measure; None is all that have a way.
        columns: Columns to measure; None is all that have a data set.
    """

    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None

    def includes(self, cell: Cell, settings: Mapping[str, Any]) -> bool:
        """Return whether a cell is measured."""
        row, column = cell
        is_named = row in (self.rows or (row,)) and column in (self.columns or (column,))
        return is_named and "federation.dataset" in settings

    def cell(
        self,
        cell: Cell,
        settings: Mapping[str, Any],
        context: CellContext,
        *,
        way: str,
        strategy: str = UNIFORM.kind,
        **options: Any,
    ) -> CellValues:
        """Obtain the settings in one way on every seed, and train the strategy with them."""
        built = built_federation(cell[1], arguments(settings), context.settings)
        check_searchable(built.config)
        with open_federation(built, context.folder) as runner:
            tunings = [
                SettingsTuning(runner, seed, context.folder / BENCHMARK, context.note) for seed in context.fresh_seeds
            ]
            spec = UNIFORM if strategy == UNIFORM.kind else parse_strategy(strategy)
            tuned = [WAYS[way](tuning, strategy, **options) for tuning in tunings]
            trials = [tuning.trial(own, spec) for tuning, own in zip(tunings, tuned, strict=True)]
        chance = chance_level(built.federation)
        return CellValues(
            values=tuple(best_round(trial, chance) for trial in trials),
            test_to_train=split_ratio(built.config),
            resolution=resolution([trials]),
            failures=failures_of(trials),
            figures={
                "accuracy of the last five rounds": tuple(last_accuracy(trial, chance) for trial in trials),
                "steps of proxy clients": tuple(float(own.proxy_steps) for own in tuned),
                "steps of clients": tuple(float(own.client_steps) for own in tuned),
            },
        )


def last_accuracy(trial: Trial, chance: float) -> float:
    """Return the mean accuracy of the last five rounds; chance if the trial failed."""
    return fmean(trial.round_clean_accuracy[-FITNESS_ROUNDS:]) if trial.status == "completed" else chance
