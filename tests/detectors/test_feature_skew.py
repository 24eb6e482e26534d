"""Feature space: pooled PCA, histograms, sums and covariances of classes and of groups, and how rows lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse.linalg import eigsh
from scipy.stats import wasserstein_distance

from fedscout.detectors import DetectionConfig, feature_skew
from fedscout.detectors.report import Finding, HeterogeneityReport
from fedscout.detectors.statistics import NotFiniteError
from fedscout.engine.data.client import CHUNK_ROWS, Answer, QueryInputs, WithheldError
from tests.detectors.federations import federation, gaussian_clients, inputs, let_out, most_alarms, report_of, samples


def pool(clients: Sequence[np.ndarray]) -> feature_skew.PooledMoments:
    sums = feature_skew.MomentSums()
    for client, x in enumerate(clients):
        answer = feature_skew.feature_moments(inputs(samples(x), config={"max_features": 4096}))
        sums.add(client, len(x), answer["sum"].values, answer["scatter"].values)
    return sums.pooled()


def find(clients: Sequence[np.ndarray]) -> Finding:
    pooled = pool(clients)
    axes, total_variance = feature_skew.principal_axes(pooled)
    arrays = {"mean": pooled.mean, "axes": axes}
    asked = [inputs(samples(x), arrays=arrays) for x in clients]
    centroids = {k: feature_skew.feature_centroid(own)["centroid"].values for k, own in enumerate(asked)}
    return feature_skew.decide_feature_skew(centroids, total_variance, 0.25)


def uneven_clients(num_features: int = 7) -> list[np.ndarray]:
    """Correlated features of different scales and means, as float32; the last client spans several chunks."""
    generator = np.random.default_rng(1)
    mixing = generator.normal(size=(num_features, num_features)) * np.logspace(-2, 2, num_features)
    shape = (1, num_features)
    return [
        (generator.normal(size=(size, num_features)) @ mixing + generator.normal(size=shape)).astype(np.float32)
        for size in (5, 60, 1, CHUNK_ROWS + 17)
    ]


def test_pooled_moments_are_those_of_the_pooled_rows() -> None:
    clients = uneven_clients()
    rows = np.concatenate(clients).astype(np.float64)
    pooled = pool(clients)
    assert pooled.num_rows == len(rows)
    np.testing.assert_allclose(pooled.mean, rows.mean(axis=0), rtol=1e-12)
    expected = np.cov(rows, rowvar=False)
    deviations = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(pooled.covariance, expected, atol=1e-12 * np.outer(deviations, deviations).max())
    np.testing.assert_allclose(np.diag(pooled.covariance), np.diag(expected), rtol=1e-12)
    assert not pool([np.ones((1, 2))]).covariance.any()


def test_large_means_do_not_cancel() -> None:
    """With mean 10⁶ and deviation 1 the literal ΣXᵀX − Nμμᵀ loses twelve digits of its sixteen; this must not."""
    generator = np.random.default_rng(2)
    clients = [(1e6 + generator.normal(size=(50, 3))).astype(np.float32) for _ in range(3)]
    expected = np.cov(np.concatenate(clients).astype(np.float64), rowvar=False)
    np.testing.assert_allclose(pool(clients).covariance, expected, atol=1e-12)


def test_centroids_are_those_of_pooled_pca() -> None:
    clients = uneven_clients()
    rows = np.concatenate(clients).astype(np.float64)
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
    axes = np.linalg.svd(scaled, full_matrices=False)[2][:2].T
    bounds = np.cumsum([len(x) for x in clients])[:-1]
    centroids = [part.mean(axis=0) for part in np.split(scaled @ axes, bounds)]
    largest = max(float(np.linalg.norm(a - b)) for a in centroids for b in centroids)
    assert find(clients).value == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize(("num_features", "is_iterative"), [(300, False), (1024, False), (1025, True)])
def test_both_solvers_find_the_axes(num_features: int, is_iterative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's; two well separated eigenvalues leave no choice. Each has its component of largest size positive."""
    solved = []
    monkeypatch.setattr("scipy.sparse.linalg.eigsh", lambda *a, **k: solved.append(1) or eigsh(*a, **k))
    generator = np.random.default_rng(3)
    basis = np.linalg.qr(generator.normal(size=(num_features, 3)))[0]
    covariance = basis @ np.diag([50.0, 20.0, 5.0]) @ basis.T + np.eye(num_features)
    pooled = feature_skew.PooledMoments(1000, np.zeros(num_features), covariance)
    axes = feature_skew.principal_axes(pooled)[0]
    deviations = np.sqrt(np.diag(covariance))
    expected = np.linalg.eigh(covariance / np.outer(deviations, deviations))[1][:, [-1, -2]]
    expected *= np.sign(expected[np.abs(expected).argmax(axis=0), [0, 1]])
    np.testing.assert_allclose(axes * deviations[:, None], expected, atol=1e-9)
    assert bool(solved) == is_iterative
    assert feature_skew.principal_axes(pooled)[0].tobytes() == axes.tobytes()


def test_constant_features_and_a_single_feature() -> None:
    constant = [np.full((6, 3), 0.1), np.full((7, 3), 0.1)]
    assert find(constant).value == 0
    assert not find(constant).detected
    unround = [np.full((CHUNK_ROWS + 1, 3), 1e5 / 3), np.full((37, 3), 1e5 / 3)]
    assert find(unround).value == find(unround).threshold == 0
    one_varies = [np.column_stack([np.full(10, 0.1), np.arange(10)]) for _ in range(2)]
    assert find(one_varies).threshold == pytest.approx(0.25)
    single = [np.arange(10).reshape(10, 1), np.arange(10).reshape(10, 1) + 100]
    deviation = np.concatenate(single).std(ddof=1)
    assert find(single).value == pytest.approx(100 / deviation)


def published(places: Sequence[tuple[float, float]], total_variance: float, share: float) -> Finding:
    return feature_skew.decide_feature_skew(dict(enumerate(map(np.array, places))), total_variance, share)


def test_two_groups_have_their_median_between_them() -> None:
    """Nobody is farther than the threshold of 1 from the median at 0, but the farthest are told."""
    groups = [(-0.7, 0), (-0.7, 0), (0.7, 0), (0.7, 0)]
    finding = published(groups, 4.0, 0.5)
    assert (finding.value, finding.flagged_clients) == (pytest.approx(1.4), (0, 1, 2, 3))
    assert finding.client_values == pytest.approx(dict.fromkeys(range(4), 0.7))
    at = published(groups, 1.0, finding.value)
    assert (at.threshold, at.detected, at.flagged_clients) == (finding.value, False, ())


def test_one_far_client_is_flagged() -> None:
    """The median is at (0.05, 0.05); nobody else is farther from it than the threshold of 1."""
    finding = published([(0, 0), (0.1, 0), (-0.1, 0.1), (5, 0.1), (0.1, 0.1)], 4.0, 0.5)
    assert (finding.value, finding.flagged_clients) == (pytest.approx(5.1), (3,))


def test_too_many_features_send_no_triangle_and_no_sums_of_classes() -> None:
    for most, told, of_classes in ((4, {"sum"}, {"counts"}), (5, {"sum", "scatter"}, {"counts", "sums", "squares"})):
        asked = inputs(samples(np.ones((6, 5))), config={"max_features": most})
        assert {*feature_skew.feature_moments(asked)} == told
        assert {*feature_skew.class_sums(asked)} == of_classes
    assert feature_skew.MomentSums().pooled() is None
    assert not published([(0, 0)], 4.0, 0.25).measured


@pytest.mark.parametrize("query", [feature_skew.feature_moments, feature_skew.feature_histogram])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_must_be_finite(value: float, query: Callable[[QueryInputs], Answer]) -> None:
    features = np.zeros((6, 2))
    features[3, 1] = value
    arrays = {"start": np.zeros(2), "width": np.ones(2)}
    with pytest.raises(NotFiniteError, match="features") as caught:
        query(inputs(samples(features), arrays=arrays, config={"max_features": 4, "bins": 4}))
    assert not any(character.isdigit() for character in str(caught.value))  # it leaves the client


# -- Histograms on shared bins: counting, and the distances computed from them -----------------------------------------


def count(features: np.ndarray, bins: feature_skew.Bins, min_release: int = 1) -> np.ndarray:
    arrays = {"start": bins.start, "width": bins.width}
    asked = inputs(samples(features), arrays=arrays, config={"bins": bins.bins}, min_release=min_release)
    return feature_skew.feature_histogram(asked)["counts"].values


def test_counts_equal_numpys() -> None:
    features = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    bins = feature_skew.Bins.around(np.zeros(3), np.ones(3), bins=16, reach=8.0)
    edges = np.linspace(-8, 8, 17)
    for counts, values in zip(count(features, bins), features.T, strict=True):
        np.testing.assert_array_equal(counts, np.histogram(values.astype(np.float64), edges)[0])


@pytest.mark.parametrize(("rows", "sizes", "least"), [(5, [2, 3], 2), (5, [5], 5), (9, [9], 5), (23, [5, 6, 6, 6], 5)])
def test_values_count_as_the_means_of_groups(rows: int, sizes: list[int], least: int) -> None:
    """Ordered values in groups as even as they can be: the count below any edge is of whole groups."""
    values = np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32)
    for feature in range(2):
        groups = np.split(np.sort(values[:, feature].astype(np.float64)), np.cumsum(sizes)[:-1])
        for edge in np.linspace(-3, 3, 101):
            bins = feature_skew.Bins(np.full(2, edge - 10), np.full(2, 10.0), bins=2, reach=1.0)
            assert count(values, bins, least)[feature, 0] == sum(len(group) for group in groups if group.mean() < edge)


def test_means_of_groups_are_float64() -> None:
    """(1 − 2²⁵) / 5; in float32 1 − 2²⁵ is −2²⁵."""
    values = np.array([[0], [1], [-(2.0**25)], [0], [0]], np.float32)
    for edge, below in (((0.5 - 2**25) / 5, 0), ((1.5 - 2**25) / 5, 5)):
        bins = feature_skew.Bins(np.array([edge - 1e9]), np.array([1e9]), bins=2, reach=1.0)
        assert count(values, bins, min_release=5)[0, 0] == below


@pytest.mark.parametrize("bins", [0, feature_skew.MAX_BINS + 1])
def test_too_many_bins_or_none_are_refused(bins: int) -> None:
    with pytest.raises(WithheldError, match="bins"):
        count(np.zeros((5, 1)), feature_skew.Bins(np.zeros(1), np.ones(1), bins, reach=1.0))
    for allowed in (1, feature_skew.MAX_BINS):
        assert count(np.zeros((5, 1)), feature_skew.Bins(np.zeros(1), np.ones(1), allowed, reach=1.0))[0, 0] == 5


def test_values_beyond_the_bins_count_in_the_outermost() -> None:
    bins = feature_skew.Bins.around(np.zeros(1), np.ones(1), bins=4, reach=2.0)
    counts = count(np.array([[-100], [-2], [-0.5], [0], [2], [1e30]]), bins)
    assert counts.tolist() == [[2, 1, 1, 2]]


def test_constant_features_are_left_out() -> None:
    bins = feature_skew.Bins.around(np.array([5.0, 0.0]), np.array([0.0, 1.0]), bins=4, reach=2.0)
    first = count(np.array([[5, 0.5], [5, 0.5]]), bins)
    second = count(np.array([[5, -0.5], [5, -0.5]]), bins)
    assert first[0].tolist() == [2, 0, 0, 0]
    means = [np.array([5, 0.5]), np.array([5, -0.5])]
    distances = feature_skew.feature_distances([first, second], means, bins)
    assert distances == pytest.approx({"feature_wasserstein": 1, "feature_hellinger": 1})


def test_a_shift_of_whole_bins_is_measured_exactly_and_averaged() -> None:
    """One of two features shifts by two bins of a quarter deviation each: W1 = 0.5, mean over features 0.25."""
    generator = np.random.default_rng(1)
    middles = (np.floor(generator.uniform(-8, 8, size=(300, 2))) + 0.5) * 0.25
    bins = feature_skew.Bins.around(np.zeros(2), np.ones(2), bins=32, reach=4.0)
    clients = [middles, middles + np.array([0.5, 0])]
    distances = feature_skew.feature_distances([count(rows, bins) for rows in clients], np.mean(clients, axis=1), bins)
    assert distances["feature_wasserstein"] == pytest.approx(0.25)


def test_the_distance_of_heavy_tails_is_at_least_that_of_the_means() -> None:
    """One value of a client lies 100 deviations out, beyond the bins: W1 = 1 of 100 rows, three clients' mean 2/3."""
    bins = feature_skew.Bins.around(np.zeros(1), np.ones(1), bins=4, reach=2.0)
    clients = [np.zeros((100, 1)) for _ in range(3)]
    clients[0][0] = 100
    distances = feature_skew.feature_distances([count(rows, bins) for rows in clients], np.mean(clients, axis=1), bins)
    exact = np.mean([wasserstein_distance(clients[a][:, 0], clients[b][:, 0]) for a, b in [(0, 1), (0, 2), (1, 2)]])
    assert distances["feature_wasserstein"] == pytest.approx(exact) == pytest.approx(2 / 3)


def test_nothing_to_compare() -> None:
    bins = feature_skew.Bins.around(np.zeros(1), np.ones(1), bins=4, reach=2.0)
    constant = feature_skew.Bins.around(np.zeros(1), np.zeros(1), bins=4, reach=2.0)
    counts = count(np.zeros((5, 1)), bins)
    for told, of_bins in (([counts], bins), ([counts, counts], constant)):
        assert feature_skew.feature_distances(told, [np.zeros(1)] * len(told), of_bins) == {}


# -- What clients tell of their classes --------------------------------------------------------------------------------


CONFIG = {"max_features": 100}


def moments_of(
    clients: list[tuple[np.ndarray, np.ndarray]], num_classes: int, min_release: int = 5
) -> feature_skew.ClassMoments:
    """Return the pooled per-class sums of (features, labels) pairs, through the client half."""
    moments = feature_skew.ClassMoments.empty_moments(num_classes, clients[0][0].shape[1])
    for client, (features, labels) in enumerate(clients):
        asked = inputs(samples(features, labels), num_classes, config=CONFIG, min_release=min_release)
        answer = let_out(feature_skew.class_sums(asked), min_release)
        moments.add(client, answer["counts"], answer["sums"], answer["squares"])
    return moments


def test_pooled_sums_are_those_of_the_pooled_rows() -> None:
    """Clients of several chunks, of a class that others lack, and of one that none holds."""
    generator = np.random.default_rng(0)
    clients = []
    for size, classes in ((CHUNK_ROWS + 40, [0, 1]), (60, [1, 2]), (50, [0, 1, 2])):
        labels = generator.choice(classes, size)
        features = (generator.normal(size=(size, 3)) + 1e3 * labels[:, None]).astype(np.float32)
        clients.append((features, labels))
    moments = moments_of(clients, num_classes=4)
    rows = np.concatenate([features for features, _ in clients]).astype(np.float64)
    labels = np.concatenate([own for _, own in clients])
    np.testing.assert_array_equal(moments.pooled_counts, [*np.bincount(labels), 0])
    for label in range(3):
        np.testing.assert_allclose(moments.means[label], rows[labels == label].mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.variances[label], rows[labels == label].var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(moments.totals[1], rows[len(clients[0][1]) :][:60].sum(axis=0), rtol=1e-12)
    assert (moments.means[3] == 0).all()
    few = moments_of([(np.array([[1.0], [3.0], [9.0]]), np.array([0, 0, 1]))], num_classes=2, min_release=1)
    assert (few.means.tolist(), few.variances.tolist()) == ([[2], [9]], [[2], [0]])  # of two rows, and of one


def test_withheld_classes_are_zero() -> None:
    labels = np.array([0] * 8 + [1] * 3 + [2] * 10 + [3] * 20)
    features = np.ones((len(labels), 2))
    answer = let_out(feature_skew.class_sums(inputs(samples(features, labels), 4, config=CONFIG)))
    np.testing.assert_array_equal(answer["counts"], [0, 0, 10, 20])
    np.testing.assert_array_equal(answer["sums"], [[0, 0], [0, 0], [10, 10], [20, 20]])
    assert (answer["squares"] == 0).all()


def test_a_client_of_wider_rows_has_its_ratio_of_variances_by_hand() -> None:
    """Spreads within classes against what as many rows would have at everyone's variances, n_c - 1 a class."""
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], [6, 9])
    clients = [(generator.normal(scale=scale, size=(15, 2)), labels) for scale in (1.0, 3.0)]
    of_another_class = (generator.normal(size=(9, 2)), np.full(9, 2))
    moments = moments_of([*clients, of_another_class], num_classes=3)
    own = np.array([clients[1][0][labels == label].astype(np.float32).var(axis=0, ddof=1) for label in (0, 1)])
    pooled = [np.concatenate([rows[labels == label] for rows, _ in clients]) for label in (0, 1)]
    everyone = np.array([rows.var(axis=0, ddof=1) for rows in pooled])
    expected = (5 * own[0] + 8 * own[1]) / (5 * everyone[0] + 8 * everyone[1])
    np.testing.assert_allclose(moments.widening(1), expected, rtol=1e-5)
    assert (expected > 1.2).all()
    assert (moments.widening(0) == 1).all()


def test_sums_of_each_client_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients' sums of three features and two classes are 96 bytes; without them all else is as it was."""
    clients = [(np.full((10, 3), float(client)), np.repeat([0, 1], 5)) for client in range(2)]
    found = {}
    for size in (96, 95):
        monkeypatch.setattr(feature_skew, "KEPT_BYTES", size)
        found[size] = moments_of(clients, num_classes=2)
    assert found[95].own is None
    assert {client: sums.tolist() for client, sums in found[96].own.items()} == {0: [[0] * 3] * 2, 1: [[5] * 3] * 2}
    np.testing.assert_array_equal(found[96].sums, found[95].sums)


# -- Covariances by a client's own mix of classes: what the regression gives, and the rate where classes differ --------


Client = tuple[np.ndarray, np.ndarray]


def alike(num_features: int, correlation: float) -> np.ndarray:
    """Return the matrix of which every two features have the same correlation."""
    return np.asarray(correlation + (1 - correlation) * np.eye(num_features))


def drawn(
    generator: np.random.Generator, counts: Sequence[Sequence[int]], num_features: int, correlations: Sequence[float]
) -> list[Client]:
    """Return clients whose rows of each class have that correlation."""
    roots = [np.linalg.cholesky(alike(num_features, correlation)) for correlation in correlations]
    clients = []
    for own in counts:
        labels = np.repeat(np.arange(len(own)), own)
        noise = generator.normal(size=(len(labels), num_features))
        features = np.concatenate([noise[labels == c] @ root.T + c for c, root in enumerate(roots)])
        clients.append((features.astype(np.float32), labels))
    return clients


def measured(clients: Sequence[Client], num_classes: int, min_release: int = 5) -> feature_skew.ClassCovariances:
    found = feature_skew.ClassCovariances(num_classes, clients[0][0].shape[1])
    for features, labels in clients:
        asked = inputs(samples(features, labels), num_classes, config={"max_features": 99}, min_release=min_release)
        moments = let_out(feature_skew.feature_moments(asked))
        own = let_out(feature_skew.class_sums(asked), min_release)
        total, scatter = moments["sum"].astype(float), moments["scatter"].astype(float)
        found.add(len(labels), total, scatter, own["counts"], own["sums"].astype(float))
    return found


def test_a_class_s_covariance_is_that_of_its_rows() -> None:
    """Two clients of one class each: N_w follows from the 59 degrees of freedom of 60 rows."""
    clients = drawn(np.random.default_rng(0), [[60, 0], [0, 60]], 4, (0.0, 0.8))
    found = measured(clients, 2)
    for label in range(2):
        correlation, rows = found.correlation(np.eye(2)[label], np.arange(4)) or (np.zeros(0), 0.0)
        np.testing.assert_allclose(correlation, np.corrcoef(clients[label][0].T.astype(np.float64)), atol=1e-4)
        assert rows == pytest.approx(59**2 / 60)


def test_the_mix_decides() -> None:
    """Equal variances: of a half of each class the correlation is the mean of both; of five features three count."""
    counts = [[300, 100], [100, 300], [200, 200], [250, 50]]
    found = measured(drawn(np.random.default_rng(1), counts, 5, (0.0, 0.8)), 2)
    for weights, expected in (((1, 0), 0.0), ((1, 1), 0.4), ((0, 5), 0.8)):
        correlation, _ = found.correlation(np.array(weights, float), np.array([0, 2, 4])) or (np.zeros(0), 0.0)
        np.testing.assert_allclose(correlation, alike(3, expected), atol=0.15)


def test_clients_of_one_mix_are_pooled() -> None:
    """Their rows count as all rows less the classes' means: the same as one covariance of all."""
    found = measured(drawn(np.random.default_rng(2), [[50, 50]] * 6, 3, (0.3, 0.3)), 2)
    _, rows = found.correlation(np.array([25.0, 25.0]), np.arange(3)) or (np.zeros(0), 0.0)
    assert rows == pytest.approx(6 * 98**2 / 100)


def test_a_class_of_which_nobody_knows_a_covariance_has_that_of_all() -> None:
    """One row of it at each client: it has no degree of freedom."""
    clients = drawn(np.random.default_rng(3), [[20, 1], [30, 1]], 3, (0.0, 0.0))
    found = measured(clients, 2, min_release=1)
    assert found.correlation(np.array([1.0, 1.0]), np.arange(3)) is None
    assert found.traces(np.array([1.0, 1.0]), np.arange(3), (4.0, 6.0)) == (4.0, 6.0)
    two_rows = feature_skew.ClassCovariances(1, 1)  # 1 and 2 have one degree of freedom, and a scatter of 0.5
    two_rows.add(2, np.array([3.0]), np.array([0.5]), np.array([2]), np.array([[3.0]]))
    correlation, rows = two_rows.correlation(np.ones(1), np.arange(1))
    assert (correlation.item(), rows) == pytest.approx((1, 0.5))


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_traces_are_about_unbiased_out_of_few_rows(correlation: float) -> None:
    """tr R² = d + d (d − 1) ρ², and tr R³ by the eigenvalues 1 + (d − 1) ρ and 1 − ρ.

    What 60 rows of 20 features add to tr R² by chance, 6 on average, is taken off, and so are 20 of tr R³.
    """
    traces = []
    for seed in range(40):
        found = measured(drawn(np.random.default_rng(seed), [[60]], 20, (correlation,)), 1)
        traces.append(np.array(found.traces(np.array([60.0]), np.arange(20), (0.0, 0.0))) * 80 / 60)
    pooled, alone = (found.traces(np.array([60.0]), np.arange(20), of_all) for of_all in ((8.0, 6.0), (0.0, 0.0)))
    assert np.subtract(pooled, alone) == pytest.approx(np.array([8.0, 6.0]) * 20 / (20 + 59**2 / 60))
    expected = [20 + 20 * 19 * correlation**2, (1 + 19 * correlation) ** 3 + 19 * (1 - correlation) ** 3]
    assert np.mean(traces, axis=0) == pytest.approx(expected, rel=0.1)


def test_too_many_numbers_are_not_kept() -> None:
    """Six of each class, and of what is withheld: six times 349,525 are two less than 2^21."""
    assert feature_skew.ClassCovariances.fit(349_524, 3)
    assert not feature_skew.ClassCovariances.fit(349_525, 3)


# -- Feature skew of rows that belong together: design effects, and few false alarms -----------------------------------


def told(rows: np.ndarray, groups: np.ndarray, mean: float = 0.0, deviation: float = 1.0) -> dict[str, np.ndarray]:
    shape = rows.shape[1]
    arrays = {"per_deviation": np.full(shape, 1 / deviation), "means": np.full((1, shape), mean)}
    asked = inputs(samples(rows), arrays=arrays, config={"by_class": False}, min_release=1)
    return dict(let_out(feature_skew.group_norms(replace(asked, groups=groups)), 1))


def test_sums_over_groups_and_their_spread_by_hand() -> None:
    """Groups of rows 1, 2 and -1: sums 3 and -1; squares 9 + 1, fourth powers 81 + 1, sizes 4 + 1.

    |y|² of the groups are 9 and 1: mean 5, mean of squares 41, so the squared coefficient is 41/25 - 1.
    """
    rows, groups = np.array([[1.0], [2.0], [-1.0]]), np.array([4, 4, 9])
    answer, elsewhere = told(rows, groups), told(5 + 2 * rows, groups, mean=5.0, deviation=2.0)
    for found in (answer, elsewhere):
        assert (found["squares"].tolist(), found["norms"].tolist()) == ([10], [3, 2, 5, 10, 82])
    found = feature_skew.FeatureGroups.read({0: answer})
    assert found.excess == pytest.approx(0.64)
    assert found.num_groups == {0: 2.0}


def test_the_design_effect_by_hand() -> None:
    """Three groups of two rows sum to 2, 1 and 0: their variance about a mean that they share is 5/6 · 3/2 of a row's.

    The correlation is 5/4 - 1 over 2 - 1, and groups of two make it an effect of 1 + 1/4.
    """
    rows = np.array([[1.0], [1.0], [2.0], [-1.0], [3.0], [-3.0]])
    groups = np.repeat([0, 1, 2], 2)
    found = feature_skew.FeatureGroups.read({0: told(rows[:4], groups[:4]), 1: told(rows[4:], groups[4:])})
    assert [effects.tolist() for effects in found.effects.values()] == [[1.25], [1.25]]


def test_groups_go_on_from_chunk_to_chunk() -> None:
    """Rows of 1 in groups of three, but for the last of one: sums of 3, whose squares are 9."""
    whole = CHUNK_ROWS // 3 + 1
    answer = told(np.ones((3 * whole + 1, 1)), np.arange(3 * whole + 1) // 3)
    assert answer["norms"].tolist() == [3 * whole + 1, whole + 1, 9 * whole + 1, 9 * whole + 1, 81 * whole + 1]
    assert feature_skew.FeatureGroups.read({}) is None


QUICK = {"outlier_repetitions": 1, "outlier_min_flags": 1}


def of_subjects(seed: int, grouped: bool, shift: float = 0.0, rows_each: int = 5) -> HeterogeneityReport:
    """Return the report on ten clients of 20 subjects, whose rows scatter half as much as they do."""
    generator = np.random.default_rng(seed)
    clients = []
    for client in range(10):
        subject = np.repeat(np.arange(20), rows_each)
        labels = generator.integers(0, 2, 20)[subject]
        centres = generator.normal(size=(20, 6)) + (shift if client == 3 else 0.0)
        clients.append((centres[subject] + 0.5 * generator.normal(size=(len(subject), 6)) + labels[:, None], labels))
    source = federation(clients)
    groups = np.arange(len(source.labels)) // rows_each
    return report_of(replace(source, groups=groups) if grouped else source, seed, **QUICK)


def alarms(reports: list[HeterogeneityReport], name: str) -> int:
    return sum(finding.detected for report in reports for finding in report.calibrated if finding.name == name)


@pytest.mark.slow
def test_groups_make_the_difference() -> None:
    without, with_groups = ([of_subjects(seed, grouped) for seed in range(6)] for grouped in (False, True))
    for name in ("label_skew", "feature_skew"):
        assert alarms(without, name) >= 2
        assert alarms(with_groups, name) <= most_alarms(6, DetectionConfig().detector_rate)


def test_groups_of_one_row_are_rows() -> None:
    plain, grouped = (of_subjects(5, grouped, rows_each=1) for grouped in (False, True))
    for name in ("label_skew", "feature_skew"):
        one, other = plain.calibrated_finding(name), grouped.calibrated_finding(name)
        assert other.flagged_clients == one.flagged_clients
        assert other.p_value == pytest.approx(one.p_value, rel=0.3)


def test_a_client_that_told_nothing_has_the_largest_effects_and_the_fewest_groups() -> None:
    known = feature_skew.FeatureGroups({0: np.array([1.0, 3.0]), 1: np.array([2.0, 1.0])}, {0: 4.0, 1: 9.0}, 0.0)
    np.testing.assert_array_equal(known.of([2, 1], [0, 1]), [[2, 3], [2, 1]])
    np.testing.assert_array_equal(known.groups_of([2, 1]), [4, 9])


# -- How clients' rows lie in feature space ----------------------------------------------------------------------------


def test_a_shift_is_as_long_as_the_calibrated_effect_and_points_the_same_way_for_clients_that_shift_together() -> None:
    by = {1: 1, 2: 1, 3: -1}
    clients = [
        (rows + by.get(index, 0) * np.array([1.0, -1, 0, 0, 0, 0]), y)
        for index, (rows, y) in enumerate(gaussian_clients([300] * 7))
    ]
    report = report_of(federation(clients), 1, outlier_rounds=1, **QUICK)
    finding = report.calibrated_finding("feature_skew")
    shifts = {client: np.array(shift) for client, shift in report.feature_shifts.items()}
    for client, shift in shifts.items():
        assert np.linalg.norm(shift) == pytest.approx(finding.clients[client].effect, abs=1e-12)
    assert np.linalg.norm(shifts[1]) == pytest.approx(np.sqrt(2 / 6), abs=0.1)  # two of six features, by one deviation
    together = {client: shifts[1] @ shift / np.linalg.norm(shifts[1]) for client, shift in shifts.items()}
    assert together[2] > 0.4
    assert together[3] < -0.4
