"""The covariance that a client's own mix of classes gives its rows, from the sums that all clients have told.

Classes may differ in how features are correlated, so that one covariance within classes, pooled over all clients, is
not that of a client whose classes are mixed otherwise. A client tells the scatter of all its rows and the sums of each
class, not the scatter of each class. Let W_k be its scatter about its own class means; the rows of the classes that it
does not tell of count as one more class. With f_kc = n_kc − 1 degrees of freedom of class c,

    E W_k = Σ_c f_kc Σ_c,

which is a regression on the covariances Σ_c of the classes. By weighted least squares, the variance of W_k being
proportional to its rows n_k,

    G = Σ_k f_k f_kᵀ / n_k,    B_c = Σ_k f_kc W_k / n_k,    Σ_c w_c Σ̂_c = Σ_c (G⁺ w)_c B_c.

That has the variance of a covariance out of N_w = (Σ_c w_c)² / wᵀ G⁺ w rows: of nearly all rows where the clients have
one mix of classes, and of fewer the more they differ.

From the correlation matrix R of d features in it come the moments that the feature test needs. Chance adds
d (d − 1) / N_w to tr R², and about 3 d tr R² / N_w to tr R³, which are taken off. As it is uncertain out of few rows,
each trace is drawn towards that of all clients' covariance by d / (d + N_w), as in regularised discriminants.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from fedscout.detectors.skew.feature_skew import upper_triangle
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import IntArray

MOST_NUMBERS: Final = 2**21
"""With more than so many numbers in the triangles of all classes, one covariance is used for all clients."""

SMALLEST_SHARE: Final = 1e-9


class ClassCovariances:
    """Adds clients' answers one after the other; no client's triangle is kept. It is asked after the last one."""

    def __init__(self, num_classes: int, num_features: int) -> None:
        self._triangle = upper_triangle(num_features)
        self._freedom = np.zeros((num_classes + 1, num_classes + 1))
        self._sums = np.zeros((num_classes + 1, num_features * (num_features + 1) // 2))

    @staticmethod
    def fit(num_classes: int, num_features: int) -> bool:
        """Return whether the triangles of so many classes are few enough numbers."""
        return (num_classes + 1) * num_features * (num_features + 1) // 2 <= MOST_NUMBERS

    def add(self, num_rows: int, total: Values, scatter: Values, counts: IntArray, sums: Values) -> None:
        """Add one client's answer.

        Args:
            num_rows: All its rows.
            total: Their sum, shape `(d,)`.
            scatter: The upper triangle of their scatter about their mean.
            counts: Rows of each class that it tells of, shape `(num_classes,)`.
            sums: Their sums, shape `(num_classes, d)`.
        """
        rows = np.append(counts, num_rows - counts.sum()).astype(np.float64)
        by_class = np.vstack([sums, total - sums.sum(axis=0)])
        apart = (by_class / np.maximum(rows, 1)[:, None] - total / num_rows) * np.sqrt(rows)[:, None]
        within = scatter - (apart.T @ apart)[self._triangle]
        freedom = np.maximum(rows - 1, 0.0)
        self._freedom += np.outer(freedom, freedom) / num_rows
        present = freedom > 0
        self._sums[present] += (freedom[present] / num_rows)[:, None] * within

    @cached_property
    def _solver(self) -> Values:
        """G⁺."""
        return np.asarray(np.linalg.pinv(self._freedom, rcond=SMALLEST_SHARE, hermitian=True))

    def correlation(self, weights: Values, features: IntArray) -> tuple[Values, float] | None:
        """Return the correlation matrix of some features in a mix of classes, and N_w; None where it is not known.

        Args:
            weights: w, of each class, shape `(num_classes,)`.
            features: Positions of the features.
        """
        wanted = np.append(weights, 0.0)
        solved = self._solver @ wanted
        spread = float(wanted @ solved)
        if spread <= 0 or not np.allclose(self._freedom @ solved, wanted, rtol=1e-6, atol=1e-6 * wanted.max()):
            return None
        covariance = np.zeros(self._triangle.shape)
        covariance[self._triangle] = solved @ self._sums
        covariance = (covariance + np.triu(covariance, k=1).T)[np.ix_(features, features)]
        diagonal = np.diag(covariance)
        if (diagonal <= 0).any():
            return None
        scale = np.sqrt(diagonal)
        return covariance / np.outer(scale, scale), float(wanted.sum()) ** 2 / spread

    def traces(self, weights: Values, features: IntArray, pooled: tuple[float, float]) -> tuple[float, float]:
        """Return tr R² and tr R³ of a mix of classes; those of all clients' covariance, `pooled`, where unknown."""
        found = self.correlation(weights, features)
        if found is None:
            return pooled
        correlation, rows = found
        num_features = len(features)
        squared = correlation @ correlation
        second = max(float(np.trace(squared)) - num_features * (num_features - 1) / rows, float(num_features))
        third = float((squared * correlation).sum()) - 3 * num_features * second / rows
        third = max(third, second**2 / num_features)
        own = rows / (rows + num_features)
        return own * second + (1 - own) * pooled[0], own * third + (1 - own) * pooled[1]
