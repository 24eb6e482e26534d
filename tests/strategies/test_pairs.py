"""Laws of pairs: a half that does nothing leaves the other's bits, and a pair is a specification like any other."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Mapping
from typing import Any

import jsonschema
import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import (
    ALL_KINDS,
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    CLIENT_KINDS,
    SERVER_RULE_KINDS,
    STRATEGIES,
    FedAdamSpec,
    IntegerRange,
    parse_strategy,
    space_of,
    strategy_class,
)
from fedscout.strategies.methods.averaging import MeanSpec, ProximalGradient
from fedscout.strategies.pairs import has_clients, is_server_rule, pair_fault
from tests.engine.federations import dense, normalised
from tests.engine.trials.test_resume import assert_same
from tests.kits.refusals import refused
from tests.strategies.by_hand import host_of, result_of

PAIRS = [f"{server}+{client}" for server, client in itertools.product(SERVER_RULE_KINDS, CLIENT_KINDS)]
TEN = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2, server_rows=60, server_labels=True)
NO_RULE: Mapping[str, Any] = {"kind": "fedavgm", "server_learning_rate": 1, "server_momentum": 0}
"""A server rule that is FedAvg's."""


@pytest.fixture(scope="module")
def host() -> ClientHost:
    """Of a net with batch normalisation, which all clients can train."""
    return host_of(normalised)


def test_every_strategy_is_fedavg_a_server_rule_clients_or_stands_alone() -> None:
    assert {"fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedmedian", "fedtrimmedavg", "krum"} < {*SERVER_RULE_KINDS}
    assert {"multikrum", "bulyan", "qfedavg", "rfa", "centered_clipping", "fedexp"} < {*SERVER_RULE_KINDS}
    assert {"fedprox", "fedbn", "ditto", "moon", "fedlc", "fedper"} <= {*CLIENT_KINDS}
    alone = STRATEGIES.keys() - {"fedavg", *SERVER_RULE_KINDS, *CLIENT_KINDS}
    assert {"scaffold", "fednova", "feddyn", "local", "dp_fedavg", "custom"} <= alone
    assert not {*SERVER_RULE_KINDS} & {*CLIENT_KINDS}


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


@pytest.mark.parametrize("server", ["fedadam", "fedtrimmedavg", "qfedavg"])
def test_clients_that_also_train_a_model_of_their_own_leave_the_rule_s_model_as_it_is(
    host: ClientHost, server: str
) -> None:
    pair, rule = result_of(host, parse_strategy(f"{server}+ditto")), result_of(host, parse_strategy(server))
    assert np.array_equal(pair.vector, rule.vector)
    assert list(pair.round_accuracy) != list(rule.round_accuracy)


@pytest.mark.parametrize("kind", ["fedadam+fedprox", "fedtrimmedavg+fedlc", "fedyogi+fedbn", "qfedavg+moon"])
def test_a_pair_is_neither_of_its_halves(host: ClientHost, kind: str) -> None:
    both = [result_of(host, parse_strategy(half)).vector for half in kind.split("+")]
    vector = result_of(host, parse_strategy(kind)).vector
    assert not any(np.array_equal(vector, half) for half in both)


def test_a_proximal_term_needs_no_message_to_tell_its_weight() -> None:
    pair = parse_strategy({"kind": "fedadam+fedprox", "proximal_mu": 0.3})
    assert pair.client_algorithm() == ProximalGradient(0.3)
    assert ProximalGradient(0.3).reads == ()


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
        assert type(pair).needs_layers or not type(half).needs_layers
    assert pair != parse_strategy(kind.split("+", maxsplit=1)[0])


def test_a_copy_is_validated_and_keeps_what_clients_are_told() -> None:
    document = {"kind": "fedadam+fedprox", "client_local_epochs": 3}
    values = {"eta": 0.5, "proximal_mu": 0.2}
    copy = parse_strategy(document).with_values(values)
    assert copy == parse_strategy({**document, **values})
    assert str(copy).startswith("fedadam+fedprox(eta=0.5, ")
    assert str(copy).endswith("proximal_mu=0.2, client_local_epochs=3)")


NOTHING = {"proximal_mu": 0}
EQUIVALENTS: list[tuple[Mapping[str, Any], str | Mapping[str, Any], int]] = [
    ({**NO_RULE, "kind": "fedavgm+fedlc"}, "fedlc", 10),
    (
        {**NO_RULE, "kind": "fedavgm+fedlc", "sample_scaling": "uniform"},
        {"kind": "fedlc", "sample_scaling": "uniform"},
        10,
    ),
    ({"kind": "fedmedian+fedprox", **NOTHING}, "fedmedian", 10),
    ({"kind": "fedmedian+fedlc", "calibration": 0}, "fedmedian", 10),
    ({"kind": "fedmedian+moon", "contrast": 0}, "fedmedian", 10),
    ({**NO_RULE, "kind": "fedavgm+fedprox", **NOTHING}, "fedavg", 10),
    ({"kind": "fedtrimmedavg+ditto", "beta": 0.05}, {"kind": "ditto", "sample_scaling": "uniform"}, 10),
    ({"kind": "fedtrimmedavg+ditto", "beta": 0.49}, "fedmedian+ditto", 10),
    ({"kind": "fedtrimmedavg+ditto", "beta": 0.21}, {"kind": "fedtrimmedavg+ditto", "beta": 0.29}, 10),
    ({"kind": "multikrum+fedper", "num_nodes_to_select": 1}, "krum+fedper", 10),
    ({"kind": "qfedavg+fedper", "q": 0}, {"kind": "fedper", "sample_scaling": "uniform"}, 10),
    ({"kind": "fedmedian+fedlc"}, "fedlc", 1),
]


@pytest.mark.parametrize(("pair", "simpler", "num_sampled"), EQUIVALENTS)
def test_equivalents_have_one_digest_and_tell_their_clients_the_same(
    pair: Mapping[str, Any], simpler: str | Mapping[str, Any], num_sampled: int
) -> None:
    cohort = Cohort(20, num_sampled, 0.2)
    one, other = parse_strategy(pair), parse_strategy(simpler)
    assert one.digest(cohort) == other.digest(cohort)
    told = {"client_local_epochs": 3}
    one_told, other_told = one.with_values(told), other.with_values(told)
    assert one_told.digest(cohort) == other_told.digest(cohort) != one.digest(cohort)
    if one.simplest(cohort).kind != one.kind:
        (note,) = one.notes(cohort)
        assert note.startswith(f"{one} ")


def test_pairs_that_differ_have_digests_of_their_own() -> None:
    """With twenty clients only Bulyan, which trusts everyone by default, is FedAvg's rule."""
    cohort = Cohort(20, 20, 0.2)
    digests = {kind: parse_strategy(kind).digest(cohort) for kind in (*PAIRS, *ALL_KINDS) if "bulyan" not in kind}
    assert len({*digests.values()}) == len(digests)
    uniform = parse_strategy({"kind": "ditto", "sample_scaling": "uniform"})
    assert parse_strategy("bulyan+ditto").digest(cohort) == uniform.digest(cohort) not in digests.values()


def test_a_robust_rule_tells_of_its_proof_in_a_pair_too() -> None:
    pair = parse_strategy({"kind": "krum+fedprox", "num_malicious_nodes": 1})
    (note,) = pair.notes(Cohort(4, 4, 0.2))
    assert "proof" in note


# What has no sense is refused.


@pytest.mark.parametrize(
    ("kind", "first", "named"),
    [
        ("fedadam+scaffold", "scaffold", ["fedadam+scaffold", "server rule"]),
        ("scaffold+fedlc", "scaffold", ["scaffold+fedlc", "server rule"]),
        ("krum+feddyn", "feddyn", ["krum+feddyn", "server rule"]),
        ("fedyogi+fednova", "fednova", ["fedyogi+fednova", "server rule"]),
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
        ("fedadam+fedfoo", "a pair", ["'fedadam+fedfoo'", "fedavgm, fedadagrad", "fedprox, "]),
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


def test_all_faults_of_a_pair_s_parameters_are_reported_at_once() -> None:
    document = {"kind": "krum+fedprox", "num_malicious_nodes": 9, "proximal_mu": -1, "eta": 1}
    with pytest.raises(StrategyError) as caught:
        parse_strategy(document, TEN)
    below, unknown, beyond = caught.value.faults
    assert (below.key, below.given) == ("proximal_mu", "-1")
    assert unknown.startswith("eta ")
    assert "num_malicious_nodes, proximal_mu, " in unknown
    assert (beyond.key, beyond.given) == ("num_malicious_nodes", "9")


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


@pytest.mark.parametrize("num_sampled", [3, 5, 10])
def test_whatever_is_drawn_is_inside_fits_and_builds(num_sampled: int) -> None:
    cohort = Cohort(20, num_sampled, 0.2)
    kinds = ["fedavg", "multikrum+fedprox", "fedadam+fedprox", "fedtrimmedavg+fedlc", "bulyan+moon"]
    found = space_of(cohort, kinds=kinds)
    assert {*found.kinds} == {*kinds}
    validator = jsonschema.Draft202012Validator(found.json_schema())
    generator = np.random.default_rng(0)
    drawn = [found.random(generator) for _ in range(100)]
    assert {spec.kind for spec in drawn} == {*kinds}  # what equals MOON or a median's pair has no other here
    for spec in drawn:
        assert found.contains(spec)
        assert found.nearest(spec) == spec
        spec.build(cohort)
        assert parse_strategy({"kind": spec.kind, **spec.parameters()}, cohort) == spec
        validator.validate({"kind": spec.kind, **spec.search_values()})


def test_ranges_are_those_of_the_halves_and_follow_the_cohort() -> None:
    found = space_of(TEN, kinds=["multikrum+fedprox", "fedadam+ditto", "multikrum", "fedprox", "fedadam", "ditto"])
    for kind in ("multikrum+fedprox", "fedadam+ditto"):
        server, client = map(found.parameters_of, kind.split("+"))
        assert list(found.parameters_of(kind).items()) == [*server.items(), *client.items()]
    chosen = {"num_malicious_nodes": 4}
    assert found.parameters_of("multikrum+fedprox", chosen)["num_nodes_to_select"] == IntegerRange(1, 6)
    wide = space_of(TEN, kinds=["fedadam+ditto"], ranges="wide").parameters_of("fedadam+ditto")
    assert wide["tau"] != found.parameters_of("fedadam+ditto")["tau"]


def test_what_a_row_says_of_a_pair() -> None:
    (row,) = space_of(TEN, kinds=["fedadam+fedprox"]).describe()
    assert "fedadam with the clients of fedprox" in row.summary
    assert [parameter.name for parameter in row.parameters] == ["eta", "tau", "beta_1", "beta_2", "proximal_mu"]
    assert all(parameter.meaning for parameter in row.parameters)


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
