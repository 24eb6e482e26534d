"""The folder of one study: who may use it, and which configuration it belongs to.

OUT/config.json     configuration and its hash; written first
OUT/report.json     the heterogeneity report
OUT/trials/         the Parquet log
OUT/checkpoints/    of trials that are running
OUT/quarantine/     files of the log that could not be read
OUT/result.json     what the study found; written last
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.atomic_file import write_atomically
from engine.errors import LogError, UserError
from experiments.config import StudyConfig
from experiments.versions import versions

LOCK = ".lock"

logger = logging.getLogger("fedscout")


class RunFolder:
    """One study's folder, open and locked.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Where running trials leave their checkpoints."""
        return self.path / "checkpoints"

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write one of the folder's JSON files, all at once."""
        text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"
        path = self.path / name
        write_atomically(path, lambda temporary: temporary.write_text(text))
        return path

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of one of the folder's JSON files; None if it is not there or can't be read."""
        try:
            content = json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None


def default_folder(config: StudyConfig) -> Path:
    """Return the folder of a study that was given none: the same for the same configuration."""
    return Path("runs") / f"{config.federation.dataset}-{config.digest()[:8]}"


@contextmanager
def open_run_folder(path: Path, config: StudyConfig, data: str | None = None) -> Iterator[RunFolder]:
    """Open a new folder, or one that holds the same configuration's study, for this process alone.

    A block that ends with a mistake of the user's, before anything was found out, leaves nothing behind.

    Args:
        path: The folder; made if missing.
        config: Of the study.
        data: Digest of the data; None where they are not read yet.

    Raises:
        LogError: If the folder can't be written, is in use, or holds something else: another configuration's study,
            one of other data, or no study.
    """
    path = path.absolute()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        _refuse_foreign(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("a+")
    except OSError as error:
        raise LogError(f"--out must be a folder that can be written, got {path}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise LogError(f"{path} is in use by process {lock.read().strip() or 'unknown'}") from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        folder = RunFolder(path)
        is_new = folder.read_json("config.json") is None
        try:
            _claim(folder, config, data)
            yield folder
        except UserError:
            if is_new:
                _remove_if_unused(folder, made)
            raise


def _refuse_foreign(path: Path) -> None:
    if not path.is_dir() or RunFolder(path).read_json("config.json") is not None:
        return
    foreign = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if foreign:
        raise LogError(
            f"--out must be a new folder, an empty one or that of an earlier run, got {path} "
            f"with {', '.join(foreign[:5])} but no readable config.json"
        )


def _remove_if_unused(folder: RunFolder, made: Sequence[Path]) -> None:
    """Remove what opening a folder left in it, unless it holds more; and the folders that were made for it."""
    if {entry.name for entry in folder.path.iterdir()} <= {LOCK, "config.json"}:
        (folder.path / "config.json").unlink(missing_ok=True)
        (folder.path / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # another process may have put something there
            for path in made:
                path.rmdir()


def _claim(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    stored = folder.read_json("config.json")
    if stored is None:
        try:
            _write_claim(folder, config, data)
        except OSError as error:
            raise LogError(
                f"--out must be a folder that can be written, got {folder.path}: {error.strerror}"
            ) from error
        return
    if stored.get("config_hash") != config.digest():
        changes = differences(stored.get("config", {}), config.identity())
        raise LogError(
            f"{folder.path} holds the study of another configuration and can't be continued with this one; "
            f"what differs: {'; '.join(changes[:6]) or 'the keys that there are'}. Choose another --out"
        )
    known = stored.get("data_digest")
    if data is not None and known not in (None, data):
        raise LogError(
            f"{folder.path} holds a study of other data and can't be continued: the rows of data set "
            f"{config.federation.dataset!r} have changed since. Choose another --out"
        )
    if data is not None and known is None:
        _write_claim(folder, config, data)
    changes = differences(stored.get("versions", {}), versions())
    if changes:
        logger.warning("%s was begun with other versions: %s", folder.path, "; ".join(changes))


def _write_claim(folder: RunFolder, config: StudyConfig, data: str | None) -> None:
    content = {"config_hash": config.digest(), "config": config.identity(), "versions": versions()}
    folder.write_json("config.json", content if data is None else {**content, "data_digest": data})


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return `key: old there, new here` for every value that differs."""
    found = []
    for key in sorted({*old, *new}):
        left, right = old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key}: {left!r} there, {right!r} here")
    return found
