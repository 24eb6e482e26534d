"""The metric of a study: what a constant answer is worth, who may not have one, and a study's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import balanced_accuracy_score, f1_score

import fedscout
from fedscout.detectors.report import TENTHS
from fedscout.engine.errors import UserError
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.checks import constant_answer, metric_of, objective_of
from fedscout.experiments.studies.workflow import recommend
from tests.kits.refusals import refused

HERE = {"grid": "local"}
SEARCH = {"budget": 2, "generation_size": 2, "confirmation_seeds": 3, "strategies": ["fedavgm"]}


def rare(num_rows: int = 400) -> pd.DataFrame:
    """One row in ten is of the class that matters, and one column tells it with some noise."""
    generator = np.random.default_rng(5)
    label = np.where(generator.random(num_rows) < 0.1, "faulty", "sound")
    told = (label == "faulty") + generator.normal(scale=0.7, size=num_rows)
    return pd.DataFrame({"told": told, "noise": generator.normal(size=num_rows), "label": label})


def federation_of(**settings: Any) -> fedscout.Federation:
    return fedscout.Federation(rare(), label="label", num_clients=4, partition={"kind": "iid"}, **settings)


def study(
    folder: Path, settings: Mapping[str, Any] | None = None, metric: str = "accuracy", **search: Any
) -> fedscout.Study:
    federation = federation_of(**settings or {})
    training = {"num_rounds": 3, "metric": metric}
    asked = {"training": training, "search": {**SEARCH, **search}, "engine": HERE}
    return fedscout.study(federation, out=folder, detection_first=False, **asked)


def test_a_constant_answer_is_worth_what_scikit_learn_says() -> None:
    built = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    labels = built.labels[built.partition.rows]
    said = np.full_like(labels, np.bincount(labels).argmax())
    expected = {
        "accuracy": float(np.mean(said == labels)),
        "balanced_accuracy": balanced_accuracy_score(labels, said),
        "macro_f1": f1_score(labels, said, average="macro"),
        "auroc": 0.5,
    }
    for name, value in expected.items():
        assert constant_answer(built, metric_of(name, built)) == pytest.approx(value)


@pytest.mark.slow
def test_the_study_speaks_of_its_metric(tmp_path: Path) -> None:
    """Its fitness is the metric, so is the verdict's difference; the log keeps accuracy beside it."""
    found = study(tmp_path, metric="balanced_accuracy")
    trials = found.trials
    assert set(trials["metric"]) == {"balanced_accuracy"}
    np.testing.assert_allclose(trials["fitness"], [np.mean(scores) for scores in trials["round_metric"]])
    assert all(len(scores) == 3 for scores in trials["round_accuracy"])
    first = trials.iloc[0]
    assert first["round_accuracy"][-1] > first["round_metric"][-1]  # of mostly one class, accuracy flatters
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["confirmation"]["measure"]["name"] == "balanced accuracy"
    assert document["baseline"]["metric"] == "balanced_accuracy"


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_the_worst_clients_guess_what_scikit_learn_says_of_each() -> None:
    """The worst of three clients, all rows of which are said to be of the federation's most frequent class."""
    built = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    most = np.bincount(built.labels[built.partition.rows]).argmax()
    labels = [built.labels[built.partition.client(client)] for client in range(3)]
    assert constant_answer(built, None, "worst_clients") == pytest.approx(min(np.mean(own == most) for own in labels))
    metric = metric_of("balanced_accuracy", built)
    recalls = [balanced_accuracy_score(own, np.full_like(own, most)) for own in labels]
    assert constant_answer(built, metric, "worst_clients") == pytest.approx(min(recalls))
    assert constant_answer(built, None, "rounds_to_target") == 0


@pytest.mark.slow
def test_a_study_for_the_worst_clients(tmp_path: Path) -> None:
    found = study(tmp_path, objective="worst_clients")
    trials = found.trials
    np.testing.assert_allclose(trials["fitness"], [np.mean(scores) for scores in trials["round_worst_clients"]])
    assert (trials["fitness"] <= [np.mean(scores) for scores in trials["round_accuracy"]]).all()
    assert all(one.score is not None for one in found.confirmation.candidates)


LATENCY = {"kind": "latency", "clients": "all", "shift_seconds": 10.0, "mean_seconds": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["rounds_to_target", "bytes_to_target", "time_to_accuracy"])
def test_a_study_for_a_target(tmp_path: Path, objective: str) -> None:
    """Three rounds are one window, so who gets there does so in the last one, with one round to spare.

    Every round takes ten seconds, which is also a plain round's bound: the same as counting rounds.
    """
    timed = {"scenario": LATENCY} if objective == "time_to_accuracy" else {}
    found = study(tmp_path, timed, objective=objective, target=0.3)
    assert set(found.trials["fitness"]) == {1.0}
    assert found.confirmation.verdict == "no difference"
    if timed:
        assert [list(seconds) for seconds in found.trials["round_seconds"]] == [[10.0] * 3] * len(found.trials)
        return
    again = study(tmp_path / "never", objective=objective, target=2.0)
    expected = [np.mean(scores) / 2 for scores in again.trials["round_accuracy"]]
    np.testing.assert_allclose(again.trials["fitness"], expected)


def test_plain_bytes_are_what_fedavg_sends(tmp_path: Path) -> None:
    federation = federation_of()
    trained = fedscout.train(federation, training={"num_rounds": 2}, engine=HERE, out=tmp_path)
    config = StudyConfig.model_validate({"search": {"objective": "bytes_to_target", "target": 0.5}})
    objective = objective_of(config, federation._built)
    assert objective.plain_cost == trained.trial["bytes_down"] + trained.trial["bytes_up"]


# Regression through the whole road: tables, arrays and the diabetes data, what it refuses, and what it says.


LINEAR = {"kind": "linear"}


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


@pytest.mark.slow
def test_a_study_detects_searches_and_confirms(tmp_path: Path) -> None:
    search = {"budget": 2, "generation_size": 2, "confirmation_seeds": 2, "objective": "worst_clients"}
    training = {"num_rounds": 2, "metric": "mae"}
    found = fedscout.study(table(), training=training, search=search, engine=HERE, out=tmp_path)
    assert found.report.label_skew.value is not None
    assert found.report.metrics.output_divergence is None
    assert TENTHS in found.report.notes
    assert found.confirmation is not None
    assert found.document["baseline"]["metric"] == "mae"
    assert found.document["baseline"]["fitness"] > 0


@pytest.mark.parametrize(
    ("settings", "key", "names"),
    [
        ({"task": "classification"}, "column 'load' of data set 'given'", "300"),
        ({"label": "shift"}, "column 'shift' of data set 'given'", "300 of 300"),
        ({"server_rows": 10}, "federation.server_rows", "10"),
        ({"text_column": "shift"}, "federation.task", "federation.text_column"),
        ({"scenario": [{"kind": "label_flip", "rate": 0.3}]}, "federation.scenario.0.kind", "label_flip"),
        ({"scenario": "label_poisoning", "partition": {}}, "federation.scenario.0.kind", "poisoning"),
    ],
)
def test_what_needs_classes_is_refused(settings: dict[str, Any], key: str, names: str) -> None:
    with refused(UserError, key=key, names=names):
        table(**settings)


@pytest.mark.parametrize(
    ("dataset", "metric"), [("diabetes", "accuracy"), ("diabetes", "auroc"), ("wine", "mae"), ("cartpole", "auroc")]
)
def test_a_metric_of_another_task_is_refused(dataset: str, metric: str) -> None:
    with refused(UserError, key="training.metric"):
        train(fedscout.Federation(dataset, num_clients=3), metric=metric)


def test_other_clients_train_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that looks at representations, one with states, one with parameters of its own, one that looks ahead."""
    monkeypatch.chdir(tmp_path)
    federation = fedscout.Federation("diabetes", num_clients=4, partition={"kind": "iid"})
    for kind in ("moon", "scaffold", "fedper", "fedsam", "qfedavg", "ditto"):
        trained = train(federation, kind, num_rounds=2, learning_rate=0.05)
        assert (kind, trained.trial["status"], trained.trial["error"]) == (kind, "completed", None)


def test_a_report_and_one_s_own_data_tell_a_recommendation_the_task(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    loads().to_csv(path, index=False)
    config = load_config(
        [f"federation.dataset={path}", "federation.label=load", "federation.num_clients=3", "recommender.source=rules"]
    )
    report = tmp_path / "report.json"
    report.write_text(table().detect(engine=HERE).model_dump_json())
    for given in (report, None):
        assert recommend(config, None, report=given).context.measure.name == "R²"
