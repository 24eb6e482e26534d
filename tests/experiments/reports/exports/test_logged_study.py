"""Reading a study's folder for an export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments import text
from fedscout.experiments.reports.export import (
    export_to_mlflow,
    export_to_tensorboard,
    export_to_wandb,
    read_study,
    settings_of,
    trial_name,
)
from tests.experiments.reports.exports.conftest import MakeStudy
from tests.forged_trials import forge
from tests.kits.refusals import refused

EXPORTS = {"wandb": export_to_wandb, "tensorboard": export_to_tensorboard, "mlflow": export_to_mlflow}


@pytest.mark.parametrize("package", EXPORTS)
def test_without_its_package_the_extra_is_named(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(text, "find_spec", lambda _: None)
    with refused(ConfigurationError, key="--to", names=f"fedscout[{package}]"):
        EXPORTS[package](make_study("search.budget=1"), tmp_path / "runs")


@pytest.mark.parametrize("package", ["wandb", "tensorboard"])
def test_a_folder_that_is_a_file_is_refused(make_study: MakeStudy, tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    (tmp_path / "runs").write_text("a file")
    with refused(LogError, key="runs"):
        EXPORTS[package](make_study("search.budget=1"), tmp_path / "runs")


def test_names_are_unique_and_fit_for_folders(make_study: MakeStudy) -> None:
    study = make_study("search.budget=8")
    names = [trial_name(record) for record in study.records]
    assert len({*names}) == len(names)
    assert names[0].startswith("00000-fedavg-")
    assert study.name == f"wine-{study.config.digest()[:8]}"
    assert study.num_clients == 10


def test_settings_are_flat(make_study: MakeStudy) -> None:
    study = make_study("search.strategies=[fedadam]")
    settings = settings_of(study.records[1])
    assert settings["strategy"] == "fedadam"
    assert {"eta", "tau", "beta_1", "beta_2", "learning_rate", "seed"} < set(settings)
    assert not any(isinstance(value, dict) or value is None for value in settings.values())


def test_what_is_no_study_is_refused(make_study: MakeStudy, tmp_path: Path) -> None:
    with refused(LogError, key="the folder"):
        read_study(tmp_path)
    study = make_study("search.budget=1")
    claim = json.loads((study.path / "config.json").read_text())
    other = {**claim, "config": {**claim["config"], "novelty": 1}}
    (study.path / "config.json").write_text(json.dumps(other))
    with refused(LogError, key="study"):
        read_study(study.path)
    (study.path / "config.json").write_text(json.dumps(claim))
    for file in (study.path / "trials").iterdir():
        file.unlink()
    with refused(LogError, key="the folder"):
        read_study(study.path)


def test_what_is_no_trial_is_left_out_and_told(make_study: MakeStudy) -> None:
    study = make_study("search.budget=1")
    (path,) = (study.path / "trials").glob("00001-*")
    forge(path, parameters="[1]")
    again = read_study(study.path)
    assert again.records == tuple(record for record in study.records if record.trial != 1)
    (fault,) = again.faults
    assert fault.startswith(f"{path} ")
    assert "parameters" in fault
