"""Laws of the search space."""

from __future__ import annotations

import pickle
from collections import Counter

import jsonschema
import numpy as np
import pytest

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import (
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
    ChoiceRange,
    FedAdamSpec,
    FedAvgSpec,
    FedProxSpec,
    FedTrimmedAvgSpec,
    IntegerRange,
    KrumSpec,
    MultiKrumSpec,
    RealRange,
    parse_strategy,
    space_of,
)
from fedscout.strategies.space import SearchSpace
from tests.kits.refusals import refused


def space(num_sampled: int, num_clients: int = 20, **options) -> SearchSpace:
    return space_of(Cohort(num_clients, num_sampled, 0.2, server_rows=60, server_labels=True), **options)


@pytest.mark.parametrize("ranges", ["default", "wide"])
@pytest.mark.parametrize("num_sampled", [1, 2, 3, 4, 5, 7, 11, 20])
def test_whatever_is_drawn_is_inside_fits_and_builds(num_sampled: int, ranges) -> None:
    found = space(num_sampled, ranges=ranges)
    validator = jsonschema.Draft202012Validator(found.json_schema())
    generator = np.random.default_rng(0)
    for _ in range(150):
        spec = found.random(generator)
        assert found.contains(spec)
        assert spec.faults(found.cohort) == []
        spec.build(found.cohort)
        document = {"kind": spec.kind, **spec.parameters()}
        assert parse_strategy(document, found.cohort) == spec
        validator.validate({"kind": spec.kind, **spec.search_values()})


def test_strategies_are_drawn_equally_often() -> None:
    """12 kinds in 2,400 draws: 200 each; 4 standard deviations of a binomial(2400, 1/12) are 54."""
    generator = np.random.default_rng(0)
    counts = Counter(space(10).random(generator).kind for _ in range(2400))
    assert set(counts) == set(BUILT_IN_KINDS)
    assert all(abs(count - 200) < 54 for count in counts.values())


def test_by_name_a_search_draws_from_more_strategies_and_logs_the_same_columns() -> None:
    found = space_of(Cohort(10, 10, 0.1), kinds=["fedavg", "scaffold", "feddyn"])
    generator = np.random.default_rng(0)
    drawn = [found.random(generator) for _ in range(60)]
    assert {spec.kind for spec in drawn} == {"fedavg", "scaffold", "feddyn"}
    assert not {*CHOSEN_BY_NAME_KINDS} & {*space(10).kinds}


def test_draws_are_reproducible() -> None:
    first, second = (
        [space(10).random(generator) for _ in range(20)] for generator in map(np.random.default_rng, (3, 3))
    )
    assert first == second


def test_what_is_impossible_is_left_out_with_its_reason() -> None:
    found = space(2)
    assert set(BUILT_IN_KINDS) - set(found.kinds) == {"krum", "multikrum", "bulyan"}
    assert set(found.absent) == {"krum", "multikrum", "bulyan"}
    rows = {row.name: row for row in found.describe()}
    assert set(rows) == set(BUILT_IN_KINDS)
    assert rows["krum"].unavailable == Fault("krum", "have at least 3 clients a round", 2)
    assert rows["fedavg"].unavailable is None


def test_wishes_that_cannot_be_met_are_all_refused_at_once() -> None:
    with refused(StrategyError, key="kinds", given="'fedfoo'") as caught:
        space(2, kinds=("fedavg", "krum", "fedfoo", "bulyan"))
    assert caught.value.keys == ("kinds", "krum", "bulyan")
    with refused(StrategyError, key="a space"):
        space(2, kinds=())
    with refused(StrategyError, key="ranges"):
        space(2, ranges="huge")


def test_ranges_are_the_published_ones() -> None:
    found = space(10)
    adaptive = {"eta": RealRange(1e-2, 1.0, log=True), "tau": RealRange(1e-5, 1e-1, log=True)}
    momenta = {"beta_1": RealRange(0.0, 0.99), "beta_2": RealRange(0.9, 0.999)}
    assert found.parameters_of("fedadam") == {**adaptive, **momenta}
    assert found.parameters_of("fedadagrad") == adaptive
    assert found.parameters_of("fedprox") == {"proximal_mu": RealRange(1e-4, 1.0, log=True)}
    assert found.parameters_of("fedavgm") == {
        "server_learning_rate": RealRange(0.1, 1.5),
        "server_momentum": RealRange(0.0, 0.99),
    }
    assert found.parameters_of("fedtrimmedavg") == {"beta": RealRange(0.0, 0.49)}
    assert found.parameters_of("qfedavg") == {"q": RealRange(0.0, 5.0)}
    assert found.parameters_of("fedavg") == found.parameters_of("fedmedian") == {}


def test_wide_ranges_widen_the_adaptive_family_alone() -> None:
    default, wide = space(10), space(10, ranges="wide")
    for kind in ("fedadagrad", "fedadam", "fedyogi"):
        assert wide.parameters_of(kind)["eta"] == RealRange(1e-3, 1.0, log=True)
        assert wide.parameters_of(kind)["tau"] == RealRange(1e-9, 1e-1, log=True)
    unchanged = [kind for kind in BUILT_IN_KINDS if wide.parameters_of(kind) == default.parameters_of(kind)]
    assert set(BUILT_IN_KINDS) - set(unchanged) == {"fedadagrad", "fedadam", "fedyogi"}


def test_ranges_follow_the_clients_sampled_not_those_there_are() -> None:
    assert space(10, num_clients=100).parameters_of("krum") == {"num_malicious_nodes": IntegerRange(0, 7)}
    assert space(11, num_clients=100).parameters_of("bulyan") == {"num_malicious_nodes": IntegerRange(0, 2)}
    multikrum = space(10, num_clients=100)
    assert multikrum.parameters_of("multikrum")["num_nodes_to_select"] == IntegerRange(1, 10)
    chosen = {"num_malicious_nodes": 4}
    assert multikrum.parameters_of("multikrum", chosen)["num_nodes_to_select"] == IntegerRange(1, 6)


def test_contains_draws_the_line() -> None:
    found = space(10, kinds=("fedadam", "multikrum", "fedprox"))
    assert found.contains(FedAdamSpec(eta=0.01))
    assert not found.contains(FedAdamSpec(eta=0.009))  # valid, but not searched
    assert found.contains(MultiKrumSpec(num_malicious_nodes=4, num_nodes_to_select=6))
    assert not found.contains(MultiKrumSpec(num_malicious_nodes=4, num_nodes_to_select=7))
    assert not found.contains(MultiKrumSpec(num_malicious_nodes=50, num_nodes_to_select=1))
    assert not found.contains(KrumSpec())
    assert not found.contains(FedAvgSpec())
    assert not found.contains(FedProxSpec(sample_scaling="uniform"))  # not searched


def test_the_schema_refuses_what_the_space_does_not_hold() -> None:
    validator = jsonschema.Draft202012Validator(space(10, kinds=("fedadam", "krum")).json_schema())
    assert validator.is_valid({"kind": "krum", "num_malicious_nodes": 7})
    for document in (
        {"kind": "krum", "num_malicious_nodes": 8},
        {"kind": "krum"},
        {"kind": "krum", "num_malicious_nodes": 1, "eta": 0.1},
        {"kind": "fedavg"},
    ):
        assert not validator.is_valid(document)


def test_every_parameter_is_told_with_its_meaning() -> None:
    rows = [row for row in space(10).describe() if row.parameters]
    assert len(rows) > 5
    for row in rows:
        fields = STRATEGIES[row.name].model_fields
        assert {each.name: each.meaning for each in row.parameters} == {
            each.name: fields[each.name].description for each in row.parameters
        }


def test_the_nearest_of_several_choices_is_the_same_or_the_first() -> None:
    found = space(10, client_ranges={"client_batch_size": ChoiceRange((8, 16, 32))})
    for given, nearest in ((16, 16), (32, 32), (12, 8), (None, 8)):
        spec = found.nearest(FedAvgSpec(client_batch_size=given))
        assert spec.client_batch_size == nearest


def test_a_space_travels() -> None:
    found = space(5)
    assert pickle.loads(pickle.dumps(found)) == found


def test_others_join_only_if_they_are_named() -> None:
    """Their order is the tables', however they are named."""
    assert not set(CHOSEN_BY_NAME_KINDS) & {*BUILT_IN_KINDS, *space(10).kinds, *space(10).absent}
    assert space(10, kinds=("rfa", "fedavg")).kinds == ("fedavg", "rfa")
    everything = space(20, kinds=(*CHOSEN_BY_NAME_KINDS, *BUILT_IN_KINDS))
    assert everything.kinds == (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)
    with refused(StrategyError, key="kinds", given="'rfb'"):
        space(10, kinds=("rfb",))


@pytest.mark.parametrize("num_sampled", [1, 2, 5])
def test_whatever_is_drawn_of_the_others_fits_and_builds(num_sampled: int) -> None:
    kinds = [kind for kind in CHOSEN_BY_NAME_KINDS if kind != "fedbuff" or num_sampled > 1]
    found = space(num_sampled, num_clients=num_sampled, kinds=kinds)
    validator = jsonschema.Draft202012Validator(found.json_schema())
    generator = np.random.default_rng(0)
    for _ in range(50):
        spec = found.random(generator)
        assert found.contains(spec)
        spec.build(found.cohort)
        assert parse_strategy({"kind": spec.kind, **spec.parameters()}, found.cohort) == spec
        validator.validate({"kind": spec.kind, **spec.search_values()})


@pytest.mark.parametrize("num_sampled", [1, 2, 3, 4, 7, 20])
def test_what_is_the_same_as_another_strategy_is_not_drawn(num_sampled: int) -> None:
    space = space_of(Cohort(num_sampled, num_sampled, 0.1))
    generator = np.random.default_rng(num_sampled)
    drawn = [space.random(generator) for _ in range(200)]
    assert [spec for spec in drawn if spec.simplest(space.cohort).kind != spec.kind] == []
    assert all(space.contains(spec) for spec in drawn)


def test_what_equals_a_strategy_that_nothing_else_draws_is_no_twin() -> None:
    """Among four clients a mean trimmed by a third is the median, one trimmed by a tenth the mean."""
    cohort = Cohort(4, 4, 0.1)
    median, mean = FedTrimmedAvgSpec(beta=0.33), FedTrimmedAvgSpec(beta=0.1)
    for kinds, has_equivalent in ((("fedtrimmedavg", "fedmedian"), True), (("fedtrimmedavg", "fedprox"), False)):
        space = space_of(cohort, kinds=kinds)
        assert space.has_equivalent(median) == has_equivalent
        assert space.has_equivalent(mean)
        drawn = {space.random(generator).kind for generator in map(np.random.default_rng, range(20))}
        assert ("fedtrimmedavg" in drawn) != has_equivalent


def test_a_space_of_twins_alone_still_draws() -> None:
    space = space_of(Cohort(4, 4, 0.1), kinds=("bulyan",))
    assert space.has_equivalent(space.random(np.random.default_rng(0)))
