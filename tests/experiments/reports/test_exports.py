"""What Optuna, TensorBoard and Weights & Biases read of an exported study, and what is asked of MLflow."""

from __future__ import annotations

import importlib.machinery
import json
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState

from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments import text
from fedscout.experiments.reports.export import WRITERS, export, name_of, runs_of
from fedscout.experiments.studies.result import StoredStudy, read_study
from tests.experiments.reports.scripted_study import NUM_ROUNDS, write_study
from tests.kits.refusals import refused

SEARCH = ("search.strategies=[fedavg,fedadam,fedprox,multikrum,krum]", "search.budget=12", "search.kind=random")
CONFIRMED = ("search.strategies=[fedadam,fedprox]", "search.budget=6", "search.confirmation_seeds=2")


def made(folder: Path, *settings: str) -> StoredStudy:
    write_study(folder / "study", *settings)
    return read_study(folder / "study")


def stored(path: Path, name: str) -> list[Any]:
    """Return the trials of a study in a file."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    trials = optuna.load_study(study_name=name, storage=storage).trials
    storage.remove_session()
    storage.engine.dispose()
    return trials


def test_optuna_reads_the_search(tmp_path: Path) -> None:
    """The file of another study is kept, and exporting again replaces."""
    study, path = made(tmp_path, *SEARCH), tmp_path / "new" / "optuna.db"
    assert [export(study, "optuna", str(path)) for _ in range(2)] == [13, 13]
    write_study(tmp_path / "other", "search.budget=1", "seed=1")
    assert export(read_study(tmp_path / "other"), "optuna", str(path)) == 2
    found = stored(path, name_of(study))
    assert len(found) == 1 + 12
    records = [record for record in study.trials if record.phase in ("baseline", "search")]
    for trial, record in zip(found, records, strict=True):
        assert trial.params["strategy"] == record.strategy
        assert all(trial.params[name] == record.parameters[name] for name in trial.params if name in record.parameters)
        assert trial.user_attrs["trial"] == record.trial == trial.number
        assert trial.state == (TrialState.FAIL if record.strategy == "fedprox" else TrialState.COMPLETE)
        assert trial.value == (None if record.strategy == "fedprox" else record.fitness)
    first = found[0]
    assert first.intermediate_values == dict.fromkeys(range(1, NUM_ROUNDS + 1), 0.5)
    assert first.datetime_complete.astimezone() == study.trials[0].finished_at
    assert first.duration == timedelta(seconds=study.trials[0].seconds["total"] or 0)
    of_kind = {trial.params["strategy"]: trial for trial in found}
    tried = [record.parameters["eta"] for record in records if record.strategy == "fedadam"]
    assert of_kind["fedadam"].distributions["eta"] == FloatDistribution(min(tried), max(tried))
    assert isinstance(of_kind["multikrum"].distributions["num_nodes_to_select"], IntDistribution)


def test_trials_of_fewer_rounds_are_pruned(tmp_path: Path) -> None:
    kinds = "search.strategies=[fedadam,krum,multikrum]"
    study = made(tmp_path, "search.kind=racing", "search.racing.min_rounds=1", kinds)
    export(study, "optuna", str(tmp_path / "optuna.db"))
    found = stored(tmp_path / "optuna.db", name_of(study))
    pruned = [trial for trial in found if trial.state == TrialState.PRUNED]
    searched = [record for record in study.trials if record.phase == "search"]
    assert len(pruned) == sum(record.num_rounds < NUM_ROUNDS for record in searched) > 0
    assert {trial.value for trial in pruned} <= {0.26, 0.27}


@pytest.mark.parametrize("program", ["optuna", "tensorboard", "wandb"])
def test_a_place_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path, program: str) -> None:
    pytest.importorskip(program)
    (tmp_path / "notes").write_text("buy milk\n")
    with refused(LogError, key="--path", names=str(tmp_path / "notes")):
        export(made(tmp_path, "search.budget=1"), program, str(tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "buy milk\n"


@pytest.mark.parametrize("program", sorted({*WRITERS} - {"optuna"}))
def test_without_its_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(text, "find_spec", lambda _: None)
    with refused(ConfigurationError, key="--to", names=f"fedscout[{program}]"):
        export(made(tmp_path, "search.budget=1"), program, str(tmp_path / "runs"))


def test_a_damaged_trial_is_left_out_and_told_and_a_study_without_any_is_none(tmp_path: Path) -> None:
    study = made(tmp_path, "search.budget=1")
    first, *others = sorted((study.folder / "trials").iterdir())
    first.write_bytes(b"damaged")
    rest = read_study(study.folder)
    assert (len(rest.trials), str(first) in rest.faults[0]) == (len(others), True)
    assert export(rest, "optuna", str(tmp_path / "optuna.db")) == 1  # of FedAvg and one in the search
    for file in others:
        file.unlink()
    with refused(LogError, key="the folder"):
        read_study(study.folder)


# MLflow, told by a stand-in with the signatures of its client.


class Client:
    """As `mlflow.MlflowClient` with its server, as far as it is used."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.breaks_after: int | None = None

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name) if self.runs else None

    def create_experiment(self, name: str) -> str:
        return name

    def search_runs(self, experiments: list[str], filter_string: str) -> list[Any]:
        name = filter_string.split("'")[1]
        return [run for run in self.runs if run.tags["fedscout_trial"] == name and run.status != "RUNNING"]

    def create_run(self, experiment: str, start_time: int, tags: dict[str, str], run_name: str) -> Any:
        run = SimpleNamespace(name=run_name, tags=tags, status="RUNNING", end_time=None, params={}, metrics=[])
        self.runs.append(run)
        if self.breaks_after == len(self.runs):
            raise RuntimeError("connection lost\nat great length")
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs) - 1))

    def log_batch(self, run_id: int, metrics: Any = (), params: Any = ()) -> None:
        self.runs[run_id].params |= dict(params)
        self.runs[run_id].metrics += metrics

    def set_terminated(self, run_id: int, status: str, end_time: int) -> None:
        self.runs[run_id].status, self.runs[run_id].end_time = status, end_time


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Put the stand-in in the place of MLflow."""
    client, modules = Client(), [ModuleType("mlflow"), ModuleType("mlflow.entities")]
    modules[0].__spec__ = importlib.machinery.ModuleSpec("mlflow", None)
    vars(modules[0])["MlflowClient"] = lambda tracking_uri: client
    vars(modules[1]).update(Metric=lambda *values: values, Param=lambda *values: values)
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return client


def test_mlflow_gets_what_it_does_not_have(tmp_path: Path, mlflow: Client) -> None:
    """An export that broke in its third run leaves a run without an end, which the next repeats."""
    study = made(tmp_path, *CONFIRMED)
    mlflow.breaks_after = 3
    with refused(LogError, key="--path"):
        export(study, "mlflow", f"sqlite:///{tmp_path}/new/mlflow.db")
    mlflow.breaks_after = None
    assert (tmp_path / "new").is_dir()
    assert export(study, "mlflow", "http://mlflow") == len(study.trials) - 2
    assert export(study, "mlflow", "http://mlflow") == 0
    ended = [run for run in mlflow.runs if run.end_time is not None]
    for record, run in zip(study.trials, ended, strict=True):
        assert run.status == ("FAILED" if record.strategy == "fedprox" else "FINISHED")
        assert (run.params["strategy"], run.tags["phase"]) == (record.strategy, record.phase)
        assert run.end_time == round(1000 * record.finished_at.timestamp())
        assert [metric[1] for metric in run.metrics if metric[0] == "fitness"] == [record.fitness]
        steps = [(metric[3], metric[1]) for metric in run.metrics if metric[0] == "accuracy"]
        assert steps == list(enumerate(record.rounds["accuracy"], start=1))


# The real writers of TensorBoard and Weights & Biases, and their own readers.


def test_tensorboard_reads_every_trial(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    study = made(tmp_path, *CONFIRMED)
    for _ in range(2):
        assert export(study, "tensorboard", str(tmp_path / "board")) == len(study.trials)
    folders = sorted((tmp_path / "board" / f"wine-{study.config.digest()[:8]}").iterdir())
    assert [folder.name for folder in folders] == [run.name for run in runs_of(study)]
    for record, folder in zip(study.trials, folders, strict=True):
        events = EventAccumulator(str(folder)).Reload()
        accuracy = events.Scalars("accuracy")
        assert [event.step for event in accuracy] == list(range(1, len(record.rounds["accuracy"]) + 1))
        assert [event.value for event in accuracy] == pytest.approx(record.rounds["accuracy"], rel=1e-6)
        assert accuracy[0].wall_time == pytest.approx(record.finished_at.timestamp())
        assert events.Scalars("fitness")[0].value == pytest.approx(record.fitness)
        (start,) = (events.summary_metadata["_hparams_/session_start_info"].plugin_data.content,)
        told = HParamsPluginData.FromString(start).session_start_info.hparams
        assert told["strategy"].string_value == record.strategy
        assert told["seed"].number_value == record.seed


BLOCK = 2**15
"""A file is a log in LevelDB's form: blocks of pieces, each a checksum, a length and whether a record goes on."""


def wandb_records(file: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, place, held = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        held += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(held)
            held = b""


@pytest.mark.slow
def test_wandb_has_every_trial_with_its_curves(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")

    def values_of(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    study = made(tmp_path, *CONFIRMED)
    for _ in range(2):
        assert export(study, "wandb", str(tmp_path / "runs")) == len(study.trials)
    by_name = {}
    for file in (tmp_path / "runs" / name_of(study)).glob("wandb/offline-run-*/*.wandb"):
        found: dict[str, Any] = defaultdict(list)
        for record in wandb_records(file):
            found[record.WhichOneof("record_type")].append(record)
        by_name[found["run"][0].run.display_name] = found
    assert len(by_name) == len(study.trials)
    for run in runs_of(study):
        found = by_name[run.name]
        logged = found["run"][0].run
        assert (logged.project, logged.run_group) == (name_of(study), run.trial.phase)
        assert values_of(logged.config.update).items() >= run.settings.items()
        accuracy = [values_of(row.history.item)["accuracy"] for row in found["history"]]
        assert accuracy == list(run.trial.rounds["accuracy"])
        assert found["exit"][0].exit.exit_code == (run.trial.status == "failed")
