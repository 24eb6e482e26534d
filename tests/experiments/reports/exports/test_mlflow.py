"""What is asked of MLflow, told by a stand-in with the signatures of its client."""

from __future__ import annotations

import importlib.machinery
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedscout.engine.errors import LogError
from fedscout.experiments.reports.export import METRICS_A_BATCH, PARAMETERS_A_BATCH, export_to_mlflow, trial_name
from tests.experiments.reports.exports.conftest import NUM_ROUNDS, MakeStudy
from tests.experiments.reports.exports.local_server import answered, local_server
from tests.kits.refusals import refused

PAGE = 4


class MlflowException(Exception):  # noqa: N818 - its name there
    """As MLflow's."""


@dataclass
class Run:
    """As MLflow keeps one."""

    run_id: str
    tags: dict[str, str]
    run_name: str
    start_time: int
    end_time: int | None = None
    status: str = "RUNNING"
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[Any] = field(default_factory=list)

    @property
    def info(self) -> Any:
        return SimpleNamespace(run_id=self.run_id, end_time=self.end_time)

    @property
    def data(self) -> Any:
        return SimpleNamespace(tags=self.tags)


class Page(list[Run]):
    """Runs, and where the next are."""

    token: str | None = None


@dataclass
class Server:
    """What all clients talk to."""

    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    breaks_after: int | None = None


class Client:
    """As `mlflow.MlflowClient`, as far as it is used."""

    def __init__(self, server: Server, tracking_uri: str | None = None) -> None:
        if tracking_uri == "nowhere":
            raise MlflowException("unsupported URI\nat great length")
        self._server = server

    def get_experiment_by_name(self, name: str) -> Any:
        found = self._server.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name: str) -> str:
        return self._server.experiments.setdefault(name, str(len(self._server.experiments) + 1))

    def create_run(
        self, experiment_id: str, start_time: int | None = None, tags: Any = None, run_name: str | None = None
    ) -> Run:
        assert experiment_id in self._server.experiments.values()
        run = Run(f"run{len(self._server.runs)}", dict(tags), str(run_name), int(start_time or 0))
        self._server.runs[run.run_id] = run
        if self._server.breaks_after == len(self._server.runs):
            raise MlflowException("connection lost")
        return run

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= METRICS_A_BATCH
        assert len(params) <= PARAMETERS_A_BATCH
        assert all(isinstance(param.value, str) for param in params)
        self._server.runs[run_id].params |= {param.key: param.value for param in params}
        self._server.runs[run_id].metrics += metrics

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self._server.runs[run_id].status = str(status)
        self._server.runs[run_id].end_time = end_time

    def search_runs(self, experiment_ids: list[str], page_token: str | None = None) -> Page:
        begin = int(page_token or 0)
        runs = list(self._server.runs.values())
        page = Page(runs[begin : begin + PAGE])
        page.token = str(begin + PAGE) if begin + PAGE < len(runs) else None
        return page

    def delete_run(self, run_id: str) -> None:
        del self._server.runs[run_id]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Put the stand-in in the place of MLflow."""
    server = Server()
    mlflow, entities, exceptions = (ModuleType(name) for name in ("mlflow", "mlflow.entities", "mlflow.exceptions"))
    mlflow.__spec__ = importlib.machinery.ModuleSpec("mlflow", None)
    mlflow.MlflowClient = lambda tracking_uri=None: Client(server, tracking_uri)  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(  # type: ignore[attr-defined]
        key=key, value=value, timestamp=timestamp, step=step
    )
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    exceptions.MlflowException = MlflowException  # type: ignore[attr-defined]
    for module in (mlflow, entities, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return server


def test_every_trial_is_a_run(make_study: MakeStudy, server: Server) -> None:
    study = make_study("search.strategies=[fedadam,fedprox]", "search.budget=6", "search.confirmation_seeds=2")
    assert export_to_mlflow(study, "http://mlflow") == len(study.records) == len(server.runs)
    assert list(server.experiments) == [study.name]
    for record, run in zip(study.records, server.runs.values(), strict=True):
        assert run.status == ("FAILED" if record.strategy == "fedprox" else "FINISHED")
        assert run.params["strategy"] == record.strategy
        assert run.tags["phase"] == record.phase
        assert run.end_time == round(1000 * record.finished_at.timestamp())
        fitness = [metric.value for metric in run.metrics if metric.key == "fitness"]
        assert fitness == [record.fitness]
        steps = [(metric.step, metric.value) for metric in run.metrics if metric.key == "accuracy"]
        assert steps == list(enumerate(record.round_accuracy, start=1))
        assert len(steps) == (1 if record.strategy == "fedprox" else NUM_ROUNDS)


def test_exported_again_only_what_is_missing_is_added(make_study: MakeStudy, server: Server) -> None:
    """An export that broke in its third run leaves a run without an end, which the next deletes and repeats."""
    study = make_study("search.budget=8")
    server.breaks_after = 3
    with refused(LogError, key="--path"):
        export_to_mlflow(study, "http://mlflow")
    server.breaks_after = None
    assert export_to_mlflow(study, "http://mlflow") == len(study.records) - 2
    assert export_to_mlflow(study, "http://mlflow") == 0
    assert len({run.run_name for run in server.runs.values()}) == len(server.runs) == len(study.records)


def test_the_folder_of_a_file_is_made(make_study: MakeStudy, server: Server, tmp_path: Path) -> None:
    export_to_mlflow(make_study("search.budget=1"), f"sqlite:///{tmp_path}/new/mlflow.db")
    assert (tmp_path / "new").is_dir()


def test_what_mlflow_refuses_is_told_in_one_line(make_study: MakeStudy, server: Server) -> None:
    with refused(LogError, key="--path", given="nowhere: unsupported URI"):
        export_to_mlflow(make_study("search.budget=1"), "nowhere")


@pytest.mark.filterwarnings("default")  # MLflow's own, of libraries newer than it knows
def test_mlflow_itself_takes_it(make_study: MakeStudy, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    study = make_study("search.budget=4")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert export_to_mlflow(study, uri) == len(study.records)
    assert export_to_mlflow(study, uri) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    assert len(client.search_runs([client.get_experiment_by_name(study.name).experiment_id])) == len(study.records)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_s_own_server_has_every_trial(make_study: MakeStudy, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("mlflow.server", reason="mlflow-skinny has no server")
    study = make_study("search.strategies=[fedadam,fedprox]", "search.budget=3", "search.confirmation_seeds=2")
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}", "--workers", "1"]
    with local_server(lambda port: ["mlflow", "server", *store, "--host", "127.0.0.1", "--port", port]) as address:
        assert answered(f"{address}/health") == b"OK"
        assert export_to_mlflow(study, address) == len(study.records)
        assert export_to_mlflow(study, address) == 0
        client = mlflow.MlflowClient(tracking_uri=address)
        runs = client.search_runs([client.get_experiment_by_name(study.name).experiment_id])
        by_name = {run.info.run_name: run for run in runs}
        for record in study.records:
            run = by_name[trial_name(record)]
            assert run.data.params["strategy"] == record.strategy
            assert run.info.status == ("FAILED" if record.status == "failed" else "FINISHED")
            curve = client.get_metric_history(run.info.run_id, "accuracy")
            assert [point.value for point in curve] == list(record.round_accuracy)
    assert len(runs) == len(study.records)
