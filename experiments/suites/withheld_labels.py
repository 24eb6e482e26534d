"""False alarms and power of calibrated label skew where clients withhold the counts of small classes.

Label counts are drawn, passed through the release of clients (`fedscout.engine.data.release`), and decided on as in a
detection with its default settings. In one half of the federations all clients draw from one distribution; any finding
is a false alarm, and its rate is to be at most that of one detector. In the other half they do not: by

- Dirichlet: each client's distribution of five classes is drawn from a symmetric Dirichlet distribution;
- one client: the first draws two classes evenly, all others 95 and 5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.skew.calibrated_label_skew import decide_label_skew_calibrated
from fedscout.detectors.skew.label_skew import ReleasedCounts
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.release import Release, told_counts
from fedscout.engine.seeds import stream
from fedscout.experiments.grids.cells import CellContext, Measured, together
from fedscout.experiments.grids.experiment import Experiment
from fedscout.experiments.grids.methods import Given

SHARES: Final[Mapping[str, tuple[float, ...]]] = {
    "two classes, 0.5 %": (0.995, 0.005),
    "two classes, 2 %": (0.98, 0.02),
    "two classes, 5 %": (0.95, 0.05),
    "five classes, 2 %": (0.4, 0.3, 0.2, 0.08, 0.02),
}
SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    **{f"{clients} × 30": (30,) * clients for clients in (3, 6, 20, 50)},
    **{f"{rows} and 5 × 1,000": (rows, *[1000] * 5) for rows in (15, 25)},
}
CONCENTRATIONS: Final = (0.1, 0.3, 1.0)
NUM_CLASSES: Final = 5

Draw = Callable[[np.random.Generator, int, int], IntArray]
"""Returns label counts, `(classes,)`, of a client by its place and its number of rows."""


def released_counts(table: IntArray, min_release: int) -> ReleasedCounts:
    """Return what clients tell of their label counts, `(clients, classes)`, of at least `min_release` rows each."""
    least = np.full(len(table), min_release)
    return ReleasedCounts(
        tuple(range(len(table))), told_counts(table, min_release).astype(np.int64), table.sum(axis=1), least
    )


def found_skew(
    labels: str, sizes: str, draw: Draw, federations: int, min_release: int, seed: int = 0
) -> tuple[tuple[float, ...], float]:
    """Return in which federations label skew is found, 1 or 0, and the mean share of rows whose class is withheld.

    Args:
        labels: How labels are drawn, by name.
        sizes: Numbers of rows, by name.
        draw: Of a client.
        federations: How many.
        min_release: Fewest rows of a class of which a client tells.
        seed: Of the draws.
    """
    settings = DetectionConfig()
    found, withheld = [], 0.0
    for index in range(federations):
        generator = stream(seed, f"withheld labels: {labels}, {sizes}", index)
        table = np.stack([draw(generator, client, rows) for client, rows in enumerate(SIZES[sizes])])
        released = released_counts(table, min_release)
        withheld += 1 - released.share_told
        decided = decide_label_skew_calibrated(released, settings.detector_rate, settings.label_effect, index)
        found.append(float(decided.detected))
    return tuple(found), withheld / federations


def from_shares(shares: tuple[float, ...]) -> Draw:
    """Return the draw of clients that are alike."""
    return lambda generator, _, rows: generator.multinomial(rows, shares)


def by_dirichlet(concentration: float) -> Draw:
    """Return the draw of clients each of which has a distribution of its own."""
    alpha = np.full(NUM_CLASSES, concentration)
    return lambda generator, _, rows: generator.multinomial(rows, generator.dirichlet(alpha))


def one_client(generator: np.random.Generator, client: int, rows: int) -> IntArray:
    """Draw as all clients but the first do, or as that one."""
    return np.asarray(generator.multinomial(rows, (0.95, 0.05) if client else (0.5, 0.5)))


DRAWS: Final[Mapping[str, Draw]] = {
    **{labels: from_shares(shares) for labels, shares in SHARES.items()},
    **{f"Dirichlet {value:g}": by_dirichlet(value) for value in CONCENTRATIONS},
    "one client": one_client,
}


@dataclass(frozen=True)
class WithheldLabels:
    """Label skew found by how labels are drawn (rows: `labels`, `min_release`) and by clients' rows (columns)."""

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Draw as many federations as there are seeds of clients that are alike, and a quarter as many of others."""
        parts = []
        for row, method in experiment.rows.items():
            assert isinstance(method, Given)
            labels, least = method.arguments["labels"], method.arguments.get("min_release", Release().min_release)
            count = context.num_seeds if labels in SHARES else max(1, context.num_seeds // 4)
            for sizes in experiment.federations:
                context.note(f"{row} × {sizes}")
                found, withheld = found_skew(labels, sizes, DRAWS[labels], count, least)
                cell = row, sizes
                parts.append(Measured({cell: found}, figures={"share of rows withheld": {cell: (withheld,)}}))
        return together(parts)
