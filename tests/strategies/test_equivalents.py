"""Specifications with one digest give one model, models that differ have two; and pairs of a rule and clients."""

from __future__ import annotations

import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.methods.averaging import FedAdamSpec, MeanSpec, ProximalGradient
from fedscout.strategies.pairs import has_clients, is_server_rule, pair_fault
from fedscout.strategies.space import space_of
from fedscout.strategies.specification import IntegerRange, StrategySpec
from fedscout.strategies.table import (
    ALL_KINDS,
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    CLIENT_KINDS,
    SERVER_RULE_KINDS,
    parse_strategy,
    strategy_class,
)
from tests.engine.federations import dense, normalised
from tests.engine.trials.test_resume import assert_same
from tests.kits.refusals import refused
from tests.strategies.by_hand import host_of, result_of
from tests.strategies.rounds import final_model, made

UNIFORM = made("fedavg", sample_scaling="uniform")
NO_RULE = {"server_learning_rate": 1, "server_momentum": 0}
"""With which FedAvgM is FedAvg."""
TOLD = {"client_learning_rate": 0.4, "client_local_epochs": 3}


def everyone(n: int) -> Cohort:
    return Cohort(num_clients=n, num_sampled=n, client_learning_rate=0.2)


EQUIVALENTS: list[tuple[StrategySpec, StrategySpec, int]] = [
    (made("fedprox", proximal_mu=0), made("fedavg"), 5),
    (made("fedprox", proximal_mu=0, sample_scaling="uniform"), UNIFORM, 5),
    (made("fedavgm", server_learning_rate=1, server_momentum=0), made("fedavg"), 5),
    (made("qfedavg", q=0), UNIFORM, 5),
    (made("bulyan", num_malicious_nodes=0), UNIFORM, 7),
    (made("multikrum", num_malicious_nodes=2, num_nodes_to_select=1), made("krum", num_malicious_nodes=2), 6),
    (made("multikrum", num_malicious_nodes=0, num_nodes_to_select=6), made("fedavg"), 6),
    (made("fedtrimmedavg", beta=0.24), UNIFORM, 4),
    (made("fedtrimmedavg", beta=0.25), made("fedmedian"), 4),
    (made("fedtrimmedavg", beta=0.49), made("fedmedian"), 5),
    (made("fedtrimmedavg", beta=0.21), made("fedtrimmedavg", beta=0.29), 10),
    (made("fedmedian"), UNIFORM, 2),
    (made("fedmedian"), made("fedavg"), 1),
    (UNIFORM, made("fedavg"), 1),
    (made("rfa"), made("fedavg"), 1),
    (made("fedavgm+fedlc", **NO_RULE), made("fedlc"), 10),
    (made("fedavgm+fedlc", **NO_RULE, sample_scaling="uniform"), made("fedlc", sample_scaling="uniform"), 10),
    (made("fedmedian+fedprox", proximal_mu=0), made("fedmedian"), 10),
    (made("fedmedian+fedlc", calibration=0), made("fedmedian"), 10),
    (made("fedmedian+moon", contrast=0), made("fedmedian"), 10),
    (made("fedavgm+fedprox", **NO_RULE, proximal_mu=0), made("fedavg"), 10),
    (made("fedtrimmedavg+ditto", beta=0.05), made("ditto", sample_scaling="uniform"), 10),
    (made("fedtrimmedavg+ditto", beta=0.49), made("fedmedian+ditto"), 10),
    (made("fedtrimmedavg+ditto", beta=0.21), made("fedtrimmedavg+ditto", beta=0.29), 10),
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


def test_a_specification_that_does_not_fit_has_no_twin() -> None:
    spec = made("multikrum", num_malicious_nodes=4, num_nodes_to_select=5)
    assert spec.simplest(everyone(5)) == spec


def test_canonical_json_is_one_text() -> None:
    """Whole numbers and negative zero are the same values as their other spellings."""
    cohort = everyone(5)
    below, above = (made("fedavgm", server_learning_rate=0.5, server_momentum=zero) for zero in (-0.0, 0.0))
    assert below.canonical(cohort) == above.canonical(cohort)
    assert '"fedavgm"' in above.canonical(cohort)  # no equivalent, which has no momentum to tell
    text = made("qfedavg", q=1).canonical(cohort)
    assert text == '{"kind":"qfedavg","q":1.0}'
    assert json.loads(text) == {"kind": "qfedavg", "q": 1.0}


# -- Laws of pairs: a half that does nothing leaves the other's bits, and a pair is a specification like any other -----


PAIRS = [f"{server}+{client}" for server, client in itertools.product(SERVER_RULE_KINDS, CLIENT_KINDS)]
TEN = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2, server_rows=60, server_labels=True)


@pytest.fixture(scope="module")
def host() -> ClientHost:
    """Of a net with batch normalisation, which all clients can train."""
    return host_of(normalised)


# The laws of what is trained.


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENT_KINDS)
def test_under_fedavg_s_rule_clients_have_their_strategy_s_bits(host: ClientHost, client: str) -> None:
    pair = parse_strategy({**NO_RULE, "kind": f"fedavgm+{client}"})
    assert_same(result_of(host, pair), result_of(host, parse_strategy(client)))


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
    assert type(sent) is type(pair) is strategy_class(kind)
    pair.build(cohort)
    for half in map(parse_strategy, kind.split("+")):
        assert half.paper in pair.paper
        assert {*half.search_names()} <= {*pair.search_names()}
        assert {*type(half).requires} <= {*type(pair).requires}
    assert pair != parse_strategy(kind.split("+", maxsplit=1)[0])


def test_a_copy_is_validated_and_keeps_what_clients_are_told() -> None:
    document = {"kind": "fedadam+fedprox", "client_local_epochs": 3}
    values = {"eta": 0.5, "proximal_mu": 0.2}
    copy = parse_strategy(document).with_values(values)
    assert copy == parse_strategy({**document, **values})
    assert str(copy).startswith("fedadam+fedprox(eta=0.5, ")
    assert str(copy).endswith("proximal_mu=0.2, client_local_epochs=3)")


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
        ("fedadam+scaffold", "scaffold", ["fedadam+scaffold", "server rule"]),
        ("scaffold+fedlc", "scaffold", ["scaffold+fedlc", "server rule"]),
        ("fedadam+mfedbn", "mfedbn", ["fedadam+mfedbn", "fedbn"]),
        ("fedadam+local", "local", ["fedadam+local", "shared"]),
        ("fedadam+dp_fedavg", "dp_fedavg", ["fedadam+dp_fedavg", "strategy.around"]),
        ("custom+fedlc", "custom", ["custom+fedlc", "its clients"]),
        ("fedadam+mine.py:Own", "a pair", ["'fedadam+mine.py:Own'", "_construct"]),
        ("fedadam+krum", "a pair", ["fedadam+krum", "both are server rules"]),
        ("fedprox+fedlc", "a pair", ["fedprox+fedlc", "both define clients"]),
        ("fedprox+fedadam", "a pair", ["fedprox+fedadam", "fedadam+fedprox"]),
        ("fedavg+fedlc", "fedavg+fedlc", ["fedlc"]),
        ("fedadam+fedavg", "fedadam+fedavg", ["fedadam"]),
        ("fedadam+fedprox+fedlc", "a pair", ["'fedadam+fedprox+fedlc'", "fedavgm, fedadagrad", "fedprox, "]),
        ("fedadm+fedprox", "a pair", ["'fedadm+fedprox'", "fedavgm, fedadagrad", "fedprox, ", "fedadam+fedprox"]),
        ("fedadam+", "a pair", ["'fedadam+'", "fedavgm, fedadagrad", "fedprox, "]),
    ],
)
def test_a_pair_without_sense_is_refused_with_the_reason(kind: str, first: str, named: list[str]) -> None:
    for refuse in (parse_strategy, lambda one: space_of(TEN, kinds=[one])):
        with pytest.raises(StrategyError) as caught:
            refuse(kind)
        (fault,) = caught.value.faults
        assert fault.startswith(f"{first} ")
        assert [name for name in named if name not in fault] == []


def test_what_binds_a_half_binds_the_pair() -> None:
    with pytest.raises(StrategyError, match=r"^eta_l "):
        parse_strategy({"kind": "fedadam+fedprox", "eta_l": 1})
    without = Cohort(10, 10, 0.2, layers=frozenset({"Linear"}))
    for refuse in (
        lambda: parse_strategy("fedyogi+fedbn", without),
        lambda: space_of(without, kinds=["fedyogi+fedbn"]),
    ):
        with refused(StrategyError, key="fedbn"):
            refuse()
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
    wide = space_of(TEN, kinds=["fedadam+ditto"], ranges="wide").parameters_of("fedadam+ditto")
    assert wide["tau"] != found.parameters_of("fedadam+ditto")["tau"]


def test_names_come_in_one_order_whatever_the_order_that_they_are_given_in() -> None:
    kinds = ["krum+fedlc", "rfa", "fedadam+ditto", "fedavg"]
    assert space_of(TEN, kinds=kinds).kinds == ("fedavg", "rfa", "fedadam+ditto", "krum+fedlc")
    assert space_of(TEN, kinds=kinds) == space_of(TEN, kinds=kinds[::-1])


def test_all_is_everything_that_is_possible_here() -> None:
    found = space_of(TEN, kinds=["all"])
    assert found.kinds == ALL_KINDS
    assert {*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS} - {*ALL_KINDS} == {"dp_fedavg"}
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


def test_a_new_strategy_s_halves_are_read_from_its_class() -> None:
    """Its author has nothing to say: clients that are averaged as FedAvg's part, others do not."""
    assert has_clients(OwnClients)
    assert not has_clients(OwnServer)
    assert not is_server_rule(OwnClients) | is_server_rule(OwnServer)
    assert pair_fault(FedAdamSpec, OwnClients) is None
    fault = str(pair_fault(FedAdamSpec, OwnServer))
    assert fault.startswith("own_server ")
    assert "fedadam+own_server" in fault


def test_a_name_that_both_halves_have_is_refused() -> None:
    class OwnEta(OwnClients):
        """Clients with a parameter of the server rule's name."""

        eta: float = 0.1

    fault = str(pair_fault(FedAdamSpec, OwnEta))
    assert fault.startswith("eta ")
    assert "fedadam+own_clients" in fault


def test_what_a_row_says_of_a_pair() -> None:
    (row,) = space_of(TEN, kinds=["fedadam+fedprox"]).describe()
    assert "fedadam with the clients of fedprox" in row.summary
    assert [parameter.name for parameter in row.parameters] == ["eta", "tau", "beta_1", "beta_2", "proximal_mu"]
    assert all(parameter.meaning for parameter in row.parameters)
