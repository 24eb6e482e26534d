"""The folder of one study: who may use it, and which configuration it belongs to.

OUT/config.json     configuration and its hash; written first
OUT/report.json     the heterogeneity report
OUT/llm.jsonl       what a language model was asked and answered
OUT/one_shot.json   what a one-shot study was recommended, and by whom
OUT/recommendation.json  of `fedscout recommend`
OUT/trials/         the Parquet log
OUT/checkpoints/    of trials that are running
OUT/quarantine/     files of the log that could not be read
OUT/result.json     what the study found; written last
OUT/report.html     the page of it, made from the others
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedscout.engine.errors import EngineError, Fault, LogError, UserError
from fedscout.engine.runtime.atomic_file import (
    check_same_folder,
    folder_identity,
    folder_made,
    json_text,
    not_written,
    remove_file,
    remove_unfinished,
    write_atomically,
)
from fedscout.engine.runtime.folder_lock import LOCK, UNUSABLE, UnwritableFolderError, folder_lock
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.datasets.loaders.dataset_table import is_own_data
from fedscout.experiments.studies.own_code import changed_files, federation_code, strategy_code
from fedscout.experiments.studies.versions import versions

RESULT_FILE = "result.json"
FOLDERS = ("trials", "checkpoints", "quarantine")
LONGEST_NAME = 80

UNSEEN = "the keys that there are, or what an informed search begins with"

logger = logging.getLogger("fedscout")


class RunFolder:
    """One study's folder, open and locked; or one that can only be read.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path, unwritable: UnwritableFolderError | None = None) -> None:
        self.path = path
        self._unwritable = unwritable
        self._identity = folder_identity(path)

    @property
    def is_writable(self) -> bool:
        """Whether anything can be added to it."""
        return self._unwritable is None

    def check_writable(self) -> None:
        """Refuse to go on in a folder that can only be read.

        Raises:
            LogError: With the reason.
        """
        if self._unwritable is not None:
            raise self._unwritable

    @property
    def checkpoints(self) -> Path:
        """Where running trials leave their checkpoints."""
        return self.path / "checkpoints"

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write one of the folder's JSON files, all at once.

        Raises:
            EngineError: If it can't be written, as when the disk is full, or the folder was moved away.
        """
        check_same_folder(self.path, self._identity)
        path = self.path / name
        try:
            write_atomically(path, lambda temporary: temporary.write_text(json_text(content)))
        except OSError as error:
            raise EngineError(not_written(path, error)) from error
        return path

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of one of the folder's JSON files; None if it is missing, or damaged: then say so."""
        path = self.path / name
        try:
            return read_json_object(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("%s can't be read and is taken for missing (%s)", path, error)
            return None


def default_folder(config: StudyConfig) -> Path:
    """Return the folder of a study that was given none, directly below `runs`: the same for the same configuration."""
    name = re.sub(r"[^\w.-]+", "-", config.federation.dataset).strip("-.")[-LONGEST_NAME:] or "data"
    return Path("runs") / f"{name}-{config.digest()[:8]}"


@contextmanager
def open_run_folder(
    path: Path, config: StudyConfig, data: str | None = None, reading_suffices: bool = False
) -> Iterator[RunFolder]:
    """Open a new folder, or one that holds the same configuration's study, for this process alone.

    A block that ends with a mistake of the user's, before anything was found out, leaves nothing behind.

    Args:
        path: The folder; made if missing.
        config: Of the study.
        data: Digest of the data; None where they are not read yet.
        reading_suffices: Whether a study in a folder that can't be written is opened all the same.

    Raises:
        LogError: If the folder can't be written, is in use, or holds something else: another configuration's study,
            one of other data, or no study.
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
    """Refuse a folder that holds something, but no study."""
    if not path.is_dir():
        return
    for name in FOLDERS:
        if (path / name).exists() and not (path / name).is_dir() and (path / "config.json").exists():
            raise LogError(Fault(path / name, "be a folder of the study, or not be there, and is a file"))
    if stored_claim(path) is not None or _log_is_of(path, config):
        return
    foreign = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if foreign:
        raise LogError(
            Fault(
                "--out",
                "be a new folder, an empty one or that of an earlier run",
                f"{path} with {', '.join(foreign[:5])} but no readable config.json",
            )
        )


def stored_claim(path: Path) -> dict[str, Any] | None:
    """Return what `config.json` says; None if it is not there or damaged."""
    try:
        claim = read_json_object(path / "config.json")
    except (OSError, ValueError):
        return None
    claim = {"config": {}, **claim}
    groups = (claim.get(name, {}) for name in ("config", "versions", "code"))
    is_claim = isinstance(claim.get("config_hash"), str) and all(isinstance(group, dict) for group in groups)
    return claim if is_claim else None


def _log_is_of(path: Path, config: StudyConfig) -> bool:
    """Whether a log is there, and all trials of it that can be read are of this configuration."""
    from fedscout.engine.trials.trial_log import read_columns

    rows, _ = read_columns(path / "trials", ["trial", "config_hash"])
    return {row["config_hash"] for row in rows} == {config.digest()}


def remove_if_unused(path: Path, claim: str) -> None:
    """Remove from a folder what opening it left there, its claim and its lock, unless it holds more."""
    if {entry.name for entry in path.iterdir()} <= {LOCK, claim}:
        remove_file(path / claim)
        (path / LOCK).unlink(missing_ok=True)


def _claim(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    stored = stored_claim(folder.path)
    if stored is None:
        if (folder.path / "trials").exists():
            logger.warning("%s can't be read; its log is of this study, and goes on", folder.path / "config.json")
        try:
            bind(folder, config, data)
        except EngineError as error:
            raise LogError(UNUSABLE.format(path=folder.path, reason=error)) from error
        return
    if stored.get("config_hash") != config.digest():
        before, now = stored.get("config", {}), config.identity()
        if not _rests_on_no_search(folder, differences(before, now)):
            changes = differences(before, now, type(config)().model_dump(mode="json"))
            raise LogError(
                f"{folder.path} holds the study of another configuration and can't be continued with this one; "
                f"what differs: {'; '.join(changes[:6]) or UNSEEN}. Choose another --out"
            )
        if folder.is_writable:
            claim = {**stored, "config_hash": config.digest(), "config": config.identity()}
            folder.write_json("config.json", claim)
    bind(folder, config, data)
    changes = differences(stored.get("versions", {}), versions())
    if changes:
        logger.warning("%s was begun with other versions: %s", folder.path, "; ".join(changes))


def _rests_on_no_search(folder: RunFolder, changes: Sequence[str]) -> bool:
    """Whether what differs is how a search begins, of which a folder without trials, such as a report's, holds none."""
    return (
        bool(changes)
        and all(change.startswith("search.informed: ") for change in changes)
        and (not any((folder.path / "trials").glob("*")))
    )


def bind(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    """Bind the folder to the data and to the user's own code that its study rests on, as far as they are known.

    Raises:
        LogError: If it is bound to others, which reports and trials of the folder rest on.
    """
    there = stored_claim(folder.path)
    stored = there or {"config_hash": config.digest(), "config": config.identity(), "versions": versions()}
    if data is not None and stored.get("data_digest") not in (None, data):
        raise LogError(
            f"{folder.path} holds a study of other data and can't be continued: the rows of data set "
            f"{config.federation.dataset!r} have changed since. Choose another --out"
        )
    before, code = stored.get("code", {}), federation_code(config)
    for name, files in changed_files(before, code).items():
        raise LogError(
            f"{folder.path} holds a study of other code and can't be continued: {', '.join(files)} of {name} "
            "changed since. Choose another --out"
        )
    strategies = strategy_code(config)
    for name, files in changed_files(before, strategies).items():
        folder.check_writable()
        remove_file(folder.path / "result.json")  # it rests on trials that are run again
        logger.warning("%s of %s changed since; what was tried with it is run again", ", ".join(files), name)
    bound = {**stored, **({} if data is None else {"data_digest": data})}
    if code or strategies:
        bound["code"] = {**before, **code, **strategies}
    if bound != there and folder.is_writable:
        folder.write_json("config.json", bound)


def has_changed_since(path: Path, config: StudyConfig, data: Callable[[], str | None]) -> bool:
    """Whether the user's own code, or data, are not what a folder's study rests on; what is not known has not changed.

    Args:
        path: The folder.
        config: Of the study.
        data: Returns the digest of one's own data as they are now; None if they can't be read.
    """
    claim = stored_claim(path) or {}
    if changed_files(claim.get("code", {}), {**federation_code(config), **strategy_code(config)}):
        return True
    known, name = claim.get("data_digest"), config.federation.dataset
    is_file = is_own_data(name) and not name.startswith("hf:")  # what is published elsewhere nobody edits
    return known is not None and is_file and data() not in (None, known)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, prefix: str = ""
) -> list[str]:
    """Return `key: old there, new here` for every value that differs; for one that is not said stands its default."""
    found, defaults = [], defaults or {}
    for key in sorted({*old, *new}):
        left, right, default = old.get(key), new.get(key), defaults.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differences(left, right, default if isinstance(default, Mapping) else None, f"{prefix}{key}.")
        elif left != right:
            if default not in (left, right):  # where it is one of them, the other says something else by its absence
                left, right = (default if side is None else side for side in (left, right))
            found.append(f"{prefix}{key}: {left!r} there, {right!r} here")
    return found
