"""The result of a study: what its folder holds, finished or not, as one value; its final document; its warm start.

Screen, page, exports, the Python interface and `fedscout app` tell the facts of this value. A folder is read only;
missing or unreadable parts are None or empty and listed in `faults`. Anyone with write access may edit the files or
leave a partial copy, so all of them are validated when they are read, and a mismatch is reported in one line. The warm
start from earlier studies is stored with a study, because they may change or disappear before it resumes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.data.federation import Federation, Names
from fedscout.engine.errors import ConfigurationError, DataError, Fault, LogError
from fedscout.engine.runtime.files import read_json_object
from fedscout.engine.text import reading_document
from fedscout.engine.trials.log import read_records
from fedscout.engine.trials.record import SCORES_WHERE_KNOWN, Trial
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.description import RealizedHeterogeneity
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.experiments.studies.run_folder import RESULT_FILE, RunFolder, stored_claim, versions
from fedscout.search.confirmation.confirmation import Candidate, Confirmation
from fedscout.search.ledger import BASELINE
from fedscout.search.objective import ACCURACY, MEASURES, UNLIKE, Measure
from fedscout.search.recommenders.diagnosis import Reason, RecommendationContext
from fedscout.search.study import StudyOutcome
from fedscout.search.warm_start import EarlierStudy, SimilarStudy, WarmStart, gains_of, logged_strategy, warm_start

REPORT_FILE = "report.json"

logger = logging.getLogger("fedscout")


def result_document(
    config: StudyConfig,
    federation: Federation,
    found: tuple[RealizedHeterogeneity, Sequence[str]],
    report: HeterogeneityReport | None,
    outcome: StudyOutcome,
    timings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the result as a document; `found` is the realised heterogeneity and the notes on dependent rows."""
    confirmation, advice, recommendation = outcome.confirmation, outcome.advice, outcome.recommendation
    tuned = outcome.tuned[0] if outcome.tuned else None
    chosen = {"best": outcome.best, "worst": outcome.worst, "baseline": outcome.baseline, "tuned_baseline": tuned}
    advised: dict[str, Any] = {}
    if recommendation is not None:
        advised["recommendation"] = recommendation.document()
    if advice is not None:
        kind = {"kind": advice.spec.kind, **advice.spec.parameters()}
        advised["advice"] = {"strategy": kind, **vars(advice.reasons[0])}
        advised["first_generation"] = [candidate.document() for candidate in outcome.first_generation]
    return {
        "config": config.identity(),
        "config_hash": config.digest(),
        "versions": versions(),
        "federation": {
            "name": federation.name,
            "num_clients": federation.num_clients,
            "num_classes": federation.num_classes,
            "client_rows": federation.partition.sizes.tolist(),
            **({"unseen_clients": sorted(federation.unseen)} if federation.unseen else {}),
            "class_names": list(federation.class_names),
            **federation.facts,
        },
        "realised": found[0].model_dump(mode="json"),
        "dependence": list(found[1]),
        "affected_clients": list(federation.affected_clients),
        "report": None if report is None else report.without_timings().model_dump(mode="json"),
        "trials": [trial.summary() for trial in [outcome.baseline, *outcome.trials]],
        "trainings": outcome.trainings,
        **({"notes": outcome.notes} if outcome.notes else {}),
        "warm_start": None if outcome.warm_start is None else outcome.warm_start.model_dump(mode="json"),
        **advised,
        **{name: None if trial is None else trial.summary() for name, trial in chosen.items()},
        **({"tuning": [trial.summary() for trial in outcome.tuned]} if outcome.tuned else {}),
        "confirmation": None if confirmation is None else confirmation.model_dump(mode="json"),
        "timings": dict(timings),
    }


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class FederationFacts(_Stored):
    """The fields of the federation's facts that are read."""

    name: str = ""
    num_clients: int = 0
    model: str = ""
    source: str = ""
    client_rows: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    client_names: tuple[str | int | float | bool, ...] = ()


class TrialSummary(_Stored):
    """The fields of a trial's summary that are read."""

    strategy: str
    parameters: Mapping[str, Any]
    learning_rate: float
    phase: str = ""
    status: str = ""
    fitness: float = 0.0


class StoredRecommendation(_Stored):
    """The fields of a one-shot study's recommendation that are read."""

    name: str
    answered_by: str
    reasons: tuple[Reason, ...] = Field(min_length=1)


class StudyResult(_Stored):
    """The fields of `result.json` that are read; any others are kept."""

    config: Mapping[str, Any] = {}
    config_hash: str = ""
    federation: FederationFacts = FederationFacts()
    dependence: tuple[str, ...] = ()
    affected_clients: tuple[int, ...] = ()
    report: HeterogeneityReport | None = None
    trials: tuple[TrialSummary, ...] = ()
    best: TrialSummary | None = None
    baseline: TrialSummary | None = None
    tuned_baseline: TrialSummary | None = None
    confirmation: Confirmation | None = None
    recommendation: StoredRecommendation | None = None
    timings: Mapping[str, Any] = {}


def advised(
    confirmation: Confirmation | None, best: Trial | TrialSummary | None, usual_rate: float
) -> dict[str, Any] | None:
    """Return the strategy that a study recommends, or None if all trainings failed.

    It holds kind, parameters and client learning rate. It is the study's pick if it was confirmed to be better, else
    the reference, such as FedAvg at its tuned rate; without a confirmation, it is the best trial of the search.

    Args:
        confirmation: The confirmation, or None.
        best: The search's best trial.
        usual_rate: The study's client learning rate, which is omitted from the result.
    """
    chosen: Trial | TrialSummary | Candidate | None = best if confirmation is None else confirmation.chosen
    if chosen is None:
        return None
    own_rate = {} if chosen.learning_rate == usual_rate else {"client_learning_rate": chosen.learning_rate}
    return {**logged_strategy(chosen.strategy, chosen.parameters), **own_rate}


@dataclass(frozen=True)
class StoredStudy:
    """Contents of a study's folder.

    Attributes:
        folder: The folder.
        claim: Contents of `config.json`.
        config: The configuration in it.
        result: Contents of `result.json`; None while the study is unfinished.
        report: Report of the detectors; None if detection did not run.
        trials: The log, by number.
        faults: Why files could not be used, a sentence each.
    """

    folder: Path
    claim: Mapping[str, Any]
    config: StudyConfig
    result: StudyResult | None
    report: HeterogeneityReport | None
    trials: tuple[Trial, ...]
    faults: tuple[str, ...]

    @property
    def facts(self) -> StudyResult:
        """The result; without any facts while the study is unfinished."""
        return self.result or StudyResult()

    @property
    def confirmation(self) -> Confirmation | None:
        """The confirmation; None without one."""
        return self.facts.confirmation

    @property
    def name(self) -> str:
        """Display name of the study."""
        logged = next((trial.study for trial in self.trials), self.config.federation.dataset)
        return self.facts.federation.name or logged

    @cached_property
    def measure(self) -> Measure:
        """The measure of the fitness."""
        if self.confirmation is not None:
            return self.confirmation.measure
        return self.score_measure if self.config.search.objective == "accuracy" else UNLIKE

    @property
    def score_measure(self) -> Measure:
        """The measure of a round's score."""
        return MEASURES.get(next((trial.metric for trial in self.trials if trial.metric), ""), ACCURACY)

    @property
    def names(self) -> Names:
        """Names of clients and classes; positions where they are unknown."""
        facts = self.facts.federation
        return Names(tuple(map(str, facts.client_names)), facts.class_names)

    def scores(self, trial: Trial, of: Literal["round", "client"]) -> tuple[float, ...]:
        """Return a trial's scores in the study's view, per round or per client."""
        view = "clean_" if self.config.search.view == "clean" else ""
        measures = trial.rounds if of == "round" else trial.clients
        return measures.get(f"{view}{'accuracy' if trial.metric is None else 'metric'}", ())


def rounds_of(trial: Trial) -> dict[str, tuple[float, ...]]:
    """Return what was measured after each round, by name; without the accuracy of a regression, which is NaN."""
    names = ("accuracy", "loss", "train_loss", *SCORES_WHERE_KNOWN, "seconds")
    has_accuracy = any(map(isfinite, trial.rounds["accuracy"]))
    measured = [name for name in names if name in trial.rounds and (has_accuracy or name != "accuracy")]
    return {name: trial.rounds[name] for name in measured}


def read_study(folder: Path) -> StoredStudy:
    """Return the contents of a study's folder.

    Raises:
        LogError: If the folder holds no study.
    """
    claim, config = read_claim(folder)
    faults: list[str] = []
    result = report = None
    try:
        result = read_result(folder)
    except LogError as error:
        faults.append(f"{error}.")
    try:
        report = HeterogeneityReport.model_validate(read_json_object(folder / REPORT_FILE))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        faults.append(f"{REPORT_FILE} can't be read ({type(error).__name__}).")
    trials, unread = read_records(folder / "trials", claim["config_hash"])
    faults += [f"{path} can't be used and is left out ({reason})." for path, reason in unread.items()]
    report = report or (None if result is None else result.report)
    if result is None and report is None and not trials:
        raise LogError.of("the folder", "hold a study", f"{folder} without a readable trial or report")
    return StoredStudy(folder, claim, config, result, report, tuple(trials), tuple(faults))


def read_report(path: Path) -> HeterogeneityReport:
    """Read the report that `--report` names: a file of a study, of `fedscout detect --out`, or the output of `--json`.

    Raises:
        DataError: If it is not a report.
    """
    with reading_document(f"--report {path}", DataError, "be a report that `fedscout detect` or `fedscout run` wrote"):
        document = read_json_object(path)
        inner = document.get("report")
        return HeterogeneityReport.model_validate(document if inner is None else inner)


def read_result(folder: Path) -> StudyResult | None:
    """Return a study's result; None if there is none yet.

    Raises:
        LogError: If it can't be read or does not match the schema.
    """
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    with reading_document(path, LogError, "be a study's result"):
        return StudyResult.model_validate(read_json_object(path))


def read_claim(folder: Path) -> tuple[dict[str, Any], StudyConfig]:
    """Return the content of `config.json` and the configuration in it.

    The configuration is without a table of client settings, which may have changed; `config.json` holds its path.

    Raises:
        LogError: If the folder holds no study, or one of another version.
    """
    claim = stored_claim(folder)
    if claim is None:
        raise LogError.of("the folder", "hold a study", f"{folder} without a readable config.json")
    stored_config = {key: value for key, value in claim["config"].items() if key != "client_settings"}
    with reading_document(folder, LogError, "be a study of this version"):
        config = StudyConfig.model_validate(stored_config)
    return {**claim, "config": {**claim["config"], **config.identity()}}, config


def read_earlier_studies(folders: Sequence[str], leave_out: Path | None = None) -> tuple[list[StoredStudy], list[str]]:
    """Read the studies of a warm start, each with a report and trials.

    Args:
        folders: Study folders, or folders that contain studies at any depth.
        leave_out: A folder to skip silently: that of the present study.

    Returns:
        The studies by folder, and a note on each unusable study found under a folder, and on each unusable file.

    Raises:
        ConfigurationError: If a folder holds no study, or is an unusable study; carries every fault.
    """
    studies: dict[Path, StoredStudy] = {}
    notes: list[str] = []
    faults: list[str] = []
    for name in folders:
        folder = Path(name).expanduser()
        paths = [folder] if (folder / "config.json").is_file() else _below(folder)
        if not paths:
            faults.append(Fault("search.warm_start", "name folders of studies", f"{name!r} without a config.json"))
        for path in paths:
            if leave_out is not None and path.resolve() == leave_out.resolve():
                continue
            try:
                study = read_study(path)
            except LogError as error:
                problem = str(error)
            else:
                lacking = [name for name, part in ((REPORT_FILE, study.report), ("trials", study.trials)) if not part]
                problem = " ".join([f"it lacks {' and '.join(lacking)}.", *study.faults]) if lacking else ""
            if problem:
                unusable = Fault(path, problem=f"can't be used for a warm start: {problem}")
                (faults if path == folder else notes).append(unusable)
            else:
                studies.setdefault(path.resolve(), study)
                notes += study.faults
    if faults:
        raise ConfigurationError(faults)
    return sorted(studies.values(), key=lambda study: study.folder), notes


def _below(folder: Path) -> list[Path]:
    return [path.parent for path in sorted(folder.rglob("config.json")) if path.is_file()]


def earlier_study(study: StoredStudy) -> EarlierStudy:
    """Return what a warm start uses of a study with a report."""
    assert study.report is not None, "a warm start compares reports"
    return EarlierStudy(
        name=str(study.folder),
        config_hash=study.claim["config_hash"],
        config=study.claim["config"],
        data_digest=study.claim.get("data_digest"),
        report=study.report,
        gains=gains_of(study.trials, study.config.training.num_rounds),
    )


WARM_START_FILE = "warm_start.json"
SAME_FEDERATION = "same federation: a study does not use its own results"
OTHER_MEASURE = "it optimized another measure"


Compare = Callable[[RecommendationContext], WarmStart]
"""Returns and stores the configurations to try first."""


def read_warm_start(config: StudyConfig, folder: RunFolder, data_digest: str, detection: bool) -> Compare | None:
    """Read the earlier studies of a warm start before any work; None if none is configured.

    Raises:
        ConfigurationError: If a folder holds no usable study, or if there will be no report to compare.
    """
    if not config.search.warm_start:
        return None
    if not detection:
        raise ConfigurationError.of(
            "search.warm_start",
            "be left out if heterogeneity is not measured",
            list(config.search.warm_start),
            "it compares heterogeneity reports, which `fedscout run` measures",
        )
    stored = folder.read_model(WARM_START_FILE, WarmStart)
    if stored is None:
        return _comparer(config, folder, data_digest)

    def compare(context: RecommendationContext) -> WarmStart:
        if stored.fits(context.space):
            return stored
        logger.warning(
            "%s proposes configurations outside this search space and is computed again", folder.path / WARM_START_FILE
        )
        return _comparer(config, folder, data_digest)(context)

    return compare


def _comparer(config: StudyConfig, folder: RunFolder, data_digest: str) -> Compare:
    found, notes = read_earlier_studies(config.search.warm_start, folder.path)
    studies, identity, reasons = [], config.identity(), {}
    for stored in found:
        studies.append(study := earlier_study(stored))
        if study.is_of(config.digest(), identity, data_digest):
            reasons[study.name] = SAME_FEDERATION
        elif _fitness_settings(stored.config) != _fitness_settings(config):
            reasons[study.name] = OTHER_MEASURE
    same_data = {study.name for study in studies if study.is_of_data(identity)}

    def compare(context: RecommendationContext) -> WarmStart:
        unused = [SimilarStudy(study=name, similarity=None, note=note) for name, note in reasons.items()]
        usable_studies = [study for study in studies if study.name not in reasons]
        start = warm_start(usable_studies, context, config.search.generation_size, (BASELINE,))
        if not start.proposals:
            notes.append("no earlier study proposes a configuration, so the search starts without them")
        for note in notes:
            logger.warning("warm start: %s", note)
        used = [similar.model_copy(update={"same_data": similar.study in same_data}) for similar in start.studies]
        start = start.model_copy(update={"studies": (*used, *unused), "notes": tuple(notes)})
        folder.write_json(WARM_START_FILE, start.model_dump(mode="json"))
        return start

    return compare


def _fitness_settings(config: StudyConfig) -> tuple[object, ...]:
    """Return the settings that define the fitness."""
    data, search = config.federation, config.search
    return config.metric_name, search.objective, search.target, data.predicts_quantity, data.dataset in ENVIRONMENTS
