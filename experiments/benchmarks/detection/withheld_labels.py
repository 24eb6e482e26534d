"""False alarms and power of calibrated label skew where clients withhold the counts of small classes.

Label counts are drawn, passed through the release of clients (`fedscout.engine.data.release`), and decided on as in a
detection with its default settings. In one half of the federations all clients draw from one distribution; any finding
is a false alarm, and its rate is to be at most that of one detector. In the other half they do not: by

- Dirichlet: each client's distribution of five classes is drawn from a symmetric Dirichlet distribution;
- one client: the first draws two classes evenly, all others 95 and 5 %.

Upper ends are those of the 95 % interval of C. J. Clopper and E. S. Pearson. The use of confidence or fiducial limits
illustrated in the case of the binomial. Biometrika 26(4), 1934.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.skew.calibrated_label_skew import decide_label_skew_calibrated
from fedscout.detectors.skew.label_skew import ReleasedCounts
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.release import Release, told_counts
from fedscout.engine.seeds import stream
from fedscout.experiments.reports.markdown_table import markdown_table

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
FEDERATIONS: Final = 400
"""Of like clients, of each kind; of unlike ones a quarter as many."""

Draw = Callable[[np.random.Generator, int, int], IntArray]
"""Returns label counts, `(classes,)`, of a client by its place and its number of rows."""


class Alarms(BaseModel, frozen=True):
    """Findings of label skew in federations of one kind.

    Attributes:
        labels: How labels are drawn.
        sizes: Numbers of rows.
        skewed: Whether clients differ.
        min_release: Fewest rows of a class of which a client tells.
        found: Federations with a finding.
        federations: All of them.
        share_withheld: Share of rows whose class is withheld, on average.
    """

    labels: str
    sizes: str
    skewed: bool
    min_release: int
    found: int
    federations: int
    share_withheld: float

    @property
    def upper(self) -> float:
        """Upper end of the 95 % interval of the rate."""
        from scipy.stats import binomtest

        return float(binomtest(self.found, self.federations).proportion_ci(method="exact").high)


def released_counts(table: IntArray, min_release: int) -> ReleasedCounts:
    """Return what clients tell of their label counts, `(clients, classes)`, of at least `min_release` rows each."""
    least = np.full(len(table), min_release)
    return ReleasedCounts(
        tuple(range(len(table))), told_counts(table, min_release).astype(np.int64), table.sum(axis=1), least
    )


def count_alarms(
    labels: str, sizes: str, draw: Draw, federations: int, min_release: int, skewed: bool, seed: int = 0
) -> Alarms:
    """Return in how many federations label skew is found; see `Alarms` for the arguments."""
    settings = DetectionConfig()
    found, withheld = 0, 0.0
    for index in range(federations):
        generator = stream(seed, f"withheld labels: {labels}, {sizes}", index)
        table = np.stack([draw(generator, client, rows) for client, rows in enumerate(SIZES[sizes])])
        released = released_counts(table, min_release)
        withheld += 1 - released.share_told
        found += decide_label_skew_calibrated(released, settings.detector_rate, settings.label_effect, index).detected
    return Alarms(
        labels=labels,
        sizes=sizes,
        skewed=skewed,
        min_release=min_release,
        found=found,
        federations=federations,
        share_withheld=withheld / federations,
    )


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


def withheld_alarms(federations: int = FEDERATIONS, note: Callable[[str], None] = lambda _: None) -> list[Alarms]:
    """Count findings of all kinds of federations, of skewed ones where all is told as well.

    Args:
        federations: Of like clients, of each kind.
        note: Told what is next.
    """
    least, few = Release().min_release, max(1, federations // 4)
    unlike = {f"Dirichlet {value:g}": by_dirichlet(value) for value in CONCENTRATIONS} | {"one client": one_client}
    kinds = [(labels, from_shares(shares), federations, least, False) for labels, shares in SHARES.items()]
    kinds += [(labels, draw, few, told, True) for labels, draw in unlike.items() for told in (least, 1)]
    alarms = []
    for labels, draw, number, min_release, skewed in kinds:
        for sizes in SIZES:
            note(f"{labels}, {sizes}, min_release={min_release}")
            alarms.append(count_alarms(labels, sizes, draw, number, min_release, skewed))
    return alarms


def table_lines(alarms: list[Alarms]) -> Iterator[str]:
    """Yield the result as Markdown."""
    like = [one for one in alarms if not one.skewed]
    unlike = [one for one in alarms if one.skewed]
    rate = DetectionConfig().detector_rate
    yield f"False alarms of label skew where clients are alike, of which {rate:.2%} are allowed, and upper ends of 95 %"
    yield f"intervals; {like[0].federations} federations of each kind:"
    yield ""
    yield from _by_sizes(like, lambda one: f"{one.found / one.federations:.1%}, ≤ {one.upper:.1%}")
    yield ""
    yield f"Label skew found, {unlike[0].federations} federations of each kind:"
    yield ""
    yield from _by_sizes(unlike, lambda one: f"{one.found / one.federations:.0%}")
    yield ""
    yield "Rows whose class is withheld:"
    yield ""
    yield from _by_sizes([one for one in alarms if one.min_release > 1], lambda one: f"{one.share_withheld:.1%}")


def _by_sizes(alarms: list[Alarms], cell: Callable[[Alarms], str]) -> list[str]:
    rows: dict[tuple[str, int], list[str]] = {}
    for one in alarms:
        rows.setdefault((one.labels, one.min_release), []).append(cell(one))
    return markdown_table(["labels", "min_release", *SIZES], [[*kind, *cells] for kind, cells in rows.items()])


def alarms_document(alarms: list[Alarms]) -> dict[str, Any]:
    """Return the result for `--json`."""
    return {"withheld_labels": [{**one.model_dump(), "upper": one.upper} for one in alarms]}
