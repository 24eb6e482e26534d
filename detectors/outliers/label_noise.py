"""How many labels may be wrong, client by client: the suspected rate beside the tests of `agreement_tests`.

A client tells how many groups of its rows of each class lie nearer to another class's mean than to their own
(`label_agreement`), which the others' rows decide. Rows are sorted by how much nearer before they are grouped, so that
labels that are wrong fill the first groups; of the last of these, which wrong and right rows share, `SHARED` is taken
to be wrong. That gives d, the part of a client's rows that disagree.

Where classes overlap, right labels disagree as well, and nobody knows the labels that are right, so the rate is told as
a range:

- **at most** d: as if classes were apart;
- **at least** what exceeds the cleanest clients, as if theirs were right. With e the part that would disagree, if the
  client were like all on its own mix of classes, less what the cleanest tenth is better than that, and labels that are
  wrong spread over the C − 1 other classes, d = e + ρ (1 − e C / (C − 1)); solved for ρ.

If all clients are equally noisy, the truth is near the upper end; if a few are, both ends are near it. It is a
measurement, not a test: who is flagged is decided by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from fedscout.detectors.outliers.agreement_tests import MIN_CLIENTS
from fedscout.detectors.outliers.label_agreement import Agreement
from fedscout.detectors.report import LabelNoise
from fedscout.detectors.statistics.heterogeneity_metrics import Values

SHARED: Final = 0.75
"""Set on digits and bearing; 1 told too much of clients with few rows, and ½ too little."""

CLEANEST_QUANTILE: Final = 0.1


def label_noise(answers: Mapping[int, Agreement]) -> LabelNoise | None:
    """Return the suspected rates, or None with fewer than three clients whose labels were compared."""
    clients = sorted(client for client in answers if answers[client].groups.sum() > 0)
    if len(clients) < MIN_CLIENTS:
        return None
    rows = np.array([answers[client].rows for client in clients], np.float64)
    wrong = np.array([disagreeing_rows(answers[client]) for client in clients])
    most = wrong.sum(axis=1) / rows.sum(axis=1)
    least = _beyond_the_cleanest(rows, wrong)
    weights = rows.sum(axis=1) / rows.sum()
    rates = {client: (float(low), float(high)) for client, low, high in zip(clients, least, most, strict=True)}
    return LabelNoise.of(float(weights @ least), float(weights @ most), rates)


def disagreeing_rows(own: Agreement) -> Values:
    """Return how many of a client's rows of each class disagree, shape `(num_classes,)`."""
    groups = own.groups - own.agreeing
    estimated = np.maximum(groups - (1 - SHARED) * ((groups > 0) & (own.agreeing > 0)), 0.0)
    return np.asarray(estimated * own.rows / np.maximum(own.groups, 1))


def _beyond_the_cleanest(rows: Values, wrong: Values) -> Values:
    """Return ρ of each client, `(clients,)`; the arguments are `(clients, classes)`."""
    num_classes = int((rows.sum(axis=0) > 0).sum())
    usual = rows @ (wrong.sum(axis=0) / np.maximum(rows.sum(axis=0), 1)) / rows.sum(axis=1)
    found = wrong.sum(axis=1) / rows.sum(axis=1)
    cleanest = float(np.quantile(found - usual, CLEANEST_QUANTILE))
    base = np.clip(usual + min(cleanest, 0.0), 0.0, found)
    informative = 1 - base * num_classes / max(num_classes - 1, 1)
    beyond = np.where(informative > 0, (found - base) / np.maximum(informative, 1e-9), 0.0)
    return np.asarray(np.minimum(beyond, found))
