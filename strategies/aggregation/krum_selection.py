"""Krum's choice among models, by Flower's formula in the precision of the models.

With ‖x − y‖² = ‖x‖² + ‖y‖² − 2xy in float32, near ties are decided by rounding, so every operation here is Flower's, in
its order; rows are sorted and summed together instead of one by one. Doubling is exact, so products are doubled in
place of models.

Reference:
    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant gradient descent.
        NeurIPS 2017. arXiv:1703.02757
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import RecordDict

from fedscout.strategies.aggregation.reply_matrices import flat_vectors


def squared_distances(models: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the squared distances between models `(clients, params)`, shape `(clients, clients)`."""
    from scipy.linalg import get_blas_funcs  # not where no trial compares models

    norms = np.array([np.square(model).sum() for model in models])  # of large models no second matrix is made
    twice_products = get_blas_funcs("gemm", (models,))(2, models.T, models.T, trans_a=True)  # nor for 2x
    distances: npt.NDArray[Any] = norms[:, None] + norms[None, :] - twice_products.T
    return distances


def krum_scores(distances: npt.NDArray[Any], num_malicious: int) -> npt.NDArray[Any]:
    """Return each model's sum of squared distances to its n − f − 2 nearest, at least one, shape `(clients,)`."""
    num_closest = max(1, len(distances) - num_malicious - 2)
    closest = np.argsort(distances, axis=1)[:, 1 : num_closest + 1]
    scores: npt.NDArray[Any] = np.take_along_axis(distances, closest, axis=1).sum(axis=1)
    return scores


def select_multikrum(
    contents: list[RecordDict], num_malicious_nodes: int, num_nodes_to_select: int
) -> list[RecordDict]:
    """Return the replies with the lowest scores, the best first.

    Args:
        contents: Of the replies.
        num_malicious_nodes: f.
        num_nodes_to_select: How many to return.
    """
    scores = krum_scores(squared_distances(np.stack([*flat_vectors(contents)])), num_malicious_nodes)
    return [contents[index] for index in np.argsort(scores)[:num_nodes_to_select]]
