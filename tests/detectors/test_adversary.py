"""A server that is after single rows: what it gets from clients of 1, 2, 5 and 40 rows.

Each attack is first shown to work on clients that let out everything, which is what `federation.min_release=1` means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import NOT_PRIVATE, Arrays, Privacy, Release
from fedscout.engine.data.federation import Federation, RowPart
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import flat_record, send_query, train_config
from tests.detectors.federations import SmallNet, federation, gaussian_clients, inputs, let_out, samples
from tests.engine.results import trained

SIZES = (1, 2, 5, 40)
ONE, TWO, FIVE, MANY = range(4)
REACH, STEPS = 8.0, 40
NUM_FEATURES = 6
GENERATOR = np.random.default_rng(0)
PRIVATE = {"epsilon": 1.0, "delta": 1e-6, "clip": 3.0, "noise": "seeded", "noise_seed": 0}
MESSAGES: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "label_counts": ({}, {}),
    "feature_moments": ({}, {"max_features": 100}),
    "feature_centroid": (
        {"mean": GENERATOR.normal(size=NUM_FEATURES), "axes": GENERATOR.normal(size=(NUM_FEATURES, 2))},
        {},
    ),
    "feature_histogram": ({"start": np.full(NUM_FEATURES, -2.0), "width": np.full(NUM_FEATURES, 0.25)}, {"bins": 16}),
    "class_sums": ({}, {"max_features": 100}),
    "label_agreement": (
        {
            "axes": GENERATOR.normal(size=(NUM_FEATURES, 1)),
            "sums": np.array([[-50.0], [50.0]]),
            "counts": np.array([600, 600]),
        },
        {"shifted": True},
    ),
    "private_counts": ({}, PRIVATE),
    "private_sums": ({}, PRIVATE),
    "row_norms": ({"per_deviation": np.ones(NUM_FEATURES)}, {"by_class": True}),
    "group_labels": ({}, {}),
    "group_norms": (
        {"per_deviation": np.ones(NUM_FEATURES), "means": GENERATOR.normal(size=(2, NUM_FEATURES))},
        {"by_class": True},
    ),
    "near_copies": ({}, {}),
    "input_curvature": ({}, {}),
    "mean_output": ({"model": GENERATOR.normal(size=SmallNet(NUM_FEATURES, 2).num_parameters)}, {}),
}
PROMISED = Privacy(float(PRIVATE["epsilon"]), float(PRIVATE["delta"]))
OPEN, GUARDED = Release(1), Release(5, "abstain")


def clients(release: Release) -> Federation:
    return replace(federation(gaussian_clients(SIZES, num_features=3)), release=release)


def rows_of(source: Federation, client: int) -> np.ndarray:
    return source.features[source.partition.client(client)].astype(np.float64)


# -- models and scores -----------------------------------------------------------------------------------------------


def row_by_gradient(grid: LocalGrid, client: int) -> np.ndarray | None:
    """Return dW / db of the first layer after a step on all training rows; None without a reply."""
    vector = grid.initial_vector(0)
    training = LocalTraining(local_epochs=1, batch_size=100, learning_rate=0.5)
    answers = trained(grid, vector, train_config(training, 0, 1, "individual"), [client])
    if not len(answers.vectors):
        return None
    step = grid.facts.layout.split(answers.vectors[0].astype(np.float64) - vector)
    unit = int(np.abs(step["0.bias"]).argmax())
    return np.asarray(step["0.weight"][unit] / step["0.bias"][unit])


def test_a_model_trained_on_one_row_is_that_row_unless_the_client_abstains() -> None:
    """Clients of one and of two rows train on one of them; one of five trains on four, too few to take part."""
    open_grid, guarded = (LocalGrid(clients(release), CLIENT_QUERIES) for release in (OPEN, GUARDED))
    for client in (ONE, TWO):
        found = row_by_gradient(open_grid, client)
        assert found is not None
        assert np.abs(rows_of(clients(OPEN), client) - found).max(axis=1).min() < 1e-5
    assert all(row_by_gradient(guarded, client) is None for client in (ONE, TWO, FIVE))
    assert row_by_gradient(guarded, MANY) is not None


def test_the_score_of_one_row_is_its_label_unless_the_client_abstains() -> None:
    """Of models that always answer the same class, the one that is right names it."""

    def label_by_score(grid: LocalGrid, client: int) -> list[float]:
        found = []
        for label in range(2):
            named = {slot.name: np.zeros(slot.shape, np.float32) for slot in grid.facts.layout.slots}
            named["2.bias"][label] = 1.0
            evaluation = grid.evaluate_all(flat_record(grid.facts.layout.join(named)))
            assert evaluation.failures == {}
            found.append(float(evaluation.accuracies[client] * evaluation.num_examples[client]))
        return found

    open_grid, guarded = (LocalGrid(clients(release), CLIENT_QUERIES) for release in (OPEN, GUARDED))
    assert sorted(label_by_score(open_grid, TWO)) == sorted(label_by_score(open_grid, FIVE)) == [0, 1]
    assert all(label_by_score(guarded, client) == [0, 0] for client in (ONE, TWO, FIVE))
    assert sum(label_by_score(guarded, MANY)) == 8


# -- queries whose arrays the server chooses -------------------------------------------------------------------------


def above(grid: LocalGrid, client: int, threshold: float) -> int | None:
    """Return how many values of feature 0 a histogram has above a threshold; None without an answer."""
    arrays = {"start": np.full(3, threshold - 1e6), "width": np.full(3, 1e6)}
    answers = send_query(grid, "feature_histogram", arrays, {"bins": 2}, [client])
    return int(answers.arrays[client]["counts"][0, 1]) if client in answers.arrays else None


def agreeing(grid: LocalGrid, client: int, threshold: float) -> int | None:
    """Return how many groups of class 1 agree if it lies above a threshold of feature 0 and class 0 below."""
    counts = np.array([10**9, 10**9])
    sums = (threshold + np.array([-1e4, 1e4])) * counts
    arrays = {"axes": np.eye(3)[:, :1], "sums": sums[:, None], "counts": counts}
    answers = send_query(grid, "label_agreement", arrays, {"shifted": False}, [client])
    return int(answers.arrays[client]["agreeing"][1]) if client in answers.arrays else None


def largest_step(count: Callable[[float], int]) -> float:
    """Return by bisection above which threshold nothing counts any more."""
    low, high = -REACH, REACH
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if count(middle) > 0 else (low, middle)
    return high


@pytest.mark.parametrize("ask", [above, agreeing])
def test_thresholds_close_in_on_means_of_groups_only(ask: Callable[[LocalGrid, int, float], int | None]) -> None:
    open_grid, guarded = (LocalGrid(clients(release), CLIENT_QUERIES) for release in (OPEN, GUARDED))
    source = clients(OPEN)
    for client in (FIVE, MANY):
        own = source.partition.client(client)
        values = rows_of(source, client)[(source.labels[own] == 1) | (ask is above), 0]
        found, closest = (
            largest_step(lambda threshold, g=grid, c=client: ask(g, c, threshold) or 0) for grid in (open_grid, guarded)
        )
        assert found == pytest.approx(values.max(), abs=1e-4)
        if len(values) < 5:
            assert closest <= -REACH + 1e-6  # nothing ever agrees
        else:
            assert closest == pytest.approx(np.sort(values)[-5:].mean(), abs=1e-4)
            assert np.abs(values - closest).min() > 1e-3
    assert all(ask(guarded, client, 0.0) is None for client in (ONE, TWO))


def test_bins_that_are_shifted_give_nothing_away() -> None:
    """Whatever the edges, each bin holds none or at least five rows; so does what two of them differ by."""
    grid, generator = LocalGrid(clients(GUARDED), CLIENT_QUERIES), np.random.default_rng(0)
    totals = set()
    for _ in range(200):
        arrays = {"start": generator.uniform(-5, 3, 3), "width": generator.uniform(1e-3, 2, 3)}
        answers = send_query(grid, "feature_histogram", arrays, {"bins": 9}, [FIVE, MANY])
        assert set(answers.arrays) == {FIVE, MANY}
        totals |= set(np.cumsum(answers.arrays[MANY]["counts"], axis=1).ravel().tolist())
        counts = np.concatenate([answer["counts"].ravel() for answer in answers.arrays.values()])
        assert ((counts == 0) | (counts >= 5)).all()
    assert np.diff(sorted(totals)).min() >= 5


def malformed(query: str) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Yield messages of a query that lack something, or hold arrays of other lengths and numbers out of range."""
    arrays, config = MESSAGES[query]
    for name, array in arrays.items():
        yield {other: value for other, value in arrays.items() if other != name}, config
        for value in (array[:0], array[:1], array[..., :1], np.zeros(()), np.concatenate([array, array])):
            yield {**arrays, name: value}, config
    for name in config:
        yield arrays, {other: value for other, value in config.items() if other != name}
        for number in (-1, 0, 10**9, "x"):
            yield arrays, {**config, name: number}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("privacy", [None, PROMISED])
@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
def test_whether_and_how_a_query_fails_tells_nothing(query: str, privacy: Privacy | None) -> None:
    """Clients of unlike rows, one of whom holds a single row of the last class, all answer or all refuse alike."""
    several = gaussian_clients([40, 17, 8], num_features=6)
    several[1] = (several[1][0], np.zeros(17, np.int64))
    several[2] = (several[2][0], np.repeat([0, 1], [7, 1]))
    source = replace(federation(several), release=Release(5, privacy=privacy))
    for arrays, config in malformed(query):
        grid = LocalGrid(source, CLIENT_QUERIES)
        answers = send_query(grid, query, arrays, config)
        assert len(answers.arrays) in (0, 3), (arrays, config)
        assert len({*answers.refused.values()}) <= 1
        assert all("(" not in reason for reason in answers.refused.values())


# -- refusals, and runs that promise privacy -------------------------------------------------------------------------


def test_refusals_are_alike_and_tell_no_number() -> None:
    grid = LocalGrid(clients(GUARDED), CLIENT_QUERIES)
    reasons = set()
    for query, (arrays, config) in MESSAGES.items():
        reasons |= {*send_query(grid, query, arrays, config, [ONE, TWO]).refused.values()}
    reasons |= {
        *trained(grid, grid.initial_vector(0), train_config(LocalTraining(), 0, 1, "individual")).refused.values()
    }
    assert len(reasons) == 2
    assert not any(character.isdigit() for reason in reasons for character in reason)


def test_asking_for_parts_does_not_count_the_rows_of_a_small_client() -> None:
    """A part that a client lacks rows for would tell how many it has, asked for with one row more each time."""
    grid = LocalGrid(clients(GUARDED), CLIENT_QUERIES)
    told = dict.fromkeys((ONE, TWO, FIVE), "")
    for num_rows in range(1, 9):
        asked = {**train_config(LocalTraining(), 0, 1, "individual"), **RowPart(0, num_rows, 0).to_config()}
        answers = trained(grid, grid.initial_vector(0), asked)
        told = {client: told[client] + answers.refused.get(client, "trains") for client in told}
        assert MANY in answers.clients or num_rows < 5
    assert told[ONE] == told[TWO] != told[FIVE]


@pytest.mark.slow
@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
def test_a_private_run_refuses_what_is_not_private(query: str) -> None:
    source = replace(federation(gaussian_clients([40])), release=Release(5, privacy=PROMISED))
    arrays, config = MESSAGES[query]
    answers = send_query(LocalGrid(source, CLIENT_QUERIES), query, arrays, config)
    assert set(answers.arrays) == ({0} if query.startswith("private") else set())
    assert all(reason == NOT_PRIVATE for reason in answers.refused.values())


@pytest.mark.slow
@pytest.mark.parametrize("query", ["private_counts", "private_sums"])
def test_noise_is_no_less_than_promised_and_can_not_be_averaged_away(query: str) -> None:
    """With δ near 1 sums have hardly any noise, and seeded noise is taken off by who chose the seed."""
    source = replace(federation(gaussian_clients([40])), release=Release(5, privacy=replace(PROMISED, secure=True)))
    grid = LocalGrid(source, CLIENT_QUERIES)
    for terms in ({"epsilon": 1.5}, {"noise": "seeded"}, *([{"delta": 0.999}] if query == "private_sums" else [])):
        refused = send_query(grid, query, config={**PRIVATE, "noise": "secure", **terms}).refused[0]
        assert "epsilon, delta and noise" in refused
    secure = {**PRIVATE, "noise": "secure"}
    first, again = (send_query(grid, query, config=secure).arrays[0] for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert "already answered" in send_query(grid, query, config={**secure, "noise_seed": 1}).refused[0]


# -- What leaves a client in answer to a query: aggregates over enough rows, and nothing that tells a single row -------


def ask(query: str, features: np.ndarray, labels: np.ndarray) -> Arrays:
    arrays, config = MESSAGES[query]
    return let_out(CLIENT_QUERIES[query](inputs(samples(features, labels), arrays=arrays, config=config)))


def test_every_query_is_held_to_these_laws() -> None:
    assert set(MESSAGES) == set(CLIENT_QUERIES)


@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
def test_the_order_of_rows_can_not_be_told(query: str) -> None:
    ((features, labels),) = gaussian_clients([40], NUM_FEATURES)
    order = np.random.default_rng(1).permutation(len(labels))
    answer, permuted = ask(query, features, labels), ask(query, features[order], labels[order])
    for name in answer:
        np.testing.assert_allclose(permuted[name], answer[name], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
def test_answers_have_the_same_size_for_any_number_of_rows(query: str) -> None:
    few, many = (ask(query, *gaussian_clients([rows], NUM_FEATURES)[0]) for rows in (5, 500))
    assert {name: array.shape for name, array in few.items()} == {name: array.shape for name, array in many.items()}


def tells_a_value(answer: Arrays, features: np.ndarray) -> bool:
    """Return whether a feature value of some row appears, in units of the data or of the answer's own mean."""
    values = features.reshape(-1).astype(np.float64)
    return any(
        bool(np.isclose((array / scale).reshape(-1)[:, None], values, rtol=1e-9, atol=0).any())
        for array in answer.values()
        for scale in (1, len(features))
    )


@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
@pytest.mark.parametrize("rows", [5, 6, 50])
def test_no_row_is_in_an_answer(query: str, rows: int) -> None:
    """And it would be told if one were: beside the answer, in an array of it, or times the number of rows."""
    ((features, labels),) = gaussian_clients([rows], NUM_FEATURES)
    features = features.astype(np.float32)
    answer = ask(query, features, labels)
    assert not tells_a_value(answer, features)
    name, array = next(iter(answer.items()))
    assert tells_a_value({**answer, "more": features[-1]}, features)
    assert tells_a_value({**answer, "more": features[0].astype(np.float64) * rows}, features)
    assert tells_a_value({**answer, name: np.append(array, features[rows // 2, 0])}, features)


def test_a_client_with_few_rows_answers_nothing() -> None:
    source = federation(gaussian_clients([4, 5, 30]), min_release=5)
    grid = LocalGrid(source, CLIENT_QUERIES)
    for query, (arrays, config) in MESSAGES.items():
        answers = send_query(grid, query, arrays=arrays, config=config)
        assert set(answers.arrays) == {1, 2}, query
        assert {client: "federation.min_release" in reason for client, reason in answers.refused.items()} == {0: True}
