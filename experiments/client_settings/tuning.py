"""Tuning of the cells of a client-settings table: each is a small study on proxy clients.

    proxy rows ─► grid ─► cells, each after its neighbours: workers on one Ray, or this process ─► one Parquet file

FedCust tunes (rate, batch, epochs) of a cell by a Gaussian process with expected improvement and stops after five
evaluations without improvement. Here a cell is an ordinary study: its ledger runs and logs trials, its searcher is the
configured one. A setting's score is that of the global model after the last round on the balanced proxy rows. The
strategy is FedAvg unless another is configured, whose own parameters are fixed.

The best settings of neighbouring cells are tried first, unless `search.informed=false`. Evaluations without improvement
are counted only after the searcher's random ones: the source does not say whether these count, and a search that
stopped among them would be no search. A grid search tries the whole grid, as the source's does.

The log of a cell is a separate folder beside the table, named by a digest of everything that determines the cell. So an
interrupted tuning resumes, and another grid or other settings for the same table reuse the cells they have in common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsCell
from fedscout.engine.errors import ConfigurationError, EngineError
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.runtime.files import folder_lock, read_json_object, remove_unfinished
from fedscout.engine.seeds import integer
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.engine.user_code import code_digests
from fedscout.experiments.client_settings.proxies import CellPosition, ProxyData, cell_federation, warm_started_by
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.studies.run_folder import RunFolder, federation_code, locked_folder, strategy_code
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workers import Display, End, Piece, await_release, end_of, reported, run_pieces
from fedscout.experiments.studies.workflow import study_facts
from fedscout.search.config import View
from fedscout.search.ledger import BASELINE, Ledger, best_of
from fedscout.search.objective import Objective
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.genetic import num_random
from fedscout.search.study import new_searcher, study_space
from fedscout.strategies import FedAvgSpec, StrategySpec, parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

RESULT_FILE = "cell.json"
LARGEST_SEED = 2**31

Setting = tuple[float, int, int]
"""Learning rate, batch size and epochs."""


@dataclass(frozen=True)
class CellTuning:
    """The settings that all cells of a table share.

    Attributes:
        config: Model, training, search and seed; its federation is not read.
        proxy: Rows that no client holds.
        model: Of the clients.
        num_clients: Proxy clients of a cell.
        patience: Evaluations without improvement that end a cell.
        metric: Of the table's first axis.
    """

    config: StudyConfig
    proxy: ProxyData
    model: ModelFactory
    num_clients: int = 5
    patience: int = 5
    metric: str = HETEROGENEITY

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the results of all cells."""
        document, config = self.config.identity(), self.config
        searched = ["kind", "budget", "generation_size", "client_ranges"]
        searched += ["grid_points"] if config.search.kind == "grid" else []
        searched += ["mutation_rate", "mutation_step"] if config.search.kind == "genetic" else []
        searched += [] if config.search.informed else ["informed"]
        code = {**federation_code(config), **strategy_code(config)}  # the user's own, and that of the metric
        if self.metric not in METRICS:
            code[self.metric] = code_digests(self.metric)
        return {
            "num_clients": self.num_clients,
            "patience": self.patience,
            "proxy": self.proxy.digest(),
            **({"code": code} if code else {}),
            **({"strategy": dict(config.strategy)} if config.strategy else {}),
            "model": document["model"],
            "training": {name: value for name, value in document["training"].items() if name != "test_fraction"},
            "search": {name: document["search"][name] for name in searched},
            "seed": document["seed"],
        }

    def digest(self, place: CellPosition, first: Sequence[Any]) -> str:
        """Return the hexadecimal SHA-256 of everything that determines a cell.

        That is the shared settings, its position, and the identifiers of the neighbours whose settings it tries first.
        """
        row = [] if place.row is None else [asdict(place.row)]
        text = json.dumps([self.identity(), place.num_classes, place.quantity, list(first), *row], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CellResult:
    """The tuning result of a cell.

    Attributes:
        cell: Its position, with its clients' actual heterogeneity, and the best settings.
        score: Of the best settings, in [0, 1].
        trials: Number of evaluated settings.
        failed: How many of them failed.
        repeated_rows: Training rows of proxy clients that an earlier proxy client holds as well.
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


@dataclass(frozen=True)
class _ScoreAtEnd(Objective):
    """The score after the last round, in place of the mean over the last five."""

    def fitness(self, trial: Trial, view: View) -> float:
        scores = trial.scores("" if view == "own" else "clean_")
        return scores[-1] if scores and trial.status == "completed" else 0.0


def tune_cell(tuning: CellTuning, cell: PlannedCell, first: Sequence[Setting]) -> None:
    """Tune a cell, whose folder this process alone uses, resuming an earlier run, and write the result there.

    Args:
        tuning: The shared settings.
        cell: The cell.
        first: Settings to try first.

    Raises:
        ConfigurationError: If there are too few proxy rows, or if every setting failed.
    """
    place, digest, folder, config = cell.place, cell.digest, cell.folder, _config_of_cell(tuning, cell.place)
    federation, num_repeated = cell_federation(place, tuning.proxy, tuning.num_clients, config.seed, tuning.model)
    facts = study_facts(config, federation)
    objective = _ScoreAtEnd("accuracy", facts.num_rounds)
    facts = replace(facts, config_hash=digest, objective=objective, data_digest=tuning.proxy.digest())
    seed = integer(config.seed, digest) % LARGEST_SEED
    with open_runner(federation, config.engine, RunFolder(folder), parallel=1) as runner:
        ledger = Ledger(facts, runner, TrialLog(folder))
        strategy = parse_strategy(config.strategy or {"kind": "fedavg"}, facts.cohort)
        trials = search_setting(config, ledger, first, tuning.patience, seed, strategy)
    best, heterogeneity = best_of(trials), place.heterogeneity(tuning.proxy.num_classes)
    if best is None:
        where = f"the cell of heterogeneity {heterogeneity:.2g} and quantity {place.quantity}"
        raise ConfigurationError.of("a setting in the ranges", f"train, but none did in {where}: {trials[0].error}")
    settings = best.spec.local_training(tuning.config.training.local())
    setting = settings.learning_rate, settings.batch_size, settings.local_epochs
    result = CellResult(
        SettingsCell(heterogeneity, place.quantity, *setting),
        score=best.fitness,
        trials=len(trials),
        failed=sum(trial.status == "failed" for trial in trials),
        repeated_rows=num_repeated,
    )
    RunFolder(folder).write_json(RESULT_FILE, asdict(result))


def _config_of_cell(tuning: CellTuning, place: CellPosition) -> StudyConfig:
    """Return the configuration of a cell's study, in which all proxy clients train in each round."""
    changed = {"test_fraction": tuning.proxy.scored_share(place.quantity), "fraction_train": 1.0}
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
    """Evaluate clients' settings until the budget is spent or the latest ones bring no improvement.

    The search space is that of FedAvg's settings; each proposal is tried with the strategy.
    """
    space = study_space(config.search, ledger.facts)
    specs = [
        FedAvgSpec(client_learning_rate=rate, client_batch_size=batch, client_local_epochs=epochs)
        for rate, batch, epochs in first
    ]
    nearest = [point for spec in specs if (point := space.nearest(spec)) is not None]
    searcher = new_searcher(SearchTask(space, seed, config.search, ledger.facts.num_rounds, nearest, references=()))
    if config.search.kind == "grid":
        min_trials = config.search.budget
    else:
        min_trials = num_random(config.search.budget, config.search.generation_size) + patience
    trials: list[Trial] = []
    while (left := config.search.budget - len(trials)) > 0:
        scores = [trial.fitness for trial in trials]
        if len(trials) >= min_trials and len(scores) - 1 - scores.index(max(scores)) >= patience:
            break
        proposals = searcher.ask(left)
        if not proposals:
            break
        generation = 1 + len(trials) // config.search.generation_size
        settings = [{name: getattr(spec, name) for name in CLIENT_PARAMETERS} for spec in proposals]
        strategies = [strategy.model_copy(update=own) for own in settings]
        new = ledger.run([ledger.facts.trial("search", spec, generation=generation) for spec in strategies])
        searcher.tell([replace(trial, spec=spec) for trial, spec in zip(new, proposals, strict=True)])
        trials += new
    return trials


DIGEST_DIGITS = 10


@dataclass(frozen=True)
class PlannedCell:
    """A cell to be tuned.

    Attributes:
        place: Its position in the grid.
        digest: Of everything that determines its result.
        folder: Of its log.
        after: Indices of the earlier cells whose best settings it tries first.
        known: Settings of cells tuned elsewhere that it tries as well.
    """

    place: CellPosition
    digest: str
    folder: Path
    after: tuple[int, ...]
    known: tuple[Setting, ...]


def plan_cells(
    tuning: CellTuning, cells: Sequence[CellPosition], folder: Path, known: Mapping[CellPosition, Setting]
) -> list[PlannedCell]:
    """Return the cells to tune, each after those whose settings it tries first.

    Args:
        tuning: The shared settings.
        cells: Their positions, in the order of the grid.
        folder: Of the table's logs.
        known: The settings of cells that are not tuned again.
    """
    first = warm_started_by(cells, list(known)) if tuning.config.search.informed else dict.fromkeys(cells, ())
    planned: list[PlannedCell] = []
    positions: dict[CellPosition, int] = {}
    for place in cells:
        after = tuple(positions[neighbour] for neighbour in first[place] if neighbour in positions)
        known_settings = tuple(known[neighbour] for neighbour in first[place] if neighbour in known)
        digest = tuning.digest(place, [*known_settings, *(planned[position].digest for position in after)])
        heterogeneity = place.heterogeneity(tuning.proxy.num_classes)
        name = f"heterogeneity_{heterogeneity:.2f},quantity_{place.quantity}-{digest[:DIGEST_DIGITS]}"
        positions[place] = len(planned)
        planned.append(PlannedCell(place, digest, folder / "cells" / name, after, known_settings))
    return planned


def tune_table(
    tuning: CellTuning,
    cells: Sequence[CellPosition],
    folder: Path,
    display: Display,
    known: Mapping[CellPosition, CellResult] | None = None,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> dict[CellPosition, CellResult]:
    """Tune all cells that are not tuned yet, and return the result of each.

    Args:
        tuning: The shared settings.
        cells: Their positions, in the order of the grid.
        folder: Of the table's logs.
        display: Progress callbacks.
        known: Tuned cells, which are not tuned again and whose settings are tried first.
        parallel: Maximum number of parallel cells; None is the number of CPUs.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own code.

    Raises:
        UserError: If the folder can't be used, or a cell can't be tuned.
        EngineError: If a cell was lost to an infrastructure failure.
    """
    planned = plan_cells(tuning, cells, folder, {place: result.setting for place, result in (known or {}).items()})
    with locked_folder(folder):
        results = {position: result for position, cell in enumerate(planned) if (result := stored_result(cell))}
        budget = tuning.config.search.budget
        pieces = [Piece(cell.folder.name, cell.folder, budget, cell.place.quantity) for cell in planned]
        display.known(pieces, [*results])
        ends = run_pieces(
            tuning.config.engine,
            run_cell,
            {
                position: (cell, [planned[other] for other in cell.after])
                for position, cell in enumerate(planned)
                if position not in results
            },
            parallel,
            display,
            [cell.after for cell in planned],
            verbose,
            search_path,
            shared=(tuning,),
        )
        for position, end in reported(ends, pieces, display):
            if end.status == "failed":
                raise ConfigurationError(end.error or "a cell failed")
            result = stored_result(planned[position])
            if end.status == "lost" or result is None:
                raise EngineError(f"cell {planned[position].folder.name} was lost: {end.error}")
            results[position] = result
    return {cell.place: results[position] for position, cell in enumerate(planned)}


def stored_result(cell: PlannedCell) -> CellResult | None:
    """Return the stored result of a cell; None if there is none."""
    try:
        stored = read_json_object(cell.folder / RESULT_FILE)
        return CellResult(**{**stored, "cell": SettingsCell(**stored["cell"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def run_cell(tuning: CellTuning, cell: PlannedCell, before: Sequence[PlannedCell]) -> End:
    """Tune one cell after those before it, and return how it ended."""
    return end_of(_tune_planned, tuning, cell, before)


def _tune_planned(tuning: CellTuning, cell: PlannedCell, before: Sequence[PlannedCell]) -> None:
    cell.folder.mkdir(parents=True, exist_ok=True)
    await_release(cell.folder)
    with folder_lock(cell.folder):
        for name in ("", "trials", "checkpoints"):
            remove_unfinished(cell.folder / name)
        results = [result for earlier in before if (result := stored_result(earlier)) is not None]
        first = [*cell.known, *(result.setting for result in results)]
        tune_cell(tuning, cell, first)
