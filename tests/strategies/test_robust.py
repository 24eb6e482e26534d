"""Robust strategies: their statistics in blocks, Krum's choice and their rounds are Flower's, bit for bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import compute_distances, select_multikrum as flowers_selection
from hypothesis import given, settings, strategies as st

from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import view_record
from fedscout.strategies import BUILT_IN_KINDS, StrategySpec
from fedscout.strategies.aggregation import rules
from fedscout.strategies.methods import robust
from fedscout.strategies.specification import node_counts
from tests.strategies.rounds import asked, grid_of, made, models, reply_of

FloatArray = npt.NDArray[np.floating]


def _some(values: FloatArray, generator: np.random.Generator, *special: float) -> FloatArray:
    """Put each special value into a tenth of the places."""
    for value in special:
        values[generator.random(values.shape) < 0.1] = value
    return values


POPULATIONS: dict[str, Callable[[FloatArray, np.random.Generator], FloatArray]] = {
    "normal": lambda values, _: values,
    "ties": lambda values, _: np.round(values),
    "zeros of both signs": lambda values, generator: _some(values, generator, 0.0, -0.0),
    "neighbours": lambda values, generator: (-1 - generator.integers(0, 6, values.shape) / 2**23).astype(values.dtype),
    "all alike": lambda values, _: np.repeat(values[:1], len(values), axis=0),
    "infinite": lambda values, generator: _some(values, generator, np.inf, -np.inf),
    "NaN of both signs": lambda values, generator: _some(values, generator, np.nan, -np.nan),
    "one client is NaN": lambda values, _: np.concatenate([np.full_like(values[:1], np.nan), values[1:]]),
    "of all sizes": lambda values, _: (np.sign(values) * np.exp(30 * np.abs(values))).astype(values.dtype),
}

SHAPES = [(), (0,), (1,), (1, 1), (3,), (2, 5), (64,), (65,), (129,)]


def populated(population: str, seed: int, num_clients: int, shape: tuple[int, ...]) -> FloatArray:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(num_clients, *shape)).astype(np.float32)
    return POPULATIONS[population](values, generator)


def flowers_median(values: FloatArray) -> FloatArray:
    return np.asarray(np.median(values, axis=0))


def flowers_trimmed_mean(values: FloatArray, num_trimmed: int) -> FloatArray:
    beta = (num_trimmed + 0.5) / len(values) if num_trimmed else 0.0
    assert int(beta * len(values)) == num_trimmed
    return np.asarray(trim_mean(values, min(beta, np.nextafter(0.5, 0))))


def flowers_mean_around_median(values: FloatArray, num_kept: int) -> FloatArray:
    return np.asarray(aggregate_n_closest_weights([flowers_median(values)], [[row] for row in values], num_kept)[0])


def assert_same(ours: FloatArray, flowers: FloatArray) -> None:
    assert ours.dtype == flowers.dtype
    assert ours.shape == flowers.shape
    np.testing.assert_array_equal(ours, flowers)  # exact; equal zeros may differ in sign


@pytest.fixture(autouse=True)
def _small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small models have several, the last of one coordinate among them."""
    monkeypatch.setattr(robust, "SLAB", 128)


@pytest.fixture(autouse=True)
def _no_warnings_of_numpys() -> Any:
    with np.errstate(all="ignore"):
        yield


STATISTICS: dict[str, tuple[Callable[..., Any], ...]] = {
    "median": (robust.median, flowers_median, lambda n, share: ()),
    "trimmed": (robust.trimmed_mean, flowers_trimmed_mean, lambda n, share: (round(share * ((n - 1) // 2)),)),
    "around": (robust.mean_around_median, flowers_mean_around_median, lambda n, share: (1 + round(share * (n - 1)),)),
}
"""Ours, Flower's, and the number of values that are trimmed or kept."""


@pytest.mark.parametrize("statistic", STATISTICS)
@settings(deadline=None)
@given(
    st.sampled_from([*POPULATIONS]),
    st.integers(0, 2**32),
    st.integers(1, 120),
    st.sampled_from(SHAPES),
    st.floats(0, 1),
)
def test_statistics_are_flowers(
    statistic: str, population: str, seed: int, num_clients: int, shape: tuple[int, ...], share: float
) -> None:
    values = populated(population, seed, num_clients, shape)
    ours, flowers, parameters = STATISTICS[statistic]
    counts = parameters(num_clients, share)
    assert_same(ours(values.copy(), *counts), flowers(values, *counts))


@pytest.mark.parametrize("slab", [1000, 3000, 10**6])
def test_the_size_of_slabs_changes_nothing(slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def statistics() -> list[bytes]:
        found = robust.median(values), robust.trimmed_mean(values, 7), robust.mean_around_median(values, 30)
        return [each.tobytes() for each in found]

    values = populated("normal", 0, 50, (3001,))
    before = statistics()
    monkeypatch.setattr(robust, "SLAB", slab)
    assert statistics() == before


# -- Krum's choice is Flower's, near ties and equal models included ----------------------------------------------------


def drawn(kind: str, seed: int, num_clients: int, num_parameters: int) -> npt.NDArray[np.float32]:
    """Return the clients' models; `near` ones differ by less than their squared norms are rounded."""
    values = np.random.default_rng(seed).normal(size=(num_clients, num_parameters)).astype(np.float32)
    if kind == "near":
        return (100 + 1e-3 * values).astype(np.float32)
    if kind == "alike":
        return np.repeat(values[: (num_clients + 1) // 2], 2, axis=0)[:num_clients]
    if kind != "normal":
        values[num_clients // 2, ::3] = {"a NaN": np.nan, "infinite": np.inf}[kind]
    return values


def record_of(arrays: dict[str, npt.NDArray[Any]], ours: bool) -> ArrayRecord:
    return view_record(arrays) if ours else ArrayRecord({name: Array(array) for name, array in arrays.items()})


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.sampled_from(["normal", "near", "alike", "a NaN", "infinite"]),
    *(st.integers(0, 2**32), st.integers(1, 70), st.sampled_from([1, 2, 7, 300]), st.floats(0, 1), st.floats(0, 1)),
)
def test_the_same_replies_in_the_same_order(
    kind: str, seed: int, num_clients: int, num_parameters: int, malicious: float, selected: float
) -> None:
    matrix = drawn(kind, seed, num_clients, num_parameters)
    num_malicious, num_selected = int(malicious * num_clients), 1 + int(selected * num_clients)

    def chosen(select: Callable[..., list[RecordDict]], ours: bool) -> list[Any]:
        contents = []
        for client, row in enumerate(matrix):
            content = {"arrays": record_of({"flat": row}, ours), "metrics": MetricRecord({"client": client})}
            contents.append(RecordDict(content))
        return [content["metrics"]["client"] for content in select(contents, num_malicious, num_selected)]

    with np.errstate(all="ignore"):
        assert chosen(robust.select_multikrum, True) == chosen(flowers_selection, False)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (30, 1000), (100, 18_530)])
@pytest.mark.parametrize("kind", ["normal", "near"])
def test_distances_are_flowers_bit_for_bit(kind: str, shape: tuple[int, int]) -> None:
    matrix = drawn(kind, 0, *shape)
    flowers = compute_distances([ArrayRecord({"w": Array(row)}) for row in matrix])
    ours = robust.squared_distances(matrix)
    assert ours.dtype == flowers.dtype == np.float32
    assert ours.tobytes() == flowers.tobytes()


# -- Whole rounds: by hand, and as Flower's own classes aggregate ------------------------------------------------------


BY_HAND: dict[str, tuple[StrategySpec, list[float], float, list[int]]] = {
    "median": (made("fedmedian"), [1, 30, 2], 2, [0, 1, 2]),
    "median of an even number": (made("fedmedian"), [1, 30, 2, 4], 3, [0, 1, 2, 3]),
    "⌊0.25 · 5⌋ = 1 is trimmed": (made("fedtrimmedavg", beta=0.25), [0, 1, 100, 2, 6], 3, [0, 1, 2, 3, 4]),
    # The two nearest of each are at .985 from 1.75, 1.5625 from 1, 2.3825 from 2.4 and 4.0625 from 0.
    "Krum": (made("krum", num_malicious_nodes=1), [0, 1, 1.75, 2.4, 100], 1.75, [2]),
    "Krum of two": (
        made("multikrum", num_malicious_nodes=1, num_nodes_to_select=2),
        [0, 1, 1.75, 2.4, 100],
        (2 * 1 + 3 * 1.75) / 5,
        [1, 2],
    ),
    # Five are selected, 0, 1.5, 2, 3 and 5; of these three are nearest to their median, 2.
    "Bulyan": (made("bulyan", num_malicious_nodes=1), [0, 50, 1.5, 2, 60, 3, 5], 6.5 / 3, [0, 2, 3, 5, 6]),
    # L = 10, F = 1, 2: Σ F² L (x − y) = −10 + 80, Σ 2 F ‖L (x − y)‖² + L F² = 400 + 10 + 3200 + 40
    "q-FedAvg": (made("qfedavg", q=2.0), [1, -2], -70 / 3650, [0, 1]),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_a_round_by_hand(case: str) -> None:
    """Client k has k + 1 rows and a loss of k + 1; a client that fails is not among them. Replies stay as they were."""
    spec, trained, expected, averaged = BY_HAND[case]
    cohort = Cohort(len(trained) + 1, len(trained) + 1, 0.1)
    strategy: Any = spec.build(cohort)
    *answering, failing = asked(strategy, np.zeros(2), cohort.num_clients)
    replies = [
        reply_of(message, np.array([value, -value]), client + 1, train_loss=float(client + 1))
        for client, (message, value) in enumerate(zip(answering, trained, strict=True))
    ]
    before = copy.deepcopy([reply.content for reply in replies])
    arrays, metrics = strategy.aggregate_train(1, [*replies, reply_of(failing, None)])
    assert [reply.content for reply in replies] == before
    np.testing.assert_allclose(arrays["flat"].numpy(), [expected, -expected], rtol=1e-6)
    rows = np.array(averaged) + 1
    assert metrics["train_loss"] == pytest.approx((rows**2).sum() / rows.sum())
    asked(strategy, np.zeros(2), cohort.num_clients)
    assert strategy.aggregate_train(2, [reply_of(message, None) for message in answering]) == (None, None)


def test_too_few_replies_for_bulyan_give_no_model() -> None:
    """Of seven clients for f = 1 all must answer."""
    strategy: Any = made("bulyan", num_malicious_nodes=1).build(Cohort(7, 7, 0.1))
    *answering, failing = asked(strategy, np.zeros(2), 7)
    replies = [reply_of(message, np.ones(2)) for message in answering]
    assert strategy.aggregate_train(1, [*replies, reply_of(failing, None)])[0] is None
    assert strategy.aggregate_train(1, [*replies, reply_of(failing, np.ones(2))])[0] is not None


# -- Messages and metrics are Flower's, and so is what a specification builds -----------------------


WEIGHTS = {"num-examples": "num-examples", "uniform": "num-clients"}
ARRAYS = ArrayRecord({"flat": Array(np.zeros(3, np.float32))})


def ours_of(name: str) -> Any:
    """Return our class of the name of one of Flower's."""
    return vars(rules).get(name) or vars(robust)[name]


def messages_of(strategy: flower.FedAvg, num_clients: int, phase: str = "train") -> list[Message]:
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
    ours = messages_of(ours_of(name)(**arguments), 40, phase)
    flowers = messages_of(getattr(flower, name)(**arguments), 40, phase)
    assert [facts(message) for message in ours] == [facts(message) for message in flowers]
    assert len(ours) == 20
    assert {type(message) for message in ours} == {Message}
    assert all(message.metadata.created_at <= flowers[-1].metadata.created_at for message in ours)
    assert len({id(message.content) for message in ours}) == 1


def test_a_message_can_be_changed_without_the_others() -> None:
    first, second, third = messages_of(rules.FedAvg(min_available_nodes=3, min_train_nodes=3), 3)
    second.metadata.group_id = "mine"
    second.content = RecordDict()
    assert [message.metadata.group_id for message in (first, second, third)] == ["", "mine", ""]
    assert first.content is third.content is not second.content


def content(weight: Any = 10, **more: Any) -> RecordDict:
    metrics = {"num-examples": weight, "loss": 0.3, **more}
    return RecordDict(
        {"arrays": ArrayRecord({"flat": Array(np.ones(3, np.float32))}), "metrics": MetricRecord(metrics)}
    )


def replies(contents: list[RecordDict]) -> list[Message]:
    return [Message(one, reply_to=Message(RecordDict(), 2 + i, "train")) for i, one in enumerate(contents)]


@pytest.mark.parametrize("name", ["FedAvg", "FedProx"])
def test_the_mean_of_one_reply_is_that_reply(name: str) -> None:
    """Nothing is copied."""
    one = content(weight=7)
    given = [*replies([one]), Message(Error(1000, "no rows"), reply_to=Message(RecordDict(), 9, "train"))]
    arrays, metrics = ours_of(name)().aggregate_train(1, given)
    assert arrays is one["arrays"]
    assert metrics == getattr(flower, name)().aggregate_train(1, given)[1]


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
    assert messages_of(rules.FedAvg(fraction_train=0.0), 3) == []


def test_needs_follow_from_what_a_strategy_reads() -> None:
    """Those that read the mean alone get it merged; those that compare replies get one each."""
    specs = [made(kind) for kind in BUILT_IN_KINDS]
    assert {spec.kind for spec in specs} == {name.lower() for name in PARAMETERS}
    for spec in specs:
        merged = spec.kind in {name.lower() for name in MEANS}
        replies: Any = "merged" if merged else "individual"
        assert spec.needs() == EngineNeeds("flat", replies, "num-examples", initial_loss=spec.kind == "qfedavg")
        assert (spec.client_algorithm() is not None) == (spec.kind == "fedprox")
    assert made("fedyogi", sample_scaling="uniform").needs().weighted_by == "num-clients"
