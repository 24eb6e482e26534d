"""One cell of a table of client settings: a small study of one strategy on proxy clients, over the clients' settings.

FedCust tunes (rate, batch, epochs) of a cell by a Gaussian process with expected improvement and ends when five
evaluations bring no gain. Here the cell is a study like any other: its ledger runs trials and logs them, its searcher
is the configured one. A setting's score is that of the global model after the last round on the balanced proxy rows.
The strategy is FedAvg unless another is configured, whose own parameters stay as they are.

What neighbours in the grid found best is tried first. Evaluations without gain count once the searcher has had its
random ones: the source does not say whether these count, and a search that ended among them would be no search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedscout.engine.contracts.settings_lookup import HETEROGENEITY, METRICS
from fedscout.engine.contracts.settings_table import SettingsCell
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.engine.seeds import integer
from fedscout.engine.trials.trial_log import TrialLog
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.user_code import code_digests
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.open_runner import open_runner
from fedscout.experiments.studies.own_code import federation_code
from fedscout.experiments.studies.run_folder import RunFolder
from fedscout.experiments.studies.settings_tables.proxy_clients import (
    ProxyClients,
    cell_federation,
    draw_proxy_clients,
    test_share,
)
from fedscout.experiments.studies.settings_tables.proxy_data import ProxyData
from fedscout.experiments.studies.settings_tables.settings_grid import Place
from fedscout.experiments.studies.workflow import study_facts
from fedscout.search.ledger import Ledger, StudyEvents
from fedscout.search.objective import Objective
from fedscout.search.search_config import View
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.optuna_searcher import num_random
from fedscout.search.study.searcher_table import new_searcher
from fedscout.search.study.study import study_space
from fedscout.search.study_trials import BASELINE, best_of
from fedscout.strategies import FedAvgSpec, StrategySpec, parameter_columns, parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

RESULT_FILE = "cell.json"
LARGEST_SEED = 2**31

Setting = tuple[float, int, int]
"""Rate, batch and epochs."""


@dataclass(frozen=True)
class CellTuning:
    """What all cells of a table share.

    Attributes:
        config: Model, training, search and seed; of its federation nothing is read.
        proxy: Rows that no client holds.
        model: Of the clients.
        num_clients: Proxy clients of a cell.
        patience: Evaluations without gain that end a cell.
        metric: Of the table's first axis.
    """

    config: StudyConfig
    proxy: ProxyData
    model: ModelFactory
    num_clients: int = 5
    patience: int = 5
    metric: str = HETEROGENEITY

    def identity(self) -> dict[str, Any]:
        """Return what decides the result of every cell."""
        whole = self.config.identity()
        searched = ("kind", "budget", "generation_size", "client_ranges")
        search = {name: whole["search"][name] for name in searched}
        if self.config.search.kind == "grid":
            search["grid_points"] = self.config.search.grid_points
        training = {name: value for name, value in whole["training"].items() if name != "test_fraction"}
        own: dict[str, Any] = {"num_clients": self.num_clients, "patience": self.patience, "proxy": self.proxy.digest()}
        code = dict(federation_code(self.config))  # of the user's own model, and metric
        if self.metric not in METRICS:
            code[self.metric] = code_digests(self.metric)
        if code:
            own["code"] = code
        if self.config.strategy:
            own["strategy"] = dict(self.config.strategy)
        return {**own, "model": whole["model"], "training": training, "search": search, "seed": whole["seed"]}

    def digest(self, place: Place, first: Sequence[Any]) -> str:
        """Return the SHA-256 of all that decides a cell: what is shared, its place, and what stands for its neighbours.

        In hexadecimal.
        """
        row = [] if place.row is None else [asdict(place.row)]
        text = json.dumps([self.identity(), place.num_classes, place.quantity, list(first), *row], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CellResult:
    """What was found for a cell.

    Attributes:
        cell: Its place, with the heterogeneity that its clients have, and the best settings.
        score: Of these, in [0, 1].
        trials: Settings that were evaluated.
        failed: How many of them failed.
        repeated_rows: Training rows of proxy clients that an earlier one of them holds.
    """

    cell: SettingsCell
    score: float
    trials: int
    failed: int
    repeated_rows: int

    @property
    def setting(self) -> Setting:
        """The best settings."""
        return self.cell.learning_rate, self.cell.batch_size, self.cell.local_epochs

    def beside(self) -> dict[str, Any]:
        """Return what a table's file tells of the cell beside its settings."""
        return {name: value for name, value in asdict(self).items() if name != "cell"}

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, document: dict[str, Any]) -> CellResult:
        """Read what `document` returned."""
        return cls(**{**document, "cell": SettingsCell(**document["cell"])})


@dataclass(frozen=True)
class _ScoreAtEnd(Objective):
    """The score after the last round, in place of the mean of the last five."""

    def fitness(self, trial: Trial, view: View) -> float:
        scores = trial.scores("" if view == "own" else "clean_")
        return scores[-1] if scores and trial.status == "completed" else 0.0


def tune_cell(
    tuning: CellTuning,
    place: Place,
    first: Sequence[Setting],
    digest: str,
    folder: Path,
    told: Callable[[Trial, bool], None] | None = None,
) -> CellResult:
    """Tune a cell, or the rest of it, to the end, and write what was found to its folder.

    Args:
        tuning: What all cells share.
        place: Of this one.
        first: Settings that are tried first.
        digest: Of all that decides its results.
        folder: Of its log, absolute; for this process alone.
        told: Of each trial, and whether it was in the log.

    Raises:
        ConfigurationError: If the proxy rows do not reach, or every setting failed.
    """
    clients = draw_proxy_clients(place, tuning.proxy, tuning.num_clients, tuning.config.seed)
    name = f"{place.num_classes} classes, {place.quantity} rows, {tuning.num_clients} proxy clients"
    federation = cell_federation(clients, tuning.proxy, tuning.model, name)
    trials = tune_federation(
        federation, _config_of_cell(tuning, place), tuning.patience, first, digest, folder, tuning.proxy.digest(), told
    )
    result = _result(tuning, place, clients, trials)
    RunFolder(folder).write_json(RESULT_FILE, result.document())
    return result


def tune_federation(
    federation: Federation,
    config: StudyConfig,
    patience: int,
    first: Sequence[Setting],
    digest: str,
    folder: Path,
    data_digest: str,
    told: Callable[[Trial, bool], None] | None = None,
) -> list[Trial]:
    """Tune the one setting of a federation's clients, or the rest of it, and return the trials in order.

    Args:
        federation: Whose clients train, and whose test parts score.
        config: Of the study.
        patience: Evaluations without gain that end it.
        first: Settings that are tried first.
        digest: Of all that decides the results.
        folder: Of its log, absolute; for this process alone.
        data_digest: Of the rows.
        told: Of each trial, and whether it was in the log.
    """
    facts = study_facts(config, federation)
    at_end = _ScoreAtEnd("accuracy", facts.num_rounds)
    facts = replace(facts, config_hash=digest, objectives=(at_end,), data_digest=data_digest)
    seed = integer(config.seed, digest) % LARGEST_SEED
    with open_runner(federation, config.engine, RunFolder(folder), parallel=1) as runner:
        ledger = Ledger(facts, runner, TrialLog(folder, parameter_columns()), StudyEvents(on_record=told))
        strategy = parse_strategy(config.strategy or {"kind": "fedavg"}, facts.cohort)
        return search_setting(config, ledger, first, patience, seed, strategy)


def _config_of_cell(tuning: CellTuning, place: Place) -> StudyConfig:
    """Return the configuration of a cell's study: all proxy clients train in each round, with what is drawn alone."""
    changed = {"test_fraction": test_share(place, tuning.proxy), "fraction_train": 1.0, "level_off": False}
    training = tuning.config.training.model_copy(update=changed)
    federation = tuning.config.federation.model_copy(
        update={"num_clients": tuning.num_clients, "server_rows": None, "server_dataset": None, "server_labels": False}
    )
    engine = tuning.config.engine.model_copy(update={"grid": "local"})
    changes = {"training": training, "federation": federation, "engine": engine, "selection": None}
    return tuning.config.model_copy(update=changes)


def search_setting(
    config: StudyConfig,
    ledger: Ledger,
    first: Sequence[Setting],
    patience: int,
    seed: int,
    strategy: StrategySpec = BASELINE,
) -> list[Trial]:
    """Evaluate settings of a strategy's clients until the budget is spent or the last ones brought no gain.

    The space is that of FedAvg's settings: what is proposed there is tried with the strategy.
    """
    space = study_space(config.search, ledger.facts)
    specs = [
        FedAvgSpec(client_learning_rate=rate, client_batch_size=batch, client_local_epochs=epochs)
        for rate, batch, epochs in first
    ]
    near = [found for spec in specs if (found := space.nearest(spec)) is not None]
    searcher = new_searcher(SearchTask(space, seed, config.search, ledger.facts.num_rounds, near, references=()))
    least = num_random(config.search.budget, config.search.generation_size) + patience
    trials: list[Trial] = []
    while (left := config.search.budget - len(trials)) > 0:
        if len(trials) >= least and _without_gain(trials) >= patience:
            break
        asked = searcher.ask(left)
        if not asked:
            break
        generation = 1 + len(trials) // config.search.generation_size
        tried = [_with_settings(strategy, spec) for spec in asked]
        new = ledger.run([ledger.facts.trial("search", spec, generation=generation) for spec in tried])
        searcher.tell([replace(trial, spec=spec) for trial, spec in zip(new, asked, strict=True)])
        trials += new
    return trials


def _with_settings(strategy: StrategySpec, proposed: StrategySpec) -> StrategySpec:
    """Return a strategy whose clients train as those of another."""
    return strategy.model_copy(update={name: getattr(proposed, name) for name in CLIENT_PARAMETERS})


def _without_gain(trials: Sequence[Trial]) -> int:
    """Return how many evaluations came after the best, the first of equals."""
    scores = [trial.fitness for trial in trials]
    return len(scores) - 1 - scores.index(max(scores))


def _result(tuning: CellTuning, place: Place, clients: ProxyClients, trials: Sequence[Trial]) -> CellResult:
    """Return what the trials of a cell say.

    Raises:
        ConfigurationError: If every one failed.
    """
    best = best_of(trials)
    heterogeneity = place.heterogeneity(tuning.proxy.num_classes)
    if best is None:
        where = f"the cell of heterogeneity {heterogeneity:.2g} and quantity {place.quantity}"
        raise ConfigurationError(Fault("a setting in the ranges", f"train, and in {where} none did: {trials[0].error}"))
    found = best.spec.local_training(tuning.config.training.local())
    return CellResult(
        SettingsCell(heterogeneity, place.quantity, found.learning_rate, found.batch_size, found.local_epochs),
        score=best.fitness,
        trials=len(trials),
        failed=sum(trial.status == "failed" for trial in trials),
        repeated_rows=clients.num_repeated,
    )
