"""What the rules say of who trains: nothing where all clients do, and time where some devices are slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedscout.search.recommenders.diagnosis import RecommendationContext
from fedscout.search.recommenders.rules import SLOW_RATIO, recommend_by_rules, selection_notes
from tests.search.recommenders.reports import diagnosis_of


@pytest.mark.parametrize(
    ("ratio", "selection", "named"),
    [
        (None, None, "random, oort and flash"),
        (SLOW_RATIO - 0.1, None, "noise"),
        (SLOW_RATIO, None, "selection.kind=oort or pyramidfl"),
        (9.0, None, "9 times"),
        (9.0, "flash", "selection.kind=oort or pyramidfl"),
        (9.0, "oort", "selection.kind=oort, as set"),
        (9.0, "pyramidfl", "selection.kind=pyramidfl, as set"),
    ],
)
def test_time_counts_where_somebody_is_slow_and_what_is_set_is_not_advised(
    situation_of: Callable[..., RecommendationContext], ratio: float | None, selection: str | None, named: str
) -> None:
    whole = situation_of(diagnosis_of(num_classes=3).model_copy(update={"speed_ratio": ratio}), selection=selection)
    assert [*selection_notes(whole)] == []
    cohort = replace(whole.cohort, num_sampled=whole.cohort.num_clients - 1)
    sampled = replace(whole, space=replace(whole.space, cohort=cohort))
    (note,) = selection_notes(sampled)
    assert named in note
    assert note in recommend_by_rules(sampled).notes
