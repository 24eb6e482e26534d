"""The pipeline from a configuration, or a federation already built, to a result; each command runs part of it.

    build ─► place ─► detect ─► choose ─► train ─► confirm ─► write

| command | build | place | detect | choose | train | confirm |
| --- | --- | --- | --- | --- | --- | --- |
| detect | yes | yes | yes | | | |
| recommend | unless a report or a text suffices | to detect | unless a report or a text suffices | once | | |
| train | yes | yes | | as configured | once | |
| search | yes | yes | | generation by generation | yes | yes |
| run | yes | yes | yes | generation by generation | yes | yes |
| run --one-shot | yes | yes | unless a text suffices | once | yes | yes |

`fedscout describe` only builds, and imports nothing of the later steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.detectors.report import TENTHS
from fedscout.engine.data.federation import UNNAMED, Federation, Names
from fedscout.engine.grid.selection import expected_seconds
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.runner import OpensGrids
from fedscout.experiments.config import StudyConfig, check_searchable, planned_trials
from fedscout.experiments.data.loaders.table import is_own_data
from fedscout.experiments.description import dependence_notes, realised, scored_notes
from fedscout.experiments.federation import build_federation, built_study, data_digest
from fedscout.experiments.models.request import is_import_path
from fedscout.experiments.models.table import AUTO, CONVOLUTIONAL
from fedscout.experiments.studies import checks, one_shot, run_folder
from fedscout.experiments.studies.result import REPORT_FILE, read_report, read_warm_start, result_document
from fedscout.experiments.studies.run_folder import RunFolder
from fedscout.experiments.studies.runner import ExpectedWork, LazyRunner, open_runner
from fedscout.experiments.trained import DESCRIPTION_FILE, leaves_model, write_training
from fedscout.search.config import ONE_SHOT
from fedscout.search.language_model import Message
from fedscout.search.ledger import Ledger, StudyEvents, StudyFacts
from fedscout.search.objective import DataOrigin, Measure
from fedscout.search.recommenders.diagnosis import Diagnosis, Recommendation, RecommendationContext, diagnose
from fedscout.search.searchers.llm import opening_messages
from fedscout.search.study import StudyOutcome, check_search, context_of, planned_space, run_study, study_space
from fedscout.strategies import named_selection
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.specification import LAYERS
from fedscout.strategies.table import named_classes

Stage = Literal["data", "hosts", "detection", "search"]

STAGES: Final[Mapping[Stage, str]] = {
    "data": "reading data",
    "hosts": "starting hosts",
    "detection": "measuring heterogeneity",
    "search": "running trials",
}


logger = logging.getLogger("fedscout")

RECOMMENDATION_FILE = "recommendation.json"

_NO_FOLDER: AbstractContextManager[RunFolder | None] = nullcontext()


@dataclass(frozen=True)
class Display:
    """Optional progress callbacks: a stage begins, and trial events."""

    stage: Callable[[Stage], None] = lambda _: None
    trials: StudyEvents = field(default_factory=StudyEvents)


SILENT = Display()


@dataclass(frozen=True)
class FinishedStudy:
    """A finished study: its result document, what it was made from, and the measure of its fitness.

    It holds no rows.
    """

    document: dict[str, Any]
    folder: Path
    federation: Federation
    report: HeterogeneityReport | None
    outcome: StudyOutcome
    measure: Measure


@dataclass
class Pipeline:
    """One federation under one configuration, and the steps that the commands share.

    Attributes:
        config: The study's configuration.
        display: Progress callbacks.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own strategies.
        built: The federation; None until it is built from the configuration on first use.
        timings: Seconds of each completed step.
    """

    config: StudyConfig
    display: Display
    verbose: bool = False
    search_path: tuple[str, ...] = ()
    built: Federation | None = None
    timings: dict[str, float] = field(default_factory=dict)

    def with_data(self) -> StudyConfig:
        """Return the configuration with the task that is found in the data, which are read."""
        self.config, _ = built_study(self.config, self.federation)
        return self.config

    @property
    def federation(self) -> Federation:
        """The federation; without its rows once it is placed."""
        if self.built is None:
            self.display.stage("data")
            with self.timed("data"):
                config = self.config
                self.built = build_federation(config.federation, config.model, config.detection.privacy)
        return self.built

    @cached_property
    def digest(self) -> str:
        """The digest of the data; must be read before the federation is placed."""
        return data_digest(self.federation)

    @property
    def cohort(self) -> Cohort:
        """The facts that strategies depend on; includes the model's layers only if a named strategy reads them."""
        cohort = cohort_of(self.config, self.federation.num_seen, self.federation)
        if LAYERS.isdisjoint(name for each in named_classes(self.config.named_strategies) for name in each.requires):
            return cohort
        return replace(cohort, layers=checks.driver_facts(self.federation).layout.layers)

    @contextmanager
    def place(self, num_rounds: int, trials: RunFolder | None = None, parallel: int = 1) -> Iterator[LazyRunner]:
        """Distribute the clients over hosts, which start on first use and then hold the only copy of the rows.

        Args:
            num_rounds: Approximate number of rounds to train, by which `engine.grid=auto` chooses the hosts.
            trials: The folder of the trials to run; None if there are none.
            parallel: Maximum number of concurrent trials.
        """
        config, work = self.config, self._expected_work(num_rounds * self.config.training.repetitions)
        opened = open_runner(self.federation, config.engine, trials, parallel, self.search_path, self.verbose, work)
        with opened as runner:
            self.built = self.federation.without_rows()
            yield runner

    def _expected_work(self, num_rounds: int) -> ExpectedWork | None:
        """Return the expected work; None with time limits, which only separate hosts can enforce."""
        training = self.config.training
        if training.has_time_limit:
            return None
        return ExpectedWork(training.session(self.config.seed), num_rounds, training.fraction_train)

    def detect(self, runner: LazyRunner, folder: RunFolder | None, again: bool = False) -> HeterogeneityReport:
        """Run the detectors, unless the folder has a report of an earlier run, and store their report.

        Args:
            runner: The runner of the placed clients.
            folder: Of the report; None does not store it.
            again: Whether to ignore a stored report.
        """
        report = None if folder is None or again else stored_report(folder)
        if report is None:
            self.display.stage("hosts")
            runner.started()
            self.display.stage("detection")
            with self.timed("detection"):
                report = measure(runner, self.config, Names.of(self.federation))
            if folder is not None:
                folder.write_json(REPORT_FILE, report.model_dump(mode="json"))
        return report

    def one_shot(
        self, runner: LazyRunner, folder: RunFolder, facts: StudyFacts
    ) -> tuple[Recommendation, HeterogeneityReport | None]:
        """Return the recommendation without a trial, and the report it is based on, if any."""
        space = study_space(self.config.search, facts)
        context = context_of(space, facts, description=self.config.recommender.text)

        def diagnosis() -> Diagnosis:
            return diagnose(self.detect(runner, folder), self.federation.feature_names)

        with self.timed("recommendation"):
            recommendation = one_shot.one_shot_answer(self.config, folder, context, diagnosis)
        return recommendation, None if recommendation.diagnosis is None else self.detect(runner, folder)

    def ledger(self, runner: LazyRunner, folder: RunFolder) -> Ledger:
        """Return the ledger, which runs trials and logs them."""
        self.display.stage("search")
        log = TrialLog(folder.path)
        facts = replace(study_facts(self.config, self.federation), cohort=self.cohort, data_digest=self.digest)
        return Ledger(facts, runner, log, self.display.trials)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Record the duration of a step, excluding nested steps."""
        started, before = time.perf_counter(), sum(self.timings.values())
        yield
        within = sum(self.timings.values()) - before
        self.timings[step] = self.timings.get(step, 0.0) + time.perf_counter() - started - within


def run_detection(
    config: StudyConfig,
    display: Display = SILENT,
    verbose: bool = False,
    out: Path | None = None,
    federation: Federation | None = None,
) -> tuple[Federation, HeterogeneityReport]:
    """Run the detectors, and write their report if a folder is given."""
    pipeline = Pipeline(config, display, verbose, built=federation)
    checks.check_precision(config.training.local(), pipeline.federation)
    opened = _NO_FOLDER if out is None else run_folder.open_run_folder(out, config, pipeline.digest)
    with opened as folder, pipeline.place(config.detection.num_rounds) as runner:
        return pipeline.federation, pipeline.detect(runner, folder, again=True)


def recommend(
    config: StudyConfig,
    out: Path | None,
    display: Display = SILENT,
    verbose: bool = False,
    federation: Federation | None = None,
    report: Path | None = None,
) -> one_shot.Recommended:
    """Recommend a strategy without a trial; write report, exchanges and recommendation to `out`, if given.

    A report's file replaces the measurement of the federation.

    Raises:
        UserError: If the request can't be fulfilled.
    """
    one_shot.check_recommender(config)
    with _asking(config, report, out, Pipeline(config, display, verbose, built=federation)) as asking:
        folder, place = asking.folder, None if asking.folder is None else asking.folder.path
        recommendation, context = one_shot.choose(asking.config, asking.context, asking.diagnosis, place)
        recommended = one_shot.Recommended(recommendation, context, asking.report)
        if folder is not None:
            folder.write_json(RECOMMENDATION_FILE, recommended.document(asking.config))
        return recommended


def prompt(
    config: StudyConfig, display: Display = SILENT, verbose: bool = False, report: Path | None = None
) -> list[Message]:
    """Return the messages that `recommend` would send to a language model; nothing is sent.

    Raises:
        UserError: If the request can't be fulfilled.
    """
    one_shot.check_recommender(config, sends=False)
    recommender = config.recommender.model_copy(update={"source": "llm"})
    config = config.model_copy(update={"recommender": recommender})
    with _asking(config, report, None, Pipeline(config, display, verbose)) as asking:
        return opening_messages(one_shot.context_for_model(asking.context, asking.diagnosis), config.recommender)


@dataclass
class _Asking:
    """What a recommendation is made from; the federation is measured when a diagnosis is needed."""

    config: StudyConfig
    context: RecommendationContext
    diagnosis: Callable[[], Diagnosis]
    folder: RunFolder | None
    report: HeterogeneityReport | None


@contextmanager
def _asking(config: StudyConfig, report_path: Path | None, out: Path | None, pipeline: Pipeline) -> Iterator[_Asking]:
    """Open the folder of a recommendation, if one is given, and yield what it is made from."""
    report = None if report_path is None else read_report(report_path)
    by_words = config.recommender.text is not None and one_shot.asks_model(config)
    num_clients = config.federation.num_seen if by_words and pipeline.built is None else None
    if report is not None:
        num_clients, config = report.num_clients, config.with_task(TENTHS in report.notes)
    elif num_clients is None or (config.federation.task is None and is_own_data(config.federation.dataset)):
        config = pipeline.with_data()
    cohort = cohort_of(config, num_clients or pipeline.federation.num_seen, pipeline.built)
    policy = checks.own_selection(config)
    space = planned_space(config.search, cohort, config.training.local(), policy)
    request_context = RecommendationContext(
        space,
        config.training.num_rounds,
        config.search.view,
        diagnosis=None if report is None else diagnose(report),
        description=config.recommender.text,
        measure=checks.measure_of_study(config),
        data_origin=data_origin_of(config) if report is None else None,
    )

    def diagnosis() -> Diagnosis:
        if asking.report is None:
            checks.check_precision(config.training.local(), pipeline.federation)
            if folder is not None:
                run_folder.bind(folder, config, pipeline.digest)
            with pipeline.place(config.detection.num_rounds) as runner:
                asking.report = pipeline.detect(runner, folder)
        return diagnose(asking.report, pipeline.federation.feature_names if report is None else ())

    digest = pipeline.digest if pipeline.built is not None and out is not None else None
    opened = _NO_FOLDER if out is None else run_folder.open_run_folder(out, config, digest)
    with opened as folder:
        asking = _Asking(config, request_context, diagnosis, folder, report)
        yield asking


def run_training(
    config: StudyConfig,
    out: Path,
    display: Display = SILENT,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
    federation: Federation | None = None,
) -> tuple[Federation, Trial, Path]:
    """Train one strategy, by default FedAvg, log it as a trial and write its model.

    Returns:
        The federation, the trial, and the folder.

    Raises:
        StrategyError: If the strategy is invalid or does not fit the federation.
    """
    config = with_strategy(config)
    checks.check_alone(config)
    pipeline = Pipeline(config, display, verbose, search_path, federation)
    config = pipeline.with_data()
    spec = checks.own_strategy(config, pipeline.cohort)
    policy = checks.selection_of(config, pipeline.cohort)
    policies = [named_selection(spec.selection, policy)]
    checks.check(config, pipeline.federation, pipeline.cohort, [spec], policies)
    notes = spec.notes(pipeline.cohort)
    for note in notes:
        logger.warning("%s", note)
    built = pipeline.federation if pipeline.federation.targets is not None else pipeline.federation.without_rows()
    keep_model = bool(built.reading) and leaves_model(spec, built)
    opened = run_folder.open_run_folder(out, config, pipeline.digest)
    with opened as folder, pipeline.place(config.training.num_rounds, folder) as runner:
        ledger = pipeline.ledger(runner, folder)
        ledger.suppress_notes(spec.label, notes)
        settings = replace(ledger.facts.trial("train", spec), keep_model=keep_model)
        (trial,) = ledger.run([settings])
        if trial.vector is not None:
            write_training(folder.path, config, built, settings, trial)
        elif keep_model and trial.status == "completed" and not (folder.path / DESCRIPTION_FILE).exists():
            logger.warning("%s holds this training without its model; use another --out to retrain it", folder.path)
        return pipeline.federation, trial, folder.path


def run_workflow(
    config: StudyConfig,
    out: Path,
    display: Display = SILENT,
    detection: bool = True,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
    federation: Federation | None = None,
) -> FinishedStudy:
    """Run a study to its end, resuming an earlier run.

    With `detection`, the detectors run first, unless the search is as published.

    Raises:
        UserError: If the request can't be fulfilled; before anything is written where possible.
    """
    detection = detection and not config.search.published
    config = config if detection else config.without_diagnosis()
    check_searchable(config)
    checks.check_alone(config)
    one_shot.check_language_model(config, out)
    one_shot.check_one_shot(config, detection, has_answer=(out / one_shot.NAME).is_file())
    by_words = config.search.kind == ONE_SHOT and config.recommender.text is not None
    started = time.perf_counter()
    pipeline = Pipeline(config, display, verbose, search_path, federation)
    config = pipeline.with_data()
    heterogeneity = realised(pipeline.federation, config.detection, config.seed)
    dependence = (
        *scored_notes(pipeline.federation, config.training.scored_clients),
        *dependence_notes(pipeline.federation, config.seed, config.training.test_fraction),
    )
    policy = checks.selection_of(config, pipeline.cohort)
    check_search(config.search, pipeline.cohort, config.training.local(), policy)
    policies = [policy, *checks.searched_policies(config, pipeline.cohort)]
    members = planned_space(config.search, pipeline.cohort, selection=policy).members.values()
    checks.check(config, pipeline.federation, pipeline.cohort, [FedAvgSpec(), *members], policies, detection)
    num_trials, rounds_less = planned_trials(config)
    num_rounds = num_trials * config.training.num_rounds - rounds_less + detection * config.detection.num_rounds
    with run_folder.open_run_folder(out, config, pipeline.digest) as folder:
        compare = read_warm_start(config, folder, pipeline.digest, detection)
        with pipeline.place(num_rounds, folder, parallel=config.search.trials_at_once + 1) as runner:
            report = pipeline.detect(runner, folder) if detection and not by_words else None
            ledger = pipeline.ledger(runner, folder)
            start = None
            if compare is not None and report is not None:
                space = study_space(config.search, ledger.facts)
                start = compare(context_of(space, ledger.facts, diagnose(report)))
            with one_shot.model_of_search(config, folder.path) as model:
                recommendation = None
                if config.search.kind == ONE_SHOT:
                    recommendation, report = pipeline.one_shot(runner, folder, ledger.facts)
                outcome = run_study(config.search, ledger, report, start, model, recommendation, pipeline.timed)
        seconds = {**pipeline.timings, "hosts": runner.start_seconds, "total": time.perf_counter() - started}
        engine = {**config.engine.model_dump(mode="json"), "ran_on": runner.ran_on, "trained_on": runner.trained_on}
        timings = {"seconds": seconds, "engine": engine}
        found = (heterogeneity, dependence)
        document = result_document(config, pipeline.federation, found, report, outcome, timings)
        folder.write_json(run_folder.RESULT_FILE, document)
        return FinishedStudy(document, folder.path, pipeline.federation, report, outcome, ledger.facts.measure)


def cohort_of(config: StudyConfig, num_clients: int, federation: Federation | None = None) -> Cohort:
    """Return the facts that strategies depend on, for `num_clients` participating clients."""
    training, server_rows = config.training, config.federation.server_rows
    uses_other_dataset = config.federation.server_dataset is not None
    kind, are_images = config.model.kind, federation is not None and federation.features.ndim > 2
    return Cohort(
        num_clients,
        training.num_sampled(num_clients),
        training.learning_rate,
        training.optimizer,
        training.momentum,
        num_rounds=training.num_rounds,
        server_rows=None
        if isinstance(server_rows, float) or (uses_other_dataset and not server_rows)
        else server_rows or 0,
        server_labels=config.federation.server_labels,
        classifies=not config.federation.predicts_quantity,
        chosen=config.chooses_clients,
        own_settings=config.client_settings.kind is not None,
        has_clock=config.federation.has_clock,
        noisy=config.detection.epsilon is not None,
        convolutional=kind in CONVOLUTIONAL or (are_images and (kind == AUTO or is_import_path(kind))),
    )


def study_facts(config: StudyConfig, federation: Federation) -> StudyFacts:
    """Return the facts that all trials of a study share."""
    metric = checks.metric_of(config.metric_name, federation)
    cohort = cohort_of(config, federation.num_seen, federation)
    return StudyFacts(
        name=federation.name,
        num_rounds=config.training.num_rounds,
        cohort=cohort,
        session=replace(
            config.training.session(
                config.seed, config.search.validation_fraction, metric, config.search.objective == "worst_clients"
            ),
            client_table=checks.client_table_of(config, federation),
        ),
        view=config.search.view,
        timeout_seconds=config.training.trial_timeout_seconds,
        searcher=config.search.kind,
        config_hash=config.digest(),
        config=config.model_dump_json(),
        versions=run_folder.versions(),
        guessing=checks.constant_answer(federation, metric, config.search.objective),
        measure=checks.measure_of_study(config, federation),
        objective=checks.objective_of(config, federation),
        selection=checks.selection_of(config, cohort),
        data_origin=data_origin_of(config),
        repetitions=config.training.repetitions,
        same_test_rows=federation.split == "last",
    )


def data_origin_of(config: StudyConfig) -> DataOrigin:
    """Return the data set and, if the configuration specifies it, its partition."""
    partition = config.federation.known_partition
    if partition is None or partition.kind is None:
        return DataOrigin(config.federation.dataset)
    return DataOrigin(
        config.federation.dataset,
        partition.kind,
        partition.alpha if partition.kind == "dirichlet" else None,
        partition.class_share if partition.kind == "classes_per_client" else None,
    )


def measure(runner: OpensGrids, config: StudyConfig, names: Names = UNNAMED) -> HeterogeneityReport:
    """Run the detectors."""
    training = config.training.local().without_added_terms()  # which would hide labels that disagree
    session = Session(
        seed=config.seed,
        training=training,
        test_fraction=config.training.test_fraction,
        backend=config.training.backend,
    )
    grid = runner.grid(session)
    facts = grid.facts
    return detect(
        grid,
        grid.initial_vectors,
        training,
        config.detection,
        config.seed,
        holds_rows=facts.holds_rows,
        grouped=facts.grouped,
        classifies=facts.classifies,
        ordered=facts.ordered,
        expected_seconds=dict(enumerate(expected_seconds(facts, session).tolist())),
        names=names,
    )


def stored_report(folder: RunFolder) -> HeterogeneityReport | None:
    """Return the report of an earlier run of the same study; None if there is none that this version can read."""
    return folder.read_model(REPORT_FILE, HeterogeneityReport)


def with_strategy(config: StudyConfig) -> StudyConfig:
    """Return the configuration of a single trial: without diagnosis, and with FedAvg if no strategy is set."""
    config = config.without_diagnosis()
    return config if config.strategy else config.model_copy(update={"strategy": {"kind": "fedavg"}})
