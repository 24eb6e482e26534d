"""What the rules say where labels may be wrong: what was measured, and nothing where few can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedscout.search.recommenders.label_noise_advice import MANY_WRONG, label_noise_notes
from fedscout.search.recommenders.recommendation import Situation
from fedscout.search.recommenders.rules import recommend_by_rules
from tests.search.recommenders.reports import diagnosis_of


@pytest.mark.parametrize("most", [None, 0.0, MANY_WRONG - 0.01])
def test_nothing_is_said_where_few_labels_can_be_wrong(
    situation_of: Callable[..., Situation], most: float | None
) -> None:
    diagnosis = diagnosis_of().model_copy(update={"wrong_labels": most})
    assert [*label_noise_notes(situation_of(diagnosis))] == []


def test_what_was_measured_is_told_and_changes_no_proposal(situation_of: Callable[..., Situation]) -> None:
    plain = situation_of(diagnosis_of())
    noisy = situation_of(diagnosis_of().model_copy(update={"wrong_labels": 0.392}))
    (note,) = label_noise_notes(noisy)
    assert note.startswith("Up to 39 % of the labels may be wrong.")
    advised, usual = recommend_by_rules(noisy), recommend_by_rules(plain)
    assert advised.notes == (note, *usual.notes)
    assert (advised.spec, advised.grounds) == (usual.spec, usual.grounds)
