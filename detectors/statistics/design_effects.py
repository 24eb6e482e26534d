"""Design effects: by how much rows that belong together widen what chance does to a client's counts.

Rows of one subject tend to have one label, so a client of 20 subjects × 5 rows knows of labels about as much as 20
rows, and tests that take it for 100 rows give false alarms. If any two rows of a group are both of class c with the
correlation ρ_c, and rows of different groups are independent, then the count of class c among n rows in groups of
n_g rows has the variance

    n p_c (1 − p_c) δ_c,    δ_c = 1 + ρ_c (Σ n_g² / n − 1),

L. Kish. Survey Sampling. Wiley, 1965. With x_gc the rows of class c in group g and p the shares among all rows, ρ_c is
estimated by moments over the groups of all clients,

    Σ_g (x_gc − n_g p_c)² · M / (M − 1) = p_c (1 − p_c) (N + ρ_c (Σ n_g² − N)),

M being the number of groups, and kept in [0, 1]. So a client tells of each class Σ x_gc² and Σ n_g x_gc, and of its
rows Σ n_g² and how many groups there are; not one group can be told from these. Of a class that it does not tell of,
all rows of a group are taken to be alike, which errs towards no alarm.

Pearson's statistic of correlated counts is a sum of χ² terms weighted by generalised design effects (J. N. K. Rao and
A. J. Scott. The analysis of categorical data from complex sample surveys: chi-squared tests for goodness of fit and
independence in two-way tables. JASA 76(374), 1981). These are taken to be the eigenvalues of D^½ (I − √p √pᵀ) D^½ with
D = diag(δ_c): covariances between classes are not told, and these are they where all classes have the same ρ. Groups
that several clients share count as a group of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedscout.detectors.statistics.client_rows import own_counts
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.release import Answer, Arrays, Over

GROUP_LABELS: Final = "group_labels"


def group_labels(inputs: QueryInputs) -> Answer:
    """Client half: return `squares` Σ x_gc² and `with_sizes` Σ n_g x_gc, `(num_classes,)`, and `groups`, `(2,)`.

    `groups` are Σ n_g² and the number of groups. Where rows are independent each is a group of its own.
    """
    data = inputs.data
    groups = np.arange(len(data)) if inputs.groups is None else inputs.groups
    names, members = np.unique(groups, return_inverse=True)
    sizes = np.bincount(members)
    labels = data.labels[data.rows]
    cells, rows = np.unique(np.column_stack([members, labels]), axis=0, return_counts=True)
    squares = np.bincount(cells[:, 1], rows.astype(np.float64) ** 2, inputs.num_classes)
    with_sizes = np.bincount(labels, sizes[members].astype(np.float64), inputs.num_classes)
    counts = own_counts(inputs)
    return {
        "squares": Over(squares, counts),
        "with_sizes": Over(with_sizes, counts),
        "groups": Over(np.array([float((sizes.astype(np.float64) ** 2).sum()), float(len(names))]), len(data)),
    }


@dataclass(frozen=True)
class GroupSums:
    """What some clients tell of their groups.

    Attributes:
        squares: Σ x_gc², shape `(clients, classes)`.
        with_sizes: Σ n_g x_gc, likewise.
        size_squares: Σ n_g², shape `(clients,)`.
        num_groups: Groups, shape `(clients,)`.
    """

    squares: Values
    with_sizes: Values
    size_squares: Values
    num_groups: Values

    @classmethod
    def read(cls, answers: list[Arrays], counts: IntArray | Values) -> GroupSums:
        """Return the sums of clients, completed where they tell nothing of a class.

        Args:
            answers: Of each client.
            counts: Rows of each class, those included that are not told, shape `(clients, classes)`.
        """
        squares, with_sizes, groups = (
            np.stack([np.asarray(answer[name], np.float64) for answer in answers])
            for name in ("squares", "with_sizes", "groups")
        )
        alike = counts * (groups[:, :1] / np.maximum(counts.sum(axis=1, keepdims=True), 1))
        untold = squares == 0
        return cls(np.where(untold, alike, squares), np.where(untold, alike, with_sizes), groups[:, 0], groups[:, 1])


def correlations(counts: IntArray | Values, sums: GroupSums) -> Values:
    """Return ρ_c in `[0, 1]`, shape `(classes,)`; 0 where every group is one row, or all rows are of one class.

    Args:
        counts: Shape `(clients, classes)`.
        sums: Of the same clients.
    """
    num_rows, size_squares, num_groups = counts.sum(), sums.size_squares.sum(), sums.num_groups.sum()
    shares = counts.sum(axis=0) / num_rows
    scatter = sums.squares.sum(axis=0) - 2 * shares * sums.with_sizes.sum(axis=0) + shares**2 * size_squares
    chance = shares * (1 - shares)
    scatter *= num_groups / max(num_groups - 1, 1)
    possible = (chance > 0) & (size_squares > num_rows)
    excess = np.divide(scatter, chance, out=np.zeros_like(scatter), where=possible) - num_rows
    return np.where(possible, np.clip(excess / max(size_squares - num_rows, 1), 0.0, 1.0), 0.0)


def design_effects(counts: IntArray | Values, sums: GroupSums) -> Values:
    """Return δ_c of each client, at least 1, shape `(clients, classes)`; arguments as for `correlations`."""
    surplus = np.maximum(sums.size_squares / np.maximum(counts.sum(axis=1), 1) - 1, 0.0)
    return np.asarray(1 + surplus[:, None] * correlations(counts, sums))


def pearson_moments(shares: Values, effects: Values) -> tuple[Values, Values, Values]:
    """Return mean, variance and third central moment of each client's X² if clients are alike, each `(clients,)`.

    They are tr B, 2 tr B² and 8 tr B³ of B = D^½ (I − √p √pᵀ) D^½.

    Args:
        shares: p, shape `(classes,)`.
        effects: δ, shape `(clients, classes)`.
    """
    first, second, third = (effects**power for power in (1, 2, 3))
    one, two = first @ shares, second @ shares
    mean = first.sum(axis=1) - one
    variance = second.sum(axis=1) - 2 * two + one**2
    skewness = third.sum(axis=1) - 3 * (third @ shares) + 3 * two * one - one**3
    return mean, 2 * variance, 8 * skewness
