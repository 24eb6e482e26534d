"""The published table of advice: by how rows were dealt where that is known, else by what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedscout.search.objective import DataOrigin
from fedscout.search.recommenders.diagnosis import RecommendationContext, Severity
from fedscout.search.recommenders.rules import advice_for, recommend_by_rules
from fedscout.strategies import BUILT_IN_KINDS, FedProxSpec
from tests.search.recommenders.reports import diagnosis_of

SituationOf = Callable[..., RecommendationContext]
PROX = FedProxSpec(proximal_mu=0.01)
AVERAGE, BOTH, PROXIMAL = ["fedavg", "communities"], ["fedavg", "communities", "fedprox"], ["fedprox"]

DEALT: dict[str, tuple[DataOrigin, list[str]]] = {
    "IID": (DataOrigin("digits", "iid"), AVERAGE),
    "20, as documented": (DataOrigin("digits", "dirichlet", alpha=1.0), BOTH),
    "50, as documented": (DataOrigin("digits", "dirichlet", alpha=0.5), BOTH),
    "90, as documented": (DataOrigin("digits", "dirichlet", alpha=0.1), PROXIMAL),
    "90, as in the code": (DataOrigin("digits", "classes_per_client", class_share=0.9), AVERAGE),
    "50, as in the code": (DataOrigin("digits", "classes_per_client", class_share=0.5), BOTH),
    "20, as in the code": (DataOrigin("digits", "classes_per_client", class_share=0.2), PROXIMAL),
    "FEMNIST": (DataOrigin("leaf_femnist", "natural"), PROXIMAL),
    "Shakespeare": (DataOrigin("leaf_shakespeare", "natural"), PROXIMAL),
    "FEMNIST at random": (DataOrigin("leaf_femnist", "iid"), AVERAGE),
}


def kinds(data_origin: DataOrigin | None, severity: Severity | None) -> list[str]:
    advice = advice_for(data_origin, severity)
    return [] if advice is None else [spec.kind for spec in advice.specs]


@pytest.mark.parametrize("severity", [None, "none", "low", "high"])
@pytest.mark.parametrize("name", DEALT)
def test_what_is_known_decides_whatever_was_measured(name: str, severity: Severity | None) -> None:
    data_origin, expected = DEALT[name]
    assert kinds(data_origin, severity) == expected


@pytest.mark.parametrize(
    "data_origin",
    [None, DataOrigin("hospitals.csv", "natural"), DataOrigin("digits", "quantity_skew"), DataOrigin("digits", "lds")],
)
def test_what_the_table_does_not_name_is_left_to_the_measurement(data_origin: DataOrigin | None) -> None:
    severities: tuple[Severity | None, ...] = (None, "none", "low", "high")
    assert [kinds(data_origin, severity) for severity in severities] == [[], AVERAGE, BOTH, PROXIMAL]


def test_mu_begins_at_a_hundredth() -> None:
    for data_origin, expected in DEALT.values():
        assert (PROX in advice_for(data_origin, None).specs) == ("fedprox" in expected)


def test_a_recommendation_names_the_advice_and_says_what_it_goes_by(situation_of: SituationOf) -> None:
    """Labels look alike, as where clients hold few rows; the roles of Shakespeare are not."""
    measured: dict[str, Any] = {"diagnosis": diagnosis_of(label_skew="none", num_classes=65)}
    (by_measurement,) = recommend_by_rules(situation_of(**measured)).alternatives
    (by_data_set,) = recommend_by_rules(
        situation_of(**measured, data_origin=DataOrigin("leaf_shakespeare", "natural"))
    ).alternatives
    assert by_measurement.spec.kind == "fedavg"
    assert "measured" in by_measurement.explanation
    assert by_data_set.spec == PROX
    assert "natural clients of leaf_shakespeare" in by_data_set.explanation


def test_communities_stand_beside_fedavg_where_they_can_be_chosen(situation_of: SituationOf) -> None:
    data_origin = DataOrigin("digits", "iid")
    named = situation_of(diagnosis_of(), kinds=(*BUILT_IN_KINDS, "communities"), data_origin=data_origin)
    assert [each.spec.kind for each in recommend_by_rules(named).alternatives] == AVERAGE
    usual = situation_of(diagnosis_of(), data_origin=data_origin)
    assert [each.spec.kind for each in recommend_by_rules(usual).alternatives] == ["fedavg"]
