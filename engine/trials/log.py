"""The Parquet log: one file per finished trial, one explicit schema, the truth of a study.

`pandas.read_parquet(OUT / "trials")` gives one tidy table, because every file has every column with the same type,
also those that a trial has no value for. A file is written beside the folder and renamed into it, so a killed run
leaves whole files only. Whatever else lies in the folder (a damaged file, a copy, a trial of another study) is moved to
`OUT/quarantine`, and the trials that are missing are run again.

The metadata of a file hold the SHA-256 of its trial's values, which every reader compares: a flipped bit or a value
edited by mistake is found. It is no signature; whoever edits on purpose can write the digest, too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedscout.engine.errors import EngineError, first_line
from fedscout.engine.runtime.files import check_same_folder, folder_identity, move_file, not_written, write_atomically
from fedscout.engine.trials.record import ParameterType, Trial, log_schema

logger = logging.getLogger("fedscout")

_DIGEST_KEY = b"fedscout.sha256"


_STATE_OF_THE_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
"""Reasons why a file can't be opened now that say nothing about the file."""


def _file_name(trial: int, key: str) -> str:
    return f"{trial:05d}-{key[:12]}.parquet"


def _digest(table: pa.Table) -> str:
    """Return the SHA-256 of a trial's values, whatever the bytes of its file."""
    (row,) = table.to_pylist()
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=datetime.isoformat).encode()).hexdigest()


def _check_digest(table: pa.Table) -> None:
    """Raise ValueError if a trial's values are not those that were written."""
    written = (table.schema.metadata or {}).get(_DIGEST_KEY)
    if written is None:
        raise ValueError("it was written by another program, the digest of its values is missing")
    if written.decode() != _digest(table):
        raise ValueError("its values are not those that were written, their digest differs")


def _read_row(path: Path, config_hash: str | None) -> pa.Table:
    """Return a file's one row.

    Raises:
        Exception: Of whatever kind, if it holds no trial, or not one of this study.
    """
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    # ParquetFile, not read_table: the latter would open the file as a dataset.
    with pq.ParquetFile(path) as file:
        table = file.read()
    if table.num_rows != 1 or not {"trial", "key", "config_hash"} <= set(table.schema.names):
        raise ValueError("it holds no trial")
    (row,) = table.to_pylist()
    if config_hash is not None and row["config_hash"] != config_hash:
        raise ValueError("its trial is of another study")
    if path.name != _file_name(row["trial"], row["key"]):
        raise ValueError(f"its name should be {_file_name(row['trial'], row['key'])}; it may be a copy")
    _check_digest(table)
    Trial.from_row(row)  # a digest says nothing of what was written with it
    return table


def _entries(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder, but for hidden files, which a killed run may have left and Parquet readers skip."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.name.startswith("."):
            yield path


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def read_columns(
    folder: Path, columns: Sequence[str], config_hash: str | None = None
) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """Read some columns of every trial, and leave the folder as it is, whoever may be writing to it.

    Args:
        folder: Of the files.
        columns: Their names.
        config_hash: Of the study; None takes trials of any.

    Returns:
        One row a trial, by trial number; and why other files could not be used.
    """
    rows: list[dict[str, Any]] = []
    faults: dict[Path, str] = {}
    for path in _entries(folder):
        try:
            table = _read_row(path, config_hash)
            rows += table.select(columns).to_pylist()
        except Exception as error:  # anything may lie in a folder
            faults[path] = _reason(error)
    return sorted(rows, key=lambda row: int(row["trial"])), faults


class TrialLog:
    """The log of one study.

    Args:
        out: The study's folder; `trials/` and `quarantine/` are in it.
        parameters: Name and type of every parameter that gets a column.
    """

    def __init__(self, out: Path, parameters: Mapping[str, ParameterType]) -> None:
        self.folder = out / "trials"
        self._quarantine = out / "quarantine"
        self._identity = folder_identity(out)
        self._schema = log_schema(parameters)

    def append(self, record: Trial) -> Path:
        """Write one finished trial.

        A file of another trial of the same number, as of before the user's code changed, is set aside.

        Raises:
            EngineError: If it can't be written, as when the disk is full, or the study's folder is gone.
        """
        path = self.write(record)
        for other in self.folder.glob(f"{record.trial:05d}-*.parquet"):
            if other != path:
                self._set_aside(other, "what it ran on has changed", f"is no longer trial {record.trial}")
        return path

    def write(self, record: Trial) -> Path:
        """Write the file of one trial; all of it appears at once.

        Raises:
            EngineError: If it can't be written, as when the disk is full, or the study's folder is gone.
        """
        check_same_folder(self.folder.parent, self._identity)
        table = pa.Table.from_pylist([record.row(self._schema)], schema=self._schema)
        table = table.replace_schema_metadata({_DIGEST_KEY: _digest(table)})
        path = self.folder / _file_name(record.trial, record.key)
        try:
            write_atomically(path, lambda temporary: pq.write_table(table, temporary))
        except OSError as error:
            raise EngineError(not_written(path, error)) from error
        return path

    def read_one(self, path: Path) -> Trial | None:
        """Return the trial of one file; one that holds none is set aside, and None returned.

        Raises:
            EngineError: As of `read`.
        """
        return self._read(path, None)

    def read(self, config_hash: str | None = None) -> list[Trial]:
        """Return all records by trial number; set what is no trial of the study aside and say so.

        Args:
            config_hash: Of the study; None takes trials of any.

        Raises:
            EngineError: If files can't be opened now, or not be set aside.
        """
        records = [self._read(path, config_hash) for path in _entries(self.folder)]
        return sorted((record for record in records if record is not None), key=lambda record: record.trial)

    def _read(self, path: Path, config_hash: str | None) -> Trial | None:
        try:
            table = _read_row(path, config_hash)
            if not table.schema.equals(self._schema):
                raise ValueError("its columns are not those of the trial log")
            (row,) = table.to_pylist()
            return Trial.from_row(row)
        except Exception as error:  # anything may lie in a folder
            if isinstance(error, OSError) and error.errno in _STATE_OF_THE_MACHINE:
                raise EngineError(f"{path} can't be read now: {os.strerror(error.errno or 0)}") from error
            self._set_aside(path, _reason(error))
            return None

    def _set_aside(self, path: Path, reason: str, fault: str = "can't be used") -> None:
        target = self._quarantine / path.name
        number = 1
        while os.path.lexists(target):
            number += 1
            target = self._quarantine / f"{path.name}.{number}"
        try:
            self._quarantine.mkdir(parents=True, exist_ok=True)
            move_file(path, target)
        except OSError as error:
            raise EngineError(f"{path} {fault} ({reason}), and {not_written(target, error)}") from error
        logger.warning("%s %s and was moved to %s (%s)", path, fault, target, reason)
