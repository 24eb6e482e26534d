"""A study of two objectives: its front in the log, the result, Optuna's file and the confirmation."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import fedscout
from fedscout.experiments.charts import ON_FRONT
from fedscout.experiments.reports.export import export_to_optuna, read_study
from fedscout.experiments.reports.page import write_report
from tests.experiments.reports.page.test_study_page import specifications, values_of

HERE = {"grid": "local"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tpe", "genetic"])
def test_a_study_tells_of_its_front(tmp_path: Path, kind: str) -> None:
    federation = fedscout.Federation("wine", num_clients=4, partition={"kind": "dirichlet", "alpha": 0.5})
    search = {
        "kind": kind,
        "budget": 6,
        "generation_size": 3,
        "objective": ["accuracy", "bytes_to_target"],
        "target": 0.6,
        "confirmation_seeds": 2,
        "confirmation_top": 2,
    }
    asked = {"training": {"num_rounds": 6}, "search": search, "engine": HERE}
    found = fedscout.study(federation, out=tmp_path, detection_first=False, **asked)
    logged = found.trials[found.trials["phase"] != "confirmation"]
    points = [tuple(values) for values in logged["objectives"]]
    assert [values[0] for values in points] == logged["fitness"].tolist()
    front = [tuple(one["objectives"]) for one in found.document["front"]]
    assert len(set(front)) == len(front)
    assert {*front} <= {*points}
    drawn = [row for row in values_of(specifications(write_report(tmp_path))["front"]) if "trial" in row]
    assert {row["trial"] for row in drawn} == {*logged.loc[logged["phase"] != "tuned-baseline", "trial"]}
    shown = {(row["first"], row["second"]) for row in drawn if row["front"] == ON_FRONT}
    assert shown == {tuple(float(f"{value:.5g}") for value in values) for values in front}
    exported = tmp_path / "optuna.log"
    export_to_optuna(read_study(tmp_path), exported)
    (name,) = optuna.get_all_study_names(JournalStorage(JournalFileBackend(str(exported))))
    dashboard = optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(exported))))
    assert {tuple(trial.values) for trial in dashboard.best_trials} == {*front}
    assert found.confirmation is not None
    others = [one for one in found.document["front"] if one["strategy"] != "fedavg"]
    confirmed = [one for one in found.confirmation.contestants if one.role in ("challenger", "contender")]
    assert {one.strategy for one in confirmed} <= {one["strategy"] for one in others}
    assert all(one.second is not None and len(one.second) == 2 for one in found.confirmation.contestants)
    assert found.confirmation.sentence.count(f" {len(confirmed)} of {len(others)} ") == 1
    again = fedscout.study(federation, out=tmp_path, detection_first=False, **asked)
    assert {**again.document, "timings": 0} == {**found.document, "timings": 0}
