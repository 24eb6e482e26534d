"""The registry of client queries; each entry is a pure function of a client's data that returns aggregates only.

The query defined here is the mean softmax output of a model over all rows of a client. The model is the average of the
clients' models after the outlier detector's last round; the output divergence is the mean Jensen-Shannon divergence in
bits between these outputs over pairs of clients. It needs no labels, and is reported without a threshold.

The input curvature of a client is the largest eigenvalue λ of E[x xᵀ] over its model inputs x. The loss of a linear
model has a largest curvature of at most λ / 2 (softmax) or λ / 4 (logistic), and gradient descent on it is stable up to
the learning rate 2 / curvature (Y. Nesterov. Lectures on convex optimization. Springer, 2018). The federation's is the
median over clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedscout.detectors import feature_skew, privacy
from fedscout.detectors.label_agreement import label_agreement
from fedscout.detectors.label_skew import label_counts
from fedscout.detectors.near_copies import near_copies
from fedscout.detectors.statistics import Values, flat_features, group_labels
from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client import Answer, QueryInputs, QueryTable, RowAggregate


def mean_output(inputs: QueryInputs) -> Answer:
    """Client half: return `mean`, the mean softmax output of the message's `model`, shape `(num_classes,)`."""
    model: FloatArray = np.asarray(inputs.arrays["model"], dtype=np.float32)
    total = np.zeros(inputs.num_classes)
    for outputs in inputs.outputs(model):
        total += outputs.sum(axis=0, dtype=np.float64)
    return {"mean": RowAggregate(total / len(inputs.data), len(inputs.data))}


POWER_STEPS = 30
POWER_TOLERANCE = 1e-3


def input_curvature(inputs: QueryInputs) -> Answer:
    """Client half: return `curvature`, the largest eigenvalue of the mean of x xᵀ over model inputs x, shape `(1,)`.

    Found by power iteration: a lower bound, close unless the largest eigenvalues are nearly equal. NaN if all values
    are whole numbers, some above 1, such as those of tokens, which are no points of a space.
    """
    rows = inputs.data if inputs.model_inputs is None else inputs.model_inputs

    def blocks() -> Iterator[Values]:
        return (flat_features(features) for features, _ in rows.chunks())

    curvature = np.nan
    if not all(x.max(initial=0) > 1 and not (x % 1).any() for x in blocks()):
        size = int(np.prod(rows.features.shape[1:]))
        direction: Values = np.random.default_rng(size).standard_normal(size)
        curvature = 0.0
        for _ in range(POWER_STEPS):
            unit, direction = direction / np.linalg.norm(direction), np.zeros(size)
            for x in blocks():
                direction += x.T @ (x @ unit)
            direction /= len(rows)
            before, curvature = curvature, float(np.linalg.norm(direction))
            if curvature <= before * (1 + POWER_TOLERANCE):
                break
    return {"curvature": RowAggregate(np.array([curvature]), len(rows))}


CLIENT_QUERIES: QueryTable = {
    query.__name__: query
    for query in (
        *(label_counts, label_agreement, near_copies, mean_output, input_curvature, group_labels),
        *(feature_skew.feature_moments, feature_skew.class_sums, feature_skew.feature_centroid),
        *(feature_skew.feature_histogram, feature_skew.row_norms, feature_skew.group_norms),
        *(privacy.private_counts, privacy.private_sums),
    )
}
