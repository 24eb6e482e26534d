"""Specifications with one digest give one model, models that differ have two; and pairs of a rule and clients."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import ModelFactory
from fedscout.strategies import IntegerRange, StrategySpec, parse_strategy, space_of, table
from fedscout.strategies.methods.averaging import FedAdamSpec, MeanSpec, ProximalGradient
from fedscout.strategies.table import ALL_KINDS, CLIENT_KINDS, SERVER_RULE_KINDS, has_clients, is_server_rule
from tests.engine.federations import dense, normalised
from tests.engine.trials.test_resume import assert_same
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, host_of, result_of
from tests.strategies.rounds import final_model, made

UNIFORM = made("fedavg", sample_scaling="uniform")
NO_RULE = {"server_learning_rate": 1, "server_momentum": 0}
"""With which FedAvgM is FedAvg."""
TOLD = {"client_learning_rate": 0.4, "client_local_epochs": 3}


def everyone(n: int) -> Cohort:
    return Cohort(num_clients=n, num_sampled=n, client_learning_rate=0.2)


EQUIVALENTS: list[tuple[StrategySpec, StrategySpec, int]] = [
    (made("fedprox", proximal_mu=0), made("fedavg"), 5),
    (made("fedavgm", server_learning_rate=1, server_momentum=0), made("fedavg"), 5),
    (made("qfedavg", q=0), UNIFORM, 5),
    (made("bulyan", num_malicious_nodes=0), UNIFORM, 7),
    (made("multikrum", num_malicious_nodes=2, num_nodes_to_select=1), made("krum", num_malicious_nodes=2), 6),
    (made("multikrum", num_malicious_nodes=0, num_nodes_to_select=6), made("fedavg"), 6),
    (made("fedtrimmedavg", beta=0.24), UNIFORM, 4),
    (made("fedtrimmedavg", beta=0.25), made("fedmedian"), 4),
    (made("fedmedian"), UNIFORM, 2),
    (made("fedmedian"), made("fedavg"), 1),
    (UNIFORM, made("fedavg"), 1),
    (made("rfa"), made("fedavg"), 1),
    (made("fedexp", sample_scaling="num-examples"), made("fedexp"), 1),
    (made("fedavgm+fedlc", **NO_RULE), made("fedlc"), 10),
    (made("fedmedian+fedprox", proximal_mu=0), made("fedmedian"), 10),
    (made("fedmedian+fedlc", calibration=0), made("fedmedian"), 10),
    (made("fedavgm+fedprox", **NO_RULE, proximal_mu=0), made("fedavg"), 10),
    (made("fedtrimmedavg+ditto", beta=0.05), made("ditto", sample_scaling="uniform"), 10),
    (made("fedtrimmedavg+ditto", beta=0.49), made("fedmedian+ditto"), 10),
    (made("multikrum+fedper", num_nodes_to_select=1), made("krum+fedper"), 10),
    (made("qfedavg+fedper", q=0), made("fedper", sample_scaling="uniform"), 10),
    (made("fedmedian+fedlc"), made("fedlc"), 1),
]


STRANGERS: list[tuple[StrategySpec, StrategySpec, int]] = [
    (UNIFORM, made("fedavg"), 5),
    (made("fedmedian"), UNIFORM, 3),
    (made("fedavgm", server_learning_rate=1, server_momentum=0.1), made("fedavg"), 5),
    (made("fedavgm", server_learning_rate=0.9, server_momentum=0), made("fedavg"), 5),
    (made("fedtrimmedavg", beta=0.19), made("fedtrimmedavg", beta=0.21), 10),
    (made("krum", num_malicious_nodes=0), made("krum", num_malicious_nodes=3), 7),
    (made("multikrum", num_malicious_nodes=1, num_nodes_to_select=5), made("fedavg"), 6),
    (made("bulyan", num_malicious_nodes=1), UNIFORM, 7),
    (made("qfedavg", q=0.5), UNIFORM, 5),
    (made("rfa"), made("fedavg"), 2),
    (made("fedexp", sample_scaling="num-examples"), made("fedexp"), 2),
]


@pytest.mark.parametrize(("spec", "other", "n"), EQUIVALENTS, ids=str)
def test_equivalents_are_one(spec: StrategySpec, other: StrategySpec, n: int) -> None:
    assert spec.canonical(everyone(n)) == other.canonical(everyone(n))
    assert spec.digest(everyone(n)) == other.digest(everyone(n))
    spec_told, other_told = spec.with_values(TOLD), other.with_values(TOLD)
    assert spec_told.digest(everyone(n)) == other_told.digest(everyone(n)) != spec.digest(everyone(n))
    assert spec_told.simplest(everyone(n)).client_values() == TOLD
    np.testing.assert_allclose(final_model(spec, everyone(n)), final_model(other, everyone(n)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("spec", "other", "n"), STRANGERS, ids=str)
def test_strangers_are_two(spec: StrategySpec, other: StrategySpec, n: int) -> None:
    assert spec.digest(everyone(n)) != other.digest(everyone(n))
    assert not np.allclose(final_model(spec, everyone(n)), final_model(other, everyone(n)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_the_simplest_twin_of_anything_drawn_gives_the_same_model(n: int) -> None:
    space = space_of(everyone(n))
    generator = np.random.default_rng(n)
    for _ in range(60):
        spec = space.random(generator)
        simplest = spec.simplest(space.cohort)
        assert simplest.faults(space.cohort) == []
        assert simplest.simplest(space.cohort) == simplest
        np.testing.assert_allclose(
            final_model(spec, space.cohort, 1), final_model(simplest, space.cohort, 1), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("n", [3, 4, 5, 6, 9, 100])
def test_trimmed_means_are_twins_exactly_if_they_trim_alike(n: int) -> None:
    cohort = everyone(n)
    by_cut: dict[int, set[str]] = {}
    for percent in range(50):
        spec = made("fedtrimmedavg", beta=percent / 100)
        by_cut.setdefault(int(percent / 100 * n), set()).add(spec.digest(cohort))
    assert all(len(digests) == 1 for digests in by_cut.values())
    assert len(set.union(*by_cut.values())) == len(by_cut)


def test_canonical_json_is_one_text() -> None:
    """Whole numbers and negative zero are the same values as their other spellings."""
    cohort = everyone(5)
    below, above = (made("fedavgm", server_learning_rate=0.5, server_momentum=zero) for zero in (-0.0, 0.0))
    assert below.canonical(cohort) == above.canonical(cohort)
    assert '"fedavgm"' in above.canonical(cohort)  # no equivalent, which has no momentum to tell
    text = made("qfedavg", q=1).canonical(cohort)
    assert text == '{"kind":"qfedavg","q":1.0}'


# -- Laws of pairs: a half that does nothing leaves the other's bits, and a pair is a specification like any other -----


PAIRS = [f"{server}+{client}" for server, client in itertools.product(SERVER_RULE_KINDS, CLIENT_KINDS)]
TEN = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2, server_rows=60, server_labels=True)


@pytest.fixture(scope="module")
def normalised_host() -> ClientHost:
    """Of a net with batch normalisation, which all clients can train."""
    return host_of(normalised)


# The laws of what is trained.


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENT_KINDS)
def test_under_fedavg_s_rule_clients_have_their_strategy_s_bits(normalised_host: ClientHost, client: str) -> None:
    pair = parse_strategy({**NO_RULE, "kind": f"fedavgm+{client}"})
    assert_same(result_of(normalised_host, pair), result_of(normalised_host, parse_strategy(client)))


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("server", SERVER_RULE_KINDS)
def test_with_clients_that_are_not_pulled_a_rule_has_its_strategy_s_bits(server: str) -> None:
    host = host_of(dense)  # momentum on the server can make a variance of batch normalisation negative
    pair = parse_strategy({"kind": f"{server}+fedprox", "proximal_mu": 0})
    assert_same(result_of(host, pair), result_of(host, parse_strategy(server)))


# A specification like any other.


@pytest.mark.sampled(60)
@pytest.mark.parametrize("kind", PAIRS)
def test_a_pair_is_written_read_sent_and_built(kind: str) -> None:
    pair = parse_strategy(kind)
    cohort = Cohort(20, 5, 0.2, server_rows=60)
    assert (pair.kind, pair.faults(cohort)) == (kind, [])
    assert parse_strategy(json.dumps({"kind": kind, **pair.parameters()})) == pair
    sent = pickle.loads(pickle.dumps(pair))
    assert sent == pair
    assert hash(sent) == hash(pair)
    assert type(sent) is type(pair) is table.strategy_class(kind)
    pair.build(cohort)
    for half in map(parse_strategy, kind.split("+")):
        assert half.paper in pair.paper
        assert {*half.search_names()} <= {*pair.search_names()}
        assert {*type(half).requires} <= {*type(pair).requires}
    assert pair != parse_strategy(kind.split("+", maxsplit=1)[0])


def test_pairs_that_differ_have_digests_of_their_own() -> None:
    """With twenty clients only Bulyan, which trusts everyone by default, is FedAvg's rule."""
    cohort = Cohort(20, 20, 0.2)
    digests = {kind: parse_strategy(kind).digest(cohort) for kind in (*PAIRS, *ALL_KINDS) if "bulyan" not in kind}
    assert len({*digests.values()}) == len(digests)
    uniform = parse_strategy({"kind": "ditto", "sample_scaling": "uniform"})
    assert parse_strategy("bulyan+ditto").digest(cohort) == uniform.digest(cohort) not in digests.values()


# What has no sense is refused.


@pytest.mark.parametrize(
    ("kind", "first", "named"),
    [
        ("fedadam+scaffold", "scaffold", "server rule"),
        ("fedadam+mfedbn", "mfedbn", "fedbn"),
        ("fedadam+local", "local", "shared"),
        ("fedadam+dp_fedavg", "dp_fedavg", "strategy.around"),
        ("custom+fedlc", "custom", "its clients"),
        ("fedadam+mine.py:Own", "a pair", "'fedadam+mine.py:Own'"),
        ("fedprox+fedlc", "a pair", "fedprox+fedlc"),
        ("fedavg+fedlc", "fedavg+fedlc", "fedlc"),
        ("fedadam+fedavg", "fedadam+fedavg", "fedadam"),
        ("fedadam+fedprox+fedlc", "a pair", "fedavgm, fedadagrad"),
        ("fedadm+fedprox", "a pair", "fedadam+fedprox"),
    ],
)
def test_a_pair_without_sense_is_refused_with_the_reason(kind: str, first: str, named: str) -> None:
    for refuse in (parse_strategy, lambda one: space_of(TEN, kinds=[one])):
        with pytest.raises(StrategyError) as caught:
            refuse(kind)
        (fault,) = caught.value.faults
        assert fault.startswith(f"{first} ")
        assert named in fault


def test_what_binds_a_half_binds_the_pair() -> None:
    with pytest.raises(StrategyError, match=r"^eta_l "):
        parse_strategy({"kind": "fedadam+fedprox", "eta_l": 1})
    without = Cohort(10, 10, 0.2, layers=frozenset({"Linear"}))
    with refused(StrategyError, key="fedbn"):
        parse_strategy("fedyogi+fedbn", without)
    with refused(StrategyError, key="fedyogi+fedbn"):
        space_of(without, kinds=["fedyogi+fedbn"])
    with refused(StrategyError, key="krum", given="2"):
        parse_strategy("krum+fedprox", Cohort(10, 2, 0.2))


# Search.


def test_ranges_are_those_of_the_halves_and_follow_the_cohort() -> None:
    found = space_of(TEN, kinds=["multikrum+fedprox", "fedadam+ditto", "multikrum", "fedprox", "fedadam", "ditto"])
    for kind in ("multikrum+fedprox", "fedadam+ditto"):
        server, client = map(found.parameters_of, kind.split("+"))
        assert list(found.parameters_of(kind).items()) == [*server.items(), *client.items()]
    chosen = {"num_malicious_nodes": 4}
    assert found.parameters_of("multikrum+fedprox", chosen)["num_nodes_to_select"] == IntegerRange(1, 6)


def test_all_is_everything_that_is_possible_here() -> None:
    found = space_of(TEN, kinds=["all"])
    assert found.kinds == ALL_KINDS
    assert {*table.BUILT_IN_KINDS, *table.CHOSEN_BY_NAME_KINDS} - {*ALL_KINDS} == {"dp_fedavg"}
    few = Cohort(2, 2, 0.2, client_momentum=0.9, layers=frozenset({"Linear"}))
    found = space_of(few, kinds=["all", "fedadam+fedprox"])
    assert {"krum", "scaffold", "fedbn"} <= found.absent.keys()
    assert "SGD" in found.absent["scaffold"]
    assert {*found.kinds} == {*ALL_KINDS, "fedadam+fedprox"} - found.absent.keys()
    with refused(StrategyError, key="krum", given="2"):
        space_of(few, kinds=["all", "krum"])


class OwnClients(MeanSpec):
    """Clients of its own, averaged as FedAvg's."""

    kind: str = "own_clients"

    def client_algorithm(self) -> ClientAlgorithm:
        return ProximalGradient(0.1)


class OwnServer(OwnClients):
    """The same with another server."""

    kind: str = "own_server"

    def _construct(self, cohort: Cohort) -> Any:
        return parse_strategy("fedadam").build(cohort)


class OwnEta(OwnClients):
    """Clients with a parameter of FedAdam's name."""

    eta: float = 0.1


def test_a_new_strategy_s_halves_are_read_from_its_class() -> None:
    """Its author has nothing to say: clients that are averaged as FedAvg's part, others do not."""
    assert has_clients(OwnClients)
    assert not has_clients(OwnServer)
    assert not is_server_rule(OwnClients) | is_server_rule(OwnServer)
    assert table.pair_fault(FedAdamSpec, OwnClients) is None
    for clients, key in ((OwnServer, "own_server"), (OwnEta, "eta")):
        assert str(table.pair_fault(FedAdamSpec, clients)).startswith(f"{key} ")


# -- Parameters and federations with which a method is a simpler one, over whole trials --------------------------------


LOOP = {"backend": "loop"}
VALIDATING = {"validation_fraction": 0.25}
EQUAL = (40, 37, 39, 36)
"""Rows of which 30 to 32 train: four batches of eight, whatever remains."""
FEDAVG = made("fedavg")
COHORT = Cohort(8, 5, 0.1, server_rows=60, server_labels=True)


@dataclass(frozen=True)
class Limit:
    """A method and the one that it is.

    Attributes:
        method: The method.
        same: The simpler one.
        atol: By how much models may differ.
        compared: Series of rounds that have the same bits.
        model: The net.
        sizes: Rows of each client.
        changes: Settings of both trials.
    """

    method: StrategySpec
    same: StrategySpec = FEDAVG
    atol: float | None = 0.0
    compared: tuple[str, ...] = ("accuracy", "train_loss")
    model: ModelFactory = dense
    sizes: tuple[int, ...] = SIZES
    changes: Mapping[str, Any] = field(default_factory=dict)


ACCURACY, MODEL_ALONE = ("accuracy",), ()
LIMITS: Mapping[str, Limit] = {
    "fedsam": Limit(made("fedsam", sharpness_radius=0.0), changes=LOOP),
    "moon": Limit(made("moon", contrast=0.0), compared=MODEL_ALONE, changes=LOOP),
    "moon, normalised": Limit(made("moon", contrast=0.0), compared=MODEL_ALONE, model=normalised, changes=LOOP),
    "fedlc": Limit(made("fedlc", calibration=0.0), compared=ACCURACY, changes=LOOP),
    "fedrs, normalised": Limit(made("fedrs", missing_scale=1.0), compared=ACCURACY, model=normalised, changes=LOOP),
    "fine_tuning": Limit(made("fine_tuning", tuning_epochs=0)),
    "local": Limit(made("local"), atol=None, compared=ACCURACY, sizes=SIZES[:1], changes={"num_sampled": 1}),
    "rhfl": Limit(
        made("rhfl", cross_entropy_weight=1.0, reverse_weight=0.0, alignment_epochs=0),
        made("local"),
        atol=None,  # its model is one a client
        compared=ACCURACY,
        changes={**LOOP, "num_sampled": len(SIZES)},
    ),
    "rhfl, alone": Limit(made("rhfl"), made("rhfl", alignment_epochs=0), sizes=SIZES[:1], changes={"num_sampled": 1}),
    # Eight steps are a power of two, so dividing weights by them does not round.
    "fednova": Limit(made("fednova"), sizes=EQUAL, changes={"num_sampled": 4}),
    # There are no controls yet.
    "scaffold, first round": Limit(made("scaffold"), UNIFORM, changes={"num_rounds": 1}),
    "fedbio, fixed weights": Limit(made("fedbio", weight_rate=0), atol=1e-6, compared=MODEL_ALONE),
    "fedbio, no direction": Limit(made("fedbio", direction_rate=0), atol=1e-6, compared=MODEL_ALONE),
    "feddf, uniform": Limit(made("feddf", distillation_steps=0, sample_scaling="uniform"), UNIFORM),
    "fedex": Limit(made("fedex", num_configurations=1, validation_share=0.25), changes=VALIDATING),
    "fedpop": Limit(made("fedpop", num_configurations=1, validation_share=0.25), changes=VALIDATING),
}


SEEN = {"fedsam", "moon", "fedlc", "fine_tuning", "fedbio, fixed weights", "fedbio, no direction", "feddf, uniform"}
"""Limits that a specification knows of."""


@pytest.mark.parametrize("name", LIMITS)
def test_in_its_limit_a_method_is_the_simpler_one(name: str) -> None:
    limit = LIMITS[name]
    host = host_of(limit.model, limit.sizes)
    one, other = (result_of(host, each, **limit.changes) for each in (limit.method, limit.same))
    if limit.atol is not None:
        np.testing.assert_allclose(one.vector, other.vector, rtol=0, atol=limit.atol)
    for series in limit.compared:
        assert list(one.rounds[series]) == list(other.rounds[series])
    assert name not in SEEN or limit.method.simplest(COHORT) == limit.same


# -- Bytes a round by hand: a net of 53 parameters, four bytes each, to eight clients ----------------------------------


@pytest.mark.parametrize("merge_on_hosts", [True, False])
@pytest.mark.parametrize(
    ("kind", "down", "up"),
    [
        *((kind, 53, 53) for kind in ("fedavg", "ditto", "fednova", "krum")),
        ("fedper", 35, 35),  # of two layers, 6·5 + 5 and 5·3 + 3, the first is shared
        ("local", 0, 0),
        ("scaffold", 53 * 5 / 3, 2 * 53),  # in the first of three rounds the server's control variate is 0
    ],
)
def test_a_model_goes_down_and_one_comes_up(kind: str, down: float, up: int, merge_on_hosts: bool) -> None:
    """To five clients, one of which holds no rows and sends none."""
    trial = result_of(host_of(sizes=(*SIZES[:4], 0)), made(kind), merge_on_hosts, num_rounds=3)
    assert (trial.bytes_down, trial.bytes_up) == (pytest.approx(5 * down * 4), 4 * up * 4)
