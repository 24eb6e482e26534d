"""The folder of a study: lock, stored configuration, and versions.

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
interruptions. Digests of the user's own code and data detect changes to what the configuration only names.
"""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from fedscout.engine.errors import EngineError, LogError, UserError
from fedscout.engine.runtime import files
from fedscout.engine.text import reading_document
from fedscout.engine.trials.log import read_columns
from fedscout.engine.user_code import code_digests
from fedscout.experiments.config import StudyConfig, flattened
from fedscout.experiments.data.loaders.table import is_own_data
from fedscout.experiments.models.request import is_import_path

Code = Mapping[str, Mapping[str, str]]
"""The SHA-256 of each file, by the name that refers to the code."""


def federation_code(config: StudyConfig) -> Code:
    """Return the digests of the user's model and embedding code, on which the report and all trials depend."""
    configured = {"model.kind": config.model.kind, "federation.embedding": config.federation.embedding}
    paths = {f"{key}={path}": path for key, path in configured.items() if is_import_path(path)}
    return {name: digests for name, path in paths.items() if (digests := code_digests(path))}


def strategy_code(config: StudyConfig) -> Code:
    """Return the digests of the user's own strategies and selection policy, on which only their own trials depend."""
    documents = (*config.search.customs, config.strategy or {}, config.selection or {})
    paths = [document.get("path") for document in documents]
    own_paths = [path for path in paths if isinstance(path, str)]
    return {f"strategy {path}": digests for path in own_paths if (digests := code_digests(path))}


def changed_files(before: Code, now: Code) -> dict[str, list[str]]:
    """Return the files that differ, for each code in both `before` and `now`."""
    both = {name: (before[name], now[name]) for name in before.keys() & now.keys()}
    changed = {
        name: sorted(file for file in {*old, *new} if old.get(file) != new.get(file))
        for name, (old, new) in both.items()
    }
    return {name: paths for name, paths in changed.items() if paths}


DISTRIBUTIONS = ("fedscout", "flwr", "ray", "torch", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect a result."""
    return {"python": platform.python_version(), **{name: version(name) for name in DISTRIBUTIONS}}


RESULT_FILE = "result.json"
STUDIES = "studies"
"""Folder of the studies inside that of a grid."""
FOLDERS = ("trials", "checkpoints", "quarantine")
LONGEST_NAME = 80

UNSEEN = "the set of keys, or the start of the informed search"

logger = logging.getLogger("fedscout")


Model = TypeVar("Model", bound=BaseModel)


class GridFolder:
    """A folder of studies or cells, or of one study, as an absolute path, with atomic writes of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files atomically."""
        self.write_text(name, files.json_text(content))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the folder atomically."""
        self.write(name, lambda temporary: temporary.write_text(text))

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file of the folder atomically; `write` writes the content to the path that it receives.

        Raises:
            EngineError: If writing fails, for example on a full disk.
        """
        path = self.path / name
        try:
            files.write_atomically(path, write)
        except OSError as error:
            raise EngineError(files.not_written(path, error)) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it is missing or can't be read."""
    try:
        return files.read_json_object(path)
    except (OSError, ValueError):
        return None


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Report a failure of the file system as a folder that can't be used."""
    try:
        yield
    except (OSError, EngineError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LogError(files.UNUSABLE.format(path=path, reason=reason)) from error


@contextmanager
def locked_folder(path: Path) -> Iterator[GridFolder]:
    """Yield a folder, created if missing, that this process alone uses.

    Raises:
        LogError: If it is not writable or is in use.
    """
    path = path.absolute()
    with ExitStack() as stack:
        with usable(path):
            stack.enter_context(files.folder_made(path))
        stack.enter_context(files.folder_lock(path))
        files.remove_unfinished(path)
        yield GridFolder(path)


@contextmanager
def claimed_folder(path: Path, claim: str) -> Iterator[GridFolder]:
    """Yield a locked folder, whose file `claim` the block writes first.

    If the block raises a `UserError` and the folder was and is otherwise unused, nothing is left behind.

    Raises:
        LogError: If it is not writable or is in use.
    """
    with locked_folder(path) as folder:
        is_new = not (path / claim).exists()
        try:
            yield folder
        except UserError:
            if is_new and {entry.name for entry in path.iterdir()} <= {files.LOCK, claim}:
                files.remove_file(path / claim)
                (path / files.LOCK).unlink(missing_ok=True)
            raise


def refuse_others(path: Path, own: Collection[str] = (), remark: str = "") -> None:
    """Check that a folder holds nothing, or is missing, besides hidden files and files of these names.

    Raises:
        LogError: If it holds anything else, or can't be read.
    """
    with usable(path):
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    others = sorted(name for name in names - {*own} if not name.startswith("."))
    if others:
        must = "be a new or empty folder, or that of an earlier run"
        raise LogError.of("--out", must, f"{path} with {', '.join(others[:5])}{remark}")


def measurement_folder(out: Path, own: Collection[str]) -> AbstractContextManager[GridFolder]:
    """Return a context manager that yields the locked folder of a measurement, new or of an earlier run.

    Args:
        out: The folder.
        own: Names of the files that a measurement leaves there besides its trials.

    Raises:
        LogError: If it holds anything else, is not writable or is in use.
    """
    refuse_others(out.absolute(), [STUDIES, *own])
    return locked_folder(out)


class RunFolder(GridFolder):
    """The locked folder of a study."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._identity = files.folder_identity(path)

    @property
    def checkpoints(self) -> Path:
        """The folder of the running trials' checkpoints."""
        return self.path / "checkpoints"

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file of the folder atomically.

        Raises:
            EngineError: If writing fails, for example on a full disk, or if the folder was moved.
        """
        files.check_same_folder(self.path, self._identity)
        super().write(name, write)

    def read_model(self, name: str, kind: type[Model]) -> Model | None:
        """Return one of the folder's JSON files as a model; None if missing or, with a warning, unusable."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            with reading_document(path, LogError, "be a file of this version"):
                return kind.model_validate(files.read_json_object(path))
        except LogError as error:
            logger.warning("%s, so it is made again", error)
            return None


def default_folder(config: StudyConfig) -> Path:
    """Return the default folder of a study, directly below `runs` and determined by the configuration."""
    name = re.sub(r"[^\w.-]+", "-", config.federation.dataset).strip("-.")[-LONGEST_NAME:] or "data"
    return Path("runs") / f"{name}-{config.digest()[:8]}"


@contextmanager
def open_run_folder(path: Path, config: StudyConfig, data: str | None = None) -> Iterator[RunFolder]:
    """Open a new folder, or that of a study with the same configuration, locked by this process.

    If the block raises a `UserError` and the folder is otherwise unused, nothing is left behind.

    Args:
        path: The folder; created if missing.
        config: The study's configuration.
        data: Digest of the data; None if they have not been read yet.

    Raises:
        LogError: If the folder is not writable, is in use, or holds anything else: a study of another configuration or
            of other data, or no study.
    """
    path = path.absolute()
    with usable(path):
        _refuse_foreign(path, config)
    with claimed_folder(path, "config.json"):
        folder = RunFolder(path)
        for name in FOLDERS:
            files.remove_unfinished(path / name)
        _claim(folder, config, data)
        yield folder


def _refuse_foreign(path: Path, config: StudyConfig) -> None:
    """Refuse a non-empty folder that holds no study."""
    if not path.is_dir():
        return
    for name in FOLDERS:
        if (path / name).exists() and not (path / name).is_dir() and (path / "config.json").exists():
            raise LogError.of(path / name, "be a folder of the study or be absent, but is a file")
    if stored_claim(path) is not None or _log_matches(path, config):
        return
    refuse_others(path, remark=" but no readable config.json")


def stored_claim(path: Path) -> dict[str, Any] | None:
    """Return the content of `config.json`; None if it is missing or damaged."""
    claim = {"config": {}, **(read_json(path / "config.json") or {})}
    groups = (claim.get(name, {}) for name in ("config", "versions", "code"))
    is_claim = isinstance(claim.get("config_hash"), str) and all(isinstance(group, dict) for group in groups)
    return claim if is_claim else None


def _log_matches(path: Path, config: StudyConfig) -> bool:
    """Whether there is a log whose readable trials all have this configuration."""
    rows, _ = read_columns(path / "trials", ["trial", "config_hash"])
    return {row["config_hash"] for row in rows} == {config.digest()}


def _can_not_go_on(folder: RunFolder, problem: str) -> LogError:
    return LogError.of(folder.path, problem=problem, hint="choose another --out")


def _claim(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    stored = stored_claim(folder.path)
    if stored is None:
        if (folder.path / "trials").exists():
            logger.warning("%s can't be read; its log is of this study, which continues", folder.path / "config.json")
        with usable(folder.path):
            bind(folder, config, data)
        return
    if stored.get("config_hash") != config.digest():
        defaults = type(config)().model_dump(mode="json")
        changes = differences(stored.get("config", {}), config.identity(), defaults)
        different = f"what differs: {'; '.join(changes[:6]) or UNSEEN}"
        problem = f"holds a study with another configuration and can't be continued with this one; {different}"
        raise _can_not_go_on(folder, problem)
    bind(folder, config, data)
    changes = differences(stored.get("versions", {}), versions())
    if changes:
        logger.warning("%s was started with other versions: %s", folder.path, "; ".join(changes))


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
    for name, paths in changed_files(before, code).items():
        changed = f"{', '.join(paths)} of {name}"
        raise _can_not_go_on(folder, f"holds a study with other code and can't be continued; changed: {changed}")
    strategies = strategy_code(config)
    for name, paths in changed_files(before, strategies).items():
        files.remove_file(folder.path / "result.json")  # it rests on trials that are run again
        logger.warning("%s of %s has changed since; its trials are run again", ", ".join(paths), name)
    bound = {**stored, **({} if data is None else {"data_digest": data})}
    if (table := config.client_settings).path is not None:
        place = str(Path(table.path).absolute())
        bound["client_settings"] = table.model_copy(update={"path": place}).model_dump(mode="json")
    if code or strategies:
        bound["code"] = {**before, **code, **strategies}
    if bound != existing:
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
    is_file = is_own_data(dataset) and not dataset.startswith("hf:")  # published data are not edited
    return stored_digest is not None and is_file and data() not in (None, stored_digest)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> list[str]:
    """Return `key: old before, new now` for each differing value; the default replaces a missing value."""
    before, now, usual = (flattened(each or {}) for each in (old, new, defaults))
    changes = []
    for key in sorted({*before, *now}):
        left, right, default = before.get(key), now.get(key), usual.get(key)
        if left != right:
            if default not in (left, right):  # where it is one of them, the other says something else by its absence
                left, right = (default if side is None else side for side in (left, right))
            changes.append(f"{key}: {left!r} before, {right!r} now")
    return changes
