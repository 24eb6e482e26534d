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
from fedscout.strategies.methods.averaging import FedAdamSpec, FedAvgSpec, FedProxSpec
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
PLAIN = ("learning_rate", "local_epochs", "batch_size")
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
    **{f"by name, {number}": partial(space, number, number, kinds=CHOSEN_BY_NAME_KINDS) for number in (2, 5)},
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
        assert parse_strategy(document, found.cohort) == parse_strategy(json.dumps(document), found.cohort) == spec
        validator.validate({"kind": spec.label, **spec.search_values()})
        training = spec.local_training(GIVEN)
        assert all(
            getattr(training, name) == spec.parameters()[f"client_{name}"] for name in PLAIN if found.client_ranges
        )
    if name.startswith(("pairs", "client")):
        assert {spec.label for spec in drawn} == {*found.kinds}


def test_strategies_are_drawn_equally_often_and_others_join_only_if_they_are_named() -> None:
    """12 kinds in 2,400 draws: 200 each; 4 standard deviations of a binomial(2400, 1/12) are 54."""
    generator = np.random.default_rng(0)
    counts = Counter(space(10).random(generator).kind for _ in range(2400))
    assert set(counts) == set(BUILT_IN_KINDS)
    assert all(abs(count - 200) < 54 for count in counts.values())
    everything = space(20, kinds=(*CHOSEN_BY_NAME_KINDS, *BUILT_IN_KINDS))
    assert everything.kinds == (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)  # the order of the tables


def test_what_is_impossible_is_left_out_with_its_reason() -> None:
    found = space(2)
    assert set(found.absent) == set(BUILT_IN_KINDS) - set(found.kinds) == {"krum", "multikrum", "bulyan"}
    rows = {row.name: row.unavailable for row in found.describe()}
    assert set(rows) == set(BUILT_IN_KINDS)
    assert (rows["krum"], rows["fedavg"]) == (Fault("krum", "have at least 3 clients a round", 2), None)


def test_wishes_that_cannot_be_met_are_all_refused_at_once() -> None:
    with refused(StrategyError, key="kinds", given="'fedfoo'") as caught:
        space(2, kinds=("fedavg", "krum", "fedfoo", "bulyan"))
    assert caught.value.keys == ("kinds", "krum", "bulyan")
    with refused(StrategyError, key="a space"):
        space(2, kinds=())


def test_contains_draws_the_line() -> None:
    found = space(10, kinds=("fedadam", "multikrum", "fedprox"))
    validator = jsonschema.Draft202012Validator(found.json_schema())
    for spec, is_inside in (
        (FedAdamSpec(eta=0.01), True),
        (FedAdamSpec(eta=0.009), False),  # valid, but not searched
        (MultiKrumSpec(num_malicious_nodes=4, num_nodes_to_select=6), True),
        (MultiKrumSpec(num_malicious_nodes=4, num_nodes_to_select=7), False),
        (MultiKrumSpec(num_malicious_nodes=50, num_nodes_to_select=1), False),
        (KrumSpec(), False),
        (FedProxSpec(sample_scaling="uniform"), False),  # not searched
    ):
        assert found.contains(spec) == is_inside
        # of ranges the schema knows the widest, and of parameters those that are searched
        is_valid = validator.is_valid({"kind": spec.kind, **spec.search_values()})
        assert is_valid == is_inside or (is_valid and spec.kind in ("multikrum", "fedprox"))
    assert not validator.is_valid({"kind": "multikrum", "num_malicious_nodes": 1})
    assert not validator.is_valid({"kind": "fedprox", "proximal_mu": 0.1, "eta": 0.1})


def test_the_nearest_of_several_choices_is_the_same_or_the_first() -> None:
    found = space(10, client_ranges={"client_batch_size": ChoiceRange((8, 16, 32))})
    for given, nearest in ((16, 16), (32, 32), (12, 8), (None, 8)):
        spec = found.nearest(FedAvgSpec(client_batch_size=given))
        assert spec.client_batch_size == nearest


@pytest.mark.parametrize("num_sampled", [1, 2, 3, 4, 7, 20])
def test_what_is_the_same_as_another_strategy_is_not_drawn(num_sampled: int) -> None:
    """Unless there is nothing else."""
    space = space_of(Cohort(num_sampled, num_sampled, 0.1))
    generator = np.random.default_rng(num_sampled)
    drawn = [space.random(generator) for _ in range(200)]
    assert [spec for spec in drawn if spec.simplest(space.cohort).kind != spec.kind] == []
    twins = space_of(Cohort(4, 4, 0.1), kinds=("bulyan",))
    assert twins.has_equivalent(twins.random(generator))


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


# -- What a strategy asks of its clients: one space, one digest, and the study's own value where nothing is said -------


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


def test_defaults_lie_in_the_space_and_client_parameters_follow_a_strategy_s_own() -> None:
    plain, with_clients = space_of(COHORT, customs=[CUSTOM]), space_of_clients()
    for found in (with_clients, plain, space_of(Cohort(4, 4, 5.0), client_ranges=RANGES)):
        for kind in found.kinds:
            assert found.contains(found.default(kind)), kind
    for kind in plain.kinds:
        own = plain.parameters_of(kind)
        assert [*with_clients.parameters_of(kind).items()] == [*own.items(), *RANGES.items()]
    assert plain.default("fedadam") == made("fedadam")
    assert with_clients.default("fedavg").client_values() == given_values(GIVEN)


def test_a_name_that_a_user_s_strategy_searches_itself_is_refused() -> None:
    document = {"path": "flwr.serverapp.strategy:QFedAvg", "ranges": {"client_learning_rate": {"low": 0.1, "high": 1}}}
    own = CustomSpec.model_validate(document)
    assert space_of(COHORT, customs=[own]).kinds[-1] == own.path
    with refused(StrategyError, key="client_learning_rate"):
        space_of(COHORT, customs=[own], client_ranges=RANGES)


# -- What is accepted and fits the clients of a round, ranges of parameters, and that every fault is named at once -----


KINDS = (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone_means_its_defaults(kind: str) -> None:
    """They fit wherever the strategy is possible, and say nothing of what clients are told."""
    spec = parse_strategy(kind)
    assert spec == STRATEGIES[kind].model_validate({"kind": kind})
    assert spec == parse_strategy(json.dumps({"kind": kind, **spec.parameters()})) == pickle.loads(pickle.dumps(spec))
    assert not set(RANGES) & {*spec.parameters(), *spec.search_values()}
    assert "client" not in str(spec)
    assert spec.local_training(GIVEN) is GIVEN
    for n in (1, 2, 3, 4, 7, 50):
        assert spec.unavailable(sampled(n)) is not None or spec.faults(sampled(n)) == []


@pytest.mark.parametrize(
    ("value", "key", "given"),
    [
        ("fedfoo", "kind", "'fedfoo'"),
        ({"eta": 1}, "a strategy", "{'eta': 1}"),
        ({"kind": "fedprox", "proximal_mu": math.nan}, "proximal_mu", "nan"),
        ("[1, 2]", "a strategy", "'[1, 2]'"),
        ('"fedavg"', "a strategy", "'\"fedavg\"'"),
        ('{"kind": "fedavg"', "a strategy", None),
    ],
)
def test_what_is_no_strategy_is_refused(value, key: str, given: str | None) -> None:
    with refused(StrategyError, key=key, given=given):
        parse_strategy(value)


def test_the_schema_holds_every_parameter_with_range_and_meaning() -> None:
    for kind in KINDS:
        schema = STRATEGIES[kind].model_json_schema()
        assert schema["properties"].pop("kind")["const"] == kind
        assert all(entry["description"] for entry in (schema, *schema["properties"].values()))


# -- Whether a specification fits the clients sampled per round --------------------------------------------------------


def sampled(num_sampled: int, num_clients: int = 200) -> Cohort:
    return Cohort(num_clients, num_sampled, 0.2)


def fitting(spec_class: type[StrategySpec], cohort: Cohort, **others: int) -> list[int]:
    """The values of f that fit."""
    specs = [spec_class.model_validate({"num_malicious_nodes": f, **others}) for f in range(cohort.num_sampled + 1)]
    return [f for f, spec in enumerate(specs) if not spec.faults(cohort)]


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 10, 11, 31])
def test_krum_takes_f_up_to_n_minus_3_and_bulyan_while_n_is_at_least_4f_plus_3(n: int) -> None:
    """MultiKrum selects at most n − f."""
    assert fitting(KrumSpec, sampled(n)) == list(range(n - 2))
    for m in (1, 3):
        selecting = fitting(MultiKrumSpec, sampled(n), num_nodes_to_select=m)
        assert selecting == [f for f in range(n - 2) if m <= n - f]
    assert fitting(BulyanSpec, sampled(n)) == [f for f in range(n) if n >= 4 * f + 3]


def test_all_faults_of_a_cohort_are_reported_at_once() -> None:
    spec = MultiKrumSpec(num_malicious_nodes=8, num_nodes_to_select=9)
    with pytest.raises(StrategyError, match=r"0 … 2 .* 1 … 5") as caught:
        spec.build(sampled(5))
    told = [(fault.key, fault.given) for fault in caught.value.faults]
    assert told == [("num_malicious_nodes", "8"), ("num_nodes_to_select", "9")]


OF_CLASSES = "fedbio feddf fedex fedlc fedpop fedrod fedrs rhfl symmetric_loss"
LACKING: Mapping[str, tuple[Cohort, str, str]] = {
    "classes": (
        Cohort(8, 8, 0.1, classifies=False, server_rows=9, server_labels=True),
        "a task without classes",
        OF_CLASSES,
    ),
    "linear layer": (Cohort(8, 5, 0.1, layers=frozenset({"PReLU", "Conv2d"})), "layers Conv2d, PReLU", "moon"),
    "batch normalisation": (Cohort(8, 5, 0.1, layers=frozenset({"Linear"})), "layers Linear", "fedbn mfedbn"),
    "server rows": (Cohort(8, 8, 0.1), "none", "fedbio feddf rhfl"),
    "server labels": (Cohort(8, 5, 0.1, server_rows=9), "rows without labels", "fedbio"),
    "SGD": (Cohort(8, 5, 0.1, "adam"), "optimizer adam", "fednova scaffold"),
    "no momentum": (Cohort(8, 5, 0.1, "sgd", 0.9), "momentum 0.9", "scaffold"),
    "clock": (Cohort(8, 5, 0.1, has_clock=False), "none", "fedbuff"),
    "no selection": (Cohort(8, 5, 0.1, chosen=True), "a selection policy", "dp_fedavg fedbuff"),
    "the study's settings": (Cohort(8, 5, 0.1, own_settings=True), "client_settings.kind=table", "fedex fedpop"),
    "all clients": (Cohort(8, 5, 0.1, server_rows=9), "5 clients a round of 8", "rhfl"),
    "2 clients": (Cohort(8, 1, 0.1), "1", "fedbuff"),
    "3 clients": (Cohort(8, 2, 0.1), "2", "bulyan krum multikrum"),
}
"""A federation without what a strategy may require, what is said of it, and who requires it."""
MEETING = Cohort(
    8, 8, 0.1, server_rows=9, server_labels=True, has_clock=True, layers=frozenset({"Linear", *BATCH_NORMS})
)


def test_every_requirement_is_checked() -> None:
    assert {*LACKING, "dp-accounting"} == {*REQUIREMENTS}
    for name, (_, _, kinds) in LACKING.items():
        assert sorted(kind for kind in KINDS if name in STRATEGIES[kind].requires) == kinds.split()


@pytest.mark.parametrize("name", LACKING)
def test_a_federation_that_lacks_what_a_strategy_requires_is_refused(name: str) -> None:
    cohort, given, kinds = LACKING[name]
    for kind in kinds.split():
        assert parse_strategy(kind).unavailable(MEETING) is None
        with refused(StrategyError, key=kind, given=given):
            parse_strategy(kind).build(cohort)


@pytest.mark.parametrize(
    ("kind", "values", "noted", "silent"),
    [
        ("krum", {"num_malicious_nodes": 1}, 4, 5),  # 2f + 2 < n of the proof does not hold
        ("fedtrimmedavg", {"beta": 0.2}, 4, 10),  # which trims nobody
    ],
)
def test_what_a_strategy_is_among_few_clients_is_noted(
    kind: str, values: dict[str, float], noted: int, silent: int
) -> None:
    spec = made(kind, **values)
    assert [len(spec.notes(sampled(n))) for n in (noted, silent)] == [1, 0]


# -- Laws of the ranges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found", [RealRange(-2, 3), RealRange(1e-9, 0.1, log=True), IntegerRange(-3, 40), IntegerRange(1, 1000, log=True)]
)
def test_a_value_has_its_place(found: RealRange | IntegerRange) -> None:
    """Linear or logarithmic, and back: a place and the value there belong together; the ends are never passed."""
    places = np.linspace(0, 1, 9)
    if found.log:
        values = np.exp(np.log(found.low) + places * np.log(found.high / found.low))
    else:
        values = found.low + places * (found.high - found.low)
    assert [found.to_unit(value) for value in values] == pytest.approx(places, abs=1e-12)
    for place, value in zip(places, values, strict=True):
        assert found.from_unit(place) == pytest.approx(value, rel=1e-3, abs=0.5 if isinstance(found.low, int) else 1e-4)
    for beyond in (0, 0.5, 1e6):
        assert (found.from_unit(-beyond), found.from_unit(1 + beyond)) == (found.low, found.high)
    assert (found.to_unit(found.low - 1), found.to_unit(found.high + 1)) == (0.0, 1.0)


def test_values_have_four_decimals_or_four_significant_digits_within_the_ends() -> None:
    values = {
        (RealRange(0.0, 1.0), 0.123456): 0.1235,
        (RealRange(-2.0, 3.0), 0.6469): 1.2345,
        (RealRange(1e-4, 1.0, log=True), 0.5): 0.01,  # the geometric middle
        (RealRange(1.0, 10.0, log=True), 0.1234): 1.329,  # 1.32861…
        (RealRange(1 / 3, 2 / 3), 0.0): 1 / 3,  # 0.3333 would lie outside
        (RealRange(1 / 3, 2 / 3), 1.0): 2 / 3,  # so would 0.6667
        (RealRange(0.3, 0.3), 0.5): 0.3,
    }
    assert {(found, place): found.from_unit(place) for found, place in values} == values
    for found, _ in values:
        drawn = [found.draw(np.random.default_rng(seed)) for seed in range(20)]
        assert all(own in (round(own, 4), float(f"{own:.3e}"), found.low) for own in drawn)
    assert [RealRange(0.3, 0.3).to_unit(value) for value in (0.3, 0.4)] == [0, 0]
    narrow = RealRange(1e-6, 1e-5)
    assert len({narrow.from_unit(place) for place in np.linspace(0, 1, 2001)}) >= 100


def test_integers_are_drawn_alike_or_by_their_share_of_the_logarithms() -> None:
    """Four standard deviations of the number of 4,000 draws; a logarithmic 1 takes what is nearer to it than to 2."""
    generator = np.random.default_rng(2)
    for found, share in ((IntegerRange(2, 5), 0.25), (IntegerRange(1, 9, log=True), math.log(1.5) / math.log(9))):
        drawn = Counter(found.draw(generator) for _ in range(4000))
        assert {*drawn} == {*range(found.low, found.high + 1)}
        assert abs(drawn[found.low] - 4000 * share) < 4 * math.sqrt(4000 * share * (1 - share))
    assert (IntegerRange(1, 9).clamp(12), IntegerRange(2, 5).num_values) == (9, 4)


def test_ranges_for_programs() -> None:
    for found, kind in ((RealRange(0.5, 1.0), "number"), (IntegerRange(1, 7), "integer")):
        assert found.json_schema() == {"type": kind, "minimum": found.low, "maximum": found.high}
        assert replace(found, log=True).json_schema() == {**found.json_schema(), "x-scale": "log"}
    choices = ChoiceRange((1, "a"))  # told apart by type
    assert choices.json_schema() == {"enum": [1, "a"]}
    assert [choices.contains(value) for value in (1, "a", True, 1.0)] == [True, True, False, False]
    assert {choices.draw(np.random.default_rng(seed)) for seed in range(50)} == {1, "a"}


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
