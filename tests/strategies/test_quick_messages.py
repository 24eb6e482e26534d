"""Messages made as copies, replies checked by one look and metrics averaged at once are what Flower makes of them."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedscout.engine.messages.contents import claim_task_identity
from fedscout.strategies import aggregation as quick
from fedscout.strategies.aggregation.rules import arrays_by_name, flat_vectors, mean_metrics
from tests.strategies.rounds import grid_of

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
    ours = asked(getattr(quick, name)(**arguments), 40, phase)
    flowers = asked(getattr(flower, name)(**arguments), 40, phase)
    assert [facts(message) for message in ours] == [facts(message) for message in flowers]
    assert len(ours) == 20
    assert {type(message) for message in ours} == {Message}
    assert all(message.metadata.created_at <= flowers[-1].metadata.created_at for message in ours)
    assert len({id(message.content) for message in ours}) == 1


def test_a_message_can_be_changed_without_the_others() -> None:
    first, second, third = asked(quick.FedAvg(min_available_nodes=3, min_train_nodes=3), 3)
    second.metadata.group_id = "mine"
    second.content = RecordDict()
    assert [message.metadata.group_id for message in (first, second, third)] == ["", "mine", ""]
    assert first.content is third.content is not second.content


def test_nobody_to_ask() -> None:
    assert asked(quick.FedAvg(fraction_train=0.0), 3) == []


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
@pytest.mark.parametrize("name", quick.__all__)
def test_replies_that_flower_refuses_are_refused_with_its_words(name: str, case: str) -> None:
    def refusal(strategies: Any) -> str:
        strategy = getattr(strategies, name)(**({"client_learning_rate": 0.1} if name == "QFedAvg" else {}))
        strategy.current_arrays = ArrayRecord(dict(ARRAYS))
        with pytest.raises(InconsistentMessageReplies) as caught:
            strategy.aggregate_train(1, replies(UNSOUND[case]()))
        return str(caught.value)

    assert refusal(quick) == refusal(flower)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx"])
def test_the_mean_of_one_reply_is_that_reply_and_is_told_of_as_flowers(name: str, monkeypatch: Any) -> None:
    """Nothing is copied; who failed is in the log."""
    told: list[str] = []
    monkeypatch.setattr(logging.getLogger("flwr"), "handle", lambda record: told.append(record.getMessage()))
    one = content(weight=7)
    given = [*replies([one]), Message(Error(1000, "no rows"), reply_to=Message(RecordDict(), 9, "train"))]
    arrays, metrics = getattr(quick, name)().aggregate_train(1, given)
    ours = told.copy()
    told.clear()
    flowers_arrays, flowers_metrics = getattr(flower, name)().aggregate_train(1, given)
    assert arrays is one["arrays"]
    np.testing.assert_array_equal(arrays["flat"].numpy(), flowers_arrays["flat"].numpy())
    assert metrics == flowers_metrics
    assert ours == told != []


def test_arrays_have_the_names_of_the_first_reply_in_its_order() -> None:
    """And vectors each reply's own, so that two arrays in another order are another vector."""
    one, two = (RecordDict({"arrays": ArrayRecord(arrays)}) for arrays in ({"a": A, "b": B}, {"b": B, "a": A}))
    found = {name: np.stack(arrays).tolist() for name, arrays in arrays_by_name([two, one]).items()}
    assert found == {"a": [[1], [1]], "b": [[[2, 2]], [[2, 2]]]}
    assert list(found) == ["b", "a"]
    assert list(arrays_by_name([one, two])) == ["a", "b"]
    assert [vector.tolist() for vector in flat_vectors([one, two])] == [[1, 2, 2], [2, 2, 1]]


def test_replies_in_another_order_of_keys_pass_as_they_do_at_flower() -> None:
    turned = RecordDict({"metrics": content()["metrics"], "arrays": content()["arrays"]})
    with_config = content()
    with_config["config"] = ConfigRecord({"x": 1})
    for contents in ([content(), turned], [content(), with_config], [with_config, with_config]):
        valid, failed = quick.FedMedian()._check_and_log_replies(replies(contents), is_train=True)
        assert ([reply.content for reply in valid], failed) == (contents, [])


def test_errors_are_set_aside() -> None:
    error = Message(Error(1000, "no rows"), reply_to=Message(RecordDict(), 9, "train"))
    sound = replies([content(), content()])
    for given in ([sound[0], error, sound[1]], iter([sound[0], error, sound[1]])):
        assert quick.FedAvg()._check_and_log_replies(given, is_train=True) == (sound, [error])
    assert quick.FedAvg()._check_and_log_replies([error], is_train=True) == ([], [error])
    assert quick.FedAvg()._check_and_log_replies([], is_train=True) == ([], [])


def test_mean_metrics_are_flowers() -> None:
    generator = np.random.default_rng(0)
    contents = [
        content(
            weight=int(generator.integers(1, 100)),
            accuracy=float(generator.random()),
            count=int(generator.integers(9)),
            per_class=[float(value) for value in generator.random(3)],
            counts=[1, 2],
        )
        for _ in range(30)
    ]
    ours = mean_metrics(contents, "num-examples")
    assert ours == aggregate_metricrecords(contents, "num-examples")
    assert list(ours) == ["loss", "accuracy", "count", "per_class", "counts"]


@pytest.mark.parametrize("mean", [mean_metrics, aggregate_metricrecords])
def test_faults_of_the_metrics_are_flowers(mean: Callable[[list[RecordDict], str], MetricRecord]) -> None:
    with pytest.raises(ZeroDivisionError):
        mean([content(weight=0)], "num-examples")
    with pytest.raises(ValueError, match="zip"):
        mean([content(values=[0.1]), content(values=[0.1, 0.2])], "num-examples")


def test_a_users_own_function_for_metrics_is_called() -> None:
    def count(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        return MetricRecord({weighted_by: len(contents)})

    _, metrics = quick.FedMedian(train_metrics_aggr_fn=count).aggregate_train(1, replies([content(), content()]))
    assert metrics == MetricRecord({"num-examples": 2})


@pytest.mark.parametrize("name", quick.__all__)
def test_strategies_can_be_kept_in_a_checkpoint(name: str) -> None:
    arguments = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    strategy = getattr(quick, name)(fraction_train=0.25, **arguments)
    again = pickle.loads(pickle.dumps(strategy))
    assert type(again) is type(strategy)
    assert again.fraction_train == 0.25
    assert isinstance(again, getattr(flower, name))
