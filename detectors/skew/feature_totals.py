"""Sums of the features over a client's rows, such that those of all clients add up: what is asked under masks.

About a centre c that the message gives, a client tells Σ (x − c) and Σ (x − c)² of each feature. With c = 0 the first
sums give the mean μ of all rows, with c = μ the second their variance, which then does not cancel. (The moments of
`feature_skew` are about each client's own mean, which only who knows the clients' means can add up.) That a server may
choose another c tells it nothing more: both sums are, for all c, functions of those for c = 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fedscout.detectors.statistics.client_rows import flat_features
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.release import Answer, Over

FEATURE_TOTALS: Final = "feature_totals"


def feature_totals(inputs: QueryInputs) -> Answer:
    """Client half. Return `rows`, shape `()`, and `sums` and `squares`, shape `(d,)`.

    Reads `centre`, shape `(d,)` or `()`, from the message.
    """
    centre = inputs.arrays["centre"].astype(np.float64)
    num_rows = len(inputs.data)
    sums, squares = np.zeros(()), np.zeros(())
    for features, _ in inputs.data.chunks():
        centred = flat_features(features) - centre
        sums, squares = sums + centred.sum(axis=0), squares + (centred**2).sum(axis=0)
    told = {"rows": np.array(num_rows, np.int64), "sums": sums, "squares": squares}
    return {name: Over(values, num_rows) for name, values in told.items()}
