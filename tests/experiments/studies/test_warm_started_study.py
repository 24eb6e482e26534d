"""A study that starts from earlier ones: what it tries first, what it keeps, and what it may not use."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.studies.workflow import Display, FinishedStudy, run_workflow
from fedscout.strategies import FedMedianSpec, FedProxSpec
from tests.kits.refusals import refused
from tests.search.earlier import FEDAVG, report_of, write_study

ARGUMENTS = [
    "engine.grid=local",
    "federation.dataset=wine",
    "federation.num_clients=4",
    "training.num_rounds=2",
    "search.budget=3",
    "search.generation_size=2",
    "search.confirmation_seeds=0",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
]
PROX = FedProxSpec(proximal_mu=0.5)


def config_from(*folders: Path, more: tuple[str, ...] = ()) -> StudyConfig:
    names = ", ".join(str(folder) for folder in folders)
    return load_config([*ARGUMENTS, f"search.warm_start=[{names}]", *more])


def lasting(finished: FinishedStudy) -> dict[str, Any]:
    return {name: value for name, value in finished.document.items() if name != "timings"}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    folder = tmp_path / "earlier"
    write_study(
        folder / "near", {FEDAVG: 0.5, FedMedianSpec(): 0.9, PROX: 0.6}, report_of(num_clients=4, num_classes=3)
    )
    write_study(folder / "far", {FEDAVG: 0.5, PROX: 0.9}, report_of(num_clients=500), data_digest="others")
    return folder


def test_a_killed_study_goes_on_from_what_the_earlier_ones_said_then(earlier: Path, tmp_path: Path) -> None:
    config = config_from(earlier)
    finished = run_workflow(config, tmp_path / "study", Display())

    start = finished.document["warm_start"]
    assert [Path(study["study"]).name for study in start["studies"]] == ["near", "far"]
    tried = [entry.spec for entry in finished.outcome.trials]
    assert tried[:2] == [FedMedianSpec(), PROX]
    assert len(tried) == 3
    assert json.loads((tmp_path / "study" / "warm_start.json").read_text()) == start

    shutil.rmtree(earlier)
    for path in sorted((tmp_path / "study" / "trials").iterdir())[1:]:
        path.unlink()
    again = run_workflow(config, tmp_path / "study", Display())
    assert lasting(again) == lasting(finished)


def test_a_race_enters_what_it_is_given(earlier: Path, tmp_path: Path) -> None:
    config = config_from(earlier, more=("search.kind=racing", "search.racing.min_rounds=1", "training.num_rounds=4"))
    finished = run_workflow(config, tmp_path / "study", Display())
    assert [entry.spec for entry in finished.outcome.trials][:2] == [FedMedianSpec(), PROX]
    assert finished.document["trainings"] <= 2.5
    assert {trial["num_rounds"] for trial in finished.document["trials"]} == {1, 4}


@pytest.mark.slow
def test_a_study_is_not_told_of_its_own_federation(tmp_path: Path) -> None:
    first = run_workflow(load_config(ARGUMENTS), tmp_path / "first", Display())
    finished = run_workflow(config_from(tmp_path, more=("seed=1",)), tmp_path / "second", Display())
    start = finished.document["warm_start"]
    (study,) = start["studies"]
    assert study.pop("note")
    assert study == {"study": str(first.folder), "distance": None, "same_data": False}
    assert (start["proposals"], len(start["notes"])) == ([], 1)
    alone = run_workflow(load_config([*ARGUMENTS, "seed=1"]), tmp_path / "alone", Display())
    assert finished.document["trials"] == alone.document["trials"]


def test_mistakes_are_told_before_anything_is_done_and_leave_nothing(earlier: Path, tmp_path: Path) -> None:
    for folder, detection in ((tmp_path / "nowhere", True), (earlier, False)):
        with refused(ConfigurationError, key="search.warm_start"):
            run_workflow(config_from(folder), tmp_path / "study", Display(), detection=detection)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_kept_warm_start_names_no_code(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who plants one can't have a module imported, whatever the file proposes; what does not fit is made again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_module.py").touch()
    config = config_from(earlier)
    finished = run_workflow(config, tmp_path / "study", Display())
    kept = tmp_path / "study" / "warm_start.json"
    start = json.loads(kept.read_text())
    planted = {"kind": "custom", "path": "planted_module:Own"}
    for strategy in (planted, {"kind": "fedmedian", "no": 1}, {"kind": "gone"}):
        kept.write_text(json.dumps({**start, "proposals": [{"strategy": strategy, "study": "near", "gain": 1.0}]}))
        (tmp_path / "study" / "result.json").unlink()
        again = run_workflow(config, tmp_path / "study", Display())
        assert "planted_module" not in sys.modules
        assert lasting(again) == lasting(finished)
        assert json.loads(kept.read_text()) == start


def test_studies_of_another_measure_propose_nothing(earlier: Path, tmp_path: Path) -> None:
    """What is best by accuracy need not serve the worst clients."""
    config = config_from(earlier, more=("search.objective=worst_clients", "search.budget=1"))
    start = run_workflow(config, tmp_path / "study", Display()).document["warm_start"]
    assert all("measure" in study["note"] for study in start["studies"])
    assert start["proposals"] == []
