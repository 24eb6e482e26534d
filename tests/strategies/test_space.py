"""Laws of the search space."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial

import jsonschema
import numpy as np
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.methods.averaging import FedAdamSpec, FedAvgSpec, FedProxSpec
from fedscout.strategies.methods.custom import CustomSpec
from fedscout.strategies.methods.robust import FedTrimmedAvgSpec, KrumSpec, MultiKrumSpec
from fedscout.strategies.space import SearchSpace, space_of
from fedscout.strategies.specification import ChoiceRange, IntegerRange, RealRange, given_values
from fedscout.strategies.table import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, parse_strategy
from tests.kits.refusals import refused
from tests.strategies.rounds import made


def space(num_sampled: int, num_clients: int = 20, **options) -> SearchSpace:
    return space_of(Cohort(num_clients, num_sampled, 0.2, server_rows=60, server_labels=True), **options)


COHORT = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2)
GIVEN = LocalTraining(learning_rate=0.2, local_epochs=2, batch_size=32)
RANGES = {
    "client_learning_rate": RealRange(0.05, 0.8, log=True),
    "client_local_epochs": IntegerRange(1, 5),
    "client_batch_size": IntegerRange(8, 64, log=True),
}
CUSTOM = CustomSpec.model_validate(
    {
        "path": "flwr.serverapp.strategy:FedAdagrad",
        "values": {"eta_l": 0.1},
        "ranges": {"eta": {"low": 0.01, "high": 1, "log": True}},
    }
)


def space_of_clients() -> SearchSpace:
    return space_of(COHORT, customs=[CUSTOM], client_ranges=RANGES, given=given_values(GIVEN))


PAIRS = ["fedavg", "multikrum+fedprox", "fedadam+fedprox", "fedtrimmedavg+fedlc", "bulyan+moon"]
SPACES: dict[str, Callable[[], SearchSpace]] = {
    **{
        f"{ranges} ranges, {num_sampled}": partial(space, num_sampled, ranges=ranges)
        for num_sampled in (1, 2, 3, 4, 5, 7, 11, 20)
        for ranges in ("default", "wide")
    },
    **{
        f"by name, {num_sampled}": partial(
            space,
            num_sampled,
            num_sampled,
            kinds=[kind for kind in CHOSEN_BY_NAME_KINDS if kind != "fedbuff" or num_sampled > 1],
        )
        for num_sampled in (1, 2, 5)
    },
    **{f"pairs, {num_sampled}": partial(space, num_sampled, kinds=PAIRS) for num_sampled in (3, 5, 10)},
    "client parameters and a strategy of a user's": space_of_clients,
}


@pytest.mark.parametrize("name", SPACES)
def test_whatever_is_drawn_is_inside_fits_and_builds(name: str) -> None:
    found = SPACES[name]()
    validator = jsonschema.Draft202012Validator(found.json_schema())
    generator = np.random.default_rng(0)
    drawn = [found.random(generator) for _ in range(150)]
    for spec in drawn:
        assert found.contains(spec)
        assert found.nearest(spec) == spec
        assert spec.faults(found.cohort) == []
        spec.build(found.cohort)
        document = {"kind": spec.kind, **spec.parameters()}
        assert parse_strategy(document, found.cohort) == spec
        assert parse_strategy(json.dumps(document), found.cohort) == spec
        validator.validate(
            json.loads(json.dumps(document)) if spec.kind == "custom" else {"kind": spec.kind, **spec.search_values()}
        )
    if name.startswith(("pairs", "client")):
        assert {spec.label for spec in drawn} == {*found.kinds}


def test_strategies_are_drawn_equally_often() -> None:
    """12 kinds in 2,400 draws: 200 each; 4 standard deviations of a binomial(2400, 1/12) are 54."""
    generator = np.random.default_rng(0)
    counts = Counter(space(10).random(generator).kind for _ in range(2400))
    assert set(counts) == set(BUILT_IN_KINDS)
    assert all(abs(count - 200) < 54 for count in counts.values())


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


# -- What a strategy asks of its clients: one space, one digest, and the study's own value where nothing is said -------


def test_they_join_every_strategy_after_its_own() -> None:
    plain, found = space_of(COHORT, customs=[CUSTOM]), space_of_clients()
    for kind in found.kinds:
        assert dict(found.parameters_of(kind)) == {**plain.parameters_of(kind), **RANGES}
        assert list(found.parameters_of(kind))[-3:] == list(RANGES)
        assert not set(plain.parameters_of(kind)) & set(RANGES)


def test_what_is_drawn_is_what_clients_train_with() -> None:
    found, generator = space_of_clients(), np.random.default_rng(0)
    for spec in (found.random(generator) for _ in range(20)):
        training = spec.local_training(GIVEN)
        for name in ("learning_rate", "local_epochs", "batch_size"):
            assert getattr(training, name) == spec.parameters()[f"client_{name}"]
        assert training.optimizer == GIVEN.optimizer


@pytest.mark.parametrize("kind", [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])
def test_unset_they_are_nowhere_to_be_seen(kind: str) -> None:
    spec = parse_strategy(kind)
    assert not set(RANGES) & {*spec.parameters(), *spec.search_values()}
    assert "client" not in str(spec)
    assert spec.local_training(GIVEN) is GIVEN


def test_a_spec_outside_the_ranges_or_without_a_value_is_not_in_the_space() -> None:
    inside = {"client_learning_rate": 0.1, "client_local_epochs": 3, "client_batch_size": 16}
    found = space_of_clients()
    assert found.contains(made("fedavg", **inside))
    assert not found.contains(made("fedavg", **{**inside, "client_learning_rate": 0.9}))
    assert not found.contains(made("fedavg", **{**inside, "client_local_epochs": None}))
    assert not space_of(COHORT).contains(made("fedavg", **inside))


def test_the_study_s_own_values_are_the_same_as_none() -> None:
    found = space_of_clients()
    same = made("fedavg", client_learning_rate=0.2, client_local_epochs=2, client_batch_size=32)
    assert found.digest(same) == found.digest(made("fedavg"))
    assert found.digest(made("fedavg", client_local_epochs=2)) == found.digest(made("fedavg"))
    for other in ({"client_learning_rate": 0.21}, {"client_local_epochs": 1}, {"client_batch_size": 31}):
        assert found.digest(made("fedavg", **other)) != found.digest(made("fedavg"))
    # Without knowing epochs and rows, the step size of the cohort is known all the same.
    plain = space_of(COHORT, client_ranges=RANGES)
    assert plain.digest(made("fedavg", client_learning_rate=0.2)) == plain.digest(made("fedavg"))
    assert plain.digest(made("fedavg", client_local_epochs=2)) != plain.digest(made("fedavg"))


def test_the_nearest_of_a_space_is_inside_it_and_moves_no_further_than_it_must() -> None:
    found = space_of_clients()
    inside = found.random(np.random.default_rng(1))
    assert found.nearest(inside) == inside
    far = made("fedadam", eta=30, tau=1e-12, beta_1=0.5, client_learning_rate=5.0, client_local_epochs=9)
    near = found.nearest(far)
    assert near == made(
        "fedadam", eta=1.0, tau=1e-5, beta_1=0.5, client_learning_rate=0.8, client_local_epochs=5, client_batch_size=32
    )
    assert space_of(COHORT).nearest(far) == made("fedadam", eta=1.0, tau=1e-5, beta_1=0.5)
    assert space_of(COHORT, kinds=("krum",)).nearest(far) is None


def test_defaults_lie_in_the_space() -> None:
    for found in (space_of_clients(), space_of(COHORT), space_of(Cohort(4, 4, 5.0), client_ranges=RANGES)):
        for kind in found.kinds:
            assert found.contains(found.default(kind)), kind
    assert space_of(COHORT).default("fedadam") == made("fedadam")
    assert space_of_clients().default("fedavg").client_values() == given_values(GIVEN)


def test_a_name_that_a_user_s_strategy_searches_itself_is_refused() -> None:
    document = {"path": "flwr.serverapp.strategy:QFedAvg", "ranges": {"client_learning_rate": {"low": 0.1, "high": 1}}}
    own = CustomSpec.model_validate(document)
    assert space_of(COHORT, customs=[own]).kinds[-1] == own.path
    with refused(StrategyError, key="client_learning_rate"):
        space_of(COHORT, customs=[own], client_ranges=RANGES)
