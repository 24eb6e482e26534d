"""Strategies as they are built aggregate, address and check messages as Flower's own classes do."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.strategies import BUILT_IN_KINDS
from fedscout.strategies.aggregation import robust, rules
from fedscout.strategies.aggregation.rules import mean_metrics
from fedscout.strategies.specification import node_counts
from tests.strategies.rounds import grid_of, made, models

WEIGHTS = {"num-examples": "num-examples", "uniform": "num-clients"}
QUICK = {
    each.__name__: each
    for each in (
        *(rules.FedAvg, rules.FedProx, rules.FedAvgM, rules.FedAdagrad, rules.FedAdam, rules.FedYogi),
        *(robust.FedMedian, robust.FedTrimmedAvg, robust.Krum, robust.MultiKrum, robust.Bulyan, robust.QFedAvg),
    )
}
# -- Messages made as copies, replies checked by one look and metrics averaged at once are what Flower makes of them


A, B = Array(np.ones(1)), Array(np.full((1, 2), 2.0))
ARRAYS = ArrayRecord({"flat": Array(np.zeros(3, np.float32))})


@pytest.fixture(autouse=True)
def _identity() -> None:
    claim_task_identity()


def asked(strategy: flower.FedAvg, num_clients: int, phase: str = "train") -> list[Message]:
    random.seed(0)
    configure = strategy.configure_train if phase == "train" else strategy.configure_evaluate
    return list(configure(3, ARRAYS, ConfigRecord({"seed": 1}), grid_of(num_clients)))


def facts(message: Message) -> dict[str, Any]:
    metadata = {name: value for name, value in vars(message.metadata).items() if name != "_created_at"}
    return {**vars(message), "_metadata": metadata}


@pytest.mark.parametrize("phase", ["train", "evaluate"])
@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "Krum"])
def test_messages_are_flowers(name: str, phase: str) -> None:
    """The same clients in the same order, of the same types, with the same content in every field."""
    arguments = {"fraction_train": 0.5, "fraction_evaluate": 0.5, "min_available_nodes": 40}
    ours = asked(QUICK[name](**arguments), 40, phase)
    flowers = asked(getattr(flower, name)(**arguments), 40, phase)
    assert [facts(message) for message in ours] == [facts(message) for message in flowers]
    assert len(ours) == 20
    assert {type(message) for message in ours} == {Message}
    assert all(message.metadata.created_at <= flowers[-1].metadata.created_at for message in ours)
    assert len({id(message.content) for message in ours}) == 1


def test_a_message_can_be_changed_without_the_others() -> None:
    first, second, third = asked(rules.FedAvg(min_available_nodes=3, min_train_nodes=3), 3)
    second.metadata.group_id = "mine"
    second.content = RecordDict()
    assert [message.metadata.group_id for message in (first, second, third)] == ["", "mine", ""]
    assert first.content is third.content is not second.content


def content(weight: Any = 10, **more: Any) -> RecordDict:
    metrics = {"num-examples": weight, "loss": 0.3, **more}
    return RecordDict(
        {"arrays": ArrayRecord({"flat": Array(np.ones(3, np.float32))}), "metrics": MetricRecord(metrics)}
    )


def without(key: str) -> RecordDict:
    made = content()
    del made[key]
    return made


def with_another(key: str) -> RecordDict:
    made = content()
    made["another"] = made[key]
    return made


def beside(**records: Any) -> RecordDict:
    """Return these records, and a client's metrics unless they are among them."""
    return RecordDict({"metrics": content()["metrics"], **records})


UNSOUND: dict[str, Callable[[], list[RecordDict]]] = {
    "no arrays": lambda: [content(), without("arrays")],
    "nobody has arrays": lambda: [without("arrays"), without("arrays")],
    "two array records": lambda: [content(), with_another("arrays")],
    "all have two": lambda: [with_another("arrays"), with_another("arrays")],
    "no metrics": lambda: [content(), without("metrics")],
    "two metric records": lambda: [with_another("metrics"), with_another("metrics")],
    "other record names": lambda: [content(), beside(other=ARRAYS)],
    "other arrays": lambda: [content(), beside(arrays=ArrayRecord({"w": A}))],
    "another metric": lambda: [content(), content(accuracy=0.1)],
    "no weight": lambda: [beside(arrays=ARRAYS, metrics=MetricRecord({"loss": 0.1})) for _ in range(2)],
    "a list for a weight": lambda: [content(), content(weight=[1, 2])],
}


def replies(contents: list[RecordDict]) -> list[Message]:
    return [Message(one, reply_to=Message(RecordDict(), 2 + i, "train")) for i, one in enumerate(contents)]


@pytest.mark.parametrize("case", UNSOUND)
@pytest.mark.parametrize("name", QUICK)
def test_replies_that_flower_refuses_are_refused_with_its_words(name: str, case: str) -> None:
    def refusal(strategy_class: Any) -> str:
        strategy = strategy_class(**({"client_learning_rate": 0.1} if name == "QFedAvg" else {}))
        strategy.current_arrays = ArrayRecord(dict(ARRAYS))
        with pytest.raises(InconsistentMessageReplies) as caught:
            strategy.aggregate_train(1, replies(UNSOUND[case]()))
        return str(caught.value)

    assert refusal(QUICK[name]) == refusal(getattr(flower, name))


@pytest.mark.parametrize("name", ["FedAvg", "FedProx"])
def test_the_mean_of_one_reply_is_that_reply_and_is_told_of_as_flowers(name: str, monkeypatch: Any) -> None:
    """Nothing is copied; who failed is in the log."""
    told: list[str] = []
    monkeypatch.setattr(logging.getLogger("flwr"), "handle", lambda record: told.append(record.getMessage()))
    one = content(weight=7)
    given = [*replies([one]), Message(Error(1000, "no rows"), reply_to=Message(RecordDict(), 9, "train"))]
    arrays, metrics = QUICK[name]().aggregate_train(1, given)
    ours = told.copy()
    told.clear()
    flowers_arrays, flowers_metrics = getattr(flower, name)().aggregate_train(1, given)
    assert arrays is one["arrays"]
    np.testing.assert_array_equal(arrays["flat"].numpy(), flowers_arrays["flat"].numpy())
    assert metrics == flowers_metrics
    assert ours == told != []


@pytest.mark.parametrize("mean", [mean_metrics, aggregate_metricrecords])
def test_faults_of_the_metrics_are_flowers(mean: Callable[[list[RecordDict], str], MetricRecord]) -> None:
    with pytest.raises(ZeroDivisionError):
        mean([content(weight=0)], "num-examples")
    with pytest.raises(ValueError, match="zip"):
        mean([content(values=[0.1]), content(values=[0.1, 0.2])], "num-examples")


def test_a_users_own_function_for_metrics_is_called() -> None:
    def count(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        return MetricRecord({weighted_by: len(contents)})

    _, metrics = robust.FedMedian(train_metrics_aggr_fn=count).aggregate_train(1, replies([content(), content()]))
    assert metrics == MetricRecord({"num-examples": 2})


# -- A specification builds exactly what one would write by hand with Flower -------------------------------------------


RATE = 0.25
NODES = {
    "fraction_train": 7 / 9,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 7,
    "min_evaluate_nodes": 9,
    "min_available_nodes": 9,
}
ADAPTIVE = {"eta": 0.2, "tau": 1e-2}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"proximal_mu": 0.3},
    "FedAvgM": {"server_learning_rate": 0.7, "server_momentum": 0.6},
    "FedAdagrad": ADAPTIVE,
    "FedAdam": {**ADAPTIVE, "beta_1": 0.8, "beta_2": 0.95},
    "FedYogi": {**ADAPTIVE, "beta_1": 0.8, "beta_2": 0.95},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.3},
    "Krum": {"num_malicious_nodes": 2},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "Bulyan": {"num_malicious_nodes": 1},
    "QFedAvg": {"q": 1.5},
}
MEANS = ("FedAvg", "FedProx", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi")
BOUND = {"QFedAvg": "client_learning_rate", **dict.fromkeys(MEANS[3:], "eta_l")}
"""What is the clients' learning rate."""


@pytest.mark.parametrize(
    ("name", "scaling"),
    [*((name, None) for name in PARAMETERS), *((name, scaling) for name in MEANS for scaling in WEIGHTS)],
)
def test_a_specification_builds_what_one_would_write_with_flower(name: str, scaling: str | None) -> None:
    """With the same settings, and the same models bit for bit."""
    given = PARAMETERS[name]
    spec = made(name.lower(), **given, **({} if scaling is None else {"sample_scaling": scaling}))
    settings = {**NODES, **given, **({BOUND[name]: RATE} if name in BOUND else {})}
    by_hand = getattr(flower, name)(**settings, weighted_by_key=WEIGHTS[scaling or "num-examples"])
    built = spec.build(Cohort(num_clients=9, num_sampled=7, client_learning_rate=RATE))
    assert isinstance(built, type(by_hand))
    assert {key: vars(built)[key] for key in settings} == settings
    for ours, theirs in zip(models(built, 9), models(by_hand, 9), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_exactly_the_sampled_number_of_clients_trains() -> None:
    """Flower samples max(int(n * fraction), min_train_nodes) clients."""
    for num_clients in range(1, 301):
        for num_sampled in range(1, num_clients + 1):
            counts = node_counts(Cohort(num_clients, num_sampled, 0.1))
            assert max(int(num_clients * counts["fraction_train"]), counts["min_train_nodes"]) == num_sampled
            assert counts["min_available_nodes"] == counts["min_evaluate_nodes"] == num_clients


@pytest.mark.parametrize(("num_clients", "num_sampled"), [(1, 1), (49, 1), (10, 3), (7, 7)])
def test_configure_addresses_the_cohort(num_clients: int, num_sampled: int) -> None:
    claim_task_identity()
    built = made("fedavg").build(Cohort(num_clients, num_sampled, 0.1))
    arrays = ArrayRecord({"flat": Array(np.zeros(2, np.float32))})
    assert len(list(built.configure_train(1, arrays, ConfigRecord(), grid_of(num_clients)))) == num_sampled
    assert len(list(built.configure_evaluate(1, arrays, ConfigRecord(), grid_of(num_clients)))) == num_clients


def test_needs_follow_from_what_a_strategy_reads() -> None:
    """Those that read the mean alone get it merged; those that compare replies get one each."""
    specs = [made(kind) for kind in BUILT_IN_KINDS]
    assert {spec.kind for spec in specs} == {name.lower() for name in PARAMETERS} == {name.lower() for name in QUICK}
    for spec in specs:
        merged = spec.kind in {name.lower() for name in MEANS}
        replies: Any = "merged" if merged else "individual"
        assert spec.needs() == EngineNeeds("flat", replies, "num-examples", initial_loss=spec.kind == "qfedavg")
        assert (spec.client_algorithm() is not None) == (spec.kind == "fedprox")
    assert made("fedyogi", sample_scaling="uniform").needs().weighted_by == "num-clients"


def test_nobody_to_ask() -> None:
    assert asked(rules.FedAvg(fraction_train=0.0), 3) == []
