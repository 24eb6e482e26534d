"""What the rules say where many labels may be wrong: what terms that bound their pull were worth where it was measured.

On digits of which 40 % were wrong at all ten clients, FedAvg with both terms was 1.3 to 3.9 points above FedAvg, each
at its best client rate, and level with it where labels were right (docs/strategies.md). Where a part of the clients had
wrong labels, what it gained was what a longer step gains (docs/recommend.md), so nothing is proposed for these.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedscout.search.recommenders.recommendation import Situation

MANY_WRONG = 0.2
"""From here on labels count as noisy, half of what was measured."""


def label_noise_notes(situation: Situation) -> Iterator[str]:
    """Yield what was measured of losses for wrong labels, a sentence; nothing where few labels can be wrong."""
    diagnosis = situation.diagnosis
    most = None if diagnosis is None else diagnosis.wrong_labels
    if most is not None and most >= MANY_WRONG:
        yield (
            f"Up to {100 * most:.0f} % of the labels may be wrong. If so many are at all clients, "
            "training.pseudo_label_weight=1 training.reverse_weight=4 is worth a try: on digits of which 40 % were "
            "wrong everywhere FedAvg gained 1.3 to 3.9 points by it, each at its best client rate; where only some "
            "clients' were, no more than by a longer step (docs/recommend.md)."
        )
