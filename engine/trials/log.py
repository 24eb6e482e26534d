"""The Parquet log: one file per finished trial, one explicit schema, the truth of a study.

`pandas.read_parquet(OUT / "trials")` gives one tidy table, because every file has every column with the same type,
also those that a trial has no value for. A file is written beside the folder and renamed into it, so a killed run
leaves whole files only. Whatever else lies in the folder (a damaged file, a copy, a trial of another study) is moved to
`OUT/quarantine`, and the trials that are missing are run again.

The metadata of a file hold the SHA-256 of its trial's values, which every reader compares: a flipped bit or a value
edited by mistake is found. It is no signature; whoever edits on purpose can write the digest, too.

`FILES_A_PART` such files become one, `part-NUMBER.parquet`, whose pages have Parquet's own checksums; they are removed
once it is there. A trial may be there twice, as where a run was killed in between, or it ran anew after an edit of the
user's code: a single file counts before parts, and a later part before an earlier one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedscout.engine.errors import EngineError, first_line
from fedscout.engine.runtime.files import (
    check_same_folder,
    folder_identity,
    move_file,
    not_written,
    remove_file,
    write_atomically,
)
from fedscout.engine.trials.record import ParameterType, Trial, log_schema

logger = logging.getLogger("fedscout")

_DIGEST_KEY = b"fedscout.sha256"
_PART = "part-"
FILES_A_PART = 256
"""Of so many single files one is made: opening a file takes longer than reading a trial."""

_LAYOUT: Mapping[str, Any] = {"compression": "zstd", "write_statistics": False, "store_schema": False}
"""Statistics and a second copy of the schema would be two thirds of a trial's file."""

_STATE_OF_THE_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
"""Reasons why a file can't be opened now that say nothing about the file."""


def _file_name(trial: int, key: str) -> str:
    return f"{trial:05d}-{key[:12]}.parquet"


def _digest(table: pa.Table) -> str:
    """Return the SHA-256 of a trial's values, whatever the bytes of its file."""
    (row,) = table.to_pylist()
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=datetime.isoformat).encode()).hexdigest()


def _check_digest(table: pa.Table, written: bytes | None) -> None:
    """Raise ValueError if a trial's values are not those that were written."""
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
        written = (file.metadata.metadata or {}).get(_DIGEST_KEY)
    if table.num_rows != 1 or not {"trial", "key", "config_hash"} <= set(table.schema.names):
        raise ValueError("it holds no trial")
    (row,) = table.to_pylist()
    if config_hash is not None and row["config_hash"] != config_hash:
        raise ValueError("its trial is of another study")
    if path.name != _file_name(row["trial"], row["key"]):
        raise ValueError(f"its name should be {_file_name(row['trial'], row['key'])}; it may be a copy")
    _check_digest(table, written)
    Trial.from_row(row)  # a digest says nothing of what was written with it
    return table


def _read_part(path: Path, config_hash: str | None, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of several trials.

    Raises:
        Exception: Of whatever kind, if they can't be read, or are not of this study.
    """
    if not path.is_file():
        raise ValueError("it is no file")
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(None if columns is None else [*dict.fromkeys([*columns, "trial", "config_hash"])])
    if config_hash is not None and {*table["config_hash"].to_pylist()} != {config_hash}:
        raise ValueError("its trials are of another study")
    return table


def _is_part(path: Path) -> bool:
    return path.name.startswith(_PART)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder, parts first; not hidden files, which killed runs leave and Parquet readers skip."""
    for path in sorted(folder.iterdir(), key=lambda path: (not _is_part(path), path)) if folder.is_dir() else []:
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
    found: list[tuple[Path, int, dict[str, Any]]] = []
    faults: dict[Path, str] = {}
    for path in _entries(folder):
        try:
            table = _read_part(path, config_hash, columns) if _is_part(path) else _read_row(path, config_hash)
            rows = table.select(columns).to_pylist()
            found += ((path, *row) for row in zip(table["trial"].to_pylist(), rows, strict=True))
        except Exception as error:  # anything may lie in a folder
            faults[path] = _reason(error)
    return _that_count(found), faults


def _that_count(found: Sequence[tuple[Path, int, Any]]) -> list[Any]:
    """Return what is of trials by their number; of one that is there twice, what its single file or last part holds."""
    single = [(trial, of_it) for path, trial, of_it in found if not _is_part(path)]
    joined = {trial: of_it for path, trial, of_it in found if _is_part(path)}  # in the order of parts
    for trial, _ in single:
        joined.pop(trial, None)
    return [of_it for _, of_it in sorted([*joined.items(), *single], key=lambda each: each[0])]


def num_trials(folder: Path) -> int:
    """Return how many trials are in the files of a folder, by their names and, of parts, their metadata."""
    count = 0
    for path in _entries(folder):
        with suppress(OSError, pa.ArrowException):  # damaged: its trials are run again
            count += pq.read_metadata(path).num_rows if _is_part(path) else path.suffix == ".parquet"
    return count


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
        self._num_files: int | None = None

    def append(self, record: Trial) -> Path:
        """Write one finished trial.

        A file of another trial of the same number, as of before the user's code changed, is set aside. Where there are
        many files, those of before become one.

        Raises:
            EngineError: If it can't be written, as when the disk is full, or the study's folder is gone.
        """
        if self._num_files is None:
            self._num_files = sum(not _is_part(path) for path in _entries(self.folder))
        if self._num_files >= FILES_A_PART:
            self._join()
        path = self.write(record)
        self._num_files += 1
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
        path = self.folder / _file_name(record.trial, record.key)

        def write(temporary: Path) -> None:
            with pq.ParquetWriter(temporary, self._schema, use_dictionary=False, **_LAYOUT) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata({_DIGEST_KEY: _digest(table)})

        try:
            write_atomically(path, write)
        except OSError as error:
            raise EngineError(not_written(path, error)) from error
        return path

    def _join(self) -> None:
        """Make one file of those of single trials, which are removed when it is there."""
        singles = [path for path in _entries(self.folder) if not _is_part(path)]
        known = [(path, found[0]) for path in singles if (found := self._read(path, None)) is not None]
        self._num_files = 0
        if not known:
            return
        joined = pa.concat_tables([table for _, table in known])
        numbers = [int(path.stem.removeprefix(_PART)) for path in self.folder.glob(f"{_PART}[0-9]*.parquet")]
        path = self.folder / f"{_PART}{max(numbers, default=-1) + 1:05d}.parquet"
        try:
            layout = {**_LAYOUT, "write_page_checksum": True}
            write_atomically(path, lambda temporary: pq.write_table(joined, temporary, **layout))
            for single, _ in known:
                remove_file(single)
        except OSError as error:
            raise EngineError(not_written(path, error)) from error

    def read_one(self, path: Path) -> Trial | None:
        """Return the trial of one file; one that holds none is set aside, and None returned.

        Raises:
            EngineError: As of `read`.
        """
        found = self._read(path, None)
        return None if found is None else found[1][0]

    def read(self, config_hash: str | None = None) -> list[Trial]:
        """Return all records by trial number; set what is no trial of the study aside and say so.

        Args:
            config_hash: Of the study; None takes trials of any.

        Raises:
            EngineError: If files can't be opened now, or not be set aside.
        """
        found: list[tuple[Path, int, Trial]] = []
        for path in _entries(self.folder):
            _, trials = self._read(path, config_hash) or (None, [])
            found += ((path, trial.trial, trial) for trial in trials)
        return _that_count(found)

    def _read(self, path: Path, config_hash: str | None) -> tuple[pa.Table, list[Trial]] | None:
        """Return the trials of a file, as rows and as values; one that holds none of the study is set aside."""
        try:
            table = _read_part(path, config_hash) if _is_part(path) else _read_row(path, config_hash)
            if not table.schema.equals(self._schema):
                raise ValueError("its columns are not those of the trial log")
            return table, [Trial.from_row(row) for row in table.to_pylist()]
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
