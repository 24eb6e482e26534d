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
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Federation
from fedscout.engine.seeds import integer
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import Progress, TrialSource
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import built_study, data_digest
from fedscout.experiments.studies.run_folder import STUDIES, GridFolder, read_json, versions
from fedscout.experiments.studies.runner import LazyRunner, open_runner
from fedscout.experiments.studies.workflow import measure, study_facts
from fedscout.search.ledger import Ledger, StudyFacts
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


def first_rounds(logged: Trial, settings: TrialSettings) -> Trial:
    """Return the first rounds of a logged trial, as a trial with that number of rounds would have them."""
    failed = logged.status == "failed" and logged.num_rounds < settings.num_rounds
    return Trial.of(
        settings,
        status="failed" if failed else "completed",
        error=logged.error if failed else None,
        rounds={name: values[: settings.num_rounds] for name, values in logged.rounds.items()},
        clients={name: values for name, values in logged.clients.items() if name in CLIENT_MEASURES},
    )


class SharedTrials:
    """The trials of a federation: logged ones are read, and only those that the log lacks are trained.

    The log has one file per specification and number of rounds, named by digest. Several processes may write to it:
    files appear atomically, and two processes that train the same trial write the same.

    Args:
        runner: Trains.
        out: The folder of the log.
        facts: Name and versions in each row of the log.
    """

    def __init__(self, runner: TrialSource, out: Path, facts: StudyFacts) -> None:
        self._runner, self._log, self._facts = runner, TrialLog(out), facts
        self._records: dict[str, Trial] = {}

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Yield the logged trials, then the trained ones, each as soon as it is logged."""
        missing: dict[tuple[str, int], list[int]] = {}
        for position, settings in enumerate(batch):
            digest = trial_digest(settings)
            logged = self._find(settings, digest)
            if logged is None:
                missing.setdefault((digest, settings.num_rounds), []).append(position)
            else:
                yield position, logged
        equal_trials = list(missing.items())
        for index, result in self._runner.run([batch[positions[0]] for _, positions in equal_trials], progress):
            (digest, _), positions = equal_trials[index]
            study, versions_used = self._facts.name, self._facts.versions
            record = replace(result, trial=result.num_rounds, key=digest, study=study, versions=versions_used)
            self._records[digest] = record
            self._log.write(record)
            yield from ((position, result) for position in positions)

    def _find(self, settings: TrialSettings, digest: str) -> Trial | None:
        """Return a logged trial; None if it has to be trained."""
        for path in sorted(self._log.folder.glob(f"*-{digest[:12]}.parquet")):
            record = self._records.get(digest)
            if record is None or record.num_rounds < int(path.name.partition("-")[0]):
                loaded = self._log.read_one(path)
                self._records |= {} if loaded is None else {digest: loaded}
        logged = self._records.get(digest)
        if logged is None or (logged.status != "failed" and logged.num_rounds < settings.num_rounds):
            return None
        return first_rounds(logged, settings)

    def forget(self, key: str) -> None:
        """Do nothing, as no checkpoints are kept: a trial takes seconds."""


class NoLog(TrialLog):
    """A log that stores nothing, as the source of the trials has all."""

    def __init__(self) -> None:
        pass

    def read(self, config_hash: str | None = None) -> list[Trial]:
        """Return nothing."""
        return []

    def append(self, record: Trial) -> Path:
        """Write nothing."""
        return Path()


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


class ChoiceContext:
    """A federation from a recommender's point of view: its facts, and ledgers that run trials.

    Attributes:
        name: Of the federation.
        arguments: As for `fedscout run`.
        config: The configuration that the arguments specify.
        data_digest: Of its rows and their partition.
        feature_names: Of its columns; empty if unknown.
        out: The folder of a language model's answers; unused in a replay.
        trials: The source of the trials.
    """

    name: str
    arguments: tuple[str, ...]
    config: StudyConfig
    data_digest: str
    feature_names: tuple[str, ...]
    out: Path
    trials: TrialSource

    @cached_property
    def facts(self) -> StudyFacts:
        """The facts of a study with the federation's own configuration."""
        return self.facts_of(self.config)

    @cached_property
    def space(self) -> SearchSpace:
        """The search space."""
        facts, config = self.facts, self.config
        return planned_space(config.search, facts.cohort, config.training.local(), facts.selection)

    def facts_of(self, config: StudyConfig) -> StudyFacts:
        """Return the facts of a study on this federation; only seed and search may differ from its configuration."""
        raise NotImplementedError

    def report(self, seed: int) -> HeterogeneityReport:
        """Return the heterogeneity report of a seed."""
        raise NotImplementedError

    def ledger(self, config: StudyConfig) -> Ledger:
        """Return a new ledger of a study on this federation; see `facts_of`."""
        return Ledger(self.facts_of(config), self.trials, NoLog())


class FederationRunner(ChoiceContext):
    """The runner of one federation's trials, with a folder of its own within the experiment's."""

    def __init__(self, built: BuiltFederation, runner: LazyRunner, out: Path) -> None:
        self.config, self.federation, self.name, self.out = built.config, built.federation, built.name, out
        self.arguments, self.feature_names = built.arguments, built.federation.feature_names
        self.data_digest = data_digest(built.federation)
        identity = {name: built.config.identity()[name] for name in ("federation", "model")}
        dependencies = {**identity, "versions": versions(), "data": self.data_digest}
        self._folder = out / STUDIES / _digest(dependencies)[:16]
        self._runner, self._described = runner, built.federation.without_rows()
        self.trials = SharedTrials(runner, self._folder, self.facts)

    def facts_of(self, config: StudyConfig) -> StudyFacts:
        """Return the facts of a study on this federation; only seed and search may differ from its configuration."""
        return study_facts(config, self._described)

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
        report = measure(self._runner, config).without_timings()
        text = json.dumps({"detection": detection, "report": report.model_dump(mode="json")})
        GridFolder(self._folder).write_text(path.name, text)
        return report


@contextmanager
def open_federation(built: BuiltFederation, out: Path) -> Iterator[FederationRunner]:
    """Yield a federation's runner; hosts start on the first training, and end with the block."""
    parallel = built.config.search.generation_size + 1
    with open_runner(built.federation, built.config.engine, None, parallel) as runner:
        yield FederationRunner(built, runner, out)
