"""The folder of a sweep: who may use it, which sweep it belongs to, and where its studies lie.

OUT/sweep.json          the axes, and what all studies have in common
OUT/studies/<name>/     one folder a study, as `fedscout run` leaves it
OUT/table.parquet       one row a study and chooser; also table.csv
OUT/summary.json        means over seeds
OUT/plot.png            also plot.svg
OUT/lost/<name>.txt     the traceback of a study that was lost to a defect

A study is found again by the digest at the end of its folder's name, so an axis that gets more values, or a second
axis, finds what earlier commands finished.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedscout.engine.errors import EngineError, Fault, LogError
from fedscout.engine.runtime.atomic_file import folder_made, not_written, remove_unfinished, write_atomically
from fedscout.engine.runtime.folder_lock import LOCK, folder_lock
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.experiments.studies.run_folder import remove_if_unused
from fedscout.experiments.studies.sweeps.grid_configurations import DIGEST_DIGITS, GridConfiguration, Sweep, value_text

BINDING = "sweep.json"
STUDIES = "studies"
RELEASE_SECONDS = 60.0
RELEASE_POLL_SECONDS = 0.1


class SweepFolder:
    """One sweep's folder, absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        studies = self.path / STUDIES
        there = sorted(studies.iterdir()) if studies.is_dir() else []
        self._known = {folder.name[-DIGEST_DIGITS:]: folder for folder in there if folder.is_dir()}

    def study(self, one: GridConfiguration) -> Path:
        """Return the folder of a configuration's study, under whatever name an earlier command made it."""
        known = self._known.get(one.digest[:DIGEST_DIGITS])
        return self.path / STUDIES / one.name if known is None else known

    def result(self, one: GridConfiguration) -> dict[str, Any] | None:
        """Return the result of a configuration's study; None if it is not finished."""
        result = read_json(self.study(one) / "result.json")
        return result if result is not None and result.get("config_hash") == one.digest else None

    def num_trials(self, one: GridConfiguration) -> int:
        """Return how many trials of a configuration's study are in its log."""
        trials = self.study(one) / "trials"
        return sum(entry.name.endswith(".parquet") for entry in os.scandir(trials)) if trials.is_dir() else 0

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files, all at once."""
        self.write_text(name, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the folder, all at once."""
        self.write(name, lambda temporary: temporary.write_text(text))

    def write(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write a file of the folder, all at once; `write` writes its content to the path it is given.

        Raises:
            EngineError: If it can't be written, as when the disk is full.
        """
        path = self.path / name
        try:
            write_atomically(path, write)
        except OSError as error:
            raise EngineError(not_written(path, error)) from error
        return path


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it is not there or can't be read."""
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return None


@contextmanager
def open_sweep_folder(path: Path, sweep: Sweep) -> Iterator[SweepFolder]:
    """Open a new folder, or that of the same sweep with more or fewer values, for this process alone.

    Raises:
        LogError: If the folder can't be written, is in use, or holds something else: another sweep, a study.
    """
    path = path.absolute()
    with ExitStack() as stack:
        try:
            _binding(path, sweep)  # a refusal leaves nothing behind
            stack.enter_context(folder_made(path))
        except OSError as error:
            raise LogError(_UNUSABLE.format(path=path, reason=error.strerror)) from error
        stack.enter_context(folder_lock(path))
        remove_unfinished(path)
        folder = SweepFolder(path)
        is_new = not (path / BINDING).exists()
        try:
            folder.write_json(BINDING, _binding(path, sweep))
        except EngineError as error:
            if is_new:
                remove_if_unused(path, BINDING)
            raise LogError(_UNUSABLE.format(path=path, reason=error)) from error
        yield folder


_UNUSABLE = "--out must be a folder that can be written, got {path}: {reason}"


def check_sweep_folder(path: Path, sweep: Sweep) -> SweepFolder:
    """Return the folder for reading; nothing is made.

    Raises:
        LogError: As `open_sweep_folder`, but for a folder in use.
    """
    _binding(path.absolute(), sweep)
    return SweepFolder(path)


def _binding(path: Path, sweep: Sweep) -> dict[str, Any]:
    """Return what binds the folder to the sweep, after comparing it with what is there.

    A key that has been an axis in this folder may take any value. All others must stay as they are, as the table has
    no column that would tell the studies apart.
    """
    fixed = sweep.fixed()
    stored = _stored(path)
    axes = list(dict.fromkeys([*stored["axes"], *sweep.axes])) if stored else list(sweep.axes)
    if stored:
        old: dict[str, Any] = stored["fixed"]
        shared = [key for key in old if key in fixed and not _is_below(key, axes)]
        differing = [key for key in shared if old[key] != json.loads(json.dumps(fixed[key]))]
        if differing:
            changes = [f"{key}: {value_text(old[key])} there, {value_text(fixed[key])} here" for key in differing]
            key = differing[0]
            raise LogError(
                f"{path} holds another sweep; what differs: {'; '.join(changes[:6])}. Choose another --out, or make it "
                f"an axis, such as {key}={value_text(old[key])},{value_text(fixed[key])}"
            )
        fixed = {key: fixed[key] for key in shared}
    return {"axes": axes, "fixed": fixed}


def _is_below(key: str, axes: list[str]) -> bool:
    return any(key == axis or key.startswith(f"{axis}.") for axis in axes)


def _stored(path: Path) -> dict[str, Any] | None:
    if not path.is_dir():
        return None
    stored = read_json(path / BINDING)
    if stored is not None and isinstance(stored.get("axes"), list) and isinstance(stored.get("fixed"), dict):
        return stored
    foreign = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if foreign:
        raise LogError(
            Fault(
                "--out",
                "be a new folder, an empty one or that of an earlier sweep",
                f"{path} with {', '.join(foreign[:5])} but no readable {BINDING}",
            )
        )
    return None


def await_release(study: Path, seconds: float = RELEASE_SECONDS) -> None:
    """Wait until no process holds a study's folder: one whose sweep was killed takes a moment to end."""
    if not (study / LOCK).exists():
        return
    deadline = time.monotonic() + seconds
    with (study / LOCK).open("a") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(RELEASE_POLL_SECONDS)
            else:
                return
