"""How each client's rows lie in feature space, in a few numbers: enough to build a federation that looks like this one.

Nothing is asked for it: it follows from the sums that clients have told for the calibrated decision
(`fedscout.detectors.skew.class_sums`), of which the gate lets out nothing over fewer than `min_release` rows.

- **Shift.** a_k is the client's label-adjusted shift (`fedscout.detectors.skew.calibrated_feature_skew`) less the
  median client's, in standard deviations within a class, shape `(d,)`. It is told on at most `NUM_AXES` axes that all
  clients share, the leading right singular vectors of the matrix of all shifts, so that clients that are shifted
  together stay together, and a report of many features stays small. Chance adds 1/n to the mean square over features:
  each row of the matrix is shrunk to the client's effect, sqrt(max(|a_k|²/d − 1/n, 0)), and what is told has that
  length, whatever part of it lay off the axes.
- **Spread.** The root of the client's sum of squares about its own class means over what everyone's variances would
  give, both in standard deviations within classes.
- **Gain.** How far apart the client's class means m_c lie, over everyone's M_c: the slope of the regression of one on
  the other through their means, weighted by rows, all features together. Features times a factor change spread and
  gain alike, noise on features changes the spread alone.

With more than `SAMPLED_CLIENTS` clients the axes are those of the first so many.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fedscout.detectors.report import ClientFeatures
from fedscout.detectors.skew.calibrated_feature_skew import Shifts
from fedscout.detectors.skew.class_sums import ClassMoments
from fedscout.detectors.statistics.heterogeneity_metrics import Values

NUM_AXES: Final = 8
SAMPLED_CLIENTS: Final = 200


def client_features(shifts: Shifts, classes: ClassMoments, within: Values) -> tuple[ClientFeatures, ...]:
    """Return what is told of each client that was compared.

    Args:
        shifts: Of the clients.
        classes: The sums that they follow from; of one class, where rows were compared without regard to theirs.
        within: Covariance of rows that were compared, shape `(d, d)`.
    """
    weights = np.zeros(len(within))
    weights[shifts.features] = 1 / np.diag(within)[shifts.features]
    told = shared_axes(shifts)
    return tuple(
        ClientFeatures(
            client=client,
            shift=tuple(own.tolist()),
            spread=_spread(client, classes, weights),
            gain=_gain(client, classes, weights),
        )
        for client, own in zip(shifts.clients, told, strict=True)
    )


def shared_axes(shifts: Shifts) -> Values:
    """Return the clients' shifts on the axes that they share, as long as their effects, shape `(clients, axes)`."""
    centred = shifts.offsets - np.median(shifts.offsets, axis=0)
    squares = (centred**2).mean(axis=1)
    effects = np.sqrt(np.maximum(squares - shifts.by_chance, 0.0))
    shrunk = centred * np.divide(effects, np.sqrt(squares), out=np.zeros_like(effects), where=squares > 0)[:, None]
    _, sizes, axes = np.linalg.svd(shrunk[:SAMPLED_CLIENTS], full_matrices=False)
    leading = axes[:NUM_AXES][sizes[:NUM_AXES] > 1e-9 * max(float(sizes.max(initial=0.0)), 1e-9)]
    told = shrunk @ (leading * np.sign(leading[np.arange(len(leading)), np.abs(leading).argmax(axis=1)])[:, None]).T
    lengths = np.linalg.norm(told, axis=1)
    return np.asarray(told * np.divide(effects, lengths, out=np.zeros_like(effects), where=lengths > 0)[:, None])


def _spread(client: int, classes: ClassMoments, weights: Values) -> float | None:
    usual = float(np.maximum(classes.counts[client] - 1, 0) @ classes.variances @ weights)
    return float(np.sqrt(classes.spreads[client] @ weights / usual)) if usual > 0 else None


def _gain(client: int, classes: ClassMoments, weights: Values) -> float | None:
    counts = classes.counts[client]
    present = counts > 0
    if classes.own is None or np.count_nonzero(present) < 2:
        return None
    rows = counts[present][:, None]
    own = classes.own[client][present] / rows
    everyone = classes.means[present]
    own, everyone = (means - (rows * means).sum(axis=0) / rows.sum() for means in (own, everyone))
    apart = float((rows * everyone**2).sum(axis=0) @ weights)
    return float((rows * own * everyone).sum(axis=0) @ weights) / apart if apart > 0 else None
