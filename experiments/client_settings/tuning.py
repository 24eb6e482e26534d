"""One cell of a table of client settings: a small study of one strategy on proxy clients, over the clients' settings.

FedCust tunes (rate, batch, epochs) of a cell by a Gaussian process with expected improvement and ends when five
evaluations bring no gain. Here the cell is a study like any other: its ledger runs trials and logs them, its searcher
is the configured one. A setting's score is that of the global model after the last round on the balanced proxy rows.
The strategy is FedAvg unless another is configured, whose own parameters stay as they are.

What neighbours in the grid found best is tried first. Evaluations without gain count once the searcher has had its
random ones: the source does not say whether these count, and a search that ended among them would be no search.

A table of client settings from its grid to its file: what is tuned already is read, the rest is tuned.

    proxy rows ─► grid ─► cells, each after its neighbours: workers on one Ray, or this process ─► one Parquet

The log of a cell is a folder of its own beside the table, named by a digest of all that decides it. So a tuner that was
killed goes on where it was, and another grid or other settings over the same table find what they have in common.
"""

from __future__ import annotations

import gc
import hashlib
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, SettingsCell, SettingsTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, EngineError, Fault, LogError, UserError
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.runtime.files import UNUSABLE, folder_lock, folder_made, read_json_object, remove_unfinished
from fedscout.engine.seeds import integer
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.state import cheap_collections
from fedscout.engine.user_code import code_digests
from fedscout.experiments.client_settings.proxies import (
    CellPosition,
    ProxyClients,
    ProxyData,
    cell_federation,
    draw_proxy_clients,
    test_share,
    warm_started_by,
)
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.studies.run_folder import RunFolder, federation_code
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workflow import study_facts
from fedscout.experiments.sweeps import workers
from fedscout.experiments.sweeps.sweep import StudyEnd, await_release, one_line
from fedscout.search.config import View
from fedscout.search.ledger import BASELINE, Ledger, StudyEvents, best_of
from fedscout.search.objective import Objective
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.optuna import num_random
from fedscout.search.settings_table_file import write_settings_table
from fedscout.search.study import new_searcher, study_space
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

    def digest(self, place: CellPosition, first: Sequence[Any]) -> str:
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
    place: CellPosition,
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


def _config_of_cell(tuning: CellTuning, place: CellPosition) -> StudyConfig:
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


def _result(tuning: CellTuning, place: CellPosition, clients: ProxyClients, trials: Sequence[Trial]) -> CellResult:
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


DIGEST_DIGITS = 10


@dataclass(frozen=True)
class PlannedCell:
    """A cell that is to be tuned.

    Attributes:
        place: In the grid.
        digest: Of all that decides its result.
        folder: Of its log.
        after: The cells before it, by position, whose best settings it tries first.
        known: Settings of cells tuned elsewhere that it tries as well.
    """

    place: CellPosition
    digest: str
    folder: Path
    after: tuple[int, ...]
    known: tuple[Setting, ...]


@dataclass(frozen=True)
class TuningDisplay:
    """What a command shows while a table is tuned; every part is optional.

    Attributes:
        known: Told once all cells, and the positions of those that are tuned already.
        begun: The cell of a position begins, or begins again.
        ended: It ended.
        tick: Called about twice a second where cells are tuned side by side, and after each trial where not.
    """

    known: Callable[[Sequence[PlannedCell], Sequence[int]], None] = lambda _cells, _known: None
    begun: Callable[[int], None] = lambda _: None
    ended: Callable[[int], None] = lambda _: None
    tick: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class TunedTable:
    """A table that is written.

    Attributes:
        path: Its file.
        table: Its cells, in the order of the grid.
        provenance: As in the file.
    """

    path: Path
    table: SettingsTable
    provenance: Mapping[str, Any]


def folder_of(table: Path) -> Path:
    """Return the folder of a table's logs, beside it."""
    return table.absolute().with_name(f"{table.stem}.tuning")


def plan_cells(
    tuning: CellTuning, cells: Sequence[CellPosition], folder: Path, known: Mapping[CellPosition, Setting] | None = None
) -> list[PlannedCell]:
    """Return what is to be tuned, each cell after those that it begins with.

    Args:
        tuning: What all cells share.
        cells: Their places, in the order of the grid.
        folder: Of the table's logs.
        known: The settings of cells that stay as they are.
    """
    known = known or {}
    first = warm_started_by(cells, list(known))
    planned: list[PlannedCell] = []
    positions: dict[CellPosition, int] = {}
    for place in cells:
        after = tuple(positions[near] for near in first[place] if near in positions)
        given = tuple(known[near] for near in first[place] if near in known)
        digest = tuning.digest(place, [*given, *(planned[position].digest for position in after)])
        heterogeneity = place.heterogeneity(tuning.proxy.num_classes)
        name = f"heterogeneity_{heterogeneity:.2f},quantity_{place.quantity}-{digest[:DIGEST_DIGITS]}"
        positions[place] = len(planned)
        planned.append(PlannedCell(place, digest, folder / "cells" / name, after, given))
    return planned


def tune_table(
    tuning: CellTuning,
    planned: Sequence[PlannedCell],
    folder: Path,
    display: TuningDisplay,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> dict[CellPosition, CellResult]:
    """Tune all cells, or those that are left, and return what was found for each.

    Raises:
        UserError: If the folder can't be used, or a cell can't be tuned.
        EngineError: If a cell was lost to the machinery.
    """
    with _opened(folder):
        found = {position: result for position, cell in enumerate(planned) if (result := stored_result(cell))}
        display.known(planned, list(found))
        for position, end in _run_all(tuning, planned, found, display, parallel, verbose, search_path):
            if end.status == "failed":
                raise ConfigurationError(end.error or "a cell failed")
            result = stored_result(planned[position])
            if end.status == "lost" or result is None:
                raise EngineError(f"cell {planned[position].folder.name} was lost: {end.error}")
            found[position] = result
            display.ended(position)
    return {cell.place: found[position] for position, cell in enumerate(planned)}


def write_tuned(
    path: Path, results: Sequence[CellResult], provenance: Mapping[str, Any], threshold: float | None
) -> TunedTable:
    """Write the table of some cells, a full grid, with what is told of each beside, and return it."""
    table = SettingsTable(tuple(result.cell for result in results), threshold)
    told = {**provenance, "cells": [result.beside() for result in results]}
    write_settings_table(path, table, told)
    return TunedTable(path, table, told)


def stored_result(cell: PlannedCell) -> CellResult | None:
    """Return what an earlier command found for a cell; None if it did not get that far."""
    try:
        return CellResult.of(read_json_object(cell.folder / RESULT_FILE))
    except (OSError, ValueError, TypeError, KeyError):
        return None


@contextmanager
def _opened(folder: Path) -> Iterator[None]:
    """Hold the folder of a table's logs, made if missing."""
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_made(folder))
            stack.enter_context(folder_lock(folder))
        except OSError as error:
            raise LogError(UNUSABLE.format(path=folder, reason=error.strerror)) from error
        yield


def run_cell(
    tuning: CellTuning, cell: PlannedCell, before: Sequence[PlannedCell], told: Callable[[], None] = lambda: None
) -> StudyEnd:
    """Tune one cell, whatever its end is; only an interruption leaves this function as an error."""
    with cheap_collections():
        try:
            cell.folder.mkdir(parents=True, exist_ok=True)
            await_release(cell.folder)
            with folder_lock(cell.folder):
                for name in ("", "trials", "checkpoints"):
                    remove_unfinished(cell.folder / name)
                results = [result for each in before if (result := stored_result(each)) is not None]
                first = [*cell.known, *(result.setting for result in results)]
                tune_cell(tuning, cell.place, first, cell.digest, cell.folder, lambda _trial, _known: told())
            end = StudyEnd("completed")
        except UserError as error:
            end = StudyEnd("failed", str(error))
        except Exception as error:  # told by whoever waits for it
            end = StudyEnd("lost", one_line(error), traceback.format_exc())
        gc.collect()
    return end


class CellWorker:
    """Tunes cells, one after the other, in a process of its own."""

    def __init__(self, environment: Mapping[str, str], search_path: tuple[str, ...], tuning: CellTuning) -> None:
        import os
        import sys

        os.environ.update(environment)
        sys.path.extend(folder for folder in search_path if folder not in sys.path)
        self._tuning = tuning

    def run(self, cell: PlannedCell, before: Sequence[PlannedCell]) -> StudyEnd:
        """Tune one cell to its end."""
        return run_cell(self._tuning, cell, before)


def _run_all(
    tuning: CellTuning,
    planned: Sequence[PlannedCell],
    found: Mapping[int, CellResult],
    display: TuningDisplay,
    parallel: int | None,
    verbose: bool,
    search_path: tuple[str, ...],
) -> Iterator[tuple[int, StudyEnd]]:
    """Tune what is not found yet, in this process or by workers on one Ray, and yield each position with its end."""
    pending = [position for position in range(len(planned)) if position not in found]
    if not pending:
        return
    before = [[planned[near] for near in planned[position].after] for position in pending]
    engine = tuning.config.engine
    if engine.grid == "local":
        if parallel not in (None, 1):
            raise ConfigurationError(
                Fault("--parallel", "be left out or 1 with engine.grid=local, which is this process alone", parallel)
            )
        for position, near in zip(pending, before, strict=True):
            display.begun(position)
            yield position, run_cell(tuning, planned[position], near, display.tick)
        return
    from fedscout.engine.runtime.ray import ray_runtime

    with ray_runtime(engine, verbose) as ray:
        at_once = parallel or min(len(pending), workers.cluster_cpus(ray).driver_cpus)
        settings = (workers.worker_environment(), search_path, ray.put(tuning))
        places = {position: place for place, position in enumerate(pending)}
        after = [[places[near] for near in planned[position].after if near in places] for position in pending]
        cells = [(planned[position], near) for position, near in zip(pending, before, strict=True)]
        with closing(workers.StudyWorkerPool(ray, *settings, worker=CellWorker)) as pool:
            ends = pool.run(cells, at_once, lambda place: display.begun(pending[place]), display.tick, after)
            for place, end in ends:
                yield pending[place], end
