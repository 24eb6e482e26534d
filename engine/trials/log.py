"""The Parquet log of a study's trials: one file per finished trial, one explicit schema.

The log is the authoritative record of a study.

`read_trials` returns it as one tidy table; pandas and DuckDB read the folder, too, as all files have the same columns
(`record.SCHEMA`). A file is written under a temporary name and then renamed, so a killed run leaves only complete
files. Any other file in the folder (damaged, a copy, a trial of another study) is moved to `OUT/quarantine`, and the
missing trials are run again.

The metadata of a file holds the SHA-256 of its trial's values, which every reader verifies. This detects flipped bits
and accidental edits; it is not a signature, as whoever edits deliberately can also write the digest.

Every `FILES_A_PART` such files are merged into one, `part-NUMBER.parquet`, whose pages have Parquet's own checksums;
the single files are removed after it is written. A trial can appear twice, if a run was killed in between, or if the
trial was rerun after an edit of the user's code: a single file takes precedence over parts, and a later part over an
earlier one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from fedscout.engine.errors import EngineError, LogError, first_line
from fedscout.engine.runtime import files
from fedscout.engine.trials.record import JSON_COLUMNS, SCHEMA, Trial, flat, stored_column

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("fedscout")

Row = TypeVar("Row")

_DIGEST_KEY = b"fedscout.sha256"
_PART = "part-"
FILES_A_PART = 256
"""Number of single files that are merged into one, as opening a file takes longer than reading it."""

_LAYOUT: Mapping[str, Any] = {"compression": "zstd", "write_statistics": False, "store_schema": False}
"""Statistics and a second copy of the schema would be two thirds of a trial's file."""

_TRANSIENT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
"""Temporary reasons why a file can't be opened, which do not depend on the file."""


def _file_name(trial: int, key: str) -> str:
    return f"{trial:05d}-{key[:12]}.parquet"


def _digest(table: pa.Table) -> str:
    """Return the SHA-256 of a trial's values, independent of the bytes of its file."""
    (row,) = table.to_pylist()
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=datetime.isoformat).encode()).hexdigest()


def _read_row(path: Path, config_hash: str | None) -> pa.Table:
    """Return the single row of a file.

    Raises:
        Exception: Of any type, if it holds no trial, or a trial of another study.
    """
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    # ParquetFile, not read_table: the latter would open the file as a dataset.
    with pq.ParquetFile(path) as file:
        table = file.read()
        digest = (file.metadata.metadata or {}).get(_DIGEST_KEY)
    if table.num_rows != 1 or not {"trial", "key", "config_hash"} <= set(table.schema.names):
        raise ValueError("it holds no trial")
    (row,) = table.to_pylist()
    if config_hash is not None and row["config_hash"] != config_hash:
        raise ValueError("its trial belongs to another study")
    if path.name != _file_name(row["trial"], row["key"]):
        raise ValueError(f"its name should be {_file_name(row['trial'], row['key'])}; it may be a copy")
    if digest is None:
        raise ValueError("it has no digest of its values, so another program wrote it")
    if digest.decode() != _digest(table):
        raise ValueError("its values do not match their digest")
    Trial.from_row(row)  # a digest says nothing of what was written with it
    return table


def _read_part(path: Path, config_hash: str | None, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a part, which holds several trials.

    Raises:
        Exception: Of any type, if they can't be read, or belong to another study.
    """
    if not path.is_file():
        raise ValueError("it is not a file")
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(None if columns is None else [*dict.fromkeys([*columns, "trial", "config_hash"])])
    if config_hash is not None and {*table["config_hash"].to_pylist()} != {config_hash}:
        raise ValueError("its trials belong to another study")
    return table


def _is_part(path: Path) -> bool:
    return path.name.startswith(_PART)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, parts first; skip hidden files, which killed runs leave behind."""
    for path in sorted(folder.iterdir(), key=lambda path: (not _is_part(path), path)) if folder.is_dir() else []:
        if not path.name.startswith("."):
            yield path


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def read_columns(
    folder: Path, columns: Sequence[str], config_hash: str | None = None
) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """Read some columns of every trial without changing the folder, also while another process writes to it.

    Args:
        folder: The folder of the files.
        columns: Names of columns of the log, or of measures such as `round_accuracy`, None where a trial has none.
        config_hash: The study's hash; None accepts trials of any study.

    Returns:
        One row per trial, by trial number; and the reason for each file that could not be used.
    """
    rows, faults = _read_stored(folder, [*dict.fromkeys(map(stored_column, columns))], config_hash, flat)
    return [{name: measures.get(name) for name in columns} for measures in rows], faults


def _read_stored(
    folder: Path, columns: Sequence[str], config_hash: str | None, read: Callable[[dict[str, Any]], Row]
) -> tuple[list[Row], dict[Path, str]]:
    """Read columns, each row by `read`; other arguments and result as for `read_columns`."""
    entries: list[tuple[Path, int, Row]] = []
    faults: dict[Path, str] = {}
    for path in _entries(folder):
        try:
            table = _read_part(path, config_hash, columns) if _is_part(path) else _read_row(path, config_hash)
            rows = map(read, table.select(columns).cast(pa.schema(map(SCHEMA.field, columns))).to_pylist())
            entries += [(path, *row) for row in zip(table["trial"].to_pylist(), rows, strict=True)]
        except Exception as error:  # anything may lie in a folder
            faults[path] = _reason(error)
    return _latest_by_trial(entries), faults


def read_records(folder: Path, config_hash: str | None = None) -> tuple[list[Trial], dict[Path, str]]:
    """Read all trials as records; arguments and result as for `read_columns`."""
    return _read_stored(folder, SCHEMA.names, config_hash, Trial.from_row)


def read_trials(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the trials of a study's or a sweep's folder, one row per trial (docs/log.md).

    Each measure is a column, such as `round_accuracy`, a list with an item per round, as is each parameter, such as
    `param_eta`; other documents are dictionaries and lists. `folder` names the study's folder in a sweep.

    Raises:
        LogError: If the folder holds no trial.
    """
    import pandas as pd

    root = Path(path)
    folders = [root] if (root / "trials").is_dir() else sorted(root.glob("studies/*/"))
    rows: list[dict[str, Any]] = []
    faults: dict[Path, str] = {}
    for folder in folders:
        stored, damaged = _read_stored(folder / "trials", SCHEMA.names, None, flat)
        faults |= damaged
        rows += ({**({} if folder == root else {"folder": folder.name}), **_tidy(row)} for row in stored)
    if not rows:
        reason = "".join(f" ({reason})" for reason in [*faults.values()][:1])
        raise LogError.of("the folder", "hold a study or a sweep with trials", f"{root}{reason}")
    for file, reason in faults.items():
        logger.warning("%s can't be used and is left out (%s)", file, reason)
    return pd.DataFrame(rows)


def _tidy(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with documents parsed, and a column for each parameter."""
    parsed = {name: json.loads(value) if name in JSON_COLUMNS else value for name, value in row.items()}
    return parsed | {f"param_{name}": value for name, value in parsed["parameters"].items()}


def _latest_by_trial(found: Sequence[tuple[Path, int, Any]]) -> list[Any]:
    """Return one item per trial, by trial number: that of its single file if there is one, else of the last part."""
    single = [(trial, item) for path, trial, item in found if not _is_part(path)]
    joined = {trial: item for path, trial, item in found if _is_part(path)}  # in the order of parts
    for trial, _ in single:
        joined.pop(trial, None)
    return [item for _, item in sorted([*joined.items(), *single], key=lambda each: each[0])]


def num_trials(folder: Path) -> int:
    """Return the number of trials in a folder, by file names and, for parts, metadata."""
    count = 0
    for path in _entries(folder):
        with suppress(OSError, pa.ArrowException):  # damaged: its trials are run again
            count += pq.read_metadata(path).num_rows if _is_part(path) else path.suffix == ".parquet"
    return count


class TrialLog:
    """The log of one study.

    Args:
        out: The study's folder, which contains `trials/` and `quarantine/`.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / "trials"
        self._quarantine = out / "quarantine"
        self._identity = files.folder_identity(out)
        self._num_files: int | None = None

    def append(self, record: Trial) -> Path:
        """Write one finished trial.

        A file of the same trial number with another key, from before the user's code changed, is quarantined. If there
        are `FILES_A_PART` single files, they are first merged into a part.

        Raises:
            EngineError: If it can't be written, for example because the disk is full or the study's folder is gone.
        """
        if self._num_files is None:
            self._num_files = sum(not _is_part(path) for path in _entries(self.folder))
        if self._num_files >= FILES_A_PART:
            self._merge_into_part()
        path = self.write(record)
        self._num_files += 1
        for other in self.folder.glob(f"{record.trial:05d}-*.parquet"):
            if other != path:
                self._quarantine_file(other, "its code or inputs changed", f"is no longer trial {record.trial}")
        return path

    def write(self, record: Trial) -> Path:
        """Write the file of one trial atomically.

        Raises:
            EngineError: If it can't be written, for example because the disk is full or the study's folder is gone.
        """
        files.check_same_folder(self.folder.parent, self._identity)
        table = pa.Table.from_pylist([record.row()], schema=SCHEMA)
        path = self.folder / _file_name(record.trial, record.key)

        def write(temporary: Path) -> None:
            with pq.ParquetWriter(temporary, SCHEMA, use_dictionary=False, **_LAYOUT) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata({_DIGEST_KEY: _digest(table)})

        try:
            files.write_atomically(path, write)
        except OSError as error:
            raise EngineError(files.not_written(path, error)) from error
        return path

    def _merge_into_part(self) -> None:
        """Merge the files of single trials into one part, then remove them."""
        singles = [path for path in _entries(self.folder) if not _is_part(path)]
        readable = [(path, content[0]) for path in singles if (content := self._read(path, None)) is not None]
        self._num_files = 0
        if not readable:
            return
        joined = pa.concat_tables([table for _, table in readable])
        numbers = [int(path.stem.removeprefix(_PART)) for path in self.folder.glob(f"{_PART}[0-9]*.parquet")]
        path = self.folder / f"{_PART}{max(numbers, default=-1) + 1:05d}.parquet"
        try:
            layout = {**_LAYOUT, "write_page_checksum": True}
            files.write_atomically(path, lambda temporary: pq.write_table(joined, temporary, **layout))
            for single, _ in readable:
                files.remove_file(single)
        except OSError as error:
            raise EngineError(files.not_written(path, error)) from error

    def read_one(self, path: Path) -> Trial | None:
        """Return the trial of one file, or None after quarantining a file that holds no trial.

        Raises:
            EngineError: As `read`.
        """
        content = self._read(path, None)
        return None if content is None else content[1][0]

    def read(self, config_hash: str | None = None) -> list[Trial]:
        """Return all records by trial number; quarantine files that hold no trial of the study, with a warning.

        Args:
            config_hash: The study's hash; None accepts trials of any study.

        Raises:
            EngineError: If files can't be opened now, or can't be quarantined.
        """
        entries: list[tuple[Path, int, Trial]] = []
        for path in _entries(self.folder):
            _, trials = self._read(path, config_hash) or (None, [])
            entries += ((path, trial.trial, trial) for trial in trials)
        return _latest_by_trial(entries)

    def _read(self, path: Path, config_hash: str | None) -> tuple[pa.Table, list[Trial]] | None:
        """Return the trials of a file, as a table and as records; quarantine a file without trials of the study."""
        try:
            table = _read_part(path, config_hash) if _is_part(path) else _read_row(path, config_hash)
            if not table.schema.equals(SCHEMA):
                raise ValueError("its columns are not those of the trial log")
            return table, [Trial.from_row(row) for row in table.to_pylist()]
        except Exception as error:  # anything may lie in a folder
            if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
                raise EngineError(f"{path} can't be read now: {os.strerror(error.errno or 0)}") from error
            self._quarantine_file(path, _reason(error))
            return None

    def _quarantine_file(self, path: Path, reason: str, fault: str = "can't be used") -> None:
        target = self._quarantine / path.name
        number = 1
        while os.path.lexists(target):
            number += 1
            target = self._quarantine / f"{path.name}.{number}"
        try:
            self._quarantine.mkdir(parents=True, exist_ok=True)
            files.move_file(path, target)
        except OSError as error:
            raise EngineError(f"{path} {fault} ({reason}), and {files.not_written(target, error)}") from error
        logger.warning("%s %s and was moved to %s (%s)", path, fault, target, reason)
