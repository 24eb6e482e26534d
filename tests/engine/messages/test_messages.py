"""What messages hold, several contents in one sending, and exact means."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable
from copy import deepcopy
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.serde import array_record_from_proto, array_record_to_proto
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages import contents, exact_mean
from fedscout.engine.messages.calls import Session, TrainResults
from fedscout.engine.messages.keys import ReplyMode
from tests.engine.federations import ABLE, EMPTY, ONE_CLASS, ONE_ROW, QUERIES, SIZES, uneven_federation
from tests.engine.nodes.test_wire_and_policy import same

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
KINDS: dict[str, npt.NDArray[Any]] = {
    "matrix": VALUES,
    "Fortran order": np.asfortranarray(VALUES),
    "every other column": VALUES[:, ::2],
    "scalar": np.array(2.5),
    "empty": np.empty((0, 4), np.float32),
    "integers": np.array([1, -2, 3]),
    "big endian": VALUES.astype(">f4"),
    "NaN": np.array([np.nan, np.inf, -0.0], np.float16),
    "truth": np.array([True, False]),
}
each_kind = pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)


@each_kind
def test_numpy_and_fields_are_those_of_the_array_that_serialised_at_once(values: npt.NDArray[Any]) -> None:
    ours, flowers = contents.ViewArray(values).numpy(), Array(values).numpy()
    np.testing.assert_array_equal(ours, flowers)
    assert (ours.dtype, ours.shape) == (flowers.dtype, flowers.shape)
    for flag in ("C_CONTIGUOUS", "F_CONTIGUOUS"):
        assert ours.flags[flag] == flowers.flags[flag]
    assert ours.flags.writeable
    assert ours.flags.owndata

    ours, flowers = contents.ViewArray(values), Array(values)
    for name in ("dtype", "shape", "stype", "data"):
        assert getattr(ours, name) == getattr(flowers, name)
    assert type(ours) is Array
    np.testing.assert_array_equal(ours.numpy(), flowers.numpy())


@each_kind
def test_equality_is_that_of_the_bytes(values: npt.NDArray[Any]) -> None:
    assert contents.ViewArray(values) == Array(values)
    assert Array(values) == contents.ViewArray(values)
    assert contents.ViewArray(values) == contents.ViewArray(values)
    other = np.append(values, values.dtype.type(1))
    assert contents.ViewArray(values) != contents.ViewArray(other)
    assert Array(values) != contents.ViewArray(other)
    assert contents.ViewArray(values) != "an array"


def test_what_is_read_in_place_can_t_be_written() -> None:
    base = VALUES.copy()
    read = contents.read_array(contents.ViewArray(base))
    assert np.shares_memory(read, base)
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    base[0] = 1  # the owner's own array stays writable


def test_a_record_travels_as_flowers_does() -> None:
    arrays = {"w": VALUES, "b": np.zeros(3)}
    ours, flowers = contents.view_record(arrays), ArrayRecord({name: Array(array) for name, array in arrays.items()})
    assert RecordDict({"arrays": ours}).object_id == RecordDict({"arrays": flowers}).object_id
    assert array_record_to_proto(contents.view_record(arrays)) == array_record_to_proto(flowers)
    assert array_record_from_proto(array_record_to_proto(contents.view_record(arrays))) == flowers
    assert contents.view_record(arrays).count_bytes() == flowers.count_bytes()
    for mine, theirs in zip(contents.view_record(arrays).to_numpy_ndarrays(), flowers.to_numpy_ndarrays(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ArrayRecord(dict(contents.view_record(arrays))) == flowers
    assert pickle.loads(pickle.dumps(contents.view_record(arrays))) == flowers


def test_objects_are_refused_and_unknown_names_are_missing() -> None:
    with pytest.raises(ValueError, match="objects"):
        contents.ViewArray(np.array([object()]))
    with pytest.raises(AttributeError, match="values"):
        contents.ViewArray(VALUES).values  # noqa: B018


# -- Several global models in one record: which clients use which, and what is refused ---------------------------------


NUM_CLIENTS = len(SIZES)


@pytest.mark.parametrize(
    ("group", "expected"),
    [([2, 0, 2, 2, 0, 2, 2], [[1, 4], [], [0, 2, 3, 5, 6]]), ([2, -1, 1, 1, 0], [[4], [1, 2, 3, 5, 6], [0]])],
)
def test_each_model_comes_with_its_clients(host: ClientHost, group: list[int], expected: list[list[int]]) -> None:
    layout = host.facts().layout
    vectors = np.arange(3 * layout.size, dtype=np.float32).reshape(3, -1)
    found = contents.models_of(contents.several_models(vectors, np.array(group)), layout, NUM_CLIENTS)
    assert [list(clients) for _, clients in found] == expected
    np.testing.assert_array_equal([vector for vector, _ in found], vectors)


@pytest.mark.parametrize(
    ("models", "group", "told"),
    [
        ((53,), [0] * 7, r"^flat .*\b53\).*\(53,\)$"),
        ((2, 52), [0] * 7, r"^flat .*\b53\).*\(2, 52\)$"),
        ((2, 53), [0] * 8, r"^group .*\b7\b.*int64 \(8,\)$"),
        ((2, 53), [0.0] * 7, r"^group .*\b7\b.*float64 \(7,\)$"),
        ((2, 53), [0, 1, 2], r"^group .*\b2 models.*\[0, 1, 2\]$"),
        ((2, 53), [0, -2, 0], r"^group .*\b2 models.*\[0, -2, 0\]$"),
        ((2, 53), [-1, -1], r"^group .*\b2 models.*\[-1, -1\]$"),
    ],
)
def test_other_records_are_refused(host: ClientHost, models: tuple[int, ...], group: list[Any], told: str) -> None:
    record = ArrayRecord({"flat": Array(np.zeros(models, np.float32)), "group": Array(np.array(group))})
    with pytest.raises(ValueError, match=told):
        contents.models_of(record, host.facts().layout, NUM_CLIENTS)


# -- Copies of a message are the messages that Flower would make -------------------------------------------------------


# -- What Flower's own runtime would tell of messages ------------------------------------------------------------------


def test_a_reply_names_the_message_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower keeps the id is private: this fails when it moves."""
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    contents.claim_task_identity(run_id=3)
    message = Message(RecordDict(), 5, "query")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (3, 1)
    contents.give_id(message, "7")
    assert message.metadata.message_id == "7"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "7"
    contents.claim_task_identity()
    assert TaskIdentity.run_id == 3, "a run that Flower's own runtime has begun is not taken over"


def test_a_field_that_is_set_counts() -> None:
    array = contents.ViewArray(VALUES)
    before = contents.ViewArray(VALUES).object_id
    array.data = Array(2 * VALUES).data
    np.testing.assert_array_equal(array.numpy(), 2 * VALUES)
    assert array.object_id != before


# -- Several contents in one sending are answered as if each had been sent alone ---------------------------------------


COUNTS = contents.Query("label-counts", {"offset": np.float64(0.25).reshape(())}, {"scale": 2.0})


class CountingGrid(LocalGrid):
    """Counts its pushes. Its clients may be spread over several hosts, as far as the routing knows."""

    def __init__(self, num_hosts: int = 1) -> None:
        self.host = ClientHost(uneven_federation(), QUERIES)
        HostGrid.__init__(self, self.host.facts(), num_hosts)
        self.pushes = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.pushes += 1
        return super().push_messages(messages)


def training(grid: LocalGrid, seed: int, reply: ReplyMode, clients: tuple[int, ...] | None = None) -> contents.Training:
    config = contents.train_config(LocalTraining(batch_size=8), seed, 1, reply)
    return contents.Training(grid.initial_vector(seed), config, clients)


@pytest.mark.parametrize("num_hosts", [1, 3])
def test_together_equals_one_by_one(num_hosts: int) -> None:
    grid = CountingGrid(num_hosts)
    queries = [COUNTS, contents.Query("broken"), contents.Query("label-counts", {"offset": np.ones(3)}, clients=(0, 5))]
    trainings = [
        *(training(grid, 1, "merged"), training(grid, 1, "individual")),
        *(training(grid, 2, "individual", (0, 3)), training(grid, 2, "merged", ABLE)),
    ]
    answered, trained = contents.exchange(grid, queries, trainings)
    assert grid.pushes == 1
    alone = [contents.send_query(grid, q.function, q.arrays, q.config, q.clients) for q in queries]
    assert same(answered, alone)
    alone_trained = [contents.exchange(grid, trainings=[one])[1][0] for one in trainings]
    assert same(trained, alone_trained)


def test_answers_are_sorted_and_refusals_are_the_requests_own() -> None:
    grid = CountingGrid(3)
    queries = [COUNTS, contents.Query("broken")]
    (counts, broken), (trained,) = contents.exchange(grid, queries, [training(grid, 1, "individual")])
    large = [client for client, size in enumerate(SIZES) if size >= 5]
    assert list(counts.arrays) == large
    assert list(broken.arrays) == [client for client in large if client != ONE_CLASS]
    assert ONE_CLASS in broken.refused.keys() - counts.refused.keys()
    assert "federation.min_release" in counts.refused[ONE_ROW]
    assert trained.clients == ABLE
    assert set(trained.refused) == {EMPTY}


def test_nothing_to_send_and_nobody_to_ask() -> None:
    grid = CountingGrid()
    assert contents.exchange(grid) == ([], [])
    assert grid.pushes == 0
    asked = [contents.Query("broken", clients=())]
    (counts,), (trained,) = contents.exchange(grid, asked, [training(grid, 1, "individual", ())])
    assert (counts.arrays, counts.num_examples, counts.refused) == ({}, {}, {})
    assert trained.clients == ()
    assert trained.vectors.shape == (0, grid.facts.layout.size)


# -- A user's own algorithm reaches a process that has never heard of its module ---------------------------------------


READ = "import pickle, sys; session = pickle.load(sys.stdin.buffer); print(type(session.algorithm), session.seed)"


def test_it_is_imported_from_where_it_was(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "own_algorithms"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "anchors.py").write_text(
        "from fedscout.engine.contracts.algorithm import ClientAlgorithm\nclass Anchored(ClientAlgorithm): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from own_algorithms.anchors import Anchored  # type: ignore[import-not-found]

    sent = pickle.dumps(Session(seed=7, algorithm=Anchored()))
    told = subprocess.run([sys.executable, "-c", READ], input=sent, capture_output=True, check=True, cwd="/")
    assert told.stdout.decode().split() == ["<class", "'own_algorithms.anchors.Anchored'>", "7"]


# -- One mean, whatever the order and the grouping; as exact as its docstring says -------------------------------------


Case = tuple[list[FloatArray], list[int], int]
LIMIT = float(np.nextafter(np.float32(2**16), np.float32(0)))
WEIGHTS = st.integers(1, 5000)


def scale_for(most: int) -> exact_mean.ExactScale:
    """The scale of a model of small parameters: e = 0 for all of them."""
    return exact_mean.ExactScale.of(np.zeros(1, np.float32), most)


@st.composite
def weighted_vectors(draw: st.DrawFn) -> Case:
    """Vectors inside the range of the sum, their weights, and a largest total weight that they respect."""
    count = draw(st.integers(1, 6))
    values = st.floats(-LIMIT, LIMIT, width=32)
    vectors = draw(st.lists(arrays(np.float32, 3, elements=values), min_size=count, max_size=count))
    weights = draw(st.lists(WEIGHTS, min_size=count, max_size=count))
    return vectors, weights, sum(weights) + draw(st.integers(0, 10**6))


@given(weighted_vectors(), st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_change_a_bit(case: Case, random: object) -> None:
    vectors, weights, most = case
    scale, zero = scale_for(most), np.zeros(3, np.int64)
    terms = [scale.total(vector[None], [weight]) for vector, weight in zip(vectors, weights, strict=True)]
    reference = scale.mean(sum(terms, zero), sum(weights))
    random.shuffle(terms)
    cut = random.randint(0, len(terms))
    assert scale.mean(sum(terms[:cut], zero) + sum(terms[cut:], zero), sum(weights)).tobytes() == reference.tobytes()


@given(weighted_vectors())
def test_the_mean_is_as_near_as_stated(case: Case) -> None:
    """Rounding each product: 2^-(b+1) a client over the weight; then half a float32 step."""
    vectors, weights, most = case
    scale = scale_for(most)
    total = sum(scale.total(v[None], [w]) for v, w in zip(vectors, weights, strict=True))

    result = scale.mean(np.asarray(total), sum(weights))

    assert result.dtype == np.float32
    for column, value in enumerate(result):
        pairs = zip(vectors, weights, strict=True)
        exact = sum((w * Fraction(float(v[column])) for v, w in pairs), Fraction(0)) / sum(weights)
        products = Fraction(len(vectors), sum(weights)) / 2 ** (exact_mean.fraction_bits(most) + 1)
        rounding = Fraction(float(np.spacing(np.abs(value)))) / 2 * (1 + Fraction(1, 2**20))
        assert abs(Fraction(float(value)) - exact) <= products + rounding


@given(weighted_vectors(), st.booleans(), arrays(np.float32, 3, elements=st.floats(-8, 8, width=32)))
def test_the_sum_of_rows_is_the_sum_of_each(case: Case, small: bool, received: FloatArray) -> None:
    """Python's integers hold any sum; small values take the way over float64, large ones that over int64."""
    vectors, weights, most = case
    scale = exact_mean.ExactScale.of(received, most)
    matrix = np.stack(vectors) * np.float32(2.0**-15 if small else 1)
    terms = [scale.total(row[None], [weight]).tolist() for row, weight in zip(matrix, weights, strict=True)]

    assert scale.total(matrix, weights).tolist() == [sum(column) for column in zip(*terms, strict=True)]


@pytest.mark.parametrize("received", [0.5, 3.0], ids=["one range", "a range each"])
def test_each_row_is_inside_or_not_by_itself(received: float) -> None:
    scale = exact_mean.ExactScale.of(np.array([0.25, received], np.float32), 1)
    inside = [[0, 6e4], [-6e4, 0], [-0.0, 1e-45], [LIMIT, -LIMIT]]
    outside = [[1e6, 0], [0, -1e6], [np.nan, 0], [0, -np.inf], [2.0**16, 0], [-(2.0**16), 0]]
    assert scale.holds(np.array(inside, np.float32)).all()
    assert not scale.holds(np.array(outside, np.float32)).any()
    without_limit = exact_mean.ExactScale.of(np.array([1e35], np.float32), 1)
    assert without_limit.holds(np.array([[3e38], [np.inf]], np.float32)).tolist() == [True, False]


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_float64_can_not_hold_are_exact(sign: int) -> None:
    """(2^24 − 1)(2^29 − 1) + (2^24 − 1)(2^29 − 2) is odd and nearly 2^54."""
    scale = scale_for(2**30)
    value = np.float32((2**24 - 1) / 2**15)
    assert scale.per_unit == 2**15
    total = scale.total(np.full((2, 1), sign * value), [2**29 - 1, 2**29 - 2])
    assert total.tolist() == [sign * (2**24 - 1) * (2**30 - 3)]


@pytest.mark.parametrize("elements", [1, 2, 7, 12])
def test_sums_in_parts_are_the_sum(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits into the cache, and with a unit for each element."""
    generator = np.random.default_rng(0)
    vectors, received = generator.normal(size=(3, 5)).astype(np.float32), np.array([0.1, 5, 0.2, 300, 7], np.float32)
    for scale in (exact_mean.ExactScale.of(received, 60), scale_for(60)):
        whole = scale.total(vectors, [10, 20, 30])
        expected = np.average(vectors.astype(np.float64), axis=0, weights=[10, 20, 30])
        np.testing.assert_allclose(scale.mean(whole, 60), expected, rtol=1e-6)
        with monkeypatch.context() as patch:
            patch.setattr("fedscout.engine.messages.exact_mean.CHUNK_ELEMENTS", elements)
            assert scale.total(vectors, [10, 20, 30]).tolist() == whole.tolist()


def test_the_bits_follow_the_largest_total_weight() -> None:
    """b = 46 − bits: 2^16 · (2^bits − 1) · 2^b < 2^62."""
    for most in (1, 7, 8, 10**6):
        b = exact_mean.fraction_bits(most)
        assert 2**16 * most * 2**b < 2**62
        assert 2**16 * (2 * most + 1) * 2**b >= 2**62


def test_the_range_grows_with_the_received_model() -> None:
    """An element that was large before may be 2^16 times as large; one that was small is still summed finely."""
    received = np.array([np.nextafter(np.float32(1), np.float32(0)), 1.0, -1.5, 3e5, 1e-20], np.float32)
    assert exact_mean.exponents(received).tolist() == [0, 1, 1, 19, 0]  # |x| < 2^e; 3e5 is between 2^18 and 2^19
    scale = exact_mean.ExactScale.of(received, 1)
    grown = np.array([6e4, 1e5, -1e5, 3e10, 6e4], np.float32)
    assert scale.holds(grown[None])[0]
    assert not scale_for(1).holds(grown[None])[0]
    for element in range(5):
        beyond = grown.copy()
        beyond[element] = 2.0 ** (16 + exact_mean.exponents(received)[element])
        assert not scale.holds(beyond[None])[0]


@given(weighted_vectors(), arrays(np.float32, 3, elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_sums_do_not_overflow_in_any_range(case: Case, received: FloatArray) -> None:
    vectors, weights, most = case
    scale = exact_mean.ExactScale.of(received, most)
    bits = exact_mean.fraction_bits(most) - exact_mean.exponents(received)
    large = [(vector * np.exp2(exact_mean.exponents(received))).astype(np.float32) for vector in vectors]
    assert all(scale.holds(vector[None])[0] for vector in large)
    terms = [scale.total(vector[None], [weight]) for vector, weight in zip(large, weights, strict=True)]
    exact = [sum(int(term[i]) for term in terms) for i in range(3)]
    assert np.sum(terms, axis=0).tolist() == exact
    result = scale.mean(np.sum(terms, axis=0), sum(weights))
    for i in range(3):
        true = Fraction(exact[i]) / sum(weights) / Fraction(2) ** int(bits[i])
        assert abs(Fraction(float(result[i])) - true) <= Fraction(float(np.spacing(np.abs(result[i]))))


# -- In whatever groups exact sums are added, the total has the same bits, and nothing else of an answer changes -------


NUM_PARAMS = 5


def answers(num_hosts: int) -> list[TrainResults]:
    """Sums of any size in 64 bits; the host 2 only scored."""
    generator = np.random.default_rng(0)

    def total() -> np.ndarray:
        return generator.integers(-(2**62) // num_hosts, 2**62 // num_hosts, NUM_PARAMS)

    return [
        TrainResults(clients=[host], total=total(), auxiliary_totals={"drift": total()})
        if host != 2
        else TrainResults()
        for host in range(num_hosts)
    ]


def in_groups(given: list[TrainResults], size: int) -> list[TrainResults]:
    added: list[exact_mean.Answer] = []
    for start in range(0, len(given), size):
        added += exact_mean.with_one_sum(deepcopy(given[start : start + size]))
    return added


@pytest.mark.parametrize("size", [1, 2, 3, 4, 10])
def test_the_total_of_any_groups_is_that_of_all(size: int) -> None:
    given = answers(10)
    added = in_groups(given, size)

    kept = [one for one in added if one.total is not None]
    assert len(kept) == -(-10 // size) - (size == 1)
    assert np.array_equal(sum(one.total for one in kept), sum(one.total for one in given if one.total is not None))
    drifts = [sum(one.auxiliary_totals["drift"] for one in some) for some in (kept, [*given[:2], *given[3:]])]
    assert np.array_equal(*drifts)
    assert [one.clients for one in added] == [one.clients for one in given]
    assert all(one.in_another_sum != (one.total is not None) for one in added if one.clients)


def test_parts_of_one_answer_are_added_as_well_and_stay_its_parts() -> None:
    given = answers(5)
    first, second = exact_mean.with_one_sum(deepcopy([given[:3], given[3]]))

    assert isinstance(first, list)
    assert [part.clients for part in first] == [[0], [1], []]
    assert np.array_equal(first[0].total, given[0].total + given[1].total + given[3].total)
    assert second.in_another_sum


def test_sums_that_were_read_from_shared_memory_are_not_written_to() -> None:
    given = answers(3)
    given[0].total.flags.writeable = False
    exact_mean.with_one_sum(given)


def test_hosts_on_many_nodes_with_large_models_add_in_groups() -> None:
    assert exact_mean.group_size(100, 100, 2**20) == 10
    assert exact_mean.group_size(128, 32, 2**20) == isqrt(128)
    assert exact_mean.group_size(100, 31, 2**20) == 1
    assert exact_mean.group_size(100, 100, 2**20 - 1) == 1
