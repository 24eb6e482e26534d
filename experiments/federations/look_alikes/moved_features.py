"""Feature shift as it was diagnosed, on features that are others: each client's rows moved, stretched and blurred.

With M the mean of all proxy rows and σ_j the standard deviation of feature j within classes, a row x of client k
becomes

    M + scale (x − M) + σ ∘ (√d U t_k + noise · z),    z ~ N(0, I).

t_k is the client's shift on the axes that all clients share (`fedscout.detectors.skew.client_features`), U as many
random orthonormal directions of the proxy's d features that vary within a class, drawn by seed: so clients lie as far
from each other as the diagnosed ones, root mean square over features, and those that are shifted together stay
together. Which columns are shifted, a report does not say. With spread w and gain g over those of the median client,
scale = min(g, w) and noise = √(w² − scale²): features times a factor have g = w, noise has g = 1 < w. Where a client
tells of one class alone, g is w. Shifts are divided by the median spread, as the unit of the report is everyone's
deviation, which wide clients enlarge.

What differs by less than `NOTICED`, or by less than chance may bring to so few rows, is left alone, and so are clients
whose labels are wrong: these move class means, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedscout.detectors.report import ClientFeatures
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.look_alikes.diagnosed import Diagnosed, usual_spread_and_gain

NOTICED = 0.1
LARGEST = 1e3
"""Shifts, spreads and gains beyond count as this: no float32 overflows by what a file says."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MovedFeatures:
    """Moves, stretches and blurs every row.

    Attributes:
        shift: Root mean square over features, in standard deviations within a class.
        scale: Of distances from the mean of all rows.
        noise: Standard deviation of what is added to each number, in those within a class.
        centre, offset, unit: Mean of all rows, what is added to each, and the deviations, shape `(features,)`.
    """

    shift: float
    scale: float
    noise: float
    centre: Values = field(repr=False)
    offset: Values = field(repr=False)
    unit: Values = field(repr=False)

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return other features and the same labels."""
        flat = features.reshape(len(features), -1)
        moved = self.centre + self.scale * (flat - self.centre) + self.offset
        if self.noise:
            moved += self.noise * self.unit * generator.standard_normal(flat.shape)
        return moved.astype(np.float32).reshape(features.shape), labels.copy()


def moved_features(diagnosed: Diagnosed, proxy: Dataset, generator: np.random.Generator) -> dict[int, MovedFeatures]:
    """Return what is done to the rows of each client that differs noticeably.

    Args:
        diagnosed: What is to be reproduced.
        proxy: Whose rows are dealt.
        generator: Draws the directions.
    """
    told = {client: own for client, own in diagnosed.features.items() if not diagnosed.wrong[client]}
    if not told:
        return {}
    centre, unit = _centre_and_unit(proxy)
    num_axes = min(max(len(own.shift) for own in told.values()), int(np.count_nonzero(unit)))
    directions = np.zeros((len(unit), num_axes))
    if num_axes:
        varying = np.flatnonzero(unit)
        drawn, _ = np.linalg.qr(generator.standard_normal((len(varying), num_axes)))
        directions[varying] = drawn * np.sqrt(len(varying))
    usual = usual_spread_and_gain([*told.values()])
    moves = {}
    for client, own in told.items():
        shift = _shift(own, num_axes) / usual[0]
        by_chance = 1 / float(np.sqrt(diagnosed.num_rows[client]))
        scale, noise = _scale_and_noise(own, usual, max(NOTICED, 2 * by_chance))
        length = float(np.linalg.norm(shift))
        if length < max(NOTICED, by_chance):
            length, shift = 0.0, np.zeros(num_axes)
        if length or scale != 1 or noise:
            moves[client] = MovedFeatures(length, scale, noise, centre, unit * (directions @ shift), unit)
    return moves


def _shift(own: ClientFeatures, num_axes: int) -> Values:
    """Return the shift on the leading axes, of the length of all of it."""
    whole = np.clip(np.array(own.shift, np.float64), -LARGEST, LARGEST)
    kept = np.zeros(num_axes)
    kept[: min(num_axes, len(whole))] = whole[:num_axes]
    length = float(np.linalg.norm(kept))
    return kept * (float(np.linalg.norm(whole)) / length) if length else kept


def _scale_and_noise(own: ClientFeatures, usual: tuple[float, float], noticed: float) -> tuple[float, float]:
    spread = 1.0 if own.spread is None else own.spread / usual[0]
    gain = spread if own.gain is None else max(own.gain / usual[1], 0.0)
    spread, gain = (1.0 if abs(each - 1) < noticed else min(each, LARGEST) for each in (spread, gain))
    scale = min(gain, spread)
    return scale, float(np.sqrt(max(spread**2 - scale**2, 0.0)))


def _centre_and_unit(proxy: Dataset) -> tuple[Values, Values]:
    """Return the mean of all rows and the standard deviation within classes, shape `(features,)`."""
    flat = proxy.features.reshape(proxy.num_rows, -1)
    squares = np.zeros(flat.shape[1])
    for label in range(proxy.num_classes):
        own = flat[proxy.labels == label].astype(np.float64)
        squares += ((own - own.mean(axis=0)) ** 2).sum(axis=0)
    unit = np.sqrt(squares / max(proxy.num_rows - proxy.num_classes, 1))
    return flat.mean(axis=0, dtype=np.float64), np.where(unit > 1e-6 * unit.max(initial=0.0), unit, 0.0)
