"""The registry of client queries; each entry is a pure function of a client's data that returns aggregates only.

The query defined here is the mean softmax output of a model over all rows of a client. The model is the average of the
clients' models after the outlier detector's last round; the output divergence is the mean Jensen-Shannon divergence in
bits between these outputs over pairs of clients. It needs no labels, and is reported without a threshold.
"""

from __future__ import annotations

import numpy as np

from fedscout.detectors import feature_skew, privacy
from fedscout.detectors.label_agreement import label_agreement
from fedscout.detectors.label_skew import label_counts
from fedscout.detectors.near_copies import near_copies
from fedscout.detectors.statistics import group_labels
from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client import Answer, QueryInputs, QueryTable, RowAggregate

MEAN_OUTPUT = "mean_output"


def mean_output(inputs: QueryInputs) -> Answer:
    """Client half: return `mean`, the mean softmax output of the message's `model`, shape `(num_classes,)`."""
    model: FloatArray = np.asarray(inputs.arrays["model"], dtype=np.float32)
    total = np.zeros(inputs.num_classes)
    for outputs in inputs.outputs(model):
        total += outputs.sum(axis=0, dtype=np.float64)
    return {"mean": RowAggregate(total / len(inputs.data), len(inputs.data))}


CLIENT_QUERIES: QueryTable = {
    query.__name__: query
    for query in (
        label_counts,
        feature_skew.feature_moments,
        feature_skew.class_sums,
        feature_skew.feature_centroid,
        feature_skew.feature_histogram,
        label_agreement,
        mean_output,
        privacy.private_counts,
        privacy.private_sums,
        feature_skew.row_norms,
        group_labels,
        feature_skew.group_norms,
        near_copies,
    )
}
