"""The folder of a study: lock, stored configuration, versions, warm start and result.

    OUT/config.json          configuration and its hash, versions, digests of data and user code; written first
    OUT/report.json          the heterogeneity report
    OUT/llm.jsonl            requests to a language model and its replies
    OUT/one_shot.json        the recommendation of a one-shot study and its source
    OUT/recommendation.json  the output of `fedscout recommend`
    OUT/warm_start.json      the warm start; computed once and reused when the study resumes
    OUT/trials/              the Parquet log
    OUT/checkpoints/         of running trials
    OUT/quarantine/          unreadable files of the log
    OUT/result.json          the result of the study; written last
    OUT/report.html          a page generated from the other files

Everything in `result.json` except `timings` depends on the configuration alone, not on the number of hosts, the grid or
interruptions. The warm start is stored because the earlier studies may change or disappear before the study resumes.
Digests of the user's own code and data detect changes to what the configuration only names.

Anyone with write access may edit these files or leave a partial copy, so configurations, results and reports are
validated when read, and a mismatch is reported in one line.
"""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError, EngineError, LogError, UserError
from fedscout.engine.metrics import ACCURACY
from fedscout.engine.runtime.files import (
    LOCK,
    UNUSABLE,
    UnwritableFolderError,
    check_same_folder,
    folder_identity,
    folder_lock,
    folder_made,
    json_text,
    not_written,
    read_json_object,
    remove_file,
    remove_unfinished,
    write_atomically,
)
from fedscout.engine.text import details, fault_of
from fedscout.engine.user_code import code_digests
from fedscout.experiments.config import StudyConfig, fault_text
from fedscout.experiments.data.dataset import QUANTITIES
from fedscout.experiments.data.loaders.table import is_own_data
from fedscout.experiments.description import RealizedHeterogeneity
from fedscout.experiments.models.request import is_import_path
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.search.ledger import BASELINE
from fedscout.search.recommenders.diagnosis import ModelUse, Reason
from fedscout.search.study import StudyOutcome
from fedscout.search.warm_start import SimilarStudy, WarmStart, read_earlier_studies, warm_start
from fedscout.strategies import SearchSpace

Code = Mapping[str, Mapping[str, str]]
"""The SHA-256 of each file, by the name that refers to the code."""


def federation_code(config: StudyConfig) -> Code:
    """Return the digests of the user's model and embedding code, on which the report and all trials depend."""
    configured = {"model.kind": config.model.kind, "federation.embedding": config.federation.embedding}
    paths = {f"{key}={path}": path for key, path in configured.items() if is_import_path(path)}
    return {name: digests for name, path in paths.items() if (digests := code_digests(path))}


def strategy_code(config: StudyConfig) -> Code:
    """Return the digests of the user's own strategies, on which only their own trials depend."""
    paths = [custom.get("path") for custom in (*config.search.customs, config.strategy or {})]
    own_paths = [path for path in paths if isinstance(path, str)]
    return {f"strategy {path}": digests for path in own_paths if (digests := code_digests(path))}


def changed_files(before: Code, now: Code) -> dict[str, list[str]]:
    """Return the files that differ, for each code in both `before` and `now`."""
    both = {name: (before[name], now[name]) for name in before.keys() & now.keys()}
    changed = {
        name: sorted(file for file in {*old, *new} if old.get(file) != new.get(file))
        for name, (old, new) in both.items()
    }
    return {name: files for name, files in changed.items() if files}


DISTRIBUTIONS = ("fedscout", "flwr", "ray", "torch", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect a result."""
    return {"python": platform.python_version(), **{name: version(name) for name in DISTRIBUTIONS}}


RESULT_FILE = "result.json"
FOLDERS = ("trials", "checkpoints", "quarantine")
LONGEST_NAME = 80

UNSEEN = "the set of keys, or the start of the informed search"

logger = logging.getLogger("fedscout")


class RunFolder:
    """The locked folder of a study, or one that is read-only.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path, unwritable: UnwritableFolderError | None = None) -> None:
        self.path = path
        self._unwritable = unwritable
        self._identity = folder_identity(path)

    @property
    def is_writable(self) -> bool:
        """Whether files can be added to the folder."""
        return self._unwritable is None

    def check_writable(self) -> None:
        """Check that the folder is writable.

        Raises:
            LogError: With the reason why it is not.
        """
        if self._unwritable is not None:
            raise self._unwritable

    @property
    def checkpoints(self) -> Path:
        """The folder of the running trials' checkpoints."""
        return self.path / "checkpoints"

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write one of the folder's JSON files atomically.

        Raises:
            EngineError: If writing fails, for example on a full disk, or if the folder was moved.
        """
        check_same_folder(self.path, self._identity)
        path = self.path / name
        try:
            write_atomically(path, lambda temporary: temporary.write_text(json_text(content)))
        except OSError as error:
            raise EngineError(not_written(path, error)) from error
        return path

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of one of the folder's JSON files; None if missing or, with a warning, unreadable."""
        path = self.path / name
        try:
            return read_json_object(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("%s can't be read and is treated as missing (%s)", path, error)
            return None


def default_folder(config: StudyConfig) -> Path:
    """Return the default folder of a study, directly below `runs` and determined by the configuration."""
    name = re.sub(r"[^\w.-]+", "-", config.federation.dataset).strip("-.")[-LONGEST_NAME:] or "data"
    return Path("runs") / f"{name}-{config.digest()[:8]}"


@contextmanager
def open_run_folder(
    path: Path, config: StudyConfig, data: str | None = None, reading_suffices: bool = False
) -> Iterator[RunFolder]:
    """Open a new folder, or that of a study with the same configuration, locked by this process.

    If the block raises a `UserError` and the folder is otherwise unused, nothing is left behind.

    Args:
        path: The folder; created if missing.
        config: The study's configuration.
        data: Digest of the data; None if they have not been read yet.
        reading_suffices: Whether to open the folder of an existing study even if it is read-only.

    Raises:
        LogError: If the folder is not writable, is in use, or holds anything else: a study of another configuration or
            of other data, or no study.
    """
    path = path.absolute()
    with ExitStack() as stack:
        try:
            _refuse_foreign(path, config)
            stack.enter_context(folder_made(path))
        except OSError as error:
            raise LogError(UNUSABLE.format(path=path, reason=error.strerror)) from error
        try:
            stack.enter_context(folder_lock(path))
            folder = RunFolder(path)
        except UnwritableFolderError as error:
            if not reading_suffices or stored_claim(path) is None:
                raise
            folder = RunFolder(path, error)
        for name in ("", *FOLDERS):
            remove_unfinished(path / name)
        is_new = not (path / "config.json").exists()
        try:
            _claim(folder, config, data)
            yield folder
        except UserError:
            if is_new:
                remove_if_unused(path, "config.json")
            raise


def _refuse_foreign(path: Path, config: StudyConfig) -> None:
    """Refuse a non-empty folder that holds no study."""
    if not path.is_dir():
        return
    for name in FOLDERS:
        if (path / name).exists() and not (path / name).is_dir() and (path / "config.json").exists():
            raise LogError.of(path / name, "be a folder of the study or be absent, but is a file")
    if stored_claim(path) is not None or _log_matches(path, config):
        return
    foreign = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if foreign:
        raise LogError.of(
            "--out",
            "be a new or empty folder, or that of an earlier run",
            f"{path} with {', '.join(foreign[:5])} but no readable config.json",
        )


def stored_claim(path: Path) -> dict[str, Any] | None:
    """Return the content of `config.json`; None if it is missing or damaged."""
    try:
        claim = read_json_object(path / "config.json")
    except (OSError, ValueError):
        return None
    claim = {"config": {}, **claim}
    groups = (claim.get(name, {}) for name in ("config", "versions", "code"))
    is_claim = isinstance(claim.get("config_hash"), str) and all(isinstance(group, dict) for group in groups)
    return claim if is_claim else None


def _log_matches(path: Path, config: StudyConfig) -> bool:
    """Whether there is a log whose readable trials all have this configuration."""
    from fedscout.engine.trials.log import read_columns

    rows, _ = read_columns(path / "trials", ["trial", "config_hash"])
    return {row["config_hash"] for row in rows} == {config.digest()}


def remove_if_unused(path: Path, claim: str) -> None:
    """Remove the claim and the lock that opening created, unless the folder holds other files."""
    if {entry.name for entry in path.iterdir()} <= {LOCK, claim}:
        remove_file(path / claim)
        (path / LOCK).unlink(missing_ok=True)


def _can_not_go_on(folder: RunFolder, problem: str) -> LogError:
    return LogError.of(folder.path, problem=problem, hint="choose another --out")


def _claim(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    stored = stored_claim(folder.path)
    if stored is None:
        if (folder.path / "trials").exists():
            logger.warning("%s can't be read; its log is of this study, which continues", folder.path / "config.json")
        try:
            bind(folder, config, data)
        except EngineError as error:
            raise LogError(UNUSABLE.format(path=folder.path, reason=error)) from error
        return
    if stored.get("config_hash") != config.digest():
        before, now = stored.get("config", {}), config.identity()
        if not _differs_only_in_search_start(folder, differences(before, now)):
            changes = differences(before, now, type(config)().model_dump(mode="json"))
            different = f"what differs: {'; '.join(changes[:6]) or UNSEEN}"
            problem = f"holds a study with another configuration and can't be continued with this one; {different}"
            raise _can_not_go_on(folder, problem)
        if folder.is_writable:
            claim = {**stored, "config_hash": config.digest(), "config": config.identity()}
            folder.write_json("config.json", claim)
    bind(folder, config, data)
    changes = differences(stored.get("versions", {}), versions())
    if changes:
        logger.warning("%s was started with other versions: %s", folder.path, "; ".join(changes))


def _differs_only_in_search_start(folder: RunFolder, changes: Sequence[str]) -> bool:
    """Whether only `search.informed` differs and the folder has no trials, such as that of a report."""
    is_start = bool(changes) and all(change.startswith("search.informed: ") for change in changes)
    return is_start and not any((folder.path / "trials").glob("*"))


def bind(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    """Store the digests of the data and of the user's code on which the study depends, as far as they are known.

    Raises:
        LogError: If the folder's reports and trials depend on other data or code.
    """
    existing = stored_claim(folder.path)
    stored = existing or {"config_hash": config.digest(), "config": config.identity(), "versions": versions()}
    if data is not None and stored.get("data_digest") not in (None, data):
        rows = f"the rows of data set {config.federation.dataset!r} have changed since"
        raise _can_not_go_on(folder, f"holds a study on other data and can't be continued: {rows}")
    before, code = stored.get("code", {}), federation_code(config)
    for name, files in changed_files(before, code).items():
        changed = f"{', '.join(files)} of {name}"
        raise _can_not_go_on(folder, f"holds a study with other code and can't be continued; changed: {changed}")
    strategies = strategy_code(config)
    for name, files in changed_files(before, strategies).items():
        folder.check_writable()
        remove_file(folder.path / "result.json")  # it rests on trials that are run again
        logger.warning("%s of %s has changed since; its trials are run again", ", ".join(files), name)
    bound = {**stored, **({} if data is None else {"data_digest": data})}
    if code or strategies:
        bound["code"] = {**before, **code, **strategies}
    if bound != existing and folder.is_writable:
        folder.write_json("config.json", bound)


def has_changed_since(path: Path, config: StudyConfig, data: Callable[[], str | None]) -> bool:
    """Whether the user's code or data differ from those of the stored study; unknown ones count as unchanged.

    Args:
        path: The folder.
        config: The study's configuration.
        data: Returns the current digest of the user's own data; None if they can't be read.
    """
    claim = stored_claim(path) or {}
    if changed_files(claim.get("code", {}), {**federation_code(config), **strategy_code(config)}):
        return True
    stored_digest, dataset = claim.get("data_digest"), config.federation.dataset
    is_file = is_own_data(dataset) and not dataset.startswith("hf:")  # what is published elsewhere nobody edits
    return stored_digest is not None and is_file and data() not in (None, stored_digest)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, prefix: str = ""
) -> list[str]:
    """Return `key: old before, new now` for each differing value; the default replaces a missing value."""
    changes, defaults = [], defaults or {}
    for key in sorted({*old, *new}):
        left, right, default = old.get(key), new.get(key), defaults.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            changes += differences(left, right, default if isinstance(default, Mapping) else None, f"{prefix}{key}.")
        elif left != right:
            if default not in (left, right):  # where it is one of them, the other says something else by its absence
                left, right = (default if side is None else side for side in (left, right))
            changes.append(f"{prefix}{key}: {left!r} before, {right!r} now")
    return changes


NAME = "warm_start.json"
SAME_FEDERATION = "same federation: a study does not use its own results"
OF_THE_SEARCH = ("objective", "target")
"""Settings of a search that define the fitness."""

OTHER_MEASURE = "it optimized another measure"


Compare = Callable[[HeterogeneityReport, SearchSpace], WarmStart]
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
    stored = None
    if (document := folder.read_json(NAME)) is not None:
        try:
            stored = WarmStart.model_validate(document)
        except ValidationError:
            logger.warning("%s does not fit this version and is computed again", folder.path / NAME)
    if stored is None:
        return _comparer(config, folder, data_digest)

    def compare(report: HeterogeneityReport, space: SearchSpace) -> WarmStart:
        if stored.fits(space):
            return stored
        logger.warning("%s proposes configurations outside this search space and is computed again", folder.path / NAME)
        return _comparer(config, folder, data_digest)(report, space)

    return compare


def _comparer(config: StudyConfig, folder: RunFolder, data_digest: str) -> Compare:
    studies, notes = read_earlier_studies(config.search.warm_start, folder.path)
    identity, reasons = config.identity(), {}
    for study in studies:
        if study.is_of(config.digest(), identity, data_digest):
            reasons[study.name] = SAME_FEDERATION
        elif _fitness_settings(study.config) != _fitness_settings(identity):
            reasons[study.name] = OTHER_MEASURE
    same_data = {study.name for study in studies if study.is_of_data(identity)}

    def compare(report: HeterogeneityReport, space: SearchSpace) -> WarmStart:
        unused = [SimilarStudy(study=name, distance=None, note=note) for name, note in reasons.items()]
        start = warm_start(
            [study for study in studies if study.name not in reasons],
            report.model_dump(mode="json"),
            config.training.model_dump(mode="json"),
            space,
            config.search.generation_size,
            (BASELINE,),
        )
        if not start.proposals:
            notes.append("no earlier study proposes a configuration, so the search starts without them")
        for note in notes:
            logger.warning("warm start: %s", note)
        used = [similar.model_copy(update={"same_data": similar.study in same_data}) for similar in start.studies]
        start = start.model_copy(update={"studies": (*used, *unused), "notes": tuple(notes)})
        folder.write_json(NAME, start.model_dump(mode="json"))
        return start

    return compare


def _fitness_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that define the fitness, without those at their defaults."""
    federation, search = config.get("federation", {}), config.get("search", {})
    settings = {"metric": config.get("training", {}).get("metric"), **{key: search.get(key) for key in OF_THE_SEARCH}}
    data = federation.get("dataset")
    settings["task"] = "regression" if data in QUANTITIES else federation.get("task")
    settings["task"] = "reinforcement" if data in ENVIRONMENTS else settings["task"]
    default = {"metric": ACCURACY, "objective": "accuracy", "task": "classification"}
    return {key: value for key, value in settings.items() if value is not None and value != default.get(key)}


def federation_facts(federation: Federation) -> dict[str, Any]:
    """Return the recorded facts of a built federation."""
    return {
        "name": federation.name,
        "num_clients": federation.num_clients,
        "num_classes": federation.num_classes,
        "client_rows": federation.partition.sizes.tolist(),
        **({"unseen_clients": sorted(federation.unseen)} if federation.unseen else {}),
        "class_names": list(federation.class_names),
        **federation.facts,
    }


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
    tuned = outcome.tuned[0].trials[0] if outcome.tuned else None
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
        "federation": federation_facts(federation),
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
        **({"tuning": [rate.document() for rate in outcome.tuned]} if outcome.tuned else {}),
        "confirmation": None if confirmation is None else confirmation.model_dump(mode="json"),
        "timings": dict(timings),
    }


def read_report(path: Path) -> HeterogeneityReport:
    """Read the report that `--report` names: a file of a study, of `fedscout detect --out`, or the output of `--json`.

    Raises:
        DataError: If it is not a report.
    """
    requirement = "be a report that `fedscout detect` or `fedscout run` wrote"
    try:
        document = read_json_object(path)
        inner = document.get("report")
        return HeterogeneityReport.model_validate(document if inner is None else inner)
    except ValidationError as error:
        raise DataError.of("--report", requirement, f"{path}: {_fault(error)}") from error
    except FileNotFoundError as error:
        raise DataError.of("--report", requirement, f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise DataError.of("--report", requirement, f"{path}: {' '.join(str(error).split())}") from error


def _fault(error: ValidationError) -> str:
    detail = details(error)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key} is not a known key; the report may be of another version"
    return " ".join(f"{fault_of(key, detail)}".split())


class _StoredPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class StoredFacts(_StoredPart):
    """The fields of the federation's facts that are read."""

    name: str = ""
    model: str = ""
    source: str = ""
    client_rows: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    client_names: tuple[str | int | float | bool, ...] = ()


class StoredTrial(_StoredPart):
    """The fields of a trial's summary, or a candidate of a confirmation, that are read."""

    strategy: str
    parameters: Mapping[str, Any]
    learning_rate: float
    role: str = ""


class StoredConfirmation(_StoredPart):
    """The fields of a confirmation that are read, except by the HTML report, which reads all of them."""

    contestants: tuple[StoredTrial, ...] = Field(min_length=1)
    reference: str
    verdict: str


class StoredRecommendation(_StoredPart):
    """The fields of a one-shot study's recommendation that are read."""

    name: str
    language_model: ModelUse | None
    reasons: tuple[Reason, ...] = Field(min_length=1)
    instead_of_model: str | None


class StoredResult(_StoredPart):
    """The fields of `result.json` that are read."""

    federation: StoredFacts = StoredFacts()
    dependence: tuple[str, ...] = ()
    affected_clients: tuple[int, ...] = ()
    best: StoredTrial | None = None
    confirmation: StoredConfirmation | None = None
    recommendation: StoredRecommendation | None = None


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the document of a study's result; None if there is none yet.

    Raises:
        LogError: If it can't be read or does not match the schema.
    """
    path = folder / RESULT_FILE
    try:
        document = read_json_object(path)
        StoredResult.model_validate(document)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise LogError.of(path, f"be a study's result, but {fault_text(details(error)[0])}") from error
    except (OSError, ValueError) as error:
        raise LogError.of(path, f"be a study's result, but can't be read: {error}") from error
    return document


def read_claim(folder: Path) -> tuple[dict[str, Any], StudyConfig]:
    """Return the content of `config.json` and the configuration in it.

    A table of client settings is stored only as a digest, so it is omitted from the configuration.

    Raises:
        LogError: If the folder holds no study, or one of another version.
    """
    claim = stored_claim(folder)
    if claim is None:
        raise LogError.of("the folder", "hold a study", f"{folder} without a readable config.json")
    stored_config = {key: value for key, value in claim["config"].items() if key != "client_settings"}
    try:
        config = StudyConfig.model_validate(stored_config)
    except ValidationError as error:
        raise LogError.of(folder, f"be a study of this version, but its {fault_text(details(error)[0])}") from error
    return {**claim, "config": {**claim["config"], **config.identity()}}, config
