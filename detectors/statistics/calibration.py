"""What the calibrated decisions share: p-values corrected over clients, and how they are put into words.

The published rules compare a value with a fixed threshold, so how often they raise a false alarm depends on the number
of clients, their sizes and the data. A calibrated decision asks how likely it is that clients whose data are alike
differ as much as these: its false-alarm rate is chosen and holds for the whole federation. A client is flagged if that
probability is at most the rate *and* its effect, how much it differs in a unit of its own, reaches a minimum: with
many rows a difference may be certain and yet too small to matter.

The rate of a federation is divided equally among the detectors (Bonferroni), so that a federation of like clients is
called anything at all with at most this probability. Within a detector p-values are corrected over clients by

    S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6(2), 1979,

or by the distribution of the largest statistic of all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedscout.detectors.report import (
    TITLES,
    CalibratedFinding,
    ClientEvidence,
    DetectorName,
    EvidenceSource,
    FeatureShift,
    yes_no,
)
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.data.names import UNNAMED, Names


def holm(p_values: Values) -> Values:
    """Return p-values corrected by Holm's method, in the order given."""
    order = np.argsort(p_values, kind="stable")
    count = len(p_values)
    stepped = np.maximum.accumulate(p_values[order] * np.arange(count, 0, -1))
    corrected = np.empty(count)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def moment_matched_tail(values: Values, mean: float, variance: float, third: float) -> Values:
    """Return P(Q >= value) of a positive sum of squares Q by a shifted, scaled χ² of the same three moments.

    The approximation of E. S. Pearson. Note on an approximation to the distribution of non-central χ². Biometrika
    46(3/4), 1959, for quadratic forms: a + c χ²_f, c = κ₃/(4 κ₂), f = κ₂/(2 c²), a = κ₁ − c f.

    Args:
        values: Of Q.
        mean: κ₁.
        variance: κ₂, > 0.
        third: κ₃, the third central moment, > 0.
    """
    from scipy.stats import chi2

    scale = third / (4 * variance)
    freedom = variance / (2 * scale**2)
    return np.asarray(chi2.sf((values - (mean - scale * freedom)) / scale, freedom))


@dataclass(frozen=True)
class ClientTest:
    """What one test says of each client.

    Attributes:
        p_values: Corrected over clients.
        effects: In the test's own unit.
        classes: In which classes a client differs most, where that is known.
        source: What the test compares.
        words: The same for people.
        features: In which features a client differs most, likewise.
        share: Of the detector's rate, in `(0, 1]`; None where all its tests have equal parts.
    """

    p_values: Mapping[int, float]
    effects: Mapping[int, float]
    classes: Mapping[int, tuple[int, ...]]
    source: EvidenceSource
    words: str
    features: Mapping[int, tuple[FeatureShift, ...]] = field(default_factory=dict)
    share: float | None = None

    def evidence(self, client: int, num_tests: int, rate: float, min_effect: float) -> ClientEvidence:
        """Return what it has on a client as one of several tests, each of which gets its share of the rate."""
        tests = num_tests if self.share is None else 1 / self.share
        p_value, effect = min(1.0, tests * self.p_values[client]), self.effects[client]
        found = p_value <= rate and effect >= min_effect
        return ClientEvidence(
            source=self.source,
            p_value=p_value,
            effect=effect,
            flagged=found,
            classes=self.classes.get(client, ()) if found else (),
            features=self.features.get(client, ()) if found else (),
        )


def by_client(clients: Iterable[int], values: Values) -> dict[int, float]:
    """Return each client's value."""
    return dict(zip(clients, values.tolist(), strict=True))


def decide(
    name: DetectorName,
    tests: Sequence[tuple[ClientTest, float]],
    rate: float,
    describe: Callable[[int, ClientEvidence, Names], str],
    remark: str = "",
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Return the finding that follows from tests; of several on a client the one that says most counts.

    Args:
        name: The detector.
        tests: At least one, which knows at least one client, each with the smallest effect that flags.
        rate: False-alarm rate of this detector.
        describe: Says how a client differs.
        remark: Further sentences.
        names: Of clients, classes and features, for the sentence.
    """
    evidence: dict[int, ClientEvidence] = {}
    for client in sorted({client for test, _ in tests for client in test.effects}):
        known = [test.evidence(client, len(tests), rate, least) for test, least in tests if client in test.effects]
        evidence[client] = min(known, key=standing)
    flagged = tuple(client for client, own in evidence.items() if own.flagged)
    leader = min(evidence, key=lambda client: standing(evidence[client]))
    leading = evidence[leader]
    sentence = (
        f"{TITLES[name]}, calibrated: {yes_no(bool(flagged))}. {describe(leader, leading, names)} "
        f"({p_text(leading.p_value)}, significance level {rate:.2g})."
    )
    if flagged:
        sentence += f" Flagged: {names.some_clients(flagged)}."
    return CalibratedFinding(
        name=name,
        rate=rate,
        method=", ".join(test.words for test, _ in tests),
        p_value=leading.p_value,
        effect=leading.effect,
        detected=bool(flagged),
        flagged_clients=flagged,
        clients=evidence,
        sentence=f"{sentence} {remark}".strip(),
    )


def standing(evidence: ClientEvidence) -> tuple[bool, float, float]:
    """Return by what clients are ordered: flagged ones first, then by p-value, then by effect."""
    return not evidence.flagged, evidence.p_value, -evidence.effect


def p_text(p_value: float) -> str:
    """Return `p = 0.012`, or a bound where digits say nothing more."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def largest(values: Values, limit: float, count: int) -> tuple[int, ...]:
    """Return the positions of up to `count` largest values above `limit`, the largest first."""
    order = np.argsort(-values, kind="stable")[:count]
    return tuple(int(position) for position in order if values[position] > limit)
