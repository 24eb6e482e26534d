"""Divergences, spreads and distances between clients: pure functions over histograms and sizes.

Entropy and divergences are in bits (logarithm to base 2), so the Jensen-Shannon divergence lies in `[0, 1]`. It is the
divergence of

    J. Lin. Divergence measures based on the Shannon entropy. IEEE Transactions on Information Theory 37(1), 1991,

not its square root, which `scipy.spatial.distance.jensenshannon` returns. Histograms of bin counts or probabilities
are read over their last axis; the other axes broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.seeds import stream

Values = npt.NDArray[np.float64]

FEW_CLIENTS = 20
"""Up to here the differences of all pairs are computed for all features at once; beyond, feature by feature."""


def distribution(counts: npt.ArrayLike) -> Values:
    """Return counts divided by their total over the last axis; a total of 0 is an error of the caller."""
    values = np.asarray(counts, dtype=np.float64)
    totals = values.sum(axis=-1, keepdims=True)
    assert np.all(totals > 0), "a distribution needs at least one count"
    return np.asarray(values / totals)


def entropy(probabilities: npt.ArrayLike) -> Values:
    """Return the Shannon entropy in bits, in `[0, log2(bins)]`; 0 log 0 = 0."""
    p = np.asarray(probabilities, dtype=np.float64)
    logarithms = np.log2(p, out=np.zeros_like(p), where=p > 0)
    return np.asarray(np.maximum(-np.sum(p * logarithms, axis=-1), 0.0))


def entropy_spread(probabilities: npt.ArrayLike, normalised: bool = False) -> float:
    """Return the largest minus the smallest entropy of the clients.

    Kept for comparison only: it orders some federations wrongly, since mirror images have equal entropy.

    Args:
        probabilities: Shape `(clients, bins)`.
        normalised: Whether to divide by `log2(bins)`, so that the spread lies in `[0, 1]`.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    entropies = entropy(p)
    spread = float(entropies.max() - entropies.min())
    return spread / max(float(np.log2(p.shape[-1])), 1.0) if normalised else spread


def kl_divergence(p: npt.ArrayLike, q: npt.ArrayLike) -> Values:
    """Return KL(p‖q) in bits; infinite where p has mass and q has none."""
    p, q = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64))
    ratio = np.divide(p, q, out=np.full(p.shape, np.inf), where=q > 0)
    logarithms = np.log2(ratio, out=np.zeros(p.shape), where=p > 0)
    return np.asarray(np.sum(p * logarithms, axis=-1))


def js_divergence(p: npt.ArrayLike, q: npt.ArrayLike) -> Values:
    """Return ½ KL(p‖m) + ½ KL(q‖m) with m = ½(p+q), in `[0, 1]`: symmetric, 0 for equal arguments."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    middle = (p + q) / 2
    return np.asarray(np.clip((kl_divergence(p, middle) + kl_divergence(q, middle)) / 2, 0.0, 1.0))


def hellinger(p: npt.ArrayLike, q: npt.ArrayLike) -> Values:
    """Return ‖√p − √q‖₂ / √2, in `[0, 1]`: 0 for equal arguments, 1 for disjoint ones."""
    difference = np.sqrt(np.asarray(p, dtype=np.float64)) - np.sqrt(np.asarray(q, dtype=np.float64))
    return np.asarray(np.minimum(np.sqrt(np.sum(difference**2, axis=-1) / 2), 1.0))


def wasserstein(p: npt.ArrayLike, q: npt.ArrayLike, bin_width: float) -> Values:
    """Return the 1-Wasserstein distance of two histograms on the same equal bins.

    It is the area between the cumulative distributions, mass taken at the middle of its bin.

    Args:
        p: Probabilities, shape `(..., bins)`.
        q: Likewise.
        bin_width: In the unit that the result shall have.
    """
    difference = np.asarray(p, dtype=np.float64) - np.asarray(q, dtype=np.float64)
    return np.asarray(bin_width * np.abs(np.cumsum(difference, axis=-1)[..., :-1]).sum(axis=-1))


def mean_pairwise_hellinger(probabilities: npt.ArrayLike) -> Values:
    """Return the mean over all pairs of clients; `probabilities` has shape `(..., clients >= 2, bins)`."""
    roots = np.sqrt(np.asarray(probabilities, dtype=np.float64))
    mean_distances = _few_pairs if roots.shape[-2] <= FEW_CLIENTS else _many_pairs
    return np.asarray(np.minimum(mean_distances(roots) / np.sqrt(2), 1.0))


def _few_pairs(points: Values) -> Values:
    """Return the mean Euclidean distance over all pairs of rows, for all leading axes at once."""
    num_points = points.shape[-2]
    total = np.zeros(points.shape[:-2])
    for index in range(num_points - 1):
        differences = points[..., index + 1 :, :] - points[..., index, None, :]
        total += np.sqrt(np.einsum("...kb,...kb->...k", differences, differences)).sum(axis=-1)
    return np.asarray(total / (num_points * (num_points - 1) / 2))


def _many_pairs(points: Values) -> Values:
    """The same, in little memory, but with a fixed cost for each entry of the leading axes."""
    from scipy.spatial.distance import pdist

    means = [pdist(rows).mean() for rows in points.reshape(-1, *points.shape[-2:])]
    return np.reshape(means, points.shape[:-2])


def mean_pairwise_wasserstein(probabilities: npt.ArrayLike, bin_width: float) -> Values:
    """Return the mean over all pairs of clients; see `wasserstein` for the arguments.

    Of K cumulative shares of one bin, sorted, the gap behind the r-th lies between the two of r (K − r) pairs. So the
    sum over all pairs takes a sort instead of K² differences, and adds nothing but what is not negative.

    Args:
        probabilities: Shape `(..., clients >= 2, bins)`.
        bin_width: In the unit that the result shall have.
    """
    cumulative = np.cumsum(np.asarray(probabilities, dtype=np.float64), axis=-1)[..., :-1]
    num_clients = cumulative.shape[-2]
    gaps = np.diff(np.sort(np.swapaxes(cumulative, -1, -2), axis=-1), axis=-1)  # (..., bins - 1, clients - 1)
    ranks = np.arange(1, num_clients)
    num_pairs = num_clients * (num_clients - 1) / 2
    return np.asarray(bin_width * (gaps @ (ranks * (num_clients - ranks) / num_pairs)).sum(axis=-1))


def output_divergence(mean_outputs: npt.ArrayLike) -> float:
    """Return the mean Jensen-Shannon divergence between clients' mean softmax outputs, over all pairs.

    Args:
        mean_outputs: One probability vector a client, shape `(clients >= 2, classes)`.
    """
    outputs = np.asarray(mean_outputs, dtype=np.float64)
    first, second = np.triu_indices(len(outputs), k=1)
    return float(js_divergence(outputs[first], outputs[second]).mean())


def quantity_ratio(sizes: npt.ArrayLike) -> float:
    """Return the largest over the smallest size, >= 1; sizes are positive."""
    values = np.asarray(sizes, dtype=np.float64)
    return float(values.max() / values.min())


def coefficient_of_variation(sizes: npt.ArrayLike) -> float:
    """Return the population standard deviation over the mean; 0 for equal sizes."""
    values = np.asarray(sizes, dtype=np.float64)
    return float(values.std() / values.mean())


def gini(sizes: npt.ArrayLike) -> float:
    """Return Σ_i Σ_j |x_i − x_j| / (2 K² mean): 0 for equal sizes, (K−1)/K if one client has everything."""
    values = np.sort(np.asarray(sizes, dtype=np.float64))
    ranks = np.arange(1, len(values) + 1)
    return float(np.sum((2 * ranks - len(values) - 1) * values) / (len(values) * values.sum()))


def heterogeneity_index(num_present: int, num_classes: int) -> float:
    """Return 1 − (c − 1)/(c_max − 1), in `[0, 1]`: 0 if a client holds every class, 1 if it holds one.

    Args:
        num_present: Classes of which the client holds a sample, c, in `[1, num_classes]`.
        num_classes: Classes of the federation, c_max; with one class nothing can differ and the index is 0.
    """
    return 0.0 if num_classes == 1 else 1.0 - (num_present - 1) / (num_classes - 1)


def count_metrics(counts: npt.ArrayLike, paired: npt.ArrayLike, ordered: bool = True) -> dict[str, Any]:
    """Return what is reported of label counts alone, under the names of `ReportedMetrics`; nothing without a client.

    Args:
        counts: Rows of each class of all clients, shape `(clients, classes)`; no client is empty.
        paired: Those of the clients over whose pairs distances are averaged.
        ordered: Whether class numbers are places on a line; without, there is no Wasserstein distance.
    """
    table, pairs = np.asarray(counts), np.asarray(paired)
    if len(table) == 0:
        return {}
    sizes = table.sum(axis=1)
    found = {
        "quantity_ratio": quantity_ratio(sizes),
        "quantity_variation": coefficient_of_variation(sizes),
        "quantity_gini": gini(sizes),
        "label_hellinger": None,
        "label_wasserstein": None,
    }
    if len(pairs) > 1:
        shares = distribution(pairs)
        found["label_hellinger"] = float(mean_pairwise_hellinger(shares))
        if ordered:
            found["label_wasserstein"] = float(mean_pairwise_wasserstein(shares, bin_width=1.0))
    return found


def distances_to(points: npt.ArrayLike, centre: npt.ArrayLike) -> Values:
    """Return the Euclidean distance of each row of `points` to `centre`, shape `(clients,)`."""
    return np.asarray(np.linalg.norm(np.asarray(points) - np.asarray(centre), axis=-1))


def paired_clients(clients: Sequence[int], limit: int, seed: int) -> tuple[int, ...]:
    """Return those over whose pairs distances are averaged: all, or `limit` of them drawn by seed, ascending."""
    if len(clients) <= limit:
        return tuple(clients)
    drawn = stream(seed, "pair-sample").choice(len(clients), size=limit, replace=False)
    return tuple(clients[position] for position in sorted(drawn))
