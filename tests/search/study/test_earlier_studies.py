"""What earlier studies say: which are similar, what is read of them, and priors from the project's own federations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.log import TrialLog
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.result import earlier_study, read_earlier_studies
from fedscout.search import warm_start
from fedscout.search.objective import ACCURACY, MEASURES, DataOrigin, Measure, Objective, reward
from fedscout.search.recommenders import priors
from fedscout.search.recommenders.diagnosis import RecommendationContext, diagnose
from fedscout.search.recommenders.rules import is_robust, recommend_by_rules
from fedscout.strategies import (
    FedAdamSpec,
    FedAvgSpec,
    IntegerRange,
    RealRange,
    SearchSpace,
    StrategySpec,
    given_values,
    space_of,
)
from fedscout.strategies.methods.averaging import FedAvgMSpec, FedProxSpec
from fedscout.strategies.methods.robust import FedMedianSpec, KrumSpec
from tests.forged_trials import forge
from tests.kits.refusals import refused
from tests.search.earlier import FEDAVG, TRAINING, report_of, write_study
from tests.search.studies import FACTS

SPACE = space_of(Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2))
ADAM, PROX, MEDIAN = FedAdamSpec(eta=0.3), FedProxSpec(proximal_mu=0.5), FedMedianSpec()


def study_of(name: str, gains: Mapping[StrategySpec, float], **report: Any) -> warm_start.EarlierStudy:
    ordered = tuple(sorted(gains.items(), key=lambda gain: -gain[1]))
    return warm_start.EarlierStudy(name, name, {"training": TRAINING}, None, report_of(**report), ordered)


def context_of(space: SearchSpace = SPACE, **report: Any) -> RecommendationContext:
    return RecommendationContext(space, TRAINING["num_rounds"], diagnosis=diagnose(report_of(**report)))


def proposed(
    studies: list[warm_start.EarlierStudy], count: int = 4, space: SearchSpace = SPACE
) -> warm_start.WarmStart:
    return warm_start.warm_start(studies, context_of(space), count, (FEDAVG,))


# Similarity.


@pytest.mark.parametrize(
    ("ours", "theirs", "factor"),
    [
        ({}, {}, 1.0),
        ({"label_skew": 0.3}, {"label_skew": 0.9}, math.exp(-4.5)),  # three units of 0.2
        ({"label_skew": None}, {"label_skew": 0.3}, math.exp(-0.5)),  # unknown: one unit
        ({"outliers": (2, 3), "label_skew": 0.0}, {"outliers": (4, 5), "label_skew": 0.0}, 1.0),
        ({"outliers": (2, 3), "label_skew": 0.0}, {"label_skew": 0.0}, 0.25),
        ({"curvature": 10.0}, {"curvature": 10.0 * math.e}, 1.0),  # unknown: a ratio of e
        ({"curvature": 10.0}, {"curvature": 20.0}, math.exp(-0.5 * (math.log(2) ** 2 - 1))),
    ],
)
def test_similarity_is_the_product_of_three_factors(
    ours: dict[str, Any], theirs: dict[str, Any], factor: float
) -> None:
    """All but the last two have unknown curvatures, which count as a ratio of e."""
    here = context_of(**ours)
    there = here.diagnosed(diagnose(report_of(**theirs)))
    found = warm_start.traits_of(here).similarity(warm_start.traits_of(there))
    assert found == pytest.approx(math.exp(-0.5) * factor)


# Proposals.


def test_the_nearest_study_speaks_first_and_the_studies_take_turns() -> None:
    far = study_of("far", {MEDIAN: 0.5, KrumSpec(num_malicious_nodes=1): 0.4}, label_skew=0.9, num_clients=100)
    near = study_of("near", {ADAM: 0.2, PROX: 0.1})
    found = proposed([far, near])
    assert [study.study for study in found.studies] == ["near", "far"]
    assert found.specs() == [ADAM, PROX, MEDIAN, KrumSpec(num_malicious_nodes=1)]
    assert [proposal.study for proposal in found.proposals] == ["near", "near", "far", "far"]
    assert [proposal.gain for proposal in found.proposals] == [0.2, 0.1, 0.5, 0.4]
    assert proposed([near, far]) == found
    assert proposed([far, near], count=2).specs() == [ADAM, PROX]


def test_only_what_beat_fedavg_is_proposed_and_nothing_twice() -> None:
    found = proposed([study_of("a", {ADAM: 0.2, PROX: -0.1, MEDIAN: 0.0}), study_of("b", {ADAM: 0.3})])
    assert found.specs() == [ADAM]


def test_a_winner_that_is_fedavg_here_is_passed_over() -> None:
    assert proposed([study_of("a", {FedProxSpec(proximal_mu=0.0): 0.2, FEDAVG: 0.1})]).specs() == [
        FedProxSpec(proximal_mu=1e-4)  # moved into its range it is none any more
    ]
    assert proposed([study_of("a", {FEDAVG: 0.1})]).specs() == []


def test_values_are_moved_into_the_ranges_of_this_cohort_and_impossible_strategies_passed_over() -> None:
    wide = {FedAdamSpec(eta=0.001, tau=1e-9): 0.3, KrumSpec(num_malicious_nodes=40): 0.2, MEDIAN: 0.1}
    study = study_of("a", wide, num_clients=50)
    assert proposed([study]).specs() == [FedAdamSpec(eta=0.01, tau=1e-5), KrumSpec(num_malicious_nodes=7), MEDIAN]
    two = space_of(Cohort(num_clients=2, num_sampled=2, client_learning_rate=0.2))
    found = proposed([study], space=two).specs()
    assert "krum" not in {spec.kind for spec in found}
    assert all(map(two.contains, found))


def test_client_parameters_are_those_of_this_space() -> None:
    told = FedAdamSpec(eta=0.3, client_learning_rate=0.5, client_local_epochs=9)
    study = study_of("a", {told: 0.3})
    assert proposed([study]).specs() == [ADAM]
    ranges = {"client_local_epochs": IntegerRange(1, 5), "client_batch_size": IntegerRange(8, 64)}
    searched = space_of(SPACE.cohort, client_ranges=ranges, given={"client_batch_size": 16})
    expected = FedAdamSpec(eta=0.3, client_local_epochs=5, client_batch_size=16)
    assert proposed([study], space=searched).specs() == [expected]


def test_without_studies_there_is_nothing_to_say() -> None:
    assert proposed([]) == warm_start.WarmStart(studies=(), proposals=())


# -- What is read of earlier studies, and what is said of those that can't be used -------------------------------------


def read(folder: Path) -> warm_start.EarlierStudy:
    (study,), notes = read_earlier_studies([str(folder)])
    assert notes == []
    return earlier_study(study)


def claim(folder: Path, **changes: object) -> None:
    """Change what the folder says of its study's configuration."""
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "config": {**content["config"], **changes}}))


def test_gains_are_differences_to_fedavg_best_first(tmp_path: Path) -> None:
    study = read(write_study(tmp_path, {FEDAVG: 0.5, PROX: 0.4, ADAM: 0.75, MEDIAN: None}))
    assert [spec for spec, _ in study.gains] == [ADAM, PROX, MEDIAN]
    assert [gain for _, gain in study.gains] == pytest.approx([0.25, -0.1, -0.5])  # a failed trial has fitness 0


def test_fresh_seeds_are_averaged_with_the_search_s(tmp_path: Path) -> None:
    """On the search's seed +0.3; on fresh ones +0.0 and -0.15: a mean of +0.05, below the other's +0.1."""
    confirmed = {100: {ADAM: 0.6, FEDAVG: 0.6}, 101: {ADAM: 0.45, FEDAVG: 0.6}}
    study = read(write_study(tmp_path, {FEDAVG: 0.5, ADAM: 0.8, PROX: 0.6}, confirmed=confirmed))
    assert [spec for spec, _ in study.gains] == [PROX, ADAM]
    assert [gain for _, gain in study.gains] == pytest.approx([0.1, 0.05])


def test_seeds_on_which_fedavg_trained_at_another_rate_are_no_comparison(tmp_path: Path) -> None:
    study = read(write_study(tmp_path, {FEDAVG: 0.5, ADAM: 0.8}, confirmed={100: {ADAM: 0.6, FEDAVG: 0.7}}))
    assert [gain for _, gain in study.gains] == pytest.approx([0.1])
    (fedavg,) = [path for path in (tmp_path / "trials").iterdir() if path.name.startswith("00003")]
    forge(fedavg, learning_rate=0.4)
    assert [gain for _, gain in read(tmp_path).gains] == pytest.approx([0.3])


def test_trials_of_fewer_rounds_and_a_study_without_fedavg_have_no_gains(tmp_path: Path) -> None:
    assert read(write_study(tmp_path / "short", {FEDAVG: 0.5, ADAM: 0.8}, rounds=1)).gains == ()
    assert read(write_study(tmp_path / "without", {ADAM: 0.8})).gains == ()


def test_a_folder_of_studies_is_searched_at_any_depth_and_each_is_read_once(tmp_path: Path) -> None:
    write_study(tmp_path / "a", {FEDAVG: 0.5, ADAM: 0.8})
    write_study(tmp_path / "sweep" / "b", {FEDAVG: 0.5, PROX: 0.8})
    studies, _ = read_earlier_studies([str(tmp_path), str(tmp_path / "a")])
    assert [study.folder for study in studies] == [tmp_path / "a", tmp_path / "sweep" / "b"]


def test_folders_without_studies_are_refused_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing, empty = str(tmp_path / "missing"), str(tmp_path / "empty")
    with refused(ConfigurationError, key="search.warm_start") as caught:
        read_earlier_studies([missing, empty])
    for name, fault in zip((missing, empty), caught.value.faults, strict=True):
        assert (fault.key, name in str(fault.given)) == ("search.warm_start", True)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "report.json").unlink(), "report.json"),
        (lambda folder: (folder / "report.json").write_text("[]"), "report.json"),
        (lambda folder: claim(folder, training={"num_rounds": None}), "training.num_rounds"),
        (lambda folder: (folder / "config.json").write_text("{}"), "config.json"),
        (lambda folder: [path.unlink() for path in (folder / "trials").iterdir()], "trials"),
        (lambda folder: [path.write_bytes(b"") for path in (folder / "trials").iterdir()], "trials"),
    ],
)
def test_a_study_that_cannot_be_used_is_an_error_by_name_and_a_note_among_others(
    tmp_path: Path, damage: Callable[[Path], object], named: str
) -> None:
    folder = write_study(tmp_path / "damaged", {FEDAVG: 0.5, ADAM: 0.8})
    write_study(tmp_path / "whole", {FEDAVG: 0.5, ADAM: 0.8})
    damage(folder)
    with pytest.raises(ConfigurationError) as caught:
        read_earlier_studies([str(folder)])
    (fault,) = caught.value.faults
    assert fault.startswith(str(folder))
    assert named in fault
    studies, notes = read_earlier_studies([str(tmp_path)])
    assert [study.folder for study in studies] == [tmp_path / "whole"]
    assert notes == [fault]


def test_a_strategy_that_is_no_more_is_passed_over(tmp_path: Path) -> None:
    folder = write_study(tmp_path, {FEDAVG: 0.5, ADAM: 0.8})
    log = TrialLog(folder)
    log.append(replace(log.read()[1], strategy="fedgone"))
    assert read(folder).gains == ()


def test_which_studies_are_of_one_federation(tmp_path: Path) -> None:
    study = read(write_study(tmp_path, {FEDAVG: 0.5}, dataset="digits", config_hash="one", data_digest="rows"))
    here, elsewhere, poisoned = (
        load_config([f"federation.dataset={dataset}", *more]).identity()
        for dataset, *more in (("digits",), ("wine",), ("digits", "federation.scenario=label_poisoning"))
    )
    assert study.is_of("one", elsewhere, "others")
    assert study.is_of("two", here, "others")
    assert study.is_of("two", elsewhere, "rows")  # the same rows in the same hands, said in another way
    assert not study.is_of("two", elsewhere, "others")
    assert not study.is_of("two", poisoned, "rows")


# -- Priors: what the project's own federations say of the configurations of another one -------------------------------


SETTING = {"client_learning_rate": 0.1, "client_local_epochs": 1, "client_batch_size": 32}
MOMENTUM = FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.5)
FAST = FedAvgSpec(client_learning_rate=0.5)


def context(
    joint: bool = False,
    dataset: str = "mine",
    curvature: float | None = None,
    measure: Measure = ACCURACY,
    **local: Any,
) -> RecommendationContext:
    ranges = {"client_learning_rate": RealRange(0.01, 1.0, True)} if joint else {}
    training = LocalTraining(**{"learning_rate": 0.1, "local_epochs": 1, "batch_size": 32, **local})
    space = space_of(FACTS.cohort, client_ranges=ranges, given=given_values(training))
    report = report_of()
    metrics = report.metrics.model_copy(update={"input_curvature": curvature})
    diagnosis, origin = diagnose(report.model_copy(update={"metrics": metrics})), DataOrigin(dataset)
    return RecommendationContext(space, num_rounds=15, diagnosis=diagnosis, measure=measure, data_origin=origin)


def study(
    name: str,
    *gains: tuple[StrategySpec, float],
    clients: dict[str, float] | None = SETTING,
    curvature: float | None = None,
    divergence: float = 0.3,
    robust: bool = False,
) -> priors.PriorStudy:
    return priors.PriorStudy(name, name, clients, priors.Traits(curvature, divergence, robust), gains)


WORST_CLIENTS = Objective("worst_clients", 9).measure(ACCURACY)
STUDIES = (
    study("a", (MOMENTUM, 0.2), (ADAM, 0.125)),
    study("b", (ADAM, 0.125), (MOMENTUM, -0.1)),
    study("joint", (FAST, 0.3), clients=None),
    study("other settings", (FedMedianSpec(), 0.5), clients={**SETTING, "client_local_epochs": 3}),
)


def portfolio(context: RecommendationContext, count: int, studies: Iterable[priors.PriorStudy]) -> list[StrategySpec]:
    evidence = priors.Evidence.of(context, False, (FedAvgSpec(),), tuple(studies))
    return [] if evidence is None else [option.spec for option in evidence.portfolio(count)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [ADAM, MOMENTUM]),  # the best on average comes first, then what adds most to it
        ({"joint": True}, [FAST]),
        ({"local_epochs": 2}, [FedMedianSpec()]),  # of the settings that were measured 3 is nearer to 2 than 1
        ({"dataset": "b"}, [MOMENTUM]),  # studies of the same data set are left out
    ],
)
def test_a_portfolio_is_of_other_federations_with_the_most_similar_client_settings(
    options: dict[str, Any], expected: list[StrategySpec]
) -> None:
    found = portfolio(context(**options), 4, STUDIES)
    assert found == expected
    assert portfolio(context(**options), 1, STUDIES) == expected[:1]


def test_a_data_set_with_many_federations_counts_as_one() -> None:
    """By hand: means over data sets are .15 and .1; over federations .1 and .15."""
    many = [replace(study("many", (ADAM, 0.0), (MOMENTUM, 0.2)), name=f"many {number}") for number in range(3)]
    assert portfolio(context(), 1, (study("one", (ADAM, 0.3), (MOMENTUM, 0.0)), *many)) == [ADAM]


def test_weights_are_of_curvatures_label_skew_robustness_and_data_sets() -> None:
    studies = (
        study("like", (ADAM, 0.1), curvature=10.0),
        study("steep", (ADAM, 0.2), curvature=10.0 * math.e**2),
        study("robust", (ADAM, 0.3), curvature=10.0, robust=True),
        study("unknown", (ADAM, 0.4)),
        study("skewed", (ADAM, 0.5), curvature=10.0, divergence=0.7),
    )
    for by_labels, of_skewed in ((True, math.exp(-2)), (False, 1.0)):
        evidence = priors.Evidence.of(context(curvature=10.0), False, (), studies, by_labels)
        expected = np.array([1.0, math.exp(-2), priors.OTHER_KIND, math.exp(-0.5), of_skewed])
        np.testing.assert_allclose(evidence.weights, expected / expected.sum(), rtol=1e-6)
        np.testing.assert_allclose(evidence.means, [evidence.weights @ [0.1, 0.2, 0.3, 0.4, 0.5]])


def test_a_configuration_known_in_few_federations_is_not_used_and_gaps_are_filled_by_the_mean() -> None:
    studies = (
        study("a", (ADAM, 0.1), (MOMENTUM, 0.1)),
        study("b", (ADAM, 0.3)),
        study("c", (ADAM, 0.2), (MOMENTUM, 0.3), (FedMedianSpec(), 0.9)),
    )
    evidence = priors.Evidence.of(context(), False, (), studies)
    assert evidence.specs == (ADAM, MOMENTUM)
    np.testing.assert_allclose(evidence.completed, [[0.1, 0.1], [0.3, 0.2], [0.2, 0.3]])


def test_without_a_gain_on_average_there_is_no_answer() -> None:
    evidence = priors.Evidence.of(context(), False, (), (study("a", (ADAM, -0.1)), study("b", (ADAM, 0.05))))
    assert evidence.best(lambda _: True) is None
    assert evidence.about(ADAM).spec == ADAM
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
        chosen = [*priors.greedy_portfolio(gains, weights, 3)]

        def value(columns: Iterable[int], gains: Any = gains, weights: Any = weights) -> float:
            return float(weights @ gains[:, [*columns]].max(axis=1, initial=0.0))

        best = max(value(columns) for columns in combinations(range(8), 3))
        assert (1 - 1 / math.e) * best <= value(chosen) <= best
        assert [value(chosen[:size]) for size in range(4)] == sorted(value(chosen[:size]) for size in range(4))
        assert chosen[0] == max(range(8), key=lambda column: value([column]))
    assert [*priors.greedy_portfolio(np.array([[-0.1, 0.0]]), np.ones(1), 2)] == []


@pytest.mark.parametrize("measure", [reward("reward", 500), MEASURES["mae"], MEASURES["auroc"], WORST_CLIENTS], ids=str)
def test_gains_in_accuracy_say_nothing_of_another_measure_or_task(measure: Measure) -> None:
    assert portfolio(context(measure=measure), 4, STUDIES) == []


def test_studies_come_back_from_their_file(tmp_path: Path) -> None:
    studies = [replace(one, traits=priors.Traits(12.5, 0.25, robust=True)) for one in STUDIES]
    priors.write_priors(tmp_path / "s.parquet", studies)
    for read, written in zip(priors.read_priors(tmp_path / "s.parquet"), studies, strict=True):
        assert replace(read, gains=()) == replace(written, gains=())
        assert [spec for spec, _ in read.gains] == [spec for spec, _ in written.gains]
        assert [gain for _, gain in read.gains] == pytest.approx([gain for _, gain in written.gains])
