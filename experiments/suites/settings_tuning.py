"""Tuning of client settings for one federation on one seed: its proxy rows, its clients, its logs.

Tuning on a seed never uses the rows that test it on that seed: proxy rows are the server's, and clients tune on
validation rows split from their training rows. So tuning is repeated for each seed, and an interval over seeds includes
its variance. Results of cells and clients are logged by a digest of everything that determines them, and reused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_table import (
    HETEROGENEITY,
    SettingsCell,
    SettingsLookup,
    SettingsTable,
    heterogeneity_index,
)
from fedscout.engine.data.client import Partition
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.experiments.client_settings.proxies import CellPosition, ProxyData, classes_of, grid_of, proxy_data
from fedscout.experiments.client_settings.tuning import (
    CellResult,
    CellTuning,
    Setting,
    TuningDisplay,
    plan_cells,
    search_setting,
    tune_federation,
    tune_table,
)
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.grids.federation_runner import FederationRunner
from fedscout.search.ledger import best_of
from fedscout.search.study import study_space
from fedscout.strategies import FedAvgSpec, StrategySpec

TABLES, CLIENTS = "tables", "clients"
"""Folders of the logs of cells, and of clients that tune alone."""

PROXY_ROUNDS = 20
VALIDATION_SHARE = 0.2
UNIFORM = FedAvgSpec(sample_scaling="uniform")
"""Under a table all clients count alike; so they do where a setting for all is tuned."""

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

    @property
    def num_test_rows(self) -> int:
        """Number of rows of all clients' test parts."""
        return sum(
            len(self.runner.federation.partition.client(client)) - len(self.train_rows(client))
            for client in range(self.num_clients)
        )

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
        display = TuningDisplay(ended=lambda position: self.note(f"  cell {planned[position].folder.name}"))
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

    def random_settings(self, count: int) -> Iterator[Setting]:
        """Yield settings drawn from the ranges of the search."""
        generator = stream(self.seed, "random-settings")
        space = study_space(self.config.search, self.runner.ledger(self.config).facts)
        for _ in range(count):
            drawn = space.random(generator).local_training(self.config.training.local())
            yield drawn.learning_rate, drawn.batch_size, drawn.local_epochs


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


def lookup_of(results: Sequence[CellResult], metric: str = HETEROGENEITY) -> SettingsLookup:
    """Return the table of tuned cells."""
    return SettingsLookup(SettingsTable(tuple(result.cell for result in results)), metric)
