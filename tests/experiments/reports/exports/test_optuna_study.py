"""What Optuna reads of an exported study."""

from __future__ import annotations

import json
import warnings
from datetime import timedelta
from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments import text
from fedscout.experiments.reports.export import (
    LoggedStudy,
    export_to_mlflow,
    export_to_optuna,
    export_to_tensorboard,
    export_to_wandb,
    read_study,
    settings_of,
    trial_name,
)
from tests.experiments.reports.exports.conftest import NUM_ROUNDS, MakeStudy
from tests.forged_trials import forge
from tests.kits.refusals import refused

SEARCH = ("search.strategies=[fedavg,fedadam,fedprox,multikrum,krum]", "search.budget=12", "search.kind=random")


def storage_of(path: Path) -> BaseStorage:
    return RDBStorage(f"sqlite:///{path}") if path.suffix == ".db" else JournalStorage(JournalFileBackend(str(path)))


def studies_in(path: Path) -> dict[str, optuna.Study]:
    """Return all studies of a file, in memory."""
    storage = storage_of(path)
    found = {}
    for name in optuna.get_all_study_names(storage):
        found[name] = optuna.create_study(study_name=name, direction="maximize")
        stored = optuna.load_study(study_name=name, storage=storage)
        found[name].add_trials(stored.trials)
        for key, value in stored.user_attrs.items():
            found[name].set_user_attr(key, value)
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()
    return found


def exported(study: LoggedStudy, path: Path) -> optuna.Study:
    export_to_optuna(study, path)
    return studies_in(path)[study.name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optuna.log", "optuna.db"])
def test_trials_keep_numbers_values_and_parameters(make_study: MakeStudy, tmp_path: Path, name: str) -> None:
    study = make_study(*SEARCH)
    found = exported(study, tmp_path / "new" / name)
    assert len(found.trials) == 1 + 12
    records = [record for record in study.records if record.phase in ("baseline", "search")]
    for trial, record in zip(found.trials, records, strict=True):
        searched = {f"{record.strategy}.{key}" for key in record.parameters if key not in ("sample_scaling",)}
        assert trial.params["strategy"] == record.strategy
        assert set(trial.params) - {"strategy"} <= searched
        assert all(trial.params[key] == record.parameters[key.partition(".")[2]] for key in trial.params if "." in key)
        assert trial.user_attrs["trial"] == record.trial == trial.number
        assert trial.state == (TrialState.FAIL if record.strategy == "fedprox" else TrialState.COMPLETE)
        assert trial.value == (None if record.strategy == "fedprox" else record.fitness)
    multikrum = next(trial for trial in found.trials if trial.params["strategy"] == "multikrum")
    assert set(multikrum.params) == {"strategy", "multikrum.num_malicious_nodes", "multikrum.num_nodes_to_select"}
    assert found.best_trial.params == {"strategy": "fedavg"}
    assert found.user_attrs["federation"] == "wine, 10 clients"


def test_rounds_are_intermediate_values_and_times_are_kept(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study(*SEARCH)
    trial = exported(study, tmp_path / "optuna.log").trials[0]
    assert trial.intermediate_values == dict.fromkeys(range(1, NUM_ROUNDS + 1), 0.5)
    assert trial.datetime_complete is not None
    assert trial.datetime_complete.astimezone() == study.records[0].finished_at
    assert trial.duration == timedelta(seconds=study.records[0].seconds["total"] or 0)


def test_ranges_are_those_of_the_search(make_study: MakeStudy, tmp_path: Path) -> None:
    """FedAdam's η is searched in [0.01, 1], log-scaled."""
    found = exported(make_study(*SEARCH), tmp_path / "optuna.log")
    adam = next(trial for trial in found.trials if trial.params["strategy"] == "fedadam")
    eta = adam.distributions["fedadam.eta"]
    assert eta == optuna.distributions.FloatDistribution(0.01, 1.0, log=True)
    krum = next(trial for trial in found.trials if trial.params["strategy"] == "krum")
    assert krum.distributions["krum.num_malicious_nodes"] == optuna.distributions.IntDistribution(0, 7)


def test_optunas_own_tools_read_it(make_study: MakeStudy, tmp_path: Path) -> None:
    found = exported(make_study(*SEARCH), tmp_path / "optuna.log")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials
        importances = optuna.importance.get_param_importances(found)
    assert "strategy" in importances
    table = found.trials_dataframe()
    assert len(table) == 1 + 12
    assert "params_multikrum.num_nodes_to_select" in table.columns


def test_clients_parameters_are_shared_by_all_strategies(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study(*SEARCH, "search.client_ranges.learning_rate={low: 0.01, high: 1, log: true}")
    found = exported(study, tmp_path / "optuna.log")
    assert all("client_learning_rate" in trial.params for trial in found.trials[1:])


def test_trials_of_fewer_rounds_are_pruned(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study("search.kind=racing", "search.racing.min_rounds=1", "search.strategies=[fedadam,krum,multikrum]")
    found = exported(study, tmp_path / "optuna.log")
    searched = [record for record in study.records if record.phase == "search"]
    pruned = [trial for trial in found.trials if trial.state == TrialState.PRUNED]
    assert len(pruned) == sum(record.num_rounds < NUM_ROUNDS for record in searched) > 0
    assert {trial.value for trial in pruned} <= {0.26, 0.27}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optuna.log", "optuna.db"])
def test_exported_again_it_is_replaced_and_other_studies_stay(make_study: MakeStudy, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    storage = storage_of(path)
    optuna.create_study(study_name="another", storage=storage)
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()
    study = make_study(*SEARCH)
    for _ in range(2):
        assert export_to_optuna(study, path) == 13
    assert {key: len(each.trials) for key, each in studies_in(path).items()} == {"another": 0, study.name: 13}
    assert [each.name for each in tmp_path.iterdir() if each.name not in (name, "study")] == []


def test_a_foreign_file_is_refused_and_left_as_it_was(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study(*SEARCH)
    for name in ("notes.log", "notes.db"):
        (tmp_path / name).write_text("buy milk\n")
        with refused(LogError, key=name, names="Optuna"):
            export_to_optuna(study, tmp_path / name)
        assert (tmp_path / name).read_text() == "buy milk\n"
    (tmp_path / "folder").mkdir()
    with refused(LogError, key="folder"):
        export_to_optuna(study, tmp_path / "folder")


def test_an_unfinished_study_with_a_damaged_file_is_exported(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study(*SEARCH)
    files = sorted((study.path / "trials").iterdir())
    files[5].unlink()
    files[7].write_bytes(b"damaged")
    before = sorted((path, path.stat().st_mtime_ns) for path in study.path.rglob("*"))
    rest = read_study(study.path)
    assert len(rest.faults) == 1
    assert str(files[7]) in rest.faults[0]
    assert export_to_optuna(rest, tmp_path / "optuna.log") == 13 - 2
    assert sorted((path, path.stat().st_mtime_ns) for path in study.path.rglob("*")) == before


# Reading a study's folder for an export.


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
