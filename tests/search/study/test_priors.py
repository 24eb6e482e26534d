"""What the project's own studies propose to a first study, and studies in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscout.search.ledger import StudyFacts
from fedscout.search.objective import MEASURES, Measure, Objective, reward
from fedscout.search.warm_start import (
    EarlierStudy,
    greedy_portfolio,
    priors,
    project_studies,
    read_studies,
    write_studies,
)
from fedscout.strategies import (
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedMedianSpec,
    Range,
    RealRange,
    SearchSpace,
    space_of,
)
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


def study(name: str, *gains: tuple[object, float], training: dict[str, float] = TRAINING) -> EarlierStudy:
    return EarlierStudy(
        name=name,
        config_hash=name,
        config={"federation": {"dataset": name}, "training": training},
        data_digest=name,
        report=document_of(report_of()),
        gains=gains,  # type: ignore[arg-type]
    )


def space(joint: bool = False) -> SearchSpace:
    ranges: dict[str, Range] = {"client_learning_rate": RealRange(0.01, 1.0, True)} if joint else {}
    return space_of(FACTS.cohort, client_ranges=ranges)


MOMENTUM = FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.5)
STUDIES = (
    study("a", (MOMENTUM, 0.2), (ADAM, 0.125)),
    study("b", (ADAM, 0.125), (MOMENTUM, -0.1)),
    study("joint", (FedAvgSpec(client_learning_rate=0.5), 0.3)),
    study("other settings", (FedMedianSpec(), 0.5), training={**TRAINING, "local_epochs": 3}),
)


def test_the_best_on_average_comes_first_then_what_adds_most_to_it() -> None:
    first, second = priors(HERE, space(), 4, (FedAvgSpec(),), STUDIES)
    assert (first.spec, second.spec) == (ADAM, MOMENTUM)
    assert "12.5 points" in first.explanation
    assert "20.0 points on a" in second.explanation
    assert priors(HERE, space(), 1, (FedAvgSpec(),), STUDIES) == (first,)


def test_where_clients_settings_are_searched_studies_of_the_joint_space_speak() -> None:
    (only,) = priors(HERE, space(joint=True), 4, (FedAvgSpec(),), STUDIES)
    assert only.spec == FedAvgSpec(client_learning_rate=0.5)


def test_without_studies_at_the_client_settings_the_nearest_speak() -> None:
    here = replace(HERE, config=json.dumps({"federation": {}, "training": {**TRAINING, "local_epochs": 2}}))
    kinds = [[each.spec.kind for each in priors(here, space(), 4, (), (study,))] for study in STUDIES[1::2]]
    assert kinds == [["fedadam"], ["fedmedian"]]
    assert [each.spec.kind for each in priors(here, space(), 4, (), STUDIES)] == [
        "fedmedian"
    ]  # 3 is nearer to 2 than 1


@pytest.mark.parametrize("same", [{"config_hash": "b"}, {"data_digest": "b"}])
def test_a_study_is_not_told_its_own_result(same: dict[str, str]) -> None:
    found = priors(replace(HERE, **same), space(), 4, (FedAvgSpec(),), STUDIES)
    assert [each.spec.kind for each in found] == ["fedavgm"]


def test_studies_of_the_same_data_set_are_left_out() -> None:
    config = {**json.loads(HERE.config), "federation": {"dataset": "b", "seed": 5}}
    found = priors(replace(HERE, config=json.dumps(config)), space(), 4, (FedAvgSpec(),), STUDIES)
    assert [each.spec.kind for each in found] == ["fedavgm"]


def test_a_data_set_with_many_federations_counts_as_one() -> None:
    """By hand: means over data sets are .15 and .1; over federations .1 and .15."""
    many = [replace(study("many", (ADAM, 0.0), (MOMENTUM, 0.2)), name=f"many {number}") for number in range(3)]
    found = priors(HERE, space(), 1, (), (study("one", (ADAM, 0.3), (MOMENTUM, 0.0)), *many))
    assert [each.spec for each in found] == [ADAM]


def test_a_portfolio_is_greedy_and_near_the_best() -> None:
    """At least 1 − 1/e of the best of its size, as for any monotone submodular function (Nemhauser et al. 1978)."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        gains, weights = generator.normal(size=(6, 8)), generator.dirichlet(np.ones(6))
        chosen = [*greedy_portfolio(gains, weights, 3)]

        def value(columns: Iterable[int], gains: Any = gains, weights: Any = weights) -> float:
            return float(weights @ gains[:, [*columns]].max(axis=1, initial=0.0))

        best = max(value(columns) for columns in combinations(range(8), 3))
        assert (1 - 1 / math.e) * best <= value(chosen) <= best
        assert [value(chosen[:size]) for size in range(4)] == sorted(value(chosen[:size]) for size in range(4))
        assert chosen[0] == max(range(8), key=lambda column: value([column]))
    assert [*greedy_portfolio(np.array([[-0.1, 0.0]]), np.ones(1), 2)] == []


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
    assert priors(HERE, space(), 4, (FedAvgSpec(),), STUDIES) != ()
    assert priors(replace(HERE, measure=measure), space(), 4, (FedAvgSpec(),), STUDIES) == ()


def test_without_a_configuration_nothing_is_known() -> None:
    assert priors(StudyFacts("x", 3, FACTS.cohort, FACTS.session), space(), 4, (), STUDIES) == ()


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


def test_the_projects_studies_are_of_ten_data_sets_with_every_configuration() -> None:
    found = project_studies()
    assert len({each.config["federation"]["dataset"] for each in found}) == 10
    joint = [each for each in found if any(spec.client_values() for spec, _ in each.gains)]
    assert (len(joint), min(len(each.gains) for each in joint) > 100) == (44, True)
