"""What the project's own federations say of the configurations of another one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.search.objective import ACCURACY, MEASURES, DataOrigin, Measure, Objective, reward
from fedscout.search.recommenders.diagnosis import RecommendationContext, diagnose
from fedscout.search.recommenders.priors import (
    OTHER_KIND,
    Evidence,
    PriorStudy,
    greedy_portfolio,
    project_studies,
    read_priors,
    write_priors,
)
from fedscout.search.recommenders.rules import is_robust, recommend_by_rules
from fedscout.strategies import (
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedMedianSpec,
    Range,
    RealRange,
    StrategySpec,
    given_values,
    space_of,
)
from tests.search.earlier import report_of
from tests.search.studies import FACTS

SETTING = {"client_learning_rate": 0.1, "client_local_epochs": 1, "client_batch_size": 32}
ADAM = FedAdamSpec(eta=0.3, tau=0.001, beta_1=0.9, beta_2=0.99)
MOMENTUM = FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.5)
FAST = FedAvgSpec(client_learning_rate=0.5)


def context(
    joint: bool = False,
    dataset: str = "mine",
    curvature: float | None = None,
    measure: Measure = ACCURACY,
    **local: Any,
) -> RecommendationContext:
    ranges: dict[str, Range] = {"client_learning_rate": RealRange(0.01, 1.0, True)} if joint else {}
    training = LocalTraining(**{"learning_rate": 0.1, "local_epochs": 1, "batch_size": 32, **local})
    report = report_of()
    metrics = report.metrics.model_copy(update={"input_curvature": curvature})
    return RecommendationContext(
        space=space_of(FACTS.cohort, client_ranges=ranges, given=given_values(training)),
        num_rounds=15,
        diagnosis=diagnose(report.model_copy(update={"metrics": metrics})),
        measure=measure,
        data_origin=DataOrigin(dataset),
    )


def study(
    name: str,
    *gains: tuple[StrategySpec, float],
    clients: dict[str, float] | None = SETTING,
    curvature: float | None = None,
    robust: bool = False,
) -> PriorStudy:
    return PriorStudy(name, name, clients, curvature, robust, gains)


STUDIES = (
    study("a", (MOMENTUM, 0.2), (ADAM, 0.125)),
    study("b", (ADAM, 0.125), (MOMENTUM, -0.1)),
    study("joint", (FAST, 0.3), clients=None),
    study("other settings", (FedMedianSpec(), 0.5), clients={**SETTING, "client_local_epochs": 3}),
)


def portfolio(situation: RecommendationContext, count: int, studies: Iterable[PriorStudy]) -> list[StrategySpec]:
    evidence = Evidence.of(situation, False, (FedAvgSpec(),), tuple(studies))
    return [] if evidence is None else [option.spec for option in evidence.portfolio(count)]


def test_the_best_on_average_comes_first_then_what_adds_most_to_it() -> None:
    assert portfolio(context(), 4, STUDIES) == [ADAM, MOMENTUM]
    assert portfolio(context(), 1, STUDIES) == [ADAM]


def test_where_client_settings_are_searched_studies_of_the_joint_space_count() -> None:
    assert portfolio(context(joint=True), 4, STUDIES) == [FAST]


def test_without_studies_at_the_client_settings_the_nearest_count() -> None:
    assert portfolio(context(local_epochs=2), 4, STUDIES) == [FedMedianSpec()]  # 3 is nearer to 2 than 1


def test_studies_of_the_same_data_set_are_left_out() -> None:
    assert portfolio(context(dataset="b"), 4, STUDIES) == [MOMENTUM]


def test_a_data_set_with_many_federations_counts_as_one() -> None:
    """By hand: means over data sets are .15 and .1; over federations .1 and .15."""
    many = [replace(study("many", (ADAM, 0.0), (MOMENTUM, 0.2)), name=f"many {number}") for number in range(3)]
    assert portfolio(context(), 1, (study("one", (ADAM, 0.3), (MOMENTUM, 0.0)), *many)) == [ADAM]


def test_weights_are_of_curvatures_robustness_and_data_sets() -> None:
    studies = (
        study("like", (ADAM, 0.1), curvature=10.0),
        study("steep", (ADAM, 0.2), curvature=10.0 * math.e**2),
        study("robust", (ADAM, 0.3), curvature=10.0, robust=True),
        study("unknown", (ADAM, 0.4)),
    )
    evidence = Evidence.of(context(curvature=10.0), False, (), studies)
    assert evidence is not None
    expected = np.array([1.0, math.exp(-2), OTHER_KIND, math.exp(-0.5)])
    np.testing.assert_allclose(evidence.weights, expected / expected.sum())
    np.testing.assert_allclose(evidence.means, [evidence.weights @ [0.1, 0.2, 0.3, 0.4]])


def test_the_most_similar_federations_are_named_whatever_their_data_sets_weigh() -> None:
    """Three federations of one data set are near; a single one of another counts more in the mean, and is not named."""
    near = [replace(study("near", (ADAM, 0.1), curvature=10.0), name=f"near {number}") for number in range(3)]
    evidence = Evidence.of(context(curvature=10.0), False, (), (study("far", (ADAM, 0.2), curvature=20.0), *near))
    assert evidence is not None
    assert evidence.weights[0] > evidence.weights[1]
    (only,) = evidence.portfolio(1)
    assert "near 0" in only.explanation
    assert "far" not in only.explanation


def test_raw_pixels_do_not_get_the_client_rate_of_standardised_columns() -> None:
    slow = FedAvgSpec(client_learning_rate=0.05)
    studies = (
        *(study(f"t{i}", (FAST, 0.2), (slow, -0.1), clients=None, curvature=10.0) for i in range(5)),
        study("pixels", (FAST, -0.3), (slow, 0.05), clients=None, curvature=110.0),
    )
    chosen = []
    for curvature in (10.0, 110.0):
        evidence = Evidence.of(context(joint=True, curvature=curvature), False, (), studies)
        assert evidence is not None
        best = evidence.best(lambda spec: not is_robust(spec))
        chosen.append(None if best is None else best.spec)
    assert chosen == [FAST, slow]


def test_a_configuration_known_in_few_federations_is_not_used_and_gaps_are_filled_by_the_mean() -> None:
    studies = (
        study("a", (ADAM, 0.1), (MOMENTUM, 0.1)),
        study("b", (ADAM, 0.3)),
        study("c", (ADAM, 0.2), (MOMENTUM, 0.3), (FedMedianSpec(), 0.9)),
    )
    evidence = Evidence.of(context(), False, (), studies)
    assert evidence is not None
    assert evidence.specs == (ADAM, MOMENTUM)
    np.testing.assert_allclose(evidence.completed, [[0.1, 0.1], [0.3, 0.2], [0.2, 0.3]])


def test_without_a_gain_on_average_there_is_no_answer() -> None:
    evidence = Evidence.of(context(), False, (), (study("a", (ADAM, -0.1)), study("b", (ADAM, 0.05))))
    assert evidence is not None
    assert evidence.best(lambda _: True) is None
    about = evidence.about(ADAM)
    assert about is not None
    assert about.spec == ADAM
    assert evidence.about(MOMENTUM) is None


def test_the_rules_decide_the_family_and_other_federations_the_configuration() -> None:
    recommendation = recommend_by_rules(context(joint=True, curvature=10.0))
    alone = recommend_by_rules(context(curvature=10.0))
    assert recommendation.spec.client_values()["client_learning_rate"] > 0.1
    assert not is_robust(recommendation.spec)
    assert [reason.rule for reason in recommendation.reasons[:2]] == [alone.reasons[0].rule, "other federations"]
    assert alone.spec.client_values() == {}


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
        MEASURES["auroc"],
        Objective("worst_clients", 9).measure(MEASURES["accuracy"]),
    ],
    ids=lambda measure: measure.name,
)
def test_gains_in_accuracy_say_nothing_of_another_measure_or_task(measure: Measure) -> None:
    assert portfolio(context(measure=measure), 4, STUDIES) == []


def test_studies_come_back_from_their_file(tmp_path: Path) -> None:
    write_priors(tmp_path / "s.parquet", STUDIES)
    for read, written in zip(read_priors(tmp_path / "s.parquet"), STUDIES, strict=True):
        assert replace(read, gains=()) == replace(written, gains=())
        assert [spec for spec, _ in read.gains] == [spec for spec, _ in written.gains]
        assert [gain for _, gain in read.gains] == pytest.approx([gain for _, gain in written.gains])


def test_another_file_is_no_file_of_priors(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="Parquet"):
        read_priors(path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(ValueError, match="priors"):
        read_priors(path)


def test_the_projects_studies_are_of_more_than_fifty_data_sets() -> None:
    joint = [each for each in project_studies() if each.clients is None]
    assert len(joint) == 279
    assert len({each.dataset for each in joint}) == 57
    assert sum(each.curvature is None for each in joint) == 1  # tokens
