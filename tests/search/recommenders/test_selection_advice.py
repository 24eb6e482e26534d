"""What the rules say of who trains: nothing where all clients do, and time where some devices are slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedscout.search.recommenders.diagnosis import RecommendationContext
from fedscout.search.recommenders.rules import SLOW_RATIO, recommend_by_rules, selection_notes
from tests.search.recommenders.reports import diagnosis_of


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (None, "Only random choice, oort and flash were varied over rates, with FedAvg"),
        (SLOW_RATIO - 0.1, "neither beat random choice beyond noise"),
        (SLOW_RATIO, "selection.kind=oort or pyramidfl"),
        (9.0, "the slowest takes 9 times as long"),
    ],
)
def test_time_counts_where_somebody_is_slow(
    situation_of: Callable[..., RecommendationContext], ratio: float | None, says: str
) -> None:
    whole = situation_of(diagnosis_of(num_classes=3).model_copy(update={"speed_ratio": ratio}))
    assert [*selection_notes(whole)] == []
    cohort = replace(whole.cohort, num_sampled=whole.cohort.num_clients - 1)
    sampled = replace(whole, space=replace(whole.space, cohort=cohort))
    (note,) = selection_notes(sampled)
    assert says in note
    assert note in recommend_by_rules(sampled).notes


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (None, "selection.kind=oort or pyramidfl is worth more"),
        ("flash", "selection.kind=oort or pyramidfl is worth more"),
        ("oort", "selection.kind=oort, as is set, is worth more"),
        ("pyramidfl", "selection.kind=pyramidfl, as is set, is worth more"),
    ],
)
def test_what_is_set_already_is_not_advised(
    situation_of: Callable[..., RecommendationContext], selection: str | None, says: str
) -> None:
    whole = situation_of(diagnosis_of(num_classes=3).model_copy(update={"speed_ratio": 9.0}), selection=selection)
    cohort = replace(whole.cohort, num_sampled=whole.cohort.num_clients - 1)
    (note,) = selection_notes(replace(whole, space=replace(whole.space, cohort=cohort)))
    assert says in note
