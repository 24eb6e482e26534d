"""Strategies as they are built aggregate, address and check messages as Flower's own classes do."""

from __future__ import annotations

import copy
import logging
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, EngineNeeds, Session
from fedscout.engine.messages.contents import claim_task_identity, view_record
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.state import cheap_collections
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import BUILT_IN_KINDS, StrategySpec, parse_strategy
from fedscout.strategies.aggregation import robust, rules
from fedscout.strategies.aggregation.rules import arrays_by_name, flat_vectors, mean_metrics
from fedscout.strategies.specification import node_counts
from tests.engine.choices import rounds_of
from tests.engine.federations import uneven_federation
from tests.strategies.rounds import grid_of, made, models

QUICK = {
    each.__name__: each
    for each in (
        *(rules.FedAvg, rules.FedProx, rules.FedAvgM, rules.FedAdagrad, rules.FedAdam, rules.FedYogi),
        *(robust.FedMedian, robust.FedTrimmedAvg, robust.Krum, robust.MultiKrum, robust.Bulyan, robust.QFedAvg),
    )
}
NUM_CLIENTS = 23
COHORT = Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.25)
LAYOUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "flat": {"flat": (2100,)},
    "named": {"w": (40, 3), "b": (40,), "scale": (1,), "shift": ()},
}
Vectors = npt.NDArray[np.float32]

INDIVIDUAL: dict[str, StrategySpec] = {
    "fedmedian": made("fedmedian"),
    "fedtrimmedavg": made("fedtrimmedavg", beta=0.3),
    "fedtrimmedavg, nothing": made("fedtrimmedavg", beta=0.0),
    "fedtrimmedavg, most": made("fedtrimmedavg", beta=0.49),
    "krum": made("krum", num_malicious_nodes=4),
    "multikrum": made("multikrum", num_malicious_nodes=4, num_nodes_to_select=11),
    "bulyan": made("bulyan", num_malicious_nodes=3),
    "bulyan, all": made("bulyan", num_malicious_nodes=0),
    "qfedavg": made("qfedavg", q=1.5),
    "qfedavg, fair": made("qfedavg", q=0.0),
    "fedavg": made("fedavg"),
    "fedavgm": made("fedavgm"),
    "fedyogi": made("fedyogi"),
}


def test_all_that_compare_replies_are_here() -> None:
    kinds = {kind for kind in BUILT_IN_KINDS if parse_strategy(kind).needs().replies == "individual"}
    assert kinds <= {spec.kind for spec in INDIVIDUAL.values()}
    assert len(kinds) == 6


def in_flowers_own_class(built: flower.Strategy) -> flower.FedAvg:
    """Return the strategy with its settings, in the class of Flower's of the same name."""
    own_class = getattr(flower, type(built).__name__)
    own: flower.FedAvg = own_class.__new__(own_class)
    own.__dict__.update(copy.deepcopy(vars(built)))
    return own


def ties(vectors: Vectors) -> Vectors:
    return np.round(2 * vectors)


def pairs(vectors: Vectors) -> Vectors:
    return np.repeat(vectors[::2], 2, axis=0)[: len(vectors)]


def nearly_alike(vectors: Vectors) -> Vectors:
    return (100 + 1e-3 * vectors).astype(np.float32)


def one_far_away(vectors: Vectors) -> Vectors:
    vectors[4] *= 1e6
    return vectors


def one_of(value: float) -> Callable[[Vectors], Vectors]:
    def with_one(vectors: Vectors) -> Vectors:
        vectors[4, ::3] = value
        return vectors

    return with_one


VECTORS: dict[str, Callable[[Vectors], Vectors]] = {
    "normal": lambda vectors: vectors,
    "ties": ties,
    "pairs": pairs,
    "nearly alike": nearly_alike,
    "all alike": lambda vectors: np.repeat(vectors[:1], len(vectors), axis=0),
    "one far away": one_far_away,
    "one NaN": one_of(np.nan),
    "one infinite": one_of(np.inf),
}


@dataclass(frozen=True)
class Case:
    """Replies to invent: which vectors, in which arrays, and which clients fail."""

    vectors: str = "normal"
    layout: str = "flat"
    failing: tuple[int, ...] = ()

    def replies(self, as_views: bool, server_round: int = 1) -> list[Message]:
        slots = LAYOUTS[self.layout]
        size = sum(int(np.prod(shape)) for shape in slots.values())
        generator = np.random.default_rng(server_round)
        vectors = VECTORS[self.vectors](generator.normal(size=(NUM_CLIENTS, size)).astype(np.float32))
        replies = []
        for client, vector in enumerate(vectors):
            request = Message(RecordDict(), 2 + client, "train")
            metrics = {
                "num-examples": int(generator.integers(10, 200)),
                "num-clients": 1,
                "loss": float(generator.random()),
                "train_loss": float(generator.uniform(0.1, 3)),
            }
            if client in self.failing:
                replies.append(Message(Error(1000, "no rows"), reply_to=request))
                continue
            ends = np.cumsum([int(np.prod(shape)) for shape in slots.values()])[:-1]
            pieces = zip(slots.items(), np.split(vector, ends), strict=True)
            arrays = {name: piece.reshape(shape) for (name, shape), piece in pieces}
            record = view_record(arrays) if as_views else ArrayRecord({n: Array(a) for n, a in arrays.items()})
            replies.append(
                Message(RecordDict({"arrays": record, "metrics": MetricRecord(dict(metrics))}), reply_to=request)
            )
        return replies

    def aggregate(self, strategy: Any, as_views: bool) -> list[tuple[dict[str, npt.NDArray[Any]] | None, Any]]:
        """Return the new arrays and metrics of two rounds."""
        received = {name: np.full(shape, 0.5, np.float32) for name, shape in LAYOUTS[self.layout].items()}
        results = []
        for server_round in (1, 2):
            strategy.current_arrays = ArrayRecord({name: Array(array) for name, array in received.items()})
            if isinstance(strategy, flower.FedAdam | flower.FedYogi):
                strategy.current_arrays = received
            with cheap_collections(), np.errstate(all="ignore"):
                replies = self.replies(as_views, server_round)
                arrays, metrics = strategy.aggregate_train(server_round, replies)
            results.append((arrays and {name: array.numpy() for name, array in arrays.items()}, metrics))
        return results


CASES = {
    **{name: Case(name) for name in VECTORS},
    "named": Case(layout="named"),
    "named, ties": Case("ties", layout="named"),
    "named, one NaN": Case("one NaN", layout="named"),
    "some failed": Case(failing=(0, 7, 22)),
    "enough failed for Bulyan to give up": Case(failing=tuple(range(9))),
    "two left": Case(failing=tuple(range(2, NUM_CLIENTS))),
    "one left": Case(failing=tuple(range(1, NUM_CLIENTS))),
    "all failed": Case(failing=tuple(range(NUM_CLIENTS))),
}


@pytest.mark.sampled(60)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", INDIVIDUAL)
def test_aggregates_and_metrics_are_flowers(name: str, case: str) -> None:
    claim_task_identity()
    built = INDIVIDUAL[name].build(COHORT)
    own = in_flowers_own_class(built)
    expected = CASES[case].aggregate(own, as_views=False)
    for (arrays, metrics), (own_arrays, own_metrics) in zip(
        CASES[case].aggregate(built, as_views=True), expected, strict=True
    ):
        assert metrics == own_metrics
        if own_arrays is None:
            assert arrays is None
            continue
        assert list(arrays) == list(own_arrays)
        for key, array in own_arrays.items():
            assert arrays[key].dtype == array.dtype
            assert arrays[key].shape == array.shape
            np.testing.assert_array_equal(arrays[key], array)


def test_bulyan_may_choose_by_a_rule_of_the_user_s() -> None:
    """Not by Krum's scores: the first replies, whatever they hold."""

    def first(contents: list[RecordDict], num_malicious: int, num_selected: int) -> list[RecordDict]:
        del num_malicious
        return contents[:num_selected]

    built: Any = robust.Bulyan(num_malicious_nodes=3, selection_rule=first)
    by_krum: Any = robust.Bulyan(num_malicious_nodes=3)
    case = CASES["normal"]
    (ours, _), (flowers, _), (usual, _) = (
        case.aggregate(strategy, as_views=views)[0]
        for strategy, views in ((built, True), (in_flowers_own_class(built), False), (by_krum, True))
    )
    np.testing.assert_array_equal(ours["flat"], flowers["flat"])
    assert not np.array_equal(ours["flat"], usual["flat"])


def test_replies_are_left_as_they_were() -> None:
    claim_task_identity()
    for spec in INDIVIDUAL.values():
        replies = Case().replies(as_views=True)
        strategy: Any = spec.build(COHORT)
        strategy.current_arrays = ArrayRecord({"flat": Array(np.zeros(2100, np.float32))})
        if isinstance(strategy, flower.FedYogi):
            strategy.current_arrays = {"flat": np.zeros(2100, np.float32)}
        strategy.aggregate_train(1, replies)
        for reply, untouched in zip(replies, Case().replies(as_views=False), strict=True):
            assert reply.content == untouched.content


@dataclass(frozen=True)
class InFlowersOwnClass:
    """A specification that builds Flower's own class."""

    spec: StrategySpec

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec, name)

    def build(self, cohort: Cohort) -> flower.Strategy:
        return in_flowers_own_class(self.spec.build(cohort))


def trial(choice: Any) -> Trial:
    spec = TrialSettings(
        strategy=choice,
        num_rounds=4,
        num_sampled=7,
        session=Session(seed=3, training=LocalTraining(local_epochs=1, batch_size=8, learning_rate=0.1)),
        keep_model=True,
    )
    grid = LocalGrid(uneven_federation(), {}, spec.session)
    return replace(run_trial(spec, grid), seconds={})


@pytest.mark.parametrize(
    "spec",
    [
        made("fedmedian"),
        made("fedtrimmedavg", beta=0.2),
        made("krum"),
        made("multikrum"),
        made("bulyan"),
        made("qfedavg", q=1.0),
    ],
    ids=lambda spec: spec.kind,
)
def test_a_whole_trial_is_that_of_flowers_own_class(spec: StrategySpec) -> None:
    """One of the seven clients has no rows and fails in every round."""
    ours, own = trial(spec), trial(InFlowersOwnClass(spec))
    assert ours.status == "completed"
    assert ours.vector.tobytes() == own.vector.tobytes()
    assert rounds_of(ours) == rounds_of(own)
    assert ours.dropped_clients == own.dropped_clients
    assert len(ours.dropped_clients) == 4


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


def test_arrays_have_the_names_of_the_first_reply_in_its_order() -> None:
    """And vectors each reply's own, so that two arrays in another order are another vector."""
    one, two = (RecordDict({"arrays": ArrayRecord(arrays)}) for arrays in ({"a": A, "b": B}, {"b": B, "a": A}))
    found = {name: np.stack(arrays).tolist() for name, arrays in arrays_by_name([two, one]).items()}
    assert found == {"a": [[1], [1]], "b": [[[2, 2]], [[2, 2]]]}
    assert list(found) == ["b", "a"]
    assert list(arrays_by_name([one, two])) == ["a", "b"]
    assert [vector.tolist() for vector in flat_vectors([one, two])] == [[1, 2, 2], [2, 2, 1]]


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

    _, metrics = robust.FedMedian(train_metrics_aggr_fn=count).aggregate_train(1, replies([content(), content()]))
    assert metrics == MetricRecord({"num-examples": 2})


@pytest.mark.parametrize("name", QUICK)
def test_strategies_can_be_kept_in_a_checkpoint(name: str) -> None:
    arguments = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    strategy = QUICK[name](fraction_train=0.25, **arguments)
    again = pickle.loads(pickle.dumps(strategy))
    assert type(again) is type(strategy)
    assert again.fraction_train == 0.25
    assert isinstance(again, getattr(flower, name))


# -- A specification builds exactly what one would write by hand with Flower -------------------------------------------


COHORT_EQUIVALENCE = Cohort(num_clients=9, num_sampled=7, client_learning_rate=0.25)
NODES = {
    "fraction_train": 7 / 9,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 7,
    "min_evaluate_nodes": 9,
    "min_available_nodes": 9,
}
ADAPTIVE = {"eta": 0.2, "eta_l": 0.25, "tau": 1e-2}

BY_HAND: dict[str, tuple[StrategySpec, flower.Strategy]] = {
    "fedavg": (made("fedavg"), flower.FedAvg(**NODES)),
    "fedavg, uniform": (
        made("fedavg", sample_scaling="uniform"),
        flower.FedAvg(**NODES, weighted_by_key="num-clients"),
    ),
    "fedprox": (made("fedprox", proximal_mu=0.3), flower.FedProx(**NODES, proximal_mu=0.3)),
    "fedavgm": (
        made("fedavgm", server_learning_rate=0.7, server_momentum=0.6),
        flower.FedAvgM(**NODES, server_learning_rate=0.7, server_momentum=0.6),
    ),
    "fedadagrad": (made("fedadagrad", eta=0.2, tau=1e-2), flower.FedAdagrad(**NODES, **ADAPTIVE)),
    "fedadam": (
        made("fedadam", eta=0.2, tau=1e-2, beta_1=0.8, beta_2=0.95),
        flower.FedAdam(**NODES, **ADAPTIVE, beta_1=0.8, beta_2=0.95),
    ),
    "fedyogi": (
        made("fedyogi", eta=0.2, tau=1e-2, beta_1=0.8, beta_2=0.95, sample_scaling="uniform"),
        flower.FedYogi(**NODES, **ADAPTIVE, beta_1=0.8, beta_2=0.95, weighted_by_key="num-clients"),
    ),
    "fedmedian": (made("fedmedian"), flower.FedMedian(**NODES)),
    "fedtrimmedavg": (made("fedtrimmedavg", beta=0.3), flower.FedTrimmedAvg(**NODES, beta=0.3)),
    "krum": (made("krum", num_malicious_nodes=2), flower.Krum(**NODES, num_malicious_nodes=2)),
    "multikrum": (
        made("multikrum", num_malicious_nodes=1, num_nodes_to_select=3),
        flower.MultiKrum(**NODES, num_malicious_nodes=1, num_nodes_to_select=3),
    ),
    "bulyan": (made("bulyan", num_malicious_nodes=1), flower.Bulyan(**NODES, num_malicious_nodes=1)),
    "qfedavg": (made("qfedavg", q=1.5), flower.QFedAvg(client_learning_rate=0.25, q=1.5, **NODES)),
}


def test_every_built_in_strategy_is_compared() -> None:
    assert {spec.kind for spec, _ in BY_HAND.values()} == set(BUILT_IN_KINDS)
    assert len(BUILT_IN_KINDS) == 12


@pytest.mark.parametrize("name", BY_HAND)
def test_aggregates_are_flowers_bit_for_bit(name: str) -> None:
    spec, by_hand = BY_HAND[name]
    built = spec.build(COHORT_EQUIVALENCE)
    assert isinstance(built, type(by_hand))
    for ours, theirs in zip(models(built, 9), models(by_hand, 9), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_client_rate_is_the_cohorts(name: str) -> None:
    built = BY_HAND[name][0].build(COHORT_EQUIVALENCE)
    for attribute in ("eta_l", "client_learning_rate"):
        assert getattr(built, attribute, 0.25) == 0.25


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
    merged = {kind for kind, (spec, _) in BY_HAND.items() if spec.needs().replies == "merged"}
    assert merged == {"fedavg", "fedavg, uniform", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"}
    assert BY_HAND["fedyogi"][0].needs().weighted_by == "num-clients"
    assert BY_HAND["fedadam"][0].needs() == EngineNeeds("flat", "merged", "num-examples", initial_loss=False)
    assert [kind for kind, (spec, _) in BY_HAND.items() if spec.needs().initial_loss] == ["qfedavg"]
    assert {spec.needs().arrays for spec, _ in BY_HAND.values()} == {"flat"}
    assert [kind for kind, (spec, _) in BY_HAND.items() if spec.client_algorithm() is not None] == ["fedprox"]


def test_nobody_to_ask() -> None:
    assert asked(rules.FedAvg(fraction_train=0.0), 3) == []
