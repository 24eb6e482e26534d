"""Whether a specification fits the clients sampled per round."""

from __future__ import annotations

from typing import Any

import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import (
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
    BulyanSpec,
    FedAvgMSpec,
    FedTrimmedAvgSpec,
    KrumSpec,
    MultiKrumSpec,
    StrategySpec,
    parse_strategy,
)
from tests.kits.refusals import refused


def sampled(num_sampled: int, num_clients: int = 200) -> Cohort:
    return Cohort(num_clients, num_sampled, 0.2)


def fitting(spec_class: type[StrategySpec], cohort: Cohort, **others: int) -> list[int]:
    """The values of f that fit."""
    specs = [spec_class.model_validate({"num_malicious_nodes": f, **others}) for f in range(cohort.num_sampled + 1)]
    return [f for f, spec in enumerate(specs) if not spec.faults(cohort)]


@pytest.mark.parametrize("n", [3, 4, 5, 10, 31])
def test_krum_takes_f_up_to_n_minus_3(n: int) -> None:
    assert fitting(KrumSpec, sampled(n)) == list(range(n - 2))
    assert fitting(MultiKrumSpec, sampled(n), num_nodes_to_select=1) == list(range(n - 2))


@pytest.mark.parametrize("n", [3, 6, 7, 10, 11, 31])
def test_bulyan_takes_f_while_n_is_at_least_4f_plus_3(n: int) -> None:
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


@pytest.mark.parametrize("kind", ["krum", "multikrum", "bulyan"])
def test_what_is_impossible_says_so(kind: str) -> None:
    with refused(StrategyError, key=kind, given=2, names="3"):
        parse_strategy(kind).build(sampled(2))


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


def test_a_disguised_strategy_is_noted() -> None:
    (note,) = FedTrimmedAvgSpec(beta=0.2).notes(sampled(4))
    assert note.startswith("fedtrimmedavg(beta=0.2) ")
    assert " fedavg(sample_scaling=uniform) " in note
    (note,) = FedAvgMSpec(server_learning_rate=1, server_momentum=0).notes(sampled(4))
    assert " fedavg " in note
    assert FedTrimmedAvgSpec(beta=0.2).notes(sampled(10)) == []


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN_KINDS if "sample_scaling" in STRATEGIES[kind].model_fields])
@pytest.mark.parametrize(("scaling", "key"), [("num-examples", "num-examples"), ("uniform", "num-clients")])
def test_how_clients_weigh_reaches_engine_and_flower(kind: str, scaling: str, key: str) -> None:
    spec = parse_strategy({"kind": kind, "sample_scaling": scaling})
    built: Any = spec.build(sampled(5))
    assert spec.needs().weighted_by == built.weighted_by_key == key
