"""What the rules say of who trains, where not all clients do in a round: by what `fedscout bench selection` measured.

On digits over 50 clients, 10 a round, under skewed clients, wrong labels and both (docs/selection.md): with random
choice accuracy rises by 2.7 to 2.8 points from one client rate to the best one, and between FedAvg and the best
aggregation lie 0.5 to 1.2 points. Only random choice, Oort and FLASH were varied over rates, with FedAvg: each at its
best rate, neither of the two is ahead of random choice beyond noise. So step sizes matter more. Where
devices are slow for good, Oort and PyramidFL take 0.3 to 0.4 of the time to 90 % of what random choice reaches, and end
0.7 to 1.9 points below it, with FedAvg as with SCAFFOLD.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedscout.search.recommenders.recommendation import Situation

SLOW_RATIO = 2.0
"""From here on speed counts: the slowest client takes so many times as long as the median one. The measured federation
has 8."""

QUICK = ("oort", "pyramidfl")
"""Policies that spare slow clients, and gain most where devices are slow for good."""


def selection_notes(situation: Situation) -> Iterator[str]:
    """Yield what is known of who should train, a sentence; nothing where all clients do."""
    cohort, diagnosis = situation.cohort, situation.diagnosis
    if cohort.num_sampled == cohort.num_clients:
        return
    ratio = None if diagnosis is None else diagnosis.speed_ratio
    few = f"{cohort.num_sampled} of {cohort.num_clients} clients train in a round"
    if ratio is not None and ratio >= SLOW_RATIO:
        is_set = situation.selection in QUICK
        quick = f"selection.kind={situation.selection}, as is set," if is_set else "selection.kind=oort or pyramidfl"
        yield (
            f"{few}, and the slowest takes {ratio:.3g} times as long as the median one: where time counts, {quick} is "
            "worth more than another aggregation; for the last points of accuracy random choice was ahead "
            "(docs/selection.md)."
        )
    else:
        yield (
            f"{few}: in `fedscout bench selection` the clients' rate was worth more than how models are aggregated or "
            "who trains. Only random choice, oort and flash were varied over rates, with FedAvg: each at its best, "
            "neither beat random choice beyond noise (docs/selection.md)."
        )
