"""What the project's own studies propose to a first study, and studies in one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedscout.search.ledger import StudyFacts
from fedscout.search.objective import MEASURES, Measure, Objective, reward
from fedscout.search.warm_start import EarlierStudy, priors, project_studies, read_studies, write_studies
from fedscout.strategies import FedAdamSpec, FedAvgMSpec, FedAvgSpec, Range, RealRange, SearchSpace, space_of
from tests.search.earlier import document_of, report_of
from tests.search.studies import FACTS

TRAINING = {"learning_rate": 0.1, "local_epochs": 1, "batch_size": 32, "num_rounds": 15, "fraction_train": 1.0}
HERE = replace(
    FACTS,
    config=json.dumps({"federation": {"dataset": "mine"}, "training": TRAINING}),
    config_hash="mine",
    data_digest="my rows",
)
ADAM = FedAdamSpec(eta=0.3, tau=0.001, beta_1=0.9, beta_2=0.99)


def study(name: str, *gains: tuple[object, float], label_skew: float = 0.3) -> EarlierStudy:
    return EarlierStudy(
        name=name,
        config_hash=name,
        config={"federation": {"dataset": name}, "training": TRAINING},
        data_digest=name,
        report=document_of(report_of(label_skew=label_skew)),
        gains=gains,  # type: ignore[arg-type]
    )


def space(joint: bool = False) -> SearchSpace:
    ranges: dict[str, Range] = {"client_learning_rate": RealRange(0.01, 1.0, True)} if joint else {}
    return space_of(FACTS.cohort, client_ranges=ranges)


STUDIES = (
    study("far", (FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.5), 0.2), label_skew=0.9),
    study("near", (ADAM, 0.125), (FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.9), -0.1)),
    study("joint", (FedAvgSpec(client_learning_rate=0.5), 0.3)),
)


def test_the_nearest_study_speaks_first_and_losers_are_not_proposed() -> None:
    first, second = priors(report_of(label_skew=0.3), HERE, space(), 4, (FedAvgSpec(),), STUDIES)
    assert first.spec == ADAM
    assert "near" in first.explanation
    assert second.spec == FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.5)


def test_where_clients_settings_are_searched_studies_of_the_joint_space_speak() -> None:
    (only,) = priors(report_of(), HERE, space(joint=True), 4, (FedAvgSpec(),), STUDIES)
    assert only.spec == FedAvgSpec(client_learning_rate=0.5)


@pytest.mark.parametrize("same", [{"config_hash": "near"}, {"data_digest": "near"}])
def test_a_study_is_not_told_its_own_result(same: dict[str, str]) -> None:
    found = priors(report_of(), replace(HERE, **same), space(), 4, (FedAvgSpec(),), STUDIES)
    assert [each.spec.kind for each in found] == ["fedavgm"]


def test_a_study_of_the_same_data_is_told_as_such_and_left_out_where_the_search_is_measured() -> None:
    """Another federation of the data set `near`."""
    config = {**json.loads(HERE.config), "federation": {"dataset": "near", "seed": 5}}
    here = replace(HERE, config=json.dumps(config))
    same, other = priors(report_of(), here, space(), 4, (FedAvgSpec(),), STUDIES)
    assert ("the same data" in same.explanation, "the same data" in other.explanation) == (True, False)
    measured = priors(report_of(), replace(here, is_measured=True), space(), 4, (FedAvgSpec(),), STUDIES)
    assert measured == (other,)


@pytest.mark.parametrize(
    "measure",
    [
        reward("reward", 500),
        MEASURES["mae"],
        MEASURES["r2"],
        MEASURES["auroc"],
        Objective("worst_clients", 9).measure(MEASURES["accuracy"]),
        Objective("rounds_to_target", 9, 0.8).measure(MEASURES["accuracy"]),
    ],
    ids=lambda measure: measure.name,
)
def test_studies_of_accuracy_say_nothing_of_another_measure_or_task(measure: Measure) -> None:
    assert priors(report_of(), HERE, space(), 4, (FedAvgSpec(),), STUDIES) != ()
    assert priors(report_of(), replace(HERE, measure=measure), space(), 4, (FedAvgSpec(),), STUDIES) == ()


def test_without_a_configuration_nothing_is_known() -> None:
    assert priors(report_of(), StudyFacts("x", 3, FACTS.cohort, FACTS.session), space(), 4, (), STUDIES) == ()


def test_studies_come_back_from_their_file(tmp_path: Path) -> None:
    write_studies(tmp_path / "s.parquet", STUDIES)
    for read, written in zip(read_studies(tmp_path / "s.parquet"), STUDIES, strict=True):
        assert replace(read, gains=()) == replace(written, gains=())
        assert [spec for spec, _ in read.gains] == [spec for spec, _ in written.gains]
        assert [gain for _, gain in read.gains] == pytest.approx([gain for _, gain in written.gains])


def test_another_file_is_no_file_of_studies(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="Parquet"):
        read_studies(path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(ValueError, match="studies"):
        read_studies(path)


def test_the_projects_studies_are_of_development_data_sets_and_gains_over_fedavg() -> None:
    found = project_studies()
    assert {each.config["federation"]["dataset"] for each in found} == {
        "digits",
        "breast_cancer",
        "wine",
        "bearing",
        "wine_quality",
    }
    assert all(gain == max(gain for _, gain in each.gains) for each in found for gain in [each.gains[0][1]])
