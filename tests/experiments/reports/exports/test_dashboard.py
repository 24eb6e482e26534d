"""Optuna's own dashboard, started on what was exported and asked over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedscout.experiments.reports.export import export_to_optuna
from tests.experiments.reports.exports.conftest import MakeStudy
from tests.experiments.reports.exports.local_server import answered, local_server

pytest.importorskip("optuna_dashboard", reason="the extra tracking is not installed")


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["trials.db", "trials.log"])
def test_the_dashboard_shows_the_study(make_study: MakeStudy, tmp_path: Path, name: str) -> None:
    study = make_study("search.strategies=[fedadam,fedprox]", "search.budget=4", "search.confirmation_seeds=0")
    file = tmp_path / name
    export_to_optuna(study, file)
    storage = f"sqlite:///{file}" if name.endswith(".db") else str(file)
    with local_server(lambda port: ["optuna-dashboard", storage, "--host", "127.0.0.1", "--port", port]) as address:
        (summary,) = json.loads(answered(f"{address}/api/studies"))["study_summaries"]
        detail = json.loads(answered(f"{address}/api/studies/{summary['study_id']}"))
    assert summary["study_name"] == study.name
    values = [trial["values"][0] for trial in detail["trials"] if trial["state"] == "Complete"]
    expected = [record.fitness for record in study.records if record.status == "completed"]
    assert sorted(values) == pytest.approx(sorted(expected))
