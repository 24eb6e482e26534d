"""Which rule decides what, that it fits the federation, and that it explains itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedscout.search.recommenders import rules
from fedscout.search.recommenders.diagnosis import Diagnosis, RecommendationContext, SkewFinding
from fedscout.search.recommenders.rules import RULES, cut_of, recommend_by_rules
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, FedTrimmedAvgSpec, RealRange
from tests.search.recommenders.reports import diagnosis_of

SituationOf = Callable[..., RecommendationContext]
REPOSITORY = Path(__file__).resolve().parents[3]
SEVERITIES = (None, "none", "low", "high")
MANY_ROWS = 2000.0

CASES: dict[str, tuple[Diagnosis, dict[str, Any], str]] = {
    "no classes": (diagnosis_of(num_classes=0, median_rows=None, label_skew=None, feature_skew=None), {}, "fedavg"),
    "features of their own": (
        diagnosis_of(feature_skew="high", label_skew="high", outlier="high"),
        {"kinds": ("fedavg", "fedadam", "fedbn", "fedrep", "rfa", "fedmedian")},
        "fedbn",
    ),
    "poisoned updates": (
        diagnosis_of(outlier="high", clients_of_other_updates=(2,)),
        {"kinds": ("fedavg", "fedmedian", "fedrep", "rfa")},
        "rfa",
    ),
    "concepts of their own": (
        diagnosis_of(outlier="high"),
        {"kinds": ("fedavg", "fedmedian", "fedrep", "rfa")},
        "fedrep",
    ),
    "wrong labels at a fifth": (
        diagnosis_of(outlier="high", num_clients=4, outliers=(2,)),
        {"num_clients": 4},
        "fedmedian",
    ),
    "wrong labels, few classes": (diagnosis_of(outlier="high", num_classes=2), {}, "fedtrimmedavg"),
    "corrupted, clean view": (
        diagnosis_of(outlier="high", feature_skew="high", num_clients=4, outliers=(2,), other_inputs=(2,)),
        {"num_clients": 4, "view": "clean"},
        "fedmedian",
    ),
    "labels of their own": (diagnosis_of(label_skew="high"), {"kinds": ("fedavg", "fedadam", "fedrep")}, "fedrep"),
    "few steps": (diagnosis_of(label_skew="high"), {}, "fedadam"),
    "many classes": (diagnosis_of(label_skew="high", median_rows=MANY_ROWS), {}, "fedyogi"),
    "skewed labels": (diagnosis_of(label_skew="low", num_classes=3), {}, "fedavgm"),
    "other inputs": (
        diagnosis_of(outlier="high", feature_skew="high", num_classes=2, num_clients=4, other_inputs=(2,)),
        {"num_clients": 4},
        "fedavgm",
    ),
    "nothing to mend": (diagnosis_of(num_classes=2), {}, "fedavg"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rule_decides_its_case_and_says_why(situation_of: SituationOf, name: str) -> None:
    diagnosis, fields, kind = CASES[name]
    found = recommend_by_rules(situation_of(diagnosis, **fields))
    assert found.source == "rules"
    assert found.spec.kind == kind
    ground = found.reasons[0]
    assert (ground.rule, ground.applied) == (name, True)
    assert [reason.rule for reason in found.reasons[1:]] in ([], ["other federations"])
    assert ground.explanation.endswith(".")
    assert "arXiv" in ground.source


@pytest.mark.parametrize(
    ("labels", "features", "score", "kind"),
    [
        ("high", "none", 7.5, "rfa"),
        ("low", "none", 7.5, "rfa"),
        ("high", "none", 6.5, "fedrep"),
        ("none", "none", 7.5, "fedadam"),
        ("high", "high", 7.5, "fedrep"),
        ("high", "none", None, "fedrep"),
    ],
)
def test_under_label_skew_a_model_very_far_away_brings_the_geometric_median(
    situation_of: SituationOf, labels: Any, features: Any, score: float | None, kind: str
) -> None:
    diagnosis = diagnosis_of(labels, features, outlier_z_score=score)
    assert recommend_by_rules(situation_of(diagnosis, kinds=("fedavg", "fedadam", "fedrep", "rfa"))).spec.kind == kind


@pytest.mark.parametrize("name", ["features of their own", "concepts of their own", "labels of their own"])
def test_what_is_of_clients_own_is_not_proposed_where_clean_data_judge(situation_of: SituationOf, name: str) -> None:
    diagnosis, fields, kind = CASES[name]
    assert recommend_by_rules(situation_of(diagnosis, **fields, view="clean")).spec.kind != kind


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == set(CASES)


@pytest.mark.parametrize("text", [rules.__doc__, (REPOSITORY / "docs" / "recommend.md").read_text()])
def test_documents_list_the_rules_in_the_order_in_which_they_decide(text: str) -> None:
    table = text.split("| rule | applies to |")[1].split("\n\n", maxsplit=1)[0]
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("label_skew", "outlier", "num_classes", "kinds"),
    [
        ("low", "high", 2, {*BUILT_IN_KINDS} - {"fedmedian", "fedtrimmedavg"}),
        ("low", "high", 10, {*BUILT_IN_KINDS} - {"fedmedian", "fedtrimmedavg"}),
        ("none", "low", 2, {"fedavg"}),
    ],
    ids=["skewed labels, two classes", "skewed labels", "by the published rule alone"],
)
def test_not_every_outlier_brings_the_median(
    situation_of: SituationOf, label_skew: Any, outlier: Any, num_classes: int, kinds: set[str]
) -> None:
    diagnosis = diagnosis_of(label_skew, outlier=outlier, num_clients=4, num_classes=num_classes)
    assert recommend_by_rules(situation_of(diagnosis, num_clients=4)).spec.kind in kinds


@pytest.mark.parametrize(
    ("outliers", "num_sampled", "num_trimmed"),
    [
        *[((2,), 10, 1), ((2,), 5, 1), ((2,), 3, 1), ((2, 5), 10, 2), ((2, 5), 7, 2), ((0, 2, 5, 9), 10, 4)],
        ((0, 2, 5, 9), 3, 1),  # they may be two of three clients, of which one can be cut off at either end
    ],
)
def test_the_trimmed_mean_cuts_off_as_many_as_there_are_outliers_in_a_round(
    situation_of: SituationOf, outliers: tuple[int, ...], num_sampled: int, num_trimmed: int
) -> None:
    """Of ten clients, f · sampled / 10, rounded up; a middle is kept."""
    diagnosis = diagnosis_of(outlier="high", outliers=outliers, num_classes=2)
    situation = situation_of(diagnosis, num_sampled=num_sampled, kinds=("fedavg", "fedtrimmedavg"))
    assert recommend_by_rules(situation).spec.num_trimmed(situation.cohort) == num_trimmed


def test_what_it_cuts_off_is_safe_from_rounding(situation_of: SituationOf) -> None:
    """A 49th of 49 is less than one in floating point."""
    assert int(1 / 49 * 49) == 0
    situation = situation_of(diagnosis_of(num_clients=49), num_clients=49)
    assert FedTrimmedAvgSpec(beta=cut_of(1, situation)).num_trimmed(situation.cohort) == 1


def test_one_of_five_is_a_fifth(situation_of: SituationOf) -> None:
    diagnosis = diagnosis_of(outlier="high", num_clients=5)
    assert recommend_by_rules(situation_of(diagnosis, num_clients=5)).reasons[0].rule == "wrong labels at a fifth"


@pytest.mark.parametrize(("outliers", "rule"), [((2,), "wrong labels at a fifth"), ((1, 2), "nothing to mend")])
def test_half_of_the_clients_are_no_outliers(situation_of: SituationOf, outliers: tuple[int, ...], rule: str) -> None:
    diagnosis = diagnosis_of(outlier="high", outliers=outliers, num_clients=4, num_classes=2)
    assert recommend_by_rules(situation_of(diagnosis, num_clients=4)).reasons[0].rule == rule


@pytest.mark.parametrize(("value", "rule"), [(0.1, "wrong labels at a fifth"), (0.11, "nothing to mend")])
def test_skew_that_is_sure_and_small_hides_no_outlier(situation_of: SituationOf, value: float, rule: str) -> None:
    skewed = {"label_skew": SkewFinding(severity="low", value=value, threshold=0.1)}
    diagnosis = diagnosis_of(outlier="high", num_clients=4, num_classes=2).model_copy(update=skewed)
    assert recommend_by_rules(situation_of(diagnosis, num_clients=4)).reasons[0].rule == rule


def test_steps_are_counted_from_rows_batches_epochs_and_rounds(situation_of: SituationOf) -> None:
    """Of 160 rows 128 train: 4 steps of 32 rows a round, so 50 rounds are 200 steps and 51 are more."""
    few, many = (situation_of(diagnosis_of(), num_rounds=rounds) for rounds in (50, 51))
    assert few.steps_a_round == 4
    assert recommend_by_rules(few).reasons[0].rule == "few steps"
    assert recommend_by_rules(many).reasons[0].rule == "many classes"


@pytest.mark.parametrize("num_clients", [1, 2, 3, 4, 7, 10, 100])
@pytest.mark.parametrize("num_classes", [0, 2, 10])
def test_whatever_the_diagnosis_the_pick_fits_the_cohort(
    situation_of: SituationOf, num_clients: int, num_classes: int
) -> None:
    for labels, features, outlier in product(SEVERITIES, repeat=3):
        diagnosis = diagnosis_of(
            labels,
            features,
            outlier,
            (0,),
            num_clients=num_clients,
            num_classes=num_classes,  # type: ignore[arg-type]
        )
        situation = situation_of(diagnosis, num_clients=num_clients)
        found = recommend_by_rules(situation)
        assert situation.space.contains(found.spec)
        assert found.spec.faults(situation.cohort) == []
        assert all(situation.space.contains(alternative.spec) for alternative in found.alternatives)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("kind", [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])
@pytest.mark.parametrize("name", CASES)
def test_a_user_who_allows_one_strategy_gets_that_one(situation_of: SituationOf, kind: str, name: str) -> None:
    diagnosis, fields, _ = CASES[name]
    situation = situation_of(diagnosis, **{**fields, "kinds": (kind,)})
    found = recommend_by_rules(situation)
    assert found.spec.kind == kind
    assert situation.space.contains(found.spec)


def test_what_can_not_be_chosen_is_passed_over_and_said(situation_of: SituationOf) -> None:
    diagnosis, _, _ = CASES["few steps"]
    found = recommend_by_rules(situation_of(diagnosis, kinds=("fedavg", "fedmedian", "fedprox")))
    assert [(ground.rule, ground.applied) for ground in found.reasons] == [
        ("nothing to mend", True),
        ("few steps", False),
        ("many classes", False),
        ("skewed labels", False),
    ]
    assert "fedadam" in found.reasons[1].explanation


def test_parameters_are_moved_into_the_ranges_of_the_space(situation_of: SituationOf) -> None:
    """A search of the clients' step size keeps the study's where it can, and goes to the nearest end where not."""
    ranges = {"client_learning_rate": RealRange(0.5, 1.0)}
    found = recommend_by_rules(situation_of(diagnosis_of(label_skew="high"), space={"client_ranges": ranges}))
    assert found.spec.client_learning_rate == 0.5


@pytest.mark.parametrize(
    ("severity", "advised"), [(None, []), ("none", ["fedavg"]), ("low", ["fedavg", "fedprox"]), ("high", ["fedprox"])]
)
def test_the_published_table_of_advice_stands_beside(
    situation_of: SituationOf, severity: Any, advised: list[str]
) -> None:
    found = recommend_by_rules(situation_of(diagnosis_of(label_skew=severity)))
    assert [alternative.spec.kind for alternative in found.alternatives] == advised
    picked = recommend_by_rules(situation_of(diagnosis_of(num_classes=2)))
    assert (picked.spec.kind, picked.alternatives) == ("fedavg", ())  # advice does not repeat the pick
