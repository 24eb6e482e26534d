"""Each strategy that is built aggregates any replies as Flower's own class does, those of a whole trial included."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.messages.contents import claim_task_identity, view_record
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.state import cheap_collections
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import BUILT_IN_KINDS, StrategySpec, parse_strategy
from fedscout.strategies import aggregation as quick
from tests.engine.choices import rounds_of
from tests.engine.federations import uneven_federation
from tests.strategies.rounds import made

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


def test_the_cases_are_what_they_are_named_for() -> None:
    def ours(name: str, case: str) -> Any:
        return CASES[case].aggregate(INDIVIDUAL[name].build(COHORT), as_views=True)[0][0]

    claim_task_identity()
    assert ours("bulyan", "enough failed for Bulyan to give up") is None
    assert ours("bulyan", "some failed") is not None
    assert np.isnan(ours("fedmedian", "one NaN")["flat"][::3]).all()
    assert np.isfinite(ours("fedmedian", "one infinite")["flat"]).all()
    assert ours("krum", "all failed") is None


def test_bulyan_may_choose_by_a_rule_of_the_user_s() -> None:
    """Not by Krum's scores: the first replies, whatever they hold."""

    def first(contents: list[RecordDict], num_malicious: int, num_selected: int) -> list[RecordDict]:
        del num_malicious
        return contents[:num_selected]

    built: Any = quick.Bulyan(num_malicious_nodes=3, selection_rule=first)
    by_krum: Any = quick.Bulyan(num_malicious_nodes=3)
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
