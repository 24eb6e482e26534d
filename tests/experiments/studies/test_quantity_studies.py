"""Regression through the whole road: tables, arrays and the diabetes data, what it refuses, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import fedscout
from fedscout.detectors.report import TENTHS
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.engine.messages.calls import Cohort
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.one_shot import RecommendationRequest
from fedscout.experiments.studies.workflow import recommend
from fedscout.strategies import parse_strategy, space_of
from tests.kits.refusals import refused

HERE = {"grid": "local"}
LINEAR = {"kind": "linear"}
DIABETES = {"num_clients": 4, "partition": {"kind": "iid"}}


def loads(num_rows: int = 300) -> pd.DataFrame:
    """Loads of machines, 40 to 160 kW, that follow from speed and temperature."""
    generator = np.random.default_rng(6)
    speed, heat = generator.normal(size=(2, num_rows))
    load = 100 + 15 * speed - 8 * heat + generator.normal(scale=3, size=num_rows)
    return pd.DataFrame(
        {"speed": speed, "heat": heat, "shift": generator.choice(["day", "night"], num_rows), "load": load}
    )


def table(**settings: Any) -> fedscout.Federation:
    asked = {"label": "load", "task": "regression", "num_clients": 3, "partition": {"kind": "iid"}, **settings}
    return fedscout.Federation(loads(), model=LINEAR, **asked)


def train(federation: fedscout.Federation, strategy: Any = "fedavg", **training: Any) -> fedscout.TrainedStrategy:
    how = {"num_rounds": 15, "learning_rate": 0.1, "local_epochs": 3, **training}
    return fedscout.train(federation, strategy, training=how, engine=HERE)


def test_the_diabetes_data_are_the_published_ones() -> None:
    built = build_federation(FederationConfig(dataset="diabetes", num_clients=3), ModelConfig())
    assert built.targets is not None
    assert (built.features.shape, built.targets.min(), built.targets.max()) == ((442, 10), 25, 346)
    assert np.bincount(built.labels).min() > 30  # tenths
    assert built.target_name == "progression"
    assert built.class_names[0].startswith("below ")


def test_a_linear_model_learns_what_least_squares_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On IID clients FedAvg of linear models comes to the least-squares fit, whose R² on all rows it nearly has."""
    monkeypatch.chdir(tmp_path)
    frame = loads()
    columns = np.column_stack([frame["speed"], frame["heat"], frame["shift"] == "day"])
    best = LinearRegression().fit(columns, frame["load"]).score(columns, frame["load"])
    trained = train(table())
    assert trained.trial["status"] == "completed"
    assert trained.rounds["metric"].iloc[-1] == pytest.approx(best, abs=0.03)
    assert "accuracy" not in trained.rounds
    error = train(table(), metric="mae").rounds["metric"].iloc[-1]
    spread = np.abs(frame["load"] - frame["load"].mean()).mean()
    assert spread - error == pytest.approx(3 * np.sqrt(2 / np.pi), rel=0.25)  # kW: that of the noise


def test_arrays_of_clients_predict_a_quantity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = loads()
    rows = frame[["speed", "heat"]].to_numpy(), frame["load"].to_numpy()
    clients = [tuple(part[start::3] for part in rows) for start in range(3)]
    federation = fedscout.Federation(clients, model=LINEAR, task="regression")
    assert "predicts the target" in repr(federation)
    assert train(federation).trial["fitness"] > 0.9


@pytest.mark.slow
def test_a_study_detects_searches_and_confirms(tmp_path: Path) -> None:
    frame = loads()
    frame.to_csv(tmp_path / "loads.csv", index=False)
    federation = fedscout.Federation(
        tmp_path / "loads.csv", label="load", task="regression", num_clients=3, model=LINEAR
    )
    search = {"budget": 2, "generation_size": 2, "confirmation_seeds": 2, "objective": "worst_clients"}
    found = fedscout.study(
        federation, training={"num_rounds": 2, "metric": "mae"}, search=search, engine=HERE, out=tmp_path / "out"
    )
    assert found.report is not None
    assert found.report.label_skew.value is not None
    assert found.report.metrics.output_divergence is None
    assert TENTHS in found.report.notes
    assert found.confirmation is not None
    assert "MAE reduction" in found.confirmation.sentence
    assert "points" not in found.confirmation.sentence
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["baseline"]["metric"] == "mae"
    assert found.document["baseline"]["fitness"] > 0


@pytest.mark.parametrize(
    ("settings", "key", "names"),
    [
        ({"task": "classification"}, "column 'load' of data set 'given'", "300"),
        ({"label": "shift"}, "column 'shift' of data set 'given'", "row 1 "),
        ({"server_rows": 10}, "federation.server_rows", "10"),
        ({"text_column": "shift"}, "federation.task", "federation.text_column"),
    ],
)
def test_what_needs_classes_is_refused_in_a_line(settings: dict[str, Any], key: str, names: str) -> None:
    with refused(UserError, key=key, names=names) as caught:
        table(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"scenario": [{"kind": "label_flip", "rate": 0.3}]}, "label_flip"),
        ({"scenario": "label_poisoning", "partition": {}}, "poisoning"),
    ],
)
def test_effects_on_classes_are_refused(settings: dict[str, Any], kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^federation\.scenario\.0\.kind .* {kind} "):
        table(**settings)


@pytest.mark.parametrize(("dataset", "task"), [("wine", "regression"), ("diabetes", "classification")])
def test_published_classes_and_quantities_stay_what_they_are(dataset: str, task: str) -> None:
    with refused(UserError, key="federation.task"):
        fedscout.Federation(dataset, task=task, num_clients=3)


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_a_metric_of_classes_is_refused(metric: str) -> None:
    with refused(UserError, key="training.metric"):
        train(fedscout.Federation("diabetes", **DIABETES), metric=metric)
    with refused(UserError, key="training.metric", given="mae"):
        train(fedscout.Federation("wine", num_clients=3), metric="mae")


@pytest.mark.parametrize("kind", ["fedlc", "fedrs", "fedrod", "symmetric_loss", "fedadam+fedlc"])
def test_strategies_that_need_classes_are_refused(kind: str) -> None:
    with refused(UserError, key=kind.rpartition("+")[2], given="a task without classes"):
        train(fedscout.Federation("diabetes", **DIABETES), kind)


def test_a_search_among_all_leaves_them_out() -> None:
    cohort = Cohort(4, 4, 0.1, layers=frozenset({"Linear"}), classifies=False)
    kinds = space_of(cohort, ("all",)).kinds
    assert not {"fedlc", "fedrs", "fedrod", "symmetric_loss"} & {*kinds}
    assert {"fedavg", "fedprox", "scaffold", "moon"} <= {*kinds}


def test_other_clients_train_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that looks at representations, one with states, one with parameters of its own, one that looks ahead."""
    monkeypatch.chdir(tmp_path)
    federation = fedscout.Federation("diabetes", **DIABETES)
    for kind in ("moon", "scaffold", "fedper", "fedsam", "qfedavg", "ditto"):
        trained = train(federation, kind, num_rounds=2, learning_rate=0.05)
        assert (kind, trained.trial["status"], trained.trial["error"]) == (kind, "completed", None)


def test_the_task_is_part_of_a_study() -> None:
    named = {"federation": {"dataset": "x.csv", "task": "regression"}}
    assert StudyConfig.model_validate(named).identity()["federation"]["task"] == "regression"
    assert StudyConfig.model_validate(named).metric_name == "r2"
    assert parse_strategy("fedavg").faults(Cohort(2, 2, 0.1, classifies=False)) == []


def test_a_report_and_one_s_own_data_tell_a_recommendation_the_task(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    loads().to_csv(path, index=False)
    config = load_config([f"federation.dataset={path}", "federation.label=load", "federation.num_clients=3"])
    report = tmp_path / "report.json"
    report.write_text(table().detect(engine=HERE).model_dump_json())
    for wanted in (RecommendationRequest("rules", report=report), RecommendationRequest("rules")):
        assert recommend(config, wanted, None).situation.measure.name == "R²"
