"""Synthetic proxy rows, for who has none: normal rows of each class, by what clients tell of themselves.

Clients are asked what the detectors ask them: sums of their features over all rows and by class, of which the gate lets
out nothing over fewer than `federation.min_release` rows. A row of class c is drawn from

    N(M_c, W),

M_c being the mean of the rows of the class that were told, W the covariance within classes: the model of a linear
discriminant. So classes differ by their means alone, and a table tuned on such rows is as good as that holds. Every
class that was told of has near-equal numbers of rows.

No row leaves a client, but sums over its rows do, test rows included: with synthetic rows it is not so that nothing
about the clients' data goes back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.detectors.conversation import hold
from fedscout.detectors.detection.feature_exchanges import ask_moments
from fedscout.detectors.skew.calibrated_feature_skew import within_covariance
from fedscout.detectors.skew.class_sums import ClassMoments
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.server_data import ServerData
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.messages.session import Session
from fedscout.engine.seeds import stream
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.open_runner import open_runner


def synthetic_rows(federation: Federation, config: StudyConfig, num_rows: int) -> ServerData:
    """Ask the clients of a federation for their sums, and draw labelled rows by them.

    Raises:
        DataError: If rows are tokens, or clients tell too little.
    """
    if federation.facts.get("data_kind") == "tokens":
        raise DataError(Fault("--synthetic", "be left out for tokens, of which there is no mean"))
    clients = [client for client in range(federation.num_clients) if client not in federation.unseen]
    engine = config.engine.model_copy(update={"grid": "local"})
    by_features = replace(federation, embedding=None)  # of which no row could be drawn
    with open_runner(by_features, engine, None, parallel=1) as runner:
        told = hold(runner.grid(Session(seed=config.seed)), ask_moments(clients, config.detection.max_features))
    if told.pooled is None or np.count_nonzero(told.classes.pooled_counts) < 2:
        reason = told.notes[0] if told.notes else f"they tell of {np.count_nonzero(told.classes.pooled_counts)} classes"
        raise DataError(f"--synthetic needs clients that tell the sums of their features by class; {reason}")
    within = within_covariance(told.pooled, told.classes)
    rows, labels = draw_rows(told.classes, within, num_rows, stream(config.seed, "synthetic-rows"))
    return ServerData(rows.reshape(-1, *federation.features.shape[1:]).astype(np.float32), labels)


def draw_rows(
    classes: ClassMoments, within: Values, num_rows: int, generator: np.random.Generator
) -> tuple[Values, IntArray]:
    """Draw normal rows, shape `(num_rows, d)`, and their labels, shape `(num_rows,)`.

    Args:
        classes: Whose means, where anybody told of them.
        within: Covariance within classes, shape `(d, d)`; what rounding made negative of it counts as 0.
        num_rows: In all.
        generator: Draws them.
    """
    present = np.flatnonzero(classes.pooled_counts)
    labels = np.sort(present[np.arange(num_rows) % len(present)])
    variances, axes = np.linalg.eigh(within)
    root = axes * np.sqrt(np.maximum(variances, 0))
    noise = generator.standard_normal((num_rows, len(within))) @ root.T
    return classes.means[labels] + noise, labels.astype(np.int64)
