"""The outlier detector: distances in closed form, the percentile rule, the count of repetitions, and the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.detectors.conversation import hold
from fedscout.detectors.outliers import (
    Comparison,
    compare_models,
    decide_outliers,
    flag_outliers,
    mean_distances,
    sketch,
    train_and_compare,
)
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.contents import TrainAnswers, train_config
from fedscout.engine.messages.exchange import send_train
from fedscout.engine.seeds import integer
from tests.detectors.federations import FlipLabels, RecordingGrid, federation, gaussian_clients

TRIANGLE = np.array([[0, 0], [3, 0], [0, 4]], dtype=np.float32)
SETTINGS = DetectionConfig()


def compared(*distances: float, diverged: tuple[int, ...] = ()) -> Comparison:
    return Comparison(dict(enumerate(distances)), dict(enumerate(distances)), diverged, np.zeros(1, np.float32))


def told(comparison: Comparison | None) -> tuple[object, ...]:
    return comparison.distances, comparison.from_average, comparison.diverged, comparison.average.tobytes()


def compare(vectors: np.ndarray, settings: DetectionConfig = SETTINGS) -> Comparison | None:
    rows = np.arange(1, len(vectors) + 1) * 10
    answers = TrainAnswers(tuple(range(len(vectors))), vectors, rows, {})
    return compare_models(answers, np.random.default_rng(0), settings)


def test_mean_distances_of_a_triangle() -> None:
    """Sides 3, 4 and 5."""
    np.testing.assert_allclose(mean_distances(TRIANGLE), [3.5, 4, 4.5])


def test_mean_distances_ignore_where_the_models_are() -> None:
    """Far from the origin squared lengths of 10¹² leave no digit for distances, unless models are centred first."""
    far = TRIANGLE.astype(np.float64) / 700 + 1e6 / 3
    np.testing.assert_allclose(mean_distances(far), np.array([3.5, 4, 4.5]) / 700, rtol=1e-6)


def test_mean_distances_over_several_chunks() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 10_000)).astype(np.float32)
    exact = vectors.astype(np.float64)
    expected = [np.mean([np.linalg.norm(exact[k] - exact[j]) for j in range(6) if j != k]) for k in range(6)]
    np.testing.assert_allclose(mean_distances(vectors), expected, rtol=1e-12)


def test_distance_from_the_weighted_average() -> None:
    """Weights 10, 20, 30 of the triangle: average (1, 2)."""
    comparison = compare(TRIANGLE)
    assert comparison.from_average == pytest.approx({0: np.sqrt(5), 1: np.sqrt(8), 2: np.sqrt(5)})


@pytest.mark.parametrize("num_clients", range(3, 11))
def test_three_to_ten_clients_flag_exactly_one(num_clients: int) -> None:
    """The published rule's known weakness: at most ten clients leave one above the 90th percentile."""
    distances = [float(value) for value in np.random.default_rng(num_clients).permutation(num_clients) + 1]
    assert flag_outliers(compared(*distances), 90) == (int(np.argmax(distances)),)


def test_percentile_is_interpolated_linearly() -> None:
    """Of 1 … 11 the 90th percentile is exactly 10, which counts; of 1 … 21 it is 19."""
    assert flag_outliers(compared(*range(1, 12)), 90) == (9, 10)
    assert flag_outliers(compared(*range(1, 22)), 90) == (18, 19, 20)


def test_equal_distances_flag_nobody() -> None:
    assert flag_outliers(compared(2.0, 2.0, 2.0), 90) == ()
    assert flag_outliers(compared(0.0, 0.0, 0.0), 90) == ()


def test_an_outlier_is_flagged_in_four_of_five_repetitions() -> None:
    two, three = compared(1, 1.1, 5, 1.2), compared(1, 1.1, 1.2, 5)
    for times, outliers in ((5, (2,)), (4, (2,)), (3, ()), (1, (3,))):
        finding = decide_outliers([two] * times + [three] * (5 - times), SETTINGS)
        assert finding.flagged_clients == outliers
        assert finding.detected == bool(outliers)
        assert finding.client_values == {0: 0, 1: 0, 2: times, 3: 5 - times}
        assert finding.value == max(times, 5 - times)
    assert finding.threshold == 4


def test_who_is_flagged_is_told() -> None:
    two, three = compared(1, 1, 5, 1), compared(1, 1, 1, 5)
    yes, no = (decide_outliers(comparisons, SETTINGS) for comparisons in ([two] * 5, [two, two, three, three, two]))
    for finding, times in ((yes, 5), (no, 3)):
        told = (f"{times} ", "client 2", "4")
        assert [value for value in told if value not in finding.sentence] == []
    assert yes.sentence.count("client 2") == 1 + no.sentence.count("client 2")
    assert no.client_values == {0: 0, 1: 0, 2: 3, 3: 2}


def test_a_diverged_client_is_flagged_and_does_not_disturb_the_others() -> None:
    vectors = np.concatenate([TRIANGLE, [[np.nan, 0]]]).astype(np.float32)
    comparison = compare(vectors)
    assert comparison.distances == pytest.approx({0: 3.5, 1: 4, 2: 4.5})
    assert flag_outliers(comparison, 90) == (2, 3)


def test_void_repetitions_are_counted_and_told() -> None:
    good = compared(1, 1.1, 5, 1.2)
    finding = decide_outliers([good, None, good, good, good], SETTINGS)
    assert finding.flagged_clients == (2,)
    assert "(1 void)" in finding.sentence
    finding = decide_outliers([good, None, good, good, None], SETTINGS)
    assert not finding.measured
    assert not finding.detected
    assert "3 of 5" in finding.sentence


def test_two_clients_can_not_be_compared() -> None:
    assert compare(TRIANGLE[:2]) is None
    assert compare(np.full((4, 2), np.nan, np.float32)) is None


def test_sketches_keep_squared_lengths_on_average() -> None:
    """E‖Sv‖² = ‖v‖², variance at most 2‖v‖⁴/m: the mean of 400 sketches of 64 entries is within 5 standard errors."""
    vector = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    squares = [float((sketch(vector, 64, np.random.default_rng(seed)) ** 2).sum()) for seed in range(400)]
    exact = float((vector.astype(np.float64) ** 2).sum())
    assert np.mean(squares) == pytest.approx(exact, rel=5 * np.sqrt(2 / 64 / 400))
    assert np.std(squares) > 0


def test_many_clients_are_compared_in_projection() -> None:
    """A client far from all others stays the farthest, and distances are near the exact ones: √(2/256) = 9 %."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(12, 4000)).astype(np.float32)
    vectors[7] += 2
    exact = compare(vectors)
    projected = compare(vectors, DetectionConfig(max_pairwise_clients=10, projection_size=256))
    assert projected.distances != exact.distances
    assert projected.distances == pytest.approx(exact.distances, rel=5 * np.sqrt(2 / 256))
    assert max(projected.distances, key=projected.distances.__getitem__) == 7


CLIENTS = (0, 1, 2)


@pytest.fixture
def grid() -> RecordingGrid:
    """Return three clients that are alike."""
    return RecordingGrid(federation(gaussian_clients([30, 40, 50])))


def repeated(
    grid: RecordingGrid, vectors: Callable[[Sequence[int]], list[np.ndarray]] | None = None, **settings: int
) -> list[Comparison | None]:
    """Return the comparisons of all repetitions, from the grid's own initial models if no others are given."""
    asked = DetectionConfig(**settings)
    return hold(grid, train_and_compare(CLIENTS, vectors or grid.initial_vectors, LocalTraining(), asked, seed=0))


def test_messages_of_two_rounds(grid: RecordingGrid) -> None:
    """Each repetition: a merged first round, an individual second one, from its own seed and initial model.

    All repetitions' first rounds are one exchange, and all second ones another.
    """
    training = LocalTraining(learning_rate=0.1)
    settings = DetectionConfig(outlier_repetitions=2, outlier_min_flags=2)
    comparisons = hold(grid, train_and_compare(CLIENTS, grid.initial_vectors, training, settings, seed=3))

    rounds = [[(c["seed"], c["server-round"], c["reply"]) for _, _, c in contents] for contents in grid.exchanges]
    seeds = [integer(3, "outlier-repetition", repetition) for repetition in range(2)]
    assert rounds == [[(seed, 1, "merged") for seed in seeds], [(seed, 2, "individual") for seed in seeds]]
    assert all(config["learning-rate"] == 0.1 for _, _, config in grid.sent)

    first = send_train(grid, grid.initial_vector(seeds[1]), train_config(training, seeds[1], 1, "individual"))
    shares = first.num_examples / first.num_examples.sum()
    average = (shares @ first.vectors.astype(np.float64)).astype(np.float32)
    second = send_train(grid, average, train_config(training, seeds[1], 2, "individual"))
    assert list(comparisons[1].distances.values()) == pytest.approx(mean_distances(second.vectors), rel=1e-4)


def test_more_rounds_are_merged_but_for_the_last(grid: RecordingGrid) -> None:
    repeated(grid, outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=3)
    rounds = [(config["server-round"], config["reply"]) for _, _, config in grid.sent]
    assert rounds == [(1, "merged"), (2, "merged"), (3, "individual")]


def test_divergence_in_the_first_round_voids_the_repetition(grid: RecordingGrid) -> None:
    broken = np.full_like(grid.initial_vector(0), np.nan)
    assert repeated(grid, lambda seeds: [broken] * len(seeds)) == [None] * 5


def test_a_round_that_nobody_answers_voids_the_repetition() -> None:
    grid = RecordingGrid(federation(gaussian_clients([0, 0, 0, 30])))
    assert repeated(grid) == [None] * 5
    assert {config["server-round"] for _, _, config in grid.sent} == {1}  # without a model nobody is asked again


def test_a_void_repetition_leaves_the_others_as_they_are(grid: RecordingGrid) -> None:
    def second_broken(seeds: Sequence[int]) -> list[np.ndarray]:
        vectors = [grid.initial_vector(seed) for seed in seeds]
        return [vectors[0], np.full_like(vectors[1], np.nan), *vectors[2:]]

    whole, holed = repeated(grid), repeated(grid, second_broken)
    assert holed[1] is None
    assert [told(c) for k, c in enumerate(holed) if k != 1] == [told(c) for k, c in enumerate(whole) if k != 1]


def test_comparisons_do_not_depend_on_how_many_repetitions_are_held_at_a_time(
    grid: RecordingGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, exchanges = {}, {}
    for held in (5, 2, 1):
        monkeypatch.setattr("fedscout.detectors.outliers.GROUP_BYTES", held * 3 * grid.initial_vector(0).nbytes)
        grid.exchanges.clear()
        together[held] = [told(comparison) for comparison in repeated(grid)]
        exchanges[held] = [len(contents) for contents in grid.exchanges]
    assert exchanges == {5: [5, 5], 2: [5, 2, 2, 1], 1: [5, 1, 1, 1, 1, 1]}
    assert together[5] == together[2] == together[1]


def test_a_client_with_flipped_labels_is_the_only_outlier() -> None:
    """Client 1 learns the opposite of the other three, so it is the farthest in every repetition."""
    source = federation(gaussian_clients([100] * 4), transforms={1: (FlipLabels(),)})
    grid = RecordingGrid(source)
    comparisons = hold(grid, train_and_compare((0, 1, 2, 3), grid.initial_vectors, LocalTraining(), SETTINGS, seed=0))
    finding = decide_outliers(comparisons, SETTINGS)
    assert finding.flagged_clients == (1,)
    assert finding.client_values == {0: 0, 1: 5, 2: 0, 3: 0}
