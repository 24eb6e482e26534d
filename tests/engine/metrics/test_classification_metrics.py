"""Metrics of classes and quantities: scikit-learn's on the pooled rows, however they are spread over clients."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from scipy.special import logsumexp
from sklearn.metrics import balanced_accuracy_score, f1_score, mean_absolute_error, r2_score, roc_auc_score

from fedscout.engine import metrics
from fedscout.engine.arrays import FloatArray, IntArray


def rows(num_rows: int, num_classes: int, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Outputs that know something of the labels; the first class is the most frequent."""
    generator = np.random.default_rng(seed)
    labels = np.minimum(generator.geometric(0.5, num_rows) - 1, num_classes - 1)
    outputs = generator.normal(size=(num_rows, num_classes))
    outputs[np.arange(num_rows), labels] += 1.0
    return outputs.astype(np.float32), labels.astype(np.int64)


def value(metric: metrics.Metric, outputs: FloatArray, labels: IntArray) -> float:
    return metric.value(metric.statistics(outputs, labels))


SKLEARN: dict[type[metrics.Metric], Callable[[IntArray, IntArray], float]] = {
    metrics.BalancedAccuracy: balanced_accuracy_score,
    metrics.MacroF1: lambda labels, predicted: f1_score(labels, predicted, average="macro"),
}


@pytest.mark.parametrize("kind", SKLEARN)
@given(seed=st.integers(0, 1000), num_classes=st.integers(2, 6), num_rows=st.integers(1, 60))
def test_of_a_table_they_are_sklearn_s(kind: type[metrics.Metric], seed: int, num_classes: int, num_rows: int) -> None:
    """Also where classes have no rows, or rows and no predictions."""
    outputs, labels = rows(num_rows, num_classes, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a class has no rows
        expected = SKLEARN[kind](labels, outputs.argmax(axis=1))
    assert value(kind(), outputs, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("confidence", [1, 30, 1000])
@pytest.mark.parametrize("shift", [0, 25])
@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_the_area_is_scikit_learns_within_its_bound(num_classes: int, shift: float, confidence: float) -> None:
    """The bound is half the share of pairs in one bin; the areas of the classes are averaged, and so are the bounds.

    A model may be as confident as it likes, and of all rows alike: ranks decide. In float64 softmax is 0 or 1 there,
    so that the scores of the exact area are log-odds.
    """
    outputs, labels = rows(400, num_classes)
    outputs = (outputs * confidence).astype(np.float32)
    outputs[:, 0] += shift
    metric = metrics.Auroc()
    sums = metric.statistics(outputs, labels)
    odds = [
        outputs[:, c].astype(float) - logsumexp(np.delete(outputs.astype(float), c, axis=1), axis=1)
        for c in range(num_classes)
    ]
    exact = np.mean([roc_auc_score(labels == c, odds[c]) for c in range(num_classes)])
    shared = (sums[:, 0].astype(float) * sums[:, 1]).sum(axis=1)
    bound = (shared / (2 * sums[:, 0].sum(axis=1) * sums[:, 1].sum(axis=1))).mean()
    assert 0 < bound < 0.01
    assert abs(metric.value(sums) - exact) <= bound


def test_scores_beyond_the_bins_and_outputs_that_are_no_numbers_count() -> None:
    outputs = np.array([[0, 1e38], [1e38, 0], [np.nan, 0], [np.inf, 0]], np.float32)
    sums = metrics.Auroc().statistics(outputs, np.array([1, 0, 0, 1]))
    assert sums.shape == (2, 2, metrics.NUM_BINS)
    assert sums.sum() == 2 * 4  # each row once a class
    assert sums[1, 1, metrics.NUM_BINS - 1] == 1  # log-odds of 1e38 lie beyond the bins


def test_bins_rise_with_the_score_and_are_symmetric() -> None:
    """By hand: 2.5 lies in the 40th of the bins above 0 (2.5 · 16), 32 in the 512th, 64 another 64 higher."""
    scores = np.sort(np.concatenate([np.geomspace(1e-6, 1e9, 2000), np.linspace(0, 40, 1000)]))
    bins = metrics.bins_of(scores)
    assert (np.diff(bins) >= 0).all()
    assert np.abs(metrics.bins_of(-scores) - (metrics.NUM_BINS - 1 - bins)).max() <= 1  # a bin holds its lower end
    middle = metrics.NUM_BINS // 2
    found = metrics.bins_of(np.array([2.5, 32.0, 64.0, 65535.0, 65536.0, np.inf, -np.inf])).tolist()
    assert found == [middle + 40, middle + 512, middle + 512 + 64, *[metrics.NUM_BINS - 1] * 3, 0]


@pytest.mark.parametrize("kind", [*metrics.OF_CLASSES, *metrics.OF_QUANTITIES])
@given(seed=st.integers(0, 100), cuts=st.lists(st.integers(0, 80), max_size=4), order=st.permutations(range(5)))
def test_sums_of_clients_are_those_of_all_in_any_order(kind: str, seed: int, cuts: list[int], order: list[int]) -> None:
    """Bit for bit, as they are whole numbers or fractions; float sums would not be."""
    metric = {**metrics.OF_CLASSES, **metrics.OF_QUANTITIES}[kind]()
    outputs, labels = rows(80, 4, seed) if kind in metrics.OF_CLASSES else quantity_rows(80, seed)
    cuts = sorted([*cuts, *[80] * (4 - len(cuts))])
    parts = [metric.statistics(*part) for part in zip(np.split(outputs, cuts), np.split(labels, cuts), strict=True)]
    one, other = metrics.add(map(metrics.narrowed, parts)), metrics.add(parts[place] for place in order)
    assert one.tolist() == other.tolist()
    assert metric.value(one) == metric.value(other) or np.isnan(metric.value(one))
    if kind in metrics.OF_CLASSES:
        np.testing.assert_array_equal(one, metric.statistics(outputs, labels))


@pytest.mark.parametrize("metric", [kind() for kind in metrics.OF_CLASSES.values()], ids=list(metrics.OF_CLASSES))
def test_of_perfect_outputs_they_are_one_and_of_constant_ones_what_guessing_is(metric: metrics.Metric) -> None:
    labels = np.array([0, 0, 0, 1, 2, 2])
    assert value(metric, (8 * np.eye(3)[labels]).astype(np.float32), labels) == 1
    constant = {"balanced_accuracy": 1 / 3, "macro_f1": 2 * 3 / (6 + 3) / 3, "auroc": 0.5}
    assert value(metric, np.tile(np.float32([1, 0, 0]), (6, 1)), labels) == pytest.approx(constant[metric.name])


# -- Metrics of a quantity: scikit-learn's R² and mean absolute error of the pooled rows, against a constant answer


Floats = npt.NDArray[np.float64]


def quantity_rows(num_rows: int = 60, seed: int = 0) -> tuple[Floats, Floats]:
    """Predictions that know something of the targets; both in a unit of hundreds, about a mean that is not theirs."""
    generator = np.random.default_rng(seed)
    targets = 100 * generator.normal(size=num_rows) + 20
    return (targets + 60 * generator.normal(size=num_rows))[:, None], targets


@given(seed=st.integers(0, 1000), num_rows=st.integers(2, 80))
def test_r2_is_scikit_learns_and_mae_what_it_gains_on_saying_nothing_more(seed: int, num_rows: int) -> None:
    outputs, targets = quantity_rows(num_rows, seed)
    assert value(metrics.R2(), outputs, targets) == pytest.approx(max(-1, r2_score(targets, outputs[:, 0])), abs=1e-9)
    gained = mean_absolute_error(targets, np.zeros(num_rows)) - mean_absolute_error(targets, outputs[:, 0])
    worst = -np.abs(targets).mean()
    assert value(metrics.Mae(), outputs, targets) == pytest.approx(max(gained, worst), rel=1e-9, abs=1e-9)


def test_a_constant_answer_is_worth_nothing_and_perfection_all() -> None:
    _, targets = quantity_rows()
    nothing, centred = np.zeros((len(targets), 1)), targets - targets.mean()
    assert value(metrics.R2(), nothing, centred) == pytest.approx(0, abs=1e-12)
    assert value(metrics.Mae(), nothing, targets) == 0
    assert value(metrics.R2(), targets[:, None], targets) == 1
    assert value(metrics.Mae(), targets[:, None], targets) == pytest.approx(np.abs(targets).mean())
    assert np.isnan(value(metrics.R2(), nothing, np.full(len(targets), 7.0))), "equal targets have no variance"


@pytest.mark.parametrize("said", [1e35, np.inf, -np.inf, np.nan])
def test_a_model_that_diverges_is_as_far_below_as_perfection_is_above(said: float) -> None:
    _, targets = quantity_rows()
    outputs = np.full((len(targets), 1), said)
    assert value(metrics.R2(), outputs, targets) == -1
    assert value(metrics.Mae(), outputs, targets) == pytest.approx(-np.abs(targets).mean())
    assert metrics.R2().statistics(outputs, targets)[-1] <= len(targets) * metrics.LARGEST_ERROR * (1 + 1e-9)


def test_a_client_is_measured_against_the_federations_constant() -> None:
    """Targets of 3 and 5 about a constant of 0: c² is 34 and not 2, so errors of 1 leave 32 of 34."""
    targets = np.array([3.0, 5.0])
    sums = metrics.R2().statistics(np.array([[2.0], [6.0]]), targets)
    assert metrics.R2().value_of_client(sums) == pytest.approx(1 - 2 / 34)
    assert metrics.R2().value(sums) == pytest.approx(1 - 2 / 2)
