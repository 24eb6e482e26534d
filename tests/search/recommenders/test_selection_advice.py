"""What the rules say of who trains: nothing where all clients do, and time where some devices are slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedscout.search.recommenders.diagnosis import RecommendationContext
from fedscout.search.recommenders.rules import SLOW_RATIO, recommend_by_rules, selection_notes
from tests.search.recommenders.reports import diagnosis_of


def test_time_counts_where_somebody_is_slow_and_what_is_set_already_is_not_advised(
    situation_of: Callable[..., RecommendationContext],
) -> None:
    def note(ratio: float | None, selection: str | None = None) -> str:
        whole = situation_of(diagnosis_of(num_classes=3, speed_ratio=ratio), selection=selection)
        assert [*selection_notes(whole)] == []
        cohort = replace(whole.cohort, num_sampled=whole.cohort.num_clients - 1)
        sampled = replace(whole, space=replace(whole.space, cohort=cohort))
        (told,) = selection_notes(sampled)
        assert told in recommend_by_rules(sampled).notes
        return told

    assert note(None) == note(SLOW_RATIO - 0.1) != note(SLOW_RATIO) != note(9.0)
    assert note(9.0) == note(9.0, "flash")
    assert len({note(9.0, selection) for selection in ("flash", "oort", "pyramidfl")}) == 3
