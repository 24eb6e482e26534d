"""What is accepted, and that every fault is named at once."""

from __future__ import annotations

import json
import pickle

import pytest

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import (
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
    FedAdamSpec,
    KrumSpec,
    parse_strategy,
)
from tests.kits.refusals import refused

FOUR = Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2)


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


def test_values_are_taken_over() -> None:
    assert parse_strategy({"kind": "fedadam", "eta": 0.5, "beta_1": 0}) == FedAdamSpec(eta=0.5, beta_1=0.0)
    assert parse_strategy('{"kind": "krum", "num_malicious_nodes": 1}', FOUR) == KrumSpec(num_malicious_nodes=1)


def test_valid_is_wider_than_searched() -> None:
    assert parse_strategy({"kind": "fedadam", "eta": 30, "tau": 1e-12}, FOUR) == FedAdamSpec(eta=30, tau=1e-12)


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


def test_what_is_valid_must_fit_the_cohort_if_one_is_given() -> None:
    document = {"kind": "krum", "num_malicious_nodes": 2}
    assert parse_strategy(document) == KrumSpec(num_malicious_nodes=2)
    assert faults_of(document, FOUR) == tuple(KrumSpec(num_malicious_nodes=2).faults(FOUR))


def test_faults_of_the_cohort_join_the_others() -> None:
    _, fault = faults_of({"kind": "krum", "num_malicious_nodes": 9, "eta": 1}, FOUR)
    assert (fault.key, fault.given) == ("num_malicious_nodes", "9")
    assert " 0 … 1 " in fault
    assert faults_of({"kind": "fedfoo", "eta": 1}, FOUR) == faults_of({"kind": "fedfoo", "eta": 1})


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
