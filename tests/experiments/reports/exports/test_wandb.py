"""The real package, offline, and what it wrote, read by its own records."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedscout.experiments.reports.export import export_to_wandb, settings_of, trial_name
from tests.experiments.reports.exports.conftest import NUM_ROUNDS, MakeStudy

pytest.importorskip("wandb", reason="the extra wandb is not installed")

BLOCK = 2**15
"""A file is a log in LevelDB's form: blocks of pieces, each a checksum, a length and whether a record goes on."""


def records_of(file: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, place, held = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        held += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(held)
            held = b""
            yield record


def values_of(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
def test_every_trial_is_a_run_with_its_curves(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study("search.strategies=[fedadam,fedprox]", "search.budget=3", "search.confirmation_seeds=2")
    for _ in range(2):
        assert export_to_wandb(study, tmp_path / "runs") == len(study.records)
    files = list((tmp_path / "runs" / study.name).glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == len(study.records)
    by_name = {}
    for file in files:
        found: dict[str, Any] = defaultdict(list)
        for record in records_of(file):
            found[record.WhichOneof("record_type")].append(record)
        by_name[found["run"][0].run.display_name] = found
    assert by_name.keys() == {trial_name(record) for record in study.records}
    for record in study.records:
        found = by_name[trial_name(record)]
        run = found["run"][0].run
        assert (run.project, run.run_group) == (study.name, record.phase)
        settings = values_of(run.config.update)
        assert {name: settings[name] for name in settings_of(record)} == settings_of(record)
        rows = [values_of(row.history.item) for row in found["history"]]
        assert [row["accuracy"] for row in rows] == list(record.round_accuracy)
        assert len(rows) == (1 if record.status == "failed" else NUM_ROUNDS)
        assert found["exit"][0].exit.exit_code == (record.status == "failed")
