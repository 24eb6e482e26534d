"""Outliers: distances in closed form, the published rule, exchanged models and their false-alarm rate, and messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from fedscout.detectors import outliers
from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import measure_output_divergence
from fedscout.detectors.queries import mean_output
from fedscout.detectors.report import CalibratedFinding, ClientEvidence, DetectionConfig
from fedscout.detectors.statistics import ClientTest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import QueryInputs
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import QueryAnswers, TrainAnswers, train_config
from fedscout.engine.seeds import integer
from tests.detectors.federations import CLIENT_QUERIES, RecordingGrid, federation, gaussian_clients, samples
from tests.engine.results import trained

TRIANGLE = np.array([[0, 0], [3, 0], [0, 4]], dtype=np.float32)
SETTINGS = DetectionConfig()


def compared(*distances: float, diverged: tuple[int, ...] = ()) -> outliers.Comparison:
    known = {client: value for client, value in enumerate(distances) if client not in diverged}
    return outliers.Comparison(known, diverged, np.zeros(1, np.float32))


def told(comparison: outliers.Comparison | None) -> tuple[object, ...]:
    return comparison.distances, comparison.diverged, comparison.average.tobytes()


def compare(vectors: np.ndarray, settings: DetectionConfig = SETTINGS) -> outliers.Comparison | None:
    rows = np.arange(1, len(vectors) + 1) * 10
    answers = TrainAnswers(tuple(range(len(vectors))), vectors, rows, {})
    return outliers.compare_models(answers, np.random.default_rng(0), settings)


def test_mean_distances_ignore_where_the_models_are() -> None:
    """Far from the origin squared lengths of 10¹² leave no digit for distances, unless models are centred first.

    10,000 parameters take several chunks.
    """
    far = TRIANGLE.astype(np.float64) / 700 + 1e6 / 3
    np.testing.assert_allclose(outliers.mean_distances(far), np.array([3.5, 4, 4.5]) / 700, rtol=1e-6)
    vectors = np.random.default_rng(0).normal(size=(6, 10_000)).astype(np.float32)
    expected = squareform(pdist(vectors.astype(np.float64))).sum(axis=1) / 5
    np.testing.assert_allclose(outliers.mean_distances(vectors), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("distances", "flagged"),
    [
        (range(1, 12), (9, 10)),  # of 1 … 11 the 90th percentile is exactly 10, which counts
        (range(1, 22), (18, 19, 20)),  # of 1 … 21 it is 19
        ((2.0, 2.0, 2.0), ()),
        ((0.0, 0.0, 0.0), ()),
    ],
)
def test_the_percentile_is_linear_and_equal_distances_flag_nobody(
    distances: Sequence[float], flagged: tuple[int, ...]
) -> None:
    assert outliers.flag_outliers(compared(*distances), 90) == flagged


def test_an_outlier_is_flagged_in_four_of_five_repetitions() -> None:
    two, three = compared(1, 1.1, 5, 1.2), compared(1, 1.1, 1.2, 5)
    for times, flagged in ((5, (2,)), (4, (2,)), (3, ()), (1, (3,))):
        finding = outliers.decide_outliers([two] * times + [three] * (5 - times), SETTINGS)
        assert (finding.flagged_clients, finding.detected) == (flagged, bool(flagged))
        assert finding.client_values == {0: 0, 1: 0, 2: times, 3: 5 - times}
        assert (finding.value, finding.threshold) == (max(times, 5 - times), 4)
    for repetitions, flagged in (([two, None, two, two, two], (2,)), ([two, None, two, two, None], ())):
        finding = outliers.decide_outliers(repetitions, SETTINGS)
        assert (finding.flagged_clients, finding.measured) == (flagged, bool(flagged))


def test_a_diverged_client_is_flagged_and_does_not_disturb_the_others() -> None:
    """10, 20 and 30 rows at the corners of the triangle weigh the average; two models can't be compared."""
    comparison = compare(np.concatenate([TRIANGLE, [[np.nan, 0]]]).astype(np.float32))
    assert comparison.distances == pytest.approx({0: 3.5, 1: 4, 2: 4.5})
    assert comparison.average.tolist() == [1, 2]
    assert outliers.flag_outliers(comparison, 90) == (2, 3)
    assert compare(TRIANGLE[:2]) is compare(np.full((4, 2), np.nan, np.float32)) is None


def test_sketches_keep_squared_lengths_on_average() -> None:
    """E‖Sv‖² = ‖v‖², variance at most 2‖v‖⁴/m: the mean of 400 sketches of 64 entries is within 5 standard errors."""
    vector = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    squares = [float((outliers.sketch(vector, 64, np.random.default_rng(seed)) ** 2).sum()) for seed in range(400)]
    exact = float((vector.astype(np.float64) ** 2).sum())
    assert np.mean(squares) == pytest.approx(exact, rel=5 * np.sqrt(2 / 64 / 400))
    assert np.std(squares) > 0


def test_many_clients_are_compared_in_projection() -> None:
    """A client far from all others stays the farthest, and distances are near the exact ones: √(2/256) = 9 %."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(12, 4000)).astype(np.float32)
    vectors[7] += 2
    exact = compare(vectors)
    assert list(exact.distances.values()) == pytest.approx(outliers.mean_distances(vectors), rel=1e-9)
    for clients, size in ((12, 256), (10, 4000)):
        whole = compare(vectors, DetectionConfig(max_pairwise_clients=clients, projection_size=size))
        assert told(whole) == told(exact)
    projected = compare(vectors, DetectionConfig(max_pairwise_clients=10, projection_size=256))
    assert projected.distances != exact.distances
    assert projected.distances == pytest.approx(exact.distances, rel=5 * np.sqrt(2 / 256))
    assert max(projected.distances, key=projected.distances.__getitem__) == 7


CLIENTS = (0, 1, 2)


@pytest.fixture
def grid() -> RecordingGrid:
    """Return three clients that are alike."""
    return RecordingGrid(federation(gaussian_clients([30, 40, 50])))


def repeated(grid: RecordingGrid, **settings: int) -> list[outliers.Comparison | None]:
    """Return the comparisons of all repetitions."""
    asked = DetectionConfig(**settings)
    return hold(grid, outliers.train_and_compare(CLIENTS, grid.initial_vectors, LocalTraining(), asked, seed=0))


def test_messages_of_two_rounds(grid: RecordingGrid) -> None:
    """Each repetition: a merged first round, an individual second one, from its own seed and initial model.

    All repetitions' first rounds are one exchange, and all second ones another.
    """
    training = LocalTraining(learning_rate=0.1)
    settings = DetectionConfig(outlier_repetitions=2, outlier_min_flags=2)
    comparisons = hold(grid, outliers.train_and_compare(CLIENTS, grid.initial_vectors, training, settings, seed=3))

    rounds = [[(c["seed"], c["server-round"], c["reply"]) for _, _, c in contents] for contents in grid.exchanges]
    seeds = [integer(3, "outlier-repetition", repetition) for repetition in range(2)]
    assert rounds == [[(seed, 1, "merged") for seed in seeds], [(seed, 2, "individual") for seed in seeds]]
    assert all(config["learning-rate"] == 0.1 for _, _, config in grid.sent)

    first = trained(grid, grid.initial_vector(seeds[1]), train_config(training, seeds[1], 1, "individual"))
    shares = first.num_examples / first.num_examples.sum()
    average = (shares @ first.vectors.astype(np.float64)).astype(np.float32)
    second = trained(grid, average, train_config(training, seeds[1], 2, "individual"))
    assert list(comparisons[1].distances.values()) == pytest.approx(outliers.mean_distances(second.vectors), rel=1e-4)


def test_a_round_that_nobody_answers_voids_the_repetition(grid: RecordingGrid) -> None:
    """Rounds are merged but for the last."""
    repeated(grid, outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=3)
    rounds = [(config["server-round"], config["reply"]) for _, _, config in grid.sent]
    assert rounds == [(1, "merged"), (2, "merged"), (3, "individual")]
    grid = RecordingGrid(federation(gaussian_clients([0, 0, 0, 30])))
    assert repeated(grid) == [None] * 5
    assert {config["server-round"] for _, _, config in grid.sent} == {1}  # without a model nobody is asked again


def test_the_number_of_repetitions_held_at_a_time_changes_nothing(
    grid: RecordingGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, exchanges = {}, {}
    for held in (5, 2, 0):
        monkeypatch.setattr("fedscout.detectors.outliers.GROUP_BYTES", held * 3 * grid.initial_vector(0).nbytes)
        grid.exchanges.clear()
        together[held] = [told(comparison) for comparison in repeated(grid)]
        exchanges[held] = [len(contents) for contents in grid.exchanges]
    assert exchanges == {5: [5, 5], 2: [5, 2, 2, 1], 0: [5, 1, 1, 1, 1, 1]}
    assert together[5] == together[2] == together[0]


# -- Output divergence: what a client returns, and its value where it can be derived -----------------------------------


def test_the_mean_output_is_of_rows_and_float64_and_the_model_is_run_in_float32() -> None:
    """Chunks of 3,000 and of 1,000 rows; a sum in float32 would lose digits."""
    parts, run = np.array([[1.0, 0.0], [0.1, 0.9]], np.float32), []

    def outputs_of(vector: np.ndarray) -> Iterator[np.ndarray]:
        run.append(vector)
        yield from (np.tile(part, (rows, 1)) for part, rows in zip(parts, (3000, 1000), strict=True))

    inputs = QueryInputs(samples(np.zeros((4000, 1))), 2, {"model": np.arange(2.0)}, {}, outputs_of)
    expected = [0.75, 0.25] @ parts.astype(np.float64)
    np.testing.assert_allclose(mean_output(inputs)["mean"].values, expected, rtol=1e-14)
    assert run[0].dtype == np.float32


@pytest.mark.parametrize(
    ("means", "expected"),
    [([(1, 0), (0.5, np.nan), (0, 1), (np.inf, 0)], pytest.approx(1)), ([(1, 0), (np.nan, 1)], None)],
)
def test_an_answer_that_is_not_finite_is_left_out(means: list[tuple[float, float]], expected: float | None) -> None:
    """The divergence of (1, 0) and (0, 1) is one bit."""
    conversation = measure_output_divergence(range(len(means)), np.zeros(1, np.float32))
    next(conversation)
    arrays = {client: {"mean": np.array(mean)} for client, mean in enumerate(means)}
    with pytest.raises(StopIteration) as stop:
        conversation.send(([QueryAnswers(arrays, dict.fromkeys(arrays, 9), {})], []))
    assert stop.value.value == expected


def linear_outputs(grid: LocalGrid, num_features: int, favoured: float) -> np.ndarray:
    """A model whose first output grows with the first feature and ignores everything else."""
    named = {slot.name: np.zeros(slot.shape, np.float32) for slot in grid.facts.layout.slots}
    first, last = named["0.weight"], named["2.weight"]
    first[0, 0] = 1.0
    last[0, 0] = favoured
    return grid.facts.layout.join(named)


def test_equal_clients_have_none_and_opposite_clients_the_entropy_of_their_mixture() -> None:
    """Client 0 has zeros (outputs 1/2, 1/2), client 1 large first features (outputs 1, 0). With M = (3/4, 1/4):

    JS = H(M) - H(1/2, 1/2) / 2 = 0.811278 - 0.5 bits.
    """
    rows, labels = np.random.default_rng(0).random((40, 3)).astype(np.float32), np.zeros(40, np.int64)
    zeros, high = np.zeros_like(rows), np.zeros_like(rows)
    high[:, 0] = 100.0
    for features, expected in (([rows, rows], 0.0), ([zeros, high], pytest.approx(0.311278, abs=1e-6))):
        grid = LocalGrid(federation([(own, labels) for own in features]), CLIENT_QUERIES)
        assert hold(grid, measure_output_divergence((0, 1), linear_outputs(grid, 3, 1.0))) == expected


# -- Calibrated outliers: exchanged models, their false-alarm rate, and the joint decision -----------------------------


RATE = 0.05


def decide(
    models: ClientTest | None, *labels: ClientTest, explained: str | None = None, least: float = 0.1
) -> CalibratedFinding:
    settings = DetectionConfig(false_alarm_rate=3 * RATE, disagreement_effect=least, distance_effect=least)
    return outliers.decide_outliers_calibrated(labels, models, explained, settings)


def of_parts(parts: list[outliers.Comparison]) -> ClientTest:
    return outliers.model_test(parts, parts, RATE)


def test_three_clients_by_enumeration() -> None:
    """One of three is farthest in each of three parts, the others are alike: it is again in 3 of 27 permutations.

    The largest mean of the others' is reached by every permutation.
    """
    p_values = outliers.exchange_p_values(np.array([[0.0, 0.0, 1.0]] * 3), rate=0.0)
    assert p_values[2] == pytest.approx(1 / 9, abs=0.01)
    assert p_values[:2].tolist() == [1.0, 1.0]


def test_one_attacker_does_not_hide_the_next() -> None:
    """Against all, the second is one of two; it is compared without the first one if that reaches the rate."""
    values = np.random.default_rng(0).normal(size=(3, 20)) * 0.1
    values[:, 3], values[:, 7] = 9.0, 1.0
    first = outliers.exchange_p_values(values, rate=0.0)
    assert first[7] > 0.1
    assert outliers.exchange_p_values(values, rate=first[3])[7] < 0.02
    assert outliers.exchange_p_values(values, rate=np.nextafter(first[3], 0))[7] == first[7]


def test_the_others_are_compared_again_as_long_as_they_are_most_and_three() -> None:
    """The last client stands out among those left over: of six three, or of three two."""
    halves, pair = np.zeros((8, 6)), np.zeros((8, 3))
    halves[:, :3], halves[:, 5] = 9.0, 1.0
    pair[:, 0], pair[:, 2] = 9.0, 1.0
    for values in (halves, pair):
        p_values = outliers.exchange_p_values(values, rate=0.05)
        assert p_values[0] <= 0.05
        assert p_values[-1] > 0.5
    values = np.zeros((8, 30))
    values[:, 4] = 1.0  # what is observed is one of the permutations, so no p-value is 0
    assert outliers.exchange_p_values(values, rate=0.0).min() == 1 / 20_001


def test_parts_are_of_one_size_that_all_clients_hold() -> None:
    """Eight parts of the smallest client's rows, of few rows fewer parts, of fewer still none."""
    assert [(part.index, part.num_rows) for part in outliers.row_parts([100, 83, 90], 0)] == [(i, 10) for i in range(8)]
    assert [part.num_rows for part in outliers.row_parts([17, 18, 18], 0)] == [5, 5, 5]
    assert outliers.row_parts([14, 18, 18], 0) == ()
    assert outliers.row_parts([100, 100], 0) == ()
    assert outliers.row_parts([10, 100, 100], 0)[0].num_rows == 12  # the client of 10 rows takes no part
    assert outliers.row_parts([50, 100, 100], 0)[0].num_rows == 6  # half of the median does


def test_models_are_compared_if_there_are_three_of_three_parts() -> None:
    two, three = compared(1.0, 2.0), compared(1.0, 2.0, 1.0)
    found = [outliers.model_test([own], [own] * parts, RATE) for own, parts in ((two, 5), (three, 2), (three, 3))]
    assert [test is None for test in found] == [True, True, False]


def test_a_distance_of_zero_has_no_logarithm() -> None:
    """A model in the middle of all counts as the median one; where the median itself is 0, so does every model."""
    found = of_parts([compared(0.0, 1.0, 1.01, 0.99, 2.0)] * 5)
    assert found.effects[0] == 0
    assert found.effects[4] == pytest.approx(1.0, abs=0.02)
    nothing = of_parts([compared(0.0, 0.0, 0.0, 5.0)] * 5)
    assert set(nothing.effects.values()) == {0.0}


def test_models_that_are_not_finite_in_half_of_the_repetitions_are_farthest() -> None:
    far = of_parts([compared(1.0, 1.0, 1.0, 1.0, 1e12, diverged=(2,))] * 3)
    assert (far.effects[4], far.p_values[4]) == (far.effects[2], far.p_values[2])  # no finite model is farther
    whole, lost = (compared(1.0, 1.1, 0.9, 1.0, 1.05, diverged=diverged) for diverged in ((), (2,)))
    for comparisons, is_lost in (([whole, lost] * 2, True), ([whole, whole, lost], False)):
        found = of_parts(comparisons)
        assert (found.effects[2] > 1e6) == is_lost
        # Else by those in which they were. Without it the median is 1.025, once in three.
        assert is_lost or found.effects[2] == pytest.approx(0.9 * 1.025 ** (1 / 3) - 1)


def test_who_is_missing_in_a_repetition_is_compared_in_the_others() -> None:
    """Twice the median client in the repetition that it is part of, whose scale is another."""
    small, large = compared(1.0, 1.0, 1.0), compared(10.0, 10.0, 10.0, 20.0, 10.0)
    found = outliers.model_test([small, large], [large] * 5, RATE)
    assert found.effects == pytest.approx({0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0, 4: 0.0})
    unparted = outliers.model_test([large], [small] * 5, RATE)
    assert [unparted.p_values[client] for client in (3, 4)] == [1.0, 1.0]


def test_effects_are_relative_to_the_median_client_over_all_repetitions() -> None:
    """Geometric means over the median distance: 1 / sqrt(8), sqrt(2), sqrt(2); the first is a quarter of the others."""
    found = outliers.model_test([compared(1.0, 2.0, 4.0), compared(1.0, 8.0, 4.0)], [compared(1.0, 1.0, 1.0)] * 3, RATE)
    assert found.effects == pytest.approx({0: -0.75, 1: 0.0, 2: 0.0})
    # Ten clients within two percent, one twice as far in each of five parts: by chance once in 10⁴.
    far = of_parts([compared(1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.015, 0.985, 1.005, 2.0)] * 5)
    finding = decide(far)
    assert (finding.flagged_clients, finding.clients[9].source) == ((9,), "models")
    assert finding.effect == pytest.approx(1.0, abs=0.02)


def test_tests_share_the_rate() -> None:
    """A p-value of 0.04 alone is an alarm at 0.05; as one of two tests it counts double, as one of three triple."""
    labels = ClientTest({0: 0.04, 1: 1.0, 2: 1.0}, {0: 0.5, 1: 0.0, 2: 0.0}, {0: (1,)}, "labels", "labels")
    models = ClientTest({0: 1.0, 1: 0.02, 2: 1.0}, {0: 0.0, 1: 0.7, 2: 0.0}, {}, "models", "models")
    alone = decide(None, labels)
    assert alone.flagged_clients == (0,)
    assert alone.clients[0].classes == (1,)
    both = decide(models, labels)
    assert both.flagged_clients == (1,)
    assert both.clients[0] == ClientEvidence(source="labels", p_value=0.08, effect=0.5, flagged=False)
    assert (both.clients[1].source, both.clients[2].p_value) == ("models", 1.0)
    assert decide(models, labels, labels).flagged_clients == ()


@pytest.mark.parametrize(
    ("clients", "source", "measured"), [(5, "labels", False), (6, "labels", True), (5, "models", True)]
)
def test_two_outliers_leave_a_majority_of_six_and_none_of_five(
    clients: int, source: Literal["labels", "models"], measured: bool
) -> None:
    p_values, effects = dict.fromkeys(range(clients), 1.0), dict.fromkeys(range(clients), 0.0)
    test = ClientTest(p_values | {1: 0.001, 3: 0.001}, effects | {1: 0.9, 3: 0.9}, {}, source, source)
    found = decide(None, test) if source == "labels" else decide(test)
    assert (found.measured, found.flagged_clients) == (measured, (1, 3) if measured else ())


@pytest.mark.parametrize(("effect", "told"), [(0.0, None), (0.3, "30%"), (1.7, "100%")])
def test_the_share_of_random_labels_is_told_where_there_is_one(effect: float, told: str | None) -> None:
    labels = ClientTest({0: 0.001, 1: 1.0, 2: 1.0}, dict.fromkeys(range(3), effect), {}, "labels", "labels")
    sentence = decide(None, labels).sentence
    assert told in sentence if told else "%" not in sentence


def test_labels_and_models_have_effects_of_their_own_to_reach() -> None:
    labels = ClientTest({0: 0.001, 1: 1.0, 2: 1.0}, {0: 0.5, 1: 0.0, 2: 0.0}, {}, "labels", "labels")
    models = ClientTest({0: 1.0, 1: 0.001, 2: 1.0}, {0: 0.0, 1: 0.5, 2: 0.0}, {}, "models", "models")
    for disagreement, distance, flagged in ((0.4, 0.6, (0,)), (0.6, 0.4, (1,))):
        settings = DetectionConfig(disagreement_effect=disagreement, distance_effect=distance)
        assert outliers.decide_outliers_calibrated([labels], models, None, settings).flagged_clients == flagged
