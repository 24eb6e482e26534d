"""Laws of the search space."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import jsonschema
import numpy as np
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import ChoiceRange, IntegerRange, RealRange, StrategySpec, given_values
from fedscout.strategies.custom import CustomSpec
from fedscout.strategies.methods.averaging import FedAdamSpec, FedAvgMSpec, FedAvgSpec, FedProxSpec
from fedscout.strategies.methods.robust import BulyanSpec, FedTrimmedAvgSpec, KrumSpec, MultiKrumSpec
from fedscout.strategies.space import SearchSpace, space_of
from fedscout.strategies.specification import BATCH_NORMS, REQUIREMENTS
from fedscout.strategies.table import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, STRATEGIES, parse_strategy
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
    **{f"of {num_sampled}": partial(space, num_sampled) for num_sampled in (1, 2, 3, 4, 5, 7, 11, 20)},
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
        validator.validate({"kind": spec.label, **spec.search_values()})
    if name.startswith(("pairs", "client")):
        assert {spec.label for spec in drawn} == {*found.kinds}


def test_strategies_are_drawn_equally_often() -> None:
    """12 kinds in 2,400 draws: 200 each; 4 standard deviations of a binomial(2400, 1/12) are 54."""
    generator = np.random.default_rng(0)
    counts = Counter(space(10).random(generator).kind for _ in range(2400))
    assert set(counts) == set(BUILT_IN_KINDS)
    assert all(abs(count - 200) < 54 for count in counts.values())


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


def test_others_join_only_if_they_are_named() -> None:
    """Their order is the tables', however they are named."""
    assert not set(CHOSEN_BY_NAME_KINDS) & {*BUILT_IN_KINDS, *space(10).kinds, *space(10).absent}
    assert space(10, kinds=("rfa", "fedavg")).kinds == ("fedavg", "rfa")
    everything = space(20, kinds=(*CHOSEN_BY_NAME_KINDS, *BUILT_IN_KINDS))
    assert everything.kinds == (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)


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


# -- What is accepted and fits the clients of a round, ranges of parameters, and that every fault is named at once -----


KINDS = (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)


def faults_of(value, cohort=None) -> tuple[Fault, ...]:
    with pytest.raises(StrategyError) as caught:
        parse_strategy(value, cohort)
    return caught.value.faults


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone_means_its_defaults(kind: str) -> None:
    spec = parse_strategy(kind)
    assert spec == STRATEGIES[kind].model_validate({"kind": kind})
    assert spec == parse_strategy(json.dumps({"kind": kind, **spec.parameters()}))
    assert spec == pickle.loads(pickle.dumps(spec))


@pytest.mark.parametrize(
    ("value", "key", "given"),
    [
        ({"kind": "fedfoo"}, "kind", "'fedfoo'"),
        ("fedfoo", "kind", "'fedfoo'"),
        ({"eta": 1}, "a strategy", "{'eta': 1}"),
    ],
)
def test_an_unknown_or_missing_kind_lists_the_kinds(value, key: str, given: str) -> None:
    (fault,) = faults_of(value)
    assert (fault.key, fault.given) == (key, given)
    assert all(kind in fault.hint for kind in KINDS)


def test_all_faults_are_reported_at_once() -> None:
    faults = faults_of({"kind": "fedadam", "eta": -1, "beta_1": 1.0, "tau": "low", "momentum": 0.5, "eta_l": 0.1})
    by_name = {fault.split()[0]: fault for fault in faults}
    assert len(faults) == len(by_name) == 5
    for name, given in {"eta": "-1", "beta_1": "1.0", "tau": "'low'", "momentum": "0.5", "eta_l": "0.1"}.items():
        assert f", got {given}" in by_name[name]
    assert "[0.01, 1] (log)" in by_name["eta"].hint
    assert "sample_scaling, eta, tau, beta_1, beta_2" in by_name["momentum"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_are_finite(value: float) -> None:
    with refused(StrategyError, key="proximal_mu", given=value):
        parse_strategy({"kind": "fedprox", "proximal_mu": value})


@pytest.mark.parametrize("text", ['{"kind": "fedavg"', "[1, 2]", '"fedavg"'])
def test_text_must_be_one_object(text: str) -> None:
    with refused(StrategyError, key="a strategy", names="JSON"):
        parse_strategy(text)


def test_the_schema_holds_every_parameter_with_range_and_meaning() -> None:
    definitions = {kind: spec_class.model_json_schema() for kind, spec_class in STRATEGIES.items()}
    assert all(entry["properties"]["kind"]["const"] == kind for kind, entry in definitions.items())
    adam = definitions["fedadam"]
    assert adam["additionalProperties"] is False
    assert adam["properties"]["tau"]["exclusiveMinimum"] == 0
    for kind in KINDS:
        properties = definitions[kind]["properties"]
        assert set(properties) == set(STRATEGIES[kind].model_fields)
        assert all(entry["description"] for name, entry in properties.items() if name != "kind")
        assert definitions[kind]["description"]


# -- Whether a specification fits the clients sampled per round --------------------------------------------------------


def sampled(num_sampled: int, num_clients: int = 200) -> Cohort:
    return Cohort(num_clients, num_sampled, 0.2)


def fitting(spec_class: type[StrategySpec], cohort: Cohort, **others: int) -> list[int]:
    """The values of f that fit."""
    specs = [spec_class.model_validate({"num_malicious_nodes": f, **others}) for f in range(cohort.num_sampled + 1)]
    return [f for f, spec in enumerate(specs) if not spec.faults(cohort)]


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 10, 11, 31])
def test_krum_takes_f_up_to_n_minus_3_and_bulyan_while_n_is_at_least_4f_plus_3(n: int) -> None:
    assert fitting(KrumSpec, sampled(n)) == list(range(n - 2))
    assert fitting(MultiKrumSpec, sampled(n), num_nodes_to_select=1) == list(range(n - 2))
    assert fitting(BulyanSpec, sampled(n)) == [f for f in range(n) if n >= 4 * f + 3]


def test_multikrum_selects_at_most_n_minus_f() -> None:
    allowed = [
        (f, m)
        for f in range(6)
        for m in range(1, 8)
        if not MultiKrumSpec(num_malicious_nodes=f, num_nodes_to_select=m).faults(sampled(6))
    ]
    assert allowed == [(f, m) for f in range(4) for m in range(1, 7) if m <= 6 - f]


def test_all_faults_of_a_cohort_are_reported_at_once() -> None:
    spec = MultiKrumSpec(num_malicious_nodes=8, num_nodes_to_select=9)
    with pytest.raises(StrategyError, match=r"0 … 2 .* 1 … 5") as caught:
        spec.build(sampled(5))
    told = [(fault.key, fault.given) for fault in caught.value.faults]
    assert told == [("num_malicious_nodes", "8"), ("num_nodes_to_select", "9")]


LACKING: Mapping[str, tuple[Cohort, str]] = {
    "classes": (Cohort(8, 5, 0.1, classifies=False), "a task without classes"),
    "linear layer": (Cohort(8, 5, 0.1, layers=frozenset({"PReLU", "Conv2d"})), "layers Conv2d, PReLU"),
    "batch normalisation": (Cohort(8, 5, 0.1, layers=frozenset({"Linear"})), "layers Linear"),
    "server rows": (Cohort(8, 8, 0.1), "none"),
    "server labels": (Cohort(8, 5, 0.1, server_rows=9), "rows without labels"),
    "SGD": (Cohort(8, 5, 0.1, "adam"), "optimizer adam"),
    "no momentum": (Cohort(8, 5, 0.1, "sgd", 0.9), "momentum 0.9"),
    "clock": (Cohort(8, 5, 0.1, has_clock=False), "none"),
    "no selection": (Cohort(8, 5, 0.1, chosen=True), "a selection policy"),
    "the study's settings": (Cohort(8, 5, 0.1, own_settings=True), "client_settings.kind=table"),
    "all clients": (Cohort(8, 5, 0.1, server_rows=9), "5 clients a round of 8"),
    "2 clients": (Cohort(8, 1, 0.1), "1"),
    "3 clients": (Cohort(8, 2, 0.1), "2"),
}
MEETING = Cohort(
    8, 8, 0.1, server_rows=9, server_labels=True, has_clock=True, layers=frozenset({"Linear", *BATCH_NORMS})
)


def test_every_requirement_is_checked() -> None:
    assert {*LACKING, "dp-accounting"} == {*REQUIREMENTS}
    assert {*REQUIREMENTS} == {name for kind in KINDS for name in STRATEGIES[kind].requires}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if STRATEGIES[kind].requires])
def test_a_federation_that_lacks_what_a_strategy_requires_is_refused(kind: str) -> None:
    assert parse_strategy(kind).unavailable(MEETING) is None
    for name in STRATEGIES[kind].requires:
        if name in LACKING:
            cohort, given = LACKING[name]
            with refused(StrategyError, key=kind, given=given):
                parse_strategy(kind).build(cohort)


@pytest.mark.parametrize(
    ("kind", "requires"),
    [
        *((kind, "classes") for kind in ("fedlc", "fedrs", "symmetric_loss", "fedrod", "fedex", "fedpop")),
        *((kind, "server rows") for kind in ("feddf", "fedbio", "rhfl")),
        *((kind, "3 clients") for kind in ("krum", "multikrum", "bulyan")),
        *((kind, "batch normalisation") for kind in ("fedbn", "mfedbn")),
        *((kind, "SGD") for kind in ("scaffold", "fednova")),
        *((kind, "no selection") for kind in ("fedbuff", "dp_fedavg")),
        *(("scaffold", "no momentum"), ("moon", "linear layer"), ("fedbio", "server labels"), ("rhfl", "all clients")),
        *(("fedbuff", "clock"), ("fedex", "the study's settings"), ("fedpop", "the study's settings")),
    ],
)
def test_who_requires_what(kind: str, requires: str) -> None:
    assert requires in STRATEGIES[kind].requires


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 50])
@pytest.mark.parametrize("kind", [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])
def test_defaults_fit_wherever_the_strategy_is_possible(kind: str, n: int) -> None:
    spec = parse_strategy(kind)
    assert spec.unavailable(sampled(n)) is not None or spec.faults(sampled(n)) == []


def test_krum_beyond_its_proof_is_built_with_a_note() -> None:
    """Four clients, one malicious: 2f + 2 < n does not hold."""
    spec = KrumSpec(num_malicious_nodes=1)
    spec.build(sampled(4))
    (note,) = spec.notes(sampled(4))
    assert "proof" in note
    assert spec.notes(sampled(5)) == []  # 2 + 2 < 5


# -- Laws of the ranges ------------------------------------------------------------------------------------------------


REALS = [
    RealRange(0.0, 0.99),
    RealRange(0.1, 1.5),
    RealRange(-2.0, 3.0),
    RealRange(0.9, 0.999),
    RealRange(1e-9, 1e-1, log=True),
    RealRange(1e-4, 1.0, log=True),
    RealRange(0.3, 0.3),
]


@pytest.mark.parametrize("real", REALS)
def test_the_ends_are_reached_and_never_passed(real: RealRange) -> None:
    assert (real.from_unit(0.0), real.from_unit(1.0)) == (real.low, real.high)
    for beyond in (0.5, 1e6):
        assert (real.from_unit(-beyond), real.from_unit(1 + beyond)) == (real.low, real.high)
    assert (real.to_unit(real.low - 1), real.to_unit(real.high + 1)) == (0.0, float(real.low < real.high))


def test_linear_values_have_four_decimals() -> None:
    generator = np.random.default_rng(0)
    values = [RealRange(0.0, 0.99).draw(generator) for _ in range(100)]
    assert all(value == round(value, 4) for value in values)
    assert RealRange(0.0, 1.0).from_unit(0.123456) == 0.1235
    assert RealRange(-2.0, 3.0).from_unit(0.6469) == 1.2345


def test_log_values_have_four_significant_digits() -> None:
    generator = np.random.default_rng(0)
    values = [RealRange(1e-9, 1e-1, log=True).draw(generator) for _ in range(100)]
    assert all(value == float(f"{value:.3e}") for value in values)
    assert RealRange(1e-4, 1.0, log=True).from_unit(0.5) == 0.01  # the geometric middle
    assert RealRange(1.0, 10.0, log=True).from_unit(0.1234) == 1.329  # 1.32861…


@pytest.mark.parametrize("found", [*REALS[:-1], IntegerRange(-3, 40), IntegerRange(1, 1000, log=True)])
def test_a_value_has_its_place(found: RealRange | IntegerRange) -> None:
    """Linear or logarithmic, and back: a place and the value there belong together."""
    places = np.linspace(0, 1, 9)
    if found.log:
        expected = np.log(found.low) + places * np.log(found.high / found.low)
        values = np.exp(expected)
    else:
        values = found.low + places * (found.high - found.low)
    assert [found.to_unit(value) for value in values] == pytest.approx(places, abs=1e-12)
    for place, value in zip(places, values, strict=True):
        assert found.from_unit(place) == pytest.approx(value, rel=1e-3, abs=0.5 if isinstance(found.low, int) else 1e-4)


def test_rounding_is_followed_by_clamping() -> None:
    third = RealRange(1 / 3, 2 / 3)
    assert third.from_unit(0.0) == 1 / 3  # 0.3333 would lie outside
    assert third.from_unit(1.0) == 2 / 3  # so would 0.6667


def test_a_narrow_linear_range_is_not_rounded_to_its_end() -> None:
    narrow = RealRange(1e-6, 1e-5)
    assert len({narrow.from_unit(place) for place in np.linspace(0, 1, 2001)}) >= 100


def test_integers_are_all_drawn_and_only_those() -> None:
    generator = np.random.default_rng(0)
    assert {IntegerRange(2, 5).draw(generator) for _ in range(200)} == {2, 3, 4, 5}
    assert {IntegerRange(1, 9, log=True).draw(generator) for _ in range(500)} == set(range(1, 10))
    assert IntegerRange(1, 9).clamp(12) == 9
    assert IntegerRange(1, 9, log=True).from_unit(1e6) == 9
    assert IntegerRange(2, 5).num_values == 4


def test_integers_are_drawn_alike_or_by_their_share_of_the_logarithms() -> None:
    """Four standard deviations of the number of 4,000 draws; a logarithmic 1 takes what is nearer to it than to 2."""
    generator = np.random.default_rng(2)
    for found, share in ((IntegerRange(2, 5), 0.25), (IntegerRange(1, 9, log=True), math.log(1.5) / math.log(9))):
        lowest = sum(found.draw(generator) == found.low for _ in range(4000))
        assert abs(lowest - 4000 * share) < 4 * math.sqrt(4000 * share * (1 - share))


def test_ranges_for_people_and_programs() -> None:
    assert [RealRange(0.0, 0.5).text(), RealRange(0.01, 1.0, log=True).text()] == ["[0, 0.5]", "[0.01, 1] (log)"]
    assert [IntegerRange(0, 7).text(), IntegerRange(1, 7, log=True).text()] == ["0 … 7", "1 … 7 (log)"]
    for found, kind in ((RealRange(0.5, 1.0), "number"), (IntegerRange(1, 7), "integer")):
        assert found.json_schema() == {"type": kind, "minimum": found.low, "maximum": found.high}
        assert replace(found, log=True).json_schema() == {**found.json_schema(), "x-scale": "log"}


def test_choices_are_told_apart_by_type() -> None:
    choices = ChoiceRange((1, "a"))
    assert choices.contains(1)
    assert not choices.contains(True)
    assert not choices.contains(1.0)
    generator = np.random.default_rng(0)
    assert {choices.draw(generator) for _ in range(50)} == {1, "a"}


@pytest.mark.parametrize(
    ("make", "key", "given"),
    [
        (lambda: RealRange(1.0, 0.0), "a range", "[1.0, 0.0]"),
        (lambda: RealRange(0.0, 1.0, log=True), "a log-scaled range", "0.0"),
        (lambda: RealRange(0.0, math.inf), "a range", "[0.0, inf]"),
        (lambda: IntegerRange(3, 2), "a range", "[3, 2]"),
        (lambda: ChoiceRange(()), "the choices of a range", "[]"),
        (lambda: ChoiceRange((1, 1)), "the choices of a range", "[1, 1]"),
    ],
)
def test_impossible_ranges_are_refused(make, key, given) -> None:
    with refused(StrategyError, key=key, given=given):
        make()


def test_a_disguised_strategy_is_noted() -> None:
    (note,) = FedTrimmedAvgSpec(beta=0.2).notes(sampled(4))
    assert note.startswith("fedtrimmedavg(beta=0.2) ")
    assert " fedavg(sample_scaling=uniform) " in note
    (note,) = FedAvgMSpec(server_learning_rate=1, server_momentum=0).notes(sampled(4))
    assert " fedavg " in note
    assert FedTrimmedAvgSpec(beta=0.2).notes(sampled(10)) == []
