"""The log: one file a trial, one schema, one tidy table."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import LogError
from fedscout.engine.trials import log as log_module
from fedscout.engine.trials.log import TrialLog, num_trials, read_columns, read_records, read_trials
from fedscout.engine.trials.record import SCHEMA, Trial
from tests.forged_trials import forge
from tests.kits.refusals import refused

PHASES = ("configure", "train", "aggregate", "evaluate", "checkpoint", "hosts", "simulated")
MEASURES = ("accuracy", "clean_accuracy", "loss", "clean_loss", "global_accuracy", "new_client_accuracy")
RECORD = Trial(
    study="demo",
    trial=4,
    key="0123456789abcdef",
    phase="search",
    generation=2,
    searcher="genetic",
    strategy="fedavgm",
    parameters={"server_momentum": 0.25, "unknown": [1, "two"]},
    seed=2**40,
    learning_rate=0.1,
    status="completed",
    error=None,
    fitness=0.75,
    own_fitness=0.75,
    clean_fitness=0.5,
    rounds={name: (0.5, place + 0.75) for place, name in enumerate(MEASURES)} | {"train_loss": (2.0, math.inf)},
    bytes_down=1060.0,
    bytes_up=848.5,
    clients={"id": (0, 1), "num_examples": (8, 3), "accuracy": (0.75, 0.5), "clean_accuracy": (0.5, 0.25)},
    dropped_clients={"1:4": "no rows"},
    skipped_rounds={"2": "too few replies"},
    notes=("it sends temperature, which clients do not read",),
    seconds={"total": 1.5, **dict.fromkeys(PHASES, 0.25)},
    versions={"flwr": "1.41"},
    config_hash="abc",
    finished_at=datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC),
)
FAILED = replace(
    RECORD,
    trial=0,
    key="fedcba9876543210",
    strategy="krum",
    parameters={"num_malicious": 2, "mode": "strict"},
    status="failed",
    error="round 1: diverged",
    fitness=0.0,
    rounds={},
    clients={},
)
MEASURED = replace(
    RECORD,
    trial=5,
    key="measured",
    metric="macro_f1",
    rounds={**RECORD.rounds, "metric": (0.25, 0.5), "clean_metric": (0.25, 0.75), "worst_clients": (0.0, 0.125)},
    clients={**RECORD.clients, "metric": (0.5, 0.25)},
)
BARE = replace(FAILED, trial=2, key="bare0", strategy="fedavg", parameters={}, error="x", dropped_clients={})


def filled(log: TrialLog, records: list[Trial]) -> TrialLog:
    for record in records:
        log.append(record)
    return log


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_records_come_back_as_they_were_by_number(tmp_path: Path) -> None:
    log = TrialLog(tmp_path)
    assert log.read() == []
    filled(log, [RECORD, FAILED, MEASURED, BARE])
    assert all(file.stat().st_size < 14_000 for file in log.folder.iterdir())
    assert {file.name for file in log.folder.iterdir()} >= {"00004-0123456789ab.parquet", "00005-measured.parquet"}
    (log.folder / ".00004-0123456789ab.parquet.4711.tmp").write_bytes(b"PAR1 half")  # what a killed run was writing

    rewrite(log.folder / "00005-measured.parquet", seed=MEASURED.seed)  # only written again

    assert log.read() == TrialLog(tmp_path).read() == [FAILED, BARE, RECORD, MEASURED]


def test_the_log_is_one_tidy_table(tmp_path: Path) -> None:
    filled(TrialLog(tmp_path), [FAILED, BARE, RECORD])

    table = read_trials(tmp_path).set_index("trial")

    assert table.index.tolist() == [0, 2, 4]
    assert table["strategy"].tolist() == ["krum", "fedavg", "fedavgm"]
    assert table["status"].tolist() == ["failed", "failed", "completed"]
    assert table["num_rounds"].tolist() == [0, 0, 2]
    assert table["round_accuracy"].tolist() == [[], [], [0.5, 0.75]]
    assert table["client_num_examples"].tolist() == [[], [], [8, 3]]
    assert table["param_server_momentum"].fillna(-1).tolist() == [-1, -1, 0.25]
    assert (table["param_num_malicious"][0], table["param_mode"][0]) == (2, "strict")
    assert table["parameters"][4] == RECORD.parameters
    assert (table["seconds"][4], table["seconds_hosts"][4]) == (1.5, 0.25)
    assert str(table["finished_at"].dtype) == "datetime64[us, UTC]"


def test_every_file_has_one_schema_whatever_its_trial_holds(tmp_path: Path) -> None:
    log = TrialLog(tmp_path)
    assert all(pq.read_schema(log.append(record)).equals(SCHEMA) for record in (FAILED, BARE, RECORD))
    found = duckdb.sql(f"SELECT rounds['accuracy'] FROM '{tmp_path}/trials/*.parquet' ORDER BY trial").fetchall()
    assert found == [([],), ([],), ([0.5, 0.75],)]


def test_a_sweep_s_studies_are_one_table_and_a_folder_without_trials_is_refused(tmp_path: Path) -> None:
    for name in ("b", "a"):
        filled(TrialLog(tmp_path / "studies" / name), [RECORD, FAILED])
    assert read_trials(tmp_path)[["folder", "trial"]].to_numpy().tolist() == [["a", 0], ["a", 4], ["b", 0], ["b", 4]]
    with refused(LogError, key="the folder", names=str(tmp_path / "studies" / "c")):
        read_trials(tmp_path / "studies" / "c")


def rewrite(path: Path, **values: Any) -> None:
    """Change values as one does with pandas, which keeps the metadata."""
    table = pq.ParquetFile(path).read()
    (row,) = table.to_pylist()
    pq.write_table(pa.Table.from_pylist([{**row, **values}], table.schema), path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "another table": lambda path: pq.write_table(pa.table({"a": [1]}), path),
    "another column": lambda path: pq.write_table(pq.read_table(path).append_column("more", pa.array([1])), path),
    "no digest": lambda path: pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata(None), path),
    "an edited value": lambda path: rewrite(path, fitness=0.99),
    "no rows": lambda path: pq.write_table(pq.ParquetFile(path).read().slice(0, 0), path),
    "another study": lambda path: forge(path, config_hash="another"),
    "no number": lambda path: forge(path, fitness=math.nan),
    "no status": lambda path: forge(path, status="won"),
    "no parameters": lambda path: forge(path, parameters="[1]"),
    "nested parameters": lambda path: forge(path, parameters="{" * 100_000),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_trial_is_set_aside_and_told(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    log = TrialLog(tmp_path)
    log.append(FAILED)
    bad = log.append(RECORD)
    DAMAGES[damage](bad)

    records = log.read(RECORD.config_hash)

    assert records == [FAILED]
    assert not bad.exists()
    aside = tmp_path / "quarantine" / bad.name
    assert aside.exists()
    assert str(bad) in caplog.text
    assert str(aside) in caplog.text
    assert len(read_trials(tmp_path)) == 1
    log.append(RECORD)
    assert log.read() == [FAILED, RECORD]
    bad.write_bytes(b"again")
    assert log.read() == [FAILED]
    assert len([*aside.parent.iterdir()]) == 2, "what lies there is not overwritten"


@pytest.mark.slow
def test_a_flipped_bit_is_found_or_changes_no_value(tmp_path: Path) -> None:
    """Wherever it is: in values, their types, the names of columns, the digest."""
    log = TrialLog(tmp_path)
    path = log.append(RECORD)
    whole = path.read_bytes()
    names = [name for name in SCHEMA.names if not pa.types.is_map(SCHEMA.field(name).type)]
    names += ["round_accuracy", "client_accuracy", "seconds"]
    (expected,), _ = read_columns(log.folder, names)
    generator = random.Random(2)
    found = 0
    for position in generator.sample(range(8 * len(whole)), 300):
        path.write_bytes(whole)
        flip(path, position)
        rows, faults = read_columns(log.folder, names)
        assert (rows, list(faults)) in [([expected], []), ([], [path])], f"bit {position}"
        found += len(faults)
    assert found > 100


def test_a_trial_that_was_run_again_takes_the_earlier_s_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after an edit of the user's code, which gives the trial another key; nothing is wrong with the file."""
    log = TrialLog(tmp_path)
    earlier = log.append(RECORD)
    again = replace(RECORD, key="b" * 64)
    log.append(again)
    assert log.read() == [again]
    aside = tmp_path / "quarantine" / earlier.name
    assert aside.exists()
    (message,) = caplog.messages
    assert all(str(named) in message for named in (earlier, f"trial {RECORD.trial}", aside))


# Many trials.


def many(count: int, first: int = 0) -> list[Trial]:
    return [replace(RECORD, trial=first + number, key=f"{number:04d}{first:04d}many") for number in range(count)]


@pytest.fixture
def log_of_fours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialLog:
    """One of which four files become a part."""
    monkeypatch.setattr(log_module, "FILES_A_PART", 4)
    return TrialLog(tmp_path)


def test_many_files_become_one_and_read_as_before(tmp_path: Path, log_of_fours: TrialLog) -> None:
    records = many(10)
    log = filled(log_of_fours, records)
    files = files_below(log.folder)
    assert (len(files), files[-2:]) == (2 + 2, ["part-00000.parquet", "part-00001.parquet"])
    assert log.read("abc") == TrialLog(tmp_path).read() == records
    rows, faults = read_columns(tmp_path / "trials", ["key", "fitness"], "abc")
    assert rows == [{"key": record.key, "fitness": 0.75} for record in records]
    assert faults == {}
    assert num_trials(tmp_path / "trials") == 10
    assert {*read_trials(tmp_path)["key"]} == {record.key for record in records}


@pytest.mark.parametrize(("later", "num_parts"), [([], 1), (many(5, first=4), 2)], ids=["a file", "the later part"])
def test_the_later_of_two_counts(tmp_path: Path, log_of_fours: TrialLog, later: list[Trial], num_parts: int) -> None:
    """As where a run was killed before it removed the single files, or a trial ran anew."""
    newer = replace(RECORD, trial=2, key="again", fitness=0.875)
    log = filled(log_of_fours, [*many(4), replace(RECORD, trial=9), newer, *later])
    assert sum(name.startswith("part-") for name in files_below(log.folder)) == num_parts
    records = log.read()
    assert [record.trial for record in records] == [0, 1, 2, 3, *(record.trial for record in later), 9]
    assert records[2] == newer
    rows, _ = read_columns(tmp_path / "trials", ["fitness"])
    assert [row["fitness"] for row in rows] == [record.fitness for record in records]


def give_other_parameters(part: Path) -> None:
    """Write values that no trial has, as whoever rewrites a part may leave it."""
    table = pq.ParquetFile(part).read()
    place = table.schema.get_field_index("parameters")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(["[1]"] * 4)), part)


@pytest.mark.parametrize("damage", [partial(flip, bit=2000), give_other_parameters, truncate])
def test_a_damaged_part_is_set_aside(tmp_path: Path, log_of_fours: TrialLog, damage: Callable[[Path], object]) -> None:
    log = filled(log_of_fours, many(6))
    part = tmp_path / "trials" / "part-00000.parquet"
    damage(part)
    records, faults = read_records(part.parent)
    assert [record.trial for record in records] == [4, 5]
    assert list(faults) == [part]
    assert [record.trial for record in log.read()] == [4, 5]
    assert (tmp_path / "quarantine" / part.name).exists()
    assert log.read("other") == [], "trials of another study are set aside as well"
