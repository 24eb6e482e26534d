"""Concepts: whether the clients' labels rest on the same features, and which clients' do.

Who is an outlier is a question only where most clients agree. Let W map features to uncorrelated ones of variance 1
within classes, and γ_kc = W (m_kc − m_k), with m_kc the mean of client k's n_kc rows of class c and m_k the mean over
the classes that clients k and l share, weighted by w_c = n_kc n_lc / (n_kc + n_lc). Of a pair of clients

    S_kl = Σ_c w_c γ_kc · γ_lc,    L_kl = ½ Σ_c w_c (|γ_kc|² + |γ_lc|²) − ½ τ (C_kl − 1),

C_kl being the number of shared classes and τ the trace of the covariance within classes after the map, so that the last
term is what chance adds. As clients are independent, S_kl is an unbiased estimate of the product of what their classes
are known by, and L_kl of the mean of the squares. Of several pairs ΣS / ΣL is the agreement: 1 if all clients' labels
rest on the same features, about 0 if each client has a rule of its own, negative if clients contradict each other. A
shift of all of a client's rows, shares of classes and numbers of rows do not change it. Where rows belong together,
n_kc is divided by their design effect (`fedscout.detectors.skew.group_norms`).

Labels of two groups of clients rest on different features if over the pairs between them the agreement is below `AGREE`
and 2 (ΣL − ΣS) exceeds 0 by `SURE` of the standard deviations that it has where all clients are alike. For K clients of
one distribution and normal rows its variance is K τ₂ Σ (C_kl − 1), τ₂ being the trace of the square of that covariance.
Clients are joined to groups, always the two of the largest agreement first, until labels of any two groups rest on
different features; all at once if over all pairs 2 (ΣL − ΣS) is no larger than by chance. Clients that share no two
classes with others do not differ from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedscout.detectors.outliers.label_agreement import Whitening
from fedscout.detectors.skew.class_sums import ClassMoments
from fedscout.detectors.skew.group_norms import FeatureGroups
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.data.names import UNNAMED, Names

MIN_CLIENTS: Final = 3
SURE: Final = 4.0
AGREE: Final = 0.5
MAJORITY: Final = 2 / 3
MOST_PRODUCTS: Final = 2e9
"""Of clients² × classes × features; with more, as many clients are compared, evenly spaced, as make no more."""


@dataclass(frozen=True)
class Concepts:
    """How far clients' labels rest on the same features.

    Attributes:
        groups: All compared clients, the largest group first; one group where labels rest on the same features.
    """

    groups: tuple[tuple[int, ...], ...]

    @property
    def has_majority(self) -> bool:
        """Whether at least two thirds of the clients agree."""
        return len(self.groups[0]) >= MAJORITY * sum(map(len, self.groups)) - 1e-9

    @property
    def named(self) -> tuple[tuple[int, ...], ...]:
        """Groups of at least two clients; none where there are fewer than two such groups."""
        several = tuple(group for group in self.groups if len(group) > 1)
        return several if len(several) > 1 else ()

    def text(self, names: Names = UNNAMED) -> str:
        """Return what is said where no majority agrees."""
        text = "clients' labels rest on different features, and no two thirds of the clients agree"
        if self.named:
            text += f"; these agree among themselves: {' | '.join(map(names.some_clients, self.named))}"
        return text


def compare_concepts(
    classes: ClassMoments, within: Values, num_rows: int, groups: FeatureGroups | None = None
) -> Concepts | None:
    """Return how far labels rest on the same features; None with fewer than three clients that tell of two classes.

    Args:
        classes: Per-class sums. None is returned, too, where each client's own were not kept.
        within: Covariance within classes, shape `(d, d)`.
        num_rows: Behind it.
        groups: What clients tell of rows that belong together; None where rows are independent.
    """
    whitening = Whitening.of(within, num_rows)
    if classes.own is None or whitening is None:
        return None
    clients = _compared(classes)
    if len(clients) < MIN_CLIENTS:
        return None
    counts = np.stack([classes.counts[client] for client in clients]).astype(np.float64)
    means = np.stack(
        [whitening.apply(classes.own[c] / np.maximum(n, 1)[:, None]) for c, n in zip(clients, counts, strict=True)]
    )
    trace, square = whitening.traces()
    if groups is not None:
        counts /= groups.of(clients, whitening.features).mean(axis=1)[:, None]
    shared, lengths, freedom = _pairs(counts, means)
    lengths -= 0.5 * trace * freedom
    upper = np.triu_indices(len(clients), 1)
    shared_sum, length_sum = float(shared[upper].sum()), float(lengths[upper].sum())
    deviation = float(np.sqrt(len(clients) * square * freedom[upper].sum()))
    if 2 * (length_sum - shared_sum) <= SURE * deviation:
        return Concepts((clients,))
    agreeing = [tuple(clients[i] for i in group) for group in _groups(shared, lengths, square * freedom)]
    return Concepts(tuple(sorted(agreeing, key=lambda group: (-len(group), group))))


def _compared(classes: ClassMoments) -> tuple[int, ...]:
    clients = sorted(client for client, counts in classes.counts.items() if (counts > 0).sum() > 1)
    most = max(MIN_CLIENTS, int(np.sqrt(MOST_PRODUCTS / classes.sums.size)))
    if len(clients) > most:
        clients = [clients[i * len(clients) // most] for i in range(most)]
    return tuple(clients)


def _pairs(counts: Values, means: Values) -> tuple[Values, Values, Values]:
    """Return S, L without the chance taken off, and C − 1, 0 for pairs that share no two classes.

    Args:
        counts: Shape `(clients, classes)`.
        means: In the mapped space, shape `(clients, classes, features)`.

    Returns:
        Shapes `(clients, clients)`.
    """
    squares = (means**2).sum(axis=2)
    shared, lengths, freedom = (np.zeros((len(counts), len(counts))) for _ in range(3))
    for k, own in enumerate(counts):
        weights = counts * own / np.where(counts + own > 0, counts + own, 1)
        weights[(weights > 0).sum(axis=1) < 2] = 0
        total = np.maximum(weights.sum(axis=1), 1e-12)
        own_sums = weights @ means[k]
        other_sums = np.einsum("lc,lcd->ld", weights, means)
        products = np.einsum("lcd,cd->lc", means, means[k])
        shared[k] = (weights * products).sum(axis=1) - (own_sums * other_sums).sum(axis=1) / total
        both = (weights * (squares + squares[k])).sum(axis=1)
        lengths[k] = 0.5 * (both - ((own_sums**2).sum(axis=1) + (other_sums**2).sum(axis=1)) / total)
        freedom[k] = np.maximum((weights > 0).sum(axis=1) - 1, 0)
    return shared, lengths, freedom


def _groups(shared: Values, lengths: Values, scatter: Values) -> list[list[int]]:
    """Return groups of clients.

    Args:
        shared: S of each pair, shape `(clients, clients)`.
        lengths: L of each pair, likewise.
        scatter: τ₂ (C − 1) of each pair, likewise.
    """
    sums = np.stack([shared, lengths, scatter])
    members = [[client] for client in range(len(shared))]
    while len(members) > 1:
        own, length, variance = sums
        sizes = np.array([len(group) for group in members])
        agreement = np.divide(own, length, out=np.zeros_like(own), where=length > 0)
        unsure = 2 * (length - own) <= SURE * np.sqrt((sizes[:, None] + sizes) * variance)
        joins = np.where((agreement >= AGREE) | unsure, agreement, -np.inf)
        np.fill_diagonal(joins, -np.inf)
        first, second = sorted(divmod(int(joins.argmax()), len(members)))
        if joins[first, second] == -np.inf:
            break
        sums[:, first] += sums[:, second]
        sums[:, :, first] += sums[:, :, second]
        sums = np.delete(np.delete(sums, second, axis=1), second, axis=2)
        members[first] += members.pop(second)
    return [sorted(group) for group in members]
