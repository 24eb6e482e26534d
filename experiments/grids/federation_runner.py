"""Runner of the trials of one federation of an experiment, which trains each trial once and logs it.

OUT/studies/<federation>/trials/    the Parquet log of all trials, shared by all cells
OUT/studies/<federation>/report-<seed>.json

With common random numbers, a trial is a function of its specification. So it is looked up by the digest of everything
that determines it except its number of rounds: the rounds of a short trial are the first rounds of a longer one, and
successive halving finds its short trials among full trainings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.calls import FederationFacts, Session
from fedscout.engine.seeds import integer
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import Progress, TrialRunner
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import built_study, data_digest
from fedscout.experiments.studies.run_folder import STUDIES, GridFolder, read_json, versions
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workflow import cohort_of, measure, study_facts
from fedscout.search.ledger import Ledger, StudyFacts, median_of, trainings_of
from fedscout.search.study import planned_space
from fedscout.search.warm_start import EarlierStudy
from fedscout.strategies import SearchSpace, StrategySpec

IN_PROCESS = ("engine.grid=local",)
CLIENT_MEASURES = ("id", "num_examples", "accuracy", "clean_accuracy")


def trial_digest(settings: TrialSettings) -> str:
    """Return the digest of everything that determines a trial's rounds, given the federation."""
    follows_from_strategy = ("needs", "algorithm")
    session = {name: value for name, value in vars(settings.session).items() if name not in follows_from_strategy}
    identity = {
        **session,
        "num_sampled": settings.num_sampled,
        "strategy": {"kind": settings.strategy.kind, **settings.strategy.parameters()},
        "training": settings.session.training.model_dump(),
    }
    if code := settings.strategy.code():
        identity["code"] = dict(code)
    if settings.session.client_table is not None:
        identity["client_table"] = settings.session.client_table.digest()
    if settings.selection is not None:
        identity["selection"] = {"kind": settings.selection.kind, **settings.selection.parameters()}
    return _digest(identity)


def _digest(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _first_rounds(logged: Trial, settings: TrialSettings) -> Trial:
    """Return the first rounds of a logged trial, as a trial with that number of rounds would have them."""
    failed = logged.status == "failed" and logged.num_rounds < settings.num_rounds
    return Trial.of(
        settings,
        status="failed" if failed else "completed",
        error=logged.error if failed else None,
        rounds={name: values[: settings.num_rounds] for name, values in logged.rounds.items()},
        clients={name: logged.clients[name] for name in CLIENT_MEASURES},
    )


class SharedLog(TrialLog):
    """The log of a federation's trials: one file per specification and number of rounds, named by digest.

    Several processes may write to it: files appear atomically, and two processes that train the same trial write the
    same.
    """

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self._records: dict[str, Trial] = {}
        self._digests: dict[str, str] = {}

    def find(self, settings: TrialSettings) -> Trial | None:
        """Return a logged trial; None if it has to be trained."""
        digest = self._digests[settings.key] = trial_digest(settings)
        for path in sorted(self.folder.glob(f"*-{digest[:12]}.parquet")):
            record = self._records.get(digest)
            if record is None or record.num_rounds < int(path.name.partition("-")[0]):
                loaded = self.read_one(path)
                self._records |= {} if loaded is None else {digest: loaded}
        logged = self._records.get(digest)
        if logged is None or (logged.status != "failed" and logged.num_rounds < settings.num_rounds):
            return None
        return _first_rounds(logged, settings)

    def append(self, record: Trial) -> Path:
        """Write a trial that `find` was called for, unless at least as many of its rounds are logged."""
        digest = self._digests[record.key]
        logged = self._records.get(digest)
        if logged is not None and logged.num_rounds >= record.num_rounds:
            return self.folder
        record = replace(record, trial=record.num_rounds, key=digest)
        self._records[digest] = record
        return self.write(record)

    def read(self, config_hash: str | None = None) -> list[Trial]:
        """Return an empty list, as a study looks up its trials through the runner."""
        return []


@dataclass
class SharingRunner:
    """A runner that trains only the trials that the federation's log lacks; the ledger appends them."""

    runner: TrialRunner
    log: SharedLog

    @property
    def facts(self) -> FederationFacts:
        """The facts of the federation."""
        return self.runner.facts

    @property
    def num_hosts(self) -> int:
        """The number of hosts that the clients are distributed over."""
        return self.runner.num_hosts

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid for messages outside a trial."""
        return self.runner.grid(session)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Yield the logged trials, then the trained ones."""
        missing: dict[tuple[str, int], list[int]] = {}
        for position, settings in enumerate(batch):
            logged = self.log.find(settings)
            if logged is None:
                missing.setdefault((trial_digest(settings), settings.num_rounds), []).append(position)
            else:
                yield position, logged
        equal_trials = list(missing.values())
        for index, result in self.runner.run([batch[positions[0]] for positions in equal_trials], progress):
            yield from ((position, result) for position in equal_trials[index])

    def forget(self, key: str) -> None:
        """Do nothing, as no checkpoints are kept: a trial takes seconds."""

    def close(self) -> None:
        """Do nothing, as the caller that opened the runner closes it."""


class TrainingsLedger(Ledger):
    """A ledger for a log of single trainings, of which it returns the median of each trial's repetitions."""

    def __init__(self, facts: StudyFacts, trials: SharingRunner) -> None:
        super().__init__(replace(facts, repetitions=1), trials, trials.log)
        self._repetitions = facts.repetitions

    def run(self, batch: Sequence[TrialSettings]) -> list[Trial]:
        """Run a batch of trials and return them in its order."""
        trainings = [trainings_of(settings, self._repetitions) for settings in batch]
        trained = iter(super().run([*chain.from_iterable(trainings)]))
        return [
            median_of(settings, [*islice(trained, len(repetitions))])
            for settings, repetitions in zip(batch, trainings, strict=True)
        ]


@dataclass(frozen=True)
class Choice:
    """The choice of a recommender.

    Attributes:
        spec: The strategy.
        cost: The cost of choosing, in full trainings besides one of FedAvg.
        learning_rate: The clients' learning rate, if it is not the federation's.
        study: The study that found it, for warm starts on other federations.
    """

    spec: StrategySpec
    cost: float = 0.0
    learning_rate: float | None = None
    study: EarlierStudy | None = None


def other_seeds(purpose: str, count: int) -> tuple[int, ...]:
    """Return `count` seeds for another purpose, which differ from those of searches, the first numbers."""
    return tuple(10_000 + integer(0, f"choice: {purpose}", index) % 2**30 for index in range(count))


@dataclass(frozen=True)
class BuiltFederation:
    """A federation by its name in an experiment, with its arguments, configuration and data."""

    name: str
    arguments: tuple[str, ...]
    config: StudyConfig
    federation: Federation


def read_config(given: Sequence[str], settings: Sequence[str] = ()) -> StudyConfig:
    """Return the configuration of a cell, which runs in this process unless the settings override it."""
    return load_config([*IN_PROCESS, *given, *settings])


def built_federation(name: str, given: Sequence[str], settings: Sequence[str] = ()) -> BuiltFederation:
    """Read the configuration of a federation and build it; `settings` override `given`.

    Raises:
        UserError: If an argument is wrong, or the data can't be read or partitioned as configured.
    """
    config = read_config(given, settings)
    return BuiltFederation(name, (*IN_PROCESS, *given, *settings), *built_study(config))


class FederationRunner:
    """The runner of one federation's trials, with a folder of its own within the experiment's."""

    def __init__(self, built: BuiltFederation, runner: TrialRunner, out: Path) -> None:
        self.config, self.federation, self.name, self.out = built.config, built.federation, built.name, out
        self.arguments, self.feature_names = built.arguments, built.federation.feature_names
        self.cohort = cohort_of(built.config, built.federation.num_seen)
        self.data_digest = data_digest(built.federation)
        identity = {name: built.config.identity()[name] for name in ("federation", "model")}
        dependencies = {**identity, "versions": versions(), "data": self.data_digest}
        self._folder = out / STUDIES / _digest(dependencies)[:16]
        self.trials = SharingRunner(runner, SharedLog(self._folder))
        self.facts = study_facts(built.config, built.federation.without_rows())

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return planned_space(self.config.search, self.cohort, self.config.training.local(), self.facts.selection)

    def ledger(self, config: StudyConfig) -> Ledger:
        """Return a new ledger of a study on this federation; only seed and search may differ from its configuration."""
        facts = replace(
            self.facts,
            session=config.training.session(config.seed, config.search.validation_fraction),
            view=config.search.view,
            searcher=config.search.kind,
            config_hash=config.digest(),
            config=config.model_dump_json(),
        )
        return TrainingsLedger(facts, self.trials)

    def records(self, choices: Sequence[Choice], seeds: Sequence[int]) -> list[Trial]:
        """Return the full trials of each choice on each seed, on test rows; seeds vary fastest."""
        ledger = self.ledger(self.config)
        trial_settings = [
            ledger.facts.trial("confirmation", choice.spec, learning_rate=choice.learning_rate) for choice in choices
        ]
        return ledger.run([settings.on_seed(seed) for settings in trial_settings for seed in seeds])

    def report(self, seed: int) -> HeterogeneityReport:
        """Return the heterogeneity report of a seed, measured once."""
        path = self._folder / f"report-{seed}.json"
        config = self.config.model_copy(update={"seed": seed})
        detection = config.detection.model_dump(mode="json")
        stored = read_json(path) or {}
        if stored.get("detection") == detection:
            with suppress(ValidationError):
                return HeterogeneityReport.model_validate(stored.get("report"))
        report = measure(self.trials, config).without_timings()
        text = json.dumps({"detection": detection, "report": report.model_dump(mode="json")})
        GridFolder(self._folder).write_text(path.name, text)
        return report


@contextmanager
def open_federation(built: BuiltFederation, out: Path) -> Iterator[FederationRunner]:
    """Yield a federation's runner; hosts start on the first training, and end with the block."""
    parallel = built.config.search.generation_size + 1
    with open_runner(built.federation, built.config.engine, None, parallel) as runner:
        yield FederationRunner(built, runner, out)
