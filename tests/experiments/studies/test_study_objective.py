"""The metric of a study: what a constant answer is worth, who may not have one, and a study's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

import fedscout
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.checks import constant_answer, metric_of, objectives_of
from tests.kits.refusals import refused

HERE = {"grid": "local"}
SEARCH = {"budget": 2, "generation_size": 2, "confirmation_seeds": 3, "strategies": ["fedavgm"]}


def rare(num_rows: int = 400) -> pd.DataFrame:
    """One row in ten is of the class that matters, and one column tells it with some noise."""
    generator = np.random.default_rng(5)
    label = np.where(generator.random(num_rows) < 0.1, "faulty", "sound")
    told = (label == "faulty") + generator.normal(scale=0.7, size=num_rows)
    return pd.DataFrame({"told": told, "noise": generator.normal(size=num_rows), "label": label})


def study(folder: Path, metric: str = "accuracy", **search: Any) -> fedscout.Study:
    federation = fedscout.Federation(rare(), label="label", num_clients=4, partition={"kind": "iid"})
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


def test_where_clients_play_there_is_no_other_metric() -> None:
    built = build_federation(FederationConfig(dataset="cartpole", num_clients=2), ModelConfig())
    with refused(ConfigurationError, key="training.metric", given="auroc"):
        metric_of("auroc", built)
    assert metric_of("accuracy", built) is None


def test_an_unknown_metric_is_told_with_those_that_there_are() -> None:
    federation = fedscout.Federation("wine", num_clients=3)
    with refused(UserError, key="training.metric"):
        fedscout.train(federation, training={"metric": "f1"}, engine=HERE)


@pytest.mark.slow
def test_the_study_speaks_of_its_metric(tmp_path: Path) -> None:
    """Its fitness is the metric, so is the verdict's difference; the log keeps accuracy beside it."""
    found = study(tmp_path, metric="balanced_accuracy")
    confirmation = found.confirmation
    assert confirmation is not None
    assert "balanced accuracy" in confirmation.sentence
    trials = found.trials
    assert set(trials["metric"]) == {"balanced_accuracy"}
    np.testing.assert_allclose(trials["fitness"], [np.mean(scores) for scores in trials["round_metric"]])
    assert all(len(scores) == 3 for scores in trials["round_accuracy"])
    first = trials.iloc[0]
    assert first["round_accuracy"][-1] > first["round_metric"][-1]  # of mostly one class, accuracy flatters
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["confirmation"]["measure"]["name"] == "balanced accuracy"
    assert document["baseline"]["metric"] == "balanced_accuracy"


@pytest.mark.slow
def test_without_a_metric_a_study_is_as_before(tmp_path: Path) -> None:
    found = study(tmp_path)
    assert found.document["confirmation"]["measure"]["name"] == "accuracy"
    assert "metric" not in found.document["baseline"]
    assert found.document["config"]["training"]["metric"] == "accuracy"
    assert "round_metric" not in found.trials


@pytest.mark.parametrize(
    ("group", "key", "other"), [("training", "metric", "auroc"), ("search", "objective", "worst_clients")]
)
def test_what_is_measured_is_part_of_a_study_only_if_it_is_another(group: str, key: str, other: str) -> None:
    plain = StudyConfig().digest()
    assert StudyConfig.model_validate({group: {key: "accuracy"}}).digest() == plain
    assert StudyConfig.model_validate({group: {key: other}}).digest() != plain


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
    assert found.confirmation is not None
    assert "worst tenth" in found.confirmation.sentence
    assert all(one.score is not None for one in found.confirmation.contestants)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["rounds_to_target", "bytes_to_target"])
def test_a_study_for_a_target(tmp_path: Path, objective: str) -> None:
    """Three rounds are one window, so who gets there does so in the last one, with one round to spare."""
    found = study(tmp_path, objective=objective, target=0.3)
    assert set(found.trials["fitness"]) == {1.0}
    assert found.confirmation is not None
    assert found.confirmation.verdict == "no difference"
    assert "+0 rounds" in found.confirmation.sentence
    again = study(tmp_path / "never", objective=objective, target=2.0)
    expected = [np.mean(scores) / 2 for scores in again.trials["round_accuracy"]]
    np.testing.assert_allclose(again.trials["fitness"], expected)


@pytest.mark.slow
def test_a_study_for_time_reads_its_own_clock(tmp_path: Path) -> None:
    """Every round takes ten seconds, which is also a plain round's bound: the same as counting rounds."""
    federation = fedscout.Federation(
        rare(),
        label="label",
        num_clients=4,
        partition={"kind": "iid"},
        scenario={"kind": "latency", "clients": "all", "shift_seconds": 10.0, "mean_seconds": 0.0},
    )
    search = {**SEARCH, "objective": "time_to_accuracy", "target": 0.3}
    asked = {"training": {"num_rounds": 3}, "search": search, "engine": HERE}
    found = fedscout.study(federation, out=tmp_path, detection_first=False, **asked)
    assert set(found.trials["fitness"]) == {1.0}
    assert [list(seconds) for seconds in found.trials["round_seconds"]] == [[10.0] * 3] * len(found.trials)
    assert found.confirmation is not None
    assert "+0 s of simulated time" in found.confirmation.sentence


def test_plain_bytes_are_what_fedavg_sends(tmp_path: Path) -> None:
    federation = fedscout.Federation(rare(), label="label", num_clients=4, partition={"kind": "iid"})
    trained = fedscout.train(federation, training={"num_rounds": 2}, engine=HERE, out=tmp_path)
    config = StudyConfig.model_validate({"search": {"objective": "bytes_to_target", "target": 0.5}})
    (objective,) = objectives_of(config, federation._built)
    assert objective.plain_cost == trained.trial["bytes_down"] + trained.trial["bytes_up"]
