"""Which rule decides what, that it fits the federation, and that it explains itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors.report import CalibratedFinding, ClientEvidence, FeatureShift
from fedscout.search.objective import MEASURES, DataOrigin, Measure, reward
from fedscout.search.recommenders import rules
from fedscout.search.recommenders.diagnosis import Alternative, Diagnosis, RecommendationContext, SkewFinding, diagnose
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, ChoiceRange, FedAvgSpec, RealRange
from fedscout.strategies.methods.averaging import FedProxSpec
from fedscout.strategies.methods.robust import FedTrimmedAvgSpec, MultiKrumSpec
from fedscout.strategies.specification import SELECTION
from tests.search.recommenders.reports import context_of, diagnosis_of, report_of

REPOSITORY = Path(__file__).resolve().parents[3]
SEVERITIES = (None, "none", "low", "high")
MANY_ROWS = 2000.0
SURE_AND_SMALL, SURE_AND_LARGER = (SkewFinding(severity="low", value=value, threshold=0.1) for value in (0.1, 0.11))

AGAINST_OUTLIERS = {"kinds": ("fedavg", "fedmedian", "fedrep", "rfa")}
CASES: dict[str, tuple[Diagnosis, dict[str, Any], str]] = {
    "no classes": (diagnosis_of(num_classes=0, median_rows=None, label_skew=None, feature_skew=None), {}, "fedavg"),
    "client-specific features": (
        diagnosis_of(feature_skew="high", label_skew="high", outlier="high"),
        {"kinds": ("fedavg", "fedadam", "fedbn", "fedrep", "rfa", "fedmedian")},
        "fedbn",
    ),
    "poisoned updates": (diagnosis_of(outlier="high", clients_of_other_updates=(2,)), AGAINST_OUTLIERS, "rfa"),
    "client-specific concepts": (diagnosis_of(outlier="high"), AGAINST_OUTLIERS, "fedrep"),
    "wrong labels, 20 % or more": (diagnosis_of(outlier="high", num_clients=4), {"num_clients": 4}, "fedmedian"),
    "wrong labels, few classes": (diagnosis_of(outlier="high", num_classes=2), {}, "fedtrimmedavg"),
    "corrupted, clean view": (
        diagnosis_of(outlier="high", feature_skew="high", num_clients=4, outliers=(2,), other_inputs=(2,)),
        {"num_clients": 4, "view": "clean"},
        "fedmedian",
    ),
    "client-specific labels": (diagnosis_of(label_skew="high"), {"kinds": ("fedavg", "fedadam", "fedrep")}, "fedrep"),
    "few steps": (diagnosis_of(label_skew="high"), {}, "fedadam"),
    "many classes": (diagnosis_of(label_skew="high", median_rows=MANY_ROWS), {}, "fedyogi"),
    "skewed labels": (diagnosis_of(label_skew="low", num_classes=3), {}, "fedavgm"),
    "other inputs": (
        diagnosis_of(outlier="high", feature_skew="high", num_classes=2, num_clients=4, other_inputs=(2,)),
        {"num_clients": 4},
        "fedavgm",
    ),
    "no relevant difference": (diagnosis_of(num_classes=2), {}, "fedavg"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rule_decides_its_case_and_says_why(name: str) -> None:
    diagnosis, fields, kind = CASES[name]
    found = rules.recommend_by_rules(context_of(diagnosis, **fields))
    assert found.source == "rules"
    assert found.spec.kind == kind
    ground = found.reasons[0]
    assert (ground.rule, ground.applied) == (name, True)
    assert [reason.rule for reason in found.reasons[1:]] in ([], ["other federations"])
    assert "arXiv" in ground.source
    if name.startswith("client-specific "):  # only where own data judge
        assert rules.recommend_by_rules(context_of(diagnosis, **fields, view="clean")).spec.kind != kind


def test_under_label_skew_a_model_very_far_away_brings_the_geometric_median() -> None:
    """By the severities of label and feature skew and the score of the farthest model."""
    expected: dict[Any, str] = {
        **{("high", "none", 7.5): "rfa", ("low", "none", 7.5): "rfa", ("none", "none", 7.5): "fedadam"},
        **dict.fromkeys((("high", "none", 6.5), ("high", "high", 7.5), ("high", "none", None)), "fedrep"),
    }
    for (labels, features, score), kind in expected.items():
        diagnosis = diagnosis_of(labels, features, outlier_z_score=score)
        context = context_of(diagnosis, kinds=("fedavg", "fedadam", "fedrep", "rfa"))
        assert rules.recommend_by_rules(context).spec.kind == kind, (labels, features, score)


@pytest.mark.parametrize("text", [rules.__doc__, (REPOSITORY / "docs" / "recommend.md").read_text()])
def test_documents_list_the_rules_in_the_order_in_which_they_decide(text: str) -> None:
    table = text.split("| rule | applies to |")[1].split("\n\n", maxsplit=1)[0]
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names == [rule.name for rule in rules.RULES] == list(CASES)


def test_the_trimmed_mean_cuts_off_as_many_as_there_are_outliers_in_a_round() -> None:
    """Of ten clients, f · sampled / 10, rounded up; a middle is kept. A 49th of 49 is less than one in floats."""
    for num_outliers, sampled_and_trimmed in {1: {10: 1, 5: 1, 3: 1}, 2: {10: 2, 7: 2}, 4: {10: 4, 3: 1}}.items():
        diagnosis = diagnosis_of(outlier="high", outliers=(0, 2, 5, 9)[:num_outliers], num_classes=2)
        for num_sampled, num_trimmed in sampled_and_trimmed.items():
            context = context_of(diagnosis, num_sampled=num_sampled, kinds=("fedavg", "fedtrimmedavg"))
            spec = rules.recommend_by_rules(context).spec
            assert isinstance(spec, FedTrimmedAvgSpec)
            assert int(spec.beta * num_sampled) == num_trimmed
    assert int(rules.cut_of(1, context_of(diagnosis_of(num_clients=49), num_clients=49)) * 49) == 1


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num_clients": 5}, "wrong labels, 20 % or more"),
        ({"num_clients": 4, "num_classes": 2}, "wrong labels, 20 % or more"),
        ({"num_clients": 4, "num_classes": 2, "outliers": (1, 2)}, "no relevant difference"),  # half are no outliers
        ({"num_clients": 4, "num_classes": 2, "label_skew": SURE_AND_SMALL}, "wrong labels, 20 % or more"),
        ({"num_clients": 4, "num_classes": 2, "label_skew": SURE_AND_LARGER}, "no relevant difference"),
    ],
)
def test_which_outliers_bring_a_robust_rule(fields: dict[str, Any], rule: str) -> None:
    skewed = {"label_skew": fields.pop("label_skew")} if "label_skew" in fields else {}
    diagnosis = diagnosis_of(outlier="high", **fields).model_copy(update=skewed)
    assert rules.recommend_by_rules(context_of(diagnosis, num_clients=diagnosis.num_clients)).reasons[0].rule == rule


def test_steps_are_counted_from_rows_batches_epochs_and_rounds() -> None:
    """Of 160 rows 128 train: 4 steps of 32 rows a round, so 50 rounds are 200 steps and 51 are more."""
    few, many = (context_of(diagnosis_of(), num_rounds=rounds) for rounds in (50, 51))
    assert few.steps_a_round == 4
    assert rules.recommend_by_rules(few).reasons[0].rule == "few steps"
    assert rules.recommend_by_rules(many).reasons[0].rule == "many classes"


@pytest.mark.parametrize("num_rounds", [30, 300])
@pytest.mark.parametrize(("labels", "kind"), [("high", "fedavgm"), ("none", "fedavg")])
def test_convolutions_get_no_adaptive_server(num_rounds: int, labels: Any, kind: str) -> None:
    context = context_of(diagnosis_of(label_skew=labels), num_rounds=num_rounds)
    images = replace(context, space=replace(context.space, cohort=replace(context.cohort, convolutional=True)))
    assert rules.recommend_by_rules(context).spec.kind in ("fedadam", "fedyogi")
    assert rules.recommend_by_rules(images).spec.kind == kind


@pytest.mark.parametrize("num_clients", [1, 2, 3, 4, 7, 10, 100])
@pytest.mark.parametrize("num_classes", [0, 2, 10])
def test_whatever_the_diagnosis_the_pick_fits_the_cohort(num_clients: int, num_classes: int) -> None:
    for labels, features, outlier in product(SEVERITIES, repeat=3):
        diagnosis = diagnosis_of(labels, features, outlier, (0,), num_clients=num_clients, num_classes=num_classes)
        context = context_of(diagnosis, num_clients=num_clients)
        found = rules.recommend_by_rules(context)
        assert context.space.contains(found.spec)
        assert found.spec.faults(context.cohort) == []
        assert all(context.space.contains(alternative.spec) for alternative in found.alternatives)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("kind", [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])
@pytest.mark.parametrize("name", CASES)
def test_a_user_who_allows_one_strategy_gets_that_one(kind: str, name: str) -> None:
    diagnosis, fields, _ = CASES[name]
    context = context_of(diagnosis, **{**fields, "kinds": (kind,)})
    found = rules.recommend_by_rules(context)
    assert found.spec.kind == kind
    assert context.space.contains(found.spec)


def test_what_can_not_be_chosen_is_passed_over_and_said() -> None:
    diagnosis, _, _ = CASES["few steps"]
    found = rules.recommend_by_rules(context_of(diagnosis, kinds=("fedavg", "fedmedian", "fedprox")))
    assert [(ground.rule, ground.applied) for ground in found.reasons] == [
        ("no relevant difference", True),
        ("few steps", False),
        ("many classes", False),
        ("skewed labels", False),
    ]
    assert "fedadam" in found.reasons[1].explanation


def test_parameters_are_moved_into_the_ranges_of_the_space() -> None:
    """A search of the clients' step size keeps the study's where it can, and goes to the nearest end where not."""
    ranges = {"client_learning_rate": RealRange(0.5, 1.0)}
    found = rules.recommend_by_rules(context_of(diagnosis_of(label_skew="high"), space={"client_ranges": ranges}))
    assert found.spec.client_learning_rate == 0.5


# -- The published table of advice: by how rows were dealt where that is known, else by what was measured --------------


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


def kinds(data_origin: DataOrigin | None, severity: Any) -> list[str]:
    row = rules.advised_row(data_origin, severity)
    return [] if row is None else [spec.kind for spec in rules.BY_SEVERITY[row[1]]]


@pytest.mark.parametrize("name", DEALT)
def test_what_is_known_decides_whatever_was_measured(name: str) -> None:
    data_origin, expected = DEALT[name]
    assert [kinds(data_origin, severity) for severity in SEVERITIES] == [expected] * 4


@pytest.mark.parametrize(
    "data_origin",
    [None, DataOrigin("hospitals.csv", "natural"), DataOrigin("digits", "quantity_skew"), DataOrigin("digits", "lds")],
)
def test_what_the_table_does_not_name_is_left_to_the_measurement(data_origin: DataOrigin | None) -> None:
    assert [kinds(data_origin, severity) for severity in SEVERITIES] == [[], AVERAGE, BOTH, PROXIMAL]
    assert [PROX in rules.BY_SEVERITY[severity] for severity in ("none", "low", "high")] == [False, True, True]


def test_communities_stand_beside_fedavg_where_they_can_be_chosen() -> None:
    data_origin = DataOrigin("digits", "iid")
    named = context_of(diagnosis_of(), kinds=(*BUILT_IN_KINDS, "communities"), data_origin=data_origin)
    assert [each.spec.kind for each in rules.recommend_by_rules(named).alternatives] == AVERAGE
    usual = context_of(diagnosis_of(), data_origin=data_origin)
    assert [each.spec.kind for each in rules.recommend_by_rules(usual).alternatives] == ["fedavg"]


# -- What the rules say of who trains: nothing where all clients do, and time where some devices are slow --------------


@pytest.mark.parametrize(
    ("ratio", "advises_policy"), [(None, False), (rules.SLOW_RATIO - 0.1, False), (rules.SLOW_RATIO, True), (9.0, True)]
)
def test_a_policy_is_advised_where_somebody_is_slow(ratio: float | None, advises_policy: bool) -> None:
    whole = context_of(diagnosis_of(num_classes=3).model_copy(update={"speed_ratio": ratio}))
    assert [*rules.selection_notes(whole)] == []
    cohort = replace(whole.cohort, num_sampled=whole.cohort.num_clients - 1)
    sampled = replace(whole, space=replace(whole.space, cohort=cohort))
    (note,) = rules.selection_notes(sampled)
    assert ("selection.kind=oort" in note) == advises_policy
    assert note in rules.recommend_by_rules(sampled).notes


# -- What of a report a recommendation rests on ------------------------------------------------------------------------


def test_severities_by_the_published_rules() -> None:
    """Feature skew is high from twice its threshold, an outlier only if it stands out by itself."""
    label_skews = {None: None, 0.1: "none", 0.11: "low", 0.29: "low", 0.3: "high", 1.0: "high"}
    assert {value: diagnose(report_of(divergence=value)).label_skew.severity for value in label_skews} == label_skews
    for distance, shifted, severity in ((None, (), None), (4.0, (), "none"), (7.9, (1,), "low"), (8.0, (1,), "high")):
        skew = diagnose(report_of(distance=distance, shifted=shifted)).feature_skew
        assert (skew.severity, skew.clients, skew.rule) == (severity, shifted, "published")
    for largest, outliers, severity in ((9.0, (), "none"), (4.4, (3,), "low"), (9.0, (3,), "high")):
        found = diagnose(report_of(distances=(1.0, 2.0, 3.0, largest), outliers=outliers)).outlier
        assert (found.severity, found.clients, found.rule) == (severity, outliers, "published")


def test_z_score_of_the_farthest_model() -> None:
    """Of 1, 2, 3, 4 and 10 the median is 3 and the median deviation 1, so the score is 7/1.4826."""
    assert diagnose(report_of(distances=(1.0, 2.0, 3.0, 4.0, 10.0))).outlier_z_score == pytest.approx(7 / 1.4826)
    assert diagnose(report_of(distances=(1.0, 9.0))).outlier_z_score is None
    assert diagnose(report_of(distances=(1.0, 1.0, 1.0, 9.0))).outlier_z_score is None


def calibrated(
    name: str, detected: bool, p_value: float | None = 0.5, shifts: tuple[float, ...] = ()
) -> CalibratedFinding:
    """Return a calibrated finding with what a diagnosis reads of it."""
    features = tuple(FeatureShift(feature=i, shift=s) for i, s in enumerate(shifts))
    return CalibratedFinding.model_construct(
        name=name,
        p_value=p_value,
        detected=detected,
        flagged_clients=(1,) if detected else (),
        clients={1: ClientEvidence.model_construct(source="labels", features=features)},
    )


def test_the_calibrated_decision_counts_where_there_is_one() -> None:
    """What was called unlike by the published rule, which ignores classes, is not; what was not tested is unknown."""
    for p_value, severity in ((0.5, "none"), (None, None)):
        decisions = (calibrated("feature_skew", False, p_value=p_value), calibrated("outliers", True))
        found = diagnose(report_of(divergence=0.2, distance=9.0, shifted=(1,), outliers=(3,), calibrated=decisions))
        skew, outlier = found.feature_skew, found.outlier
        assert (skew.severity, skew.clients, skew.rule) == (severity, (), "calibrated")
        assert (outlier.severity, outlier.clients, outlier.rule) == ("high", (1,), "calibrated")
        assert found.label_skew.rule == "published"


def test_features_that_differ_most_are_named_the_largest_shift_first() -> None:
    report = report_of(calibrated=(calibrated("feature_skew", True, shifts=(0.5, -3.0, 1.0)),))
    assert diagnose(report, ("age", "weight", "height")).feature_skew.named == ("weight", "height", "age")
    assert diagnose(report, ("age",)).feature_skew.named == ("age",)
    assert diagnose(report).feature_skew.named == ()


def test_a_diagnosis_holds_no_clients_label_counts() -> None:
    report = report_of(rows=(111, 222, 333, 444))
    text = diagnose(report).model_dump_json()
    counts = {str(count) for client in report.clients for count in client.label_counts}
    assert not [count for count in counts if count in text]
    assert diagnose(report).median_rows == 277.5


# -- What an informed search tries first: from the diagnosis, and by what share from anywhere --------------------------


FEDAVG = FedAvgSpec()


def proposed(
    context: RecommendationContext, size: int = 4, seed: int = 0, priors: Sequence[Alternative] = ()
) -> tuple[Alternative, ...]:
    return rules.first_generation(context, rules.recommend_by_rules(context), size, seed, (FEDAVG,), priors)


def robust_in(candidates: tuple[Alternative, ...]) -> list[object]:
    return [each.spec for each in candidates if isinstance(each.spec, rules.ROBUST)]


LIKE = (Alternative(MultiKrumSpec(num_malicious_nodes=1, num_nodes_to_select=5), "It did well there.", "priors"),)
POISONED = diagnosis_of(outlier="high", outliers=(2, 5))


@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize("num_clients", [4, 10])
@pytest.mark.parametrize(("label", "feature", "outlier"), list(product(("none", "high"), repeat=3)))
def test_a_generation_is_whole_new_and_of_the_space_and_begins_with_the_rules_answer(
    size: int, num_clients: int, label: Any, feature: Any, outlier: Any
) -> None:
    context = context_of(diagnosis_of(label, feature, outlier, num_clients=num_clients), num_clients)
    found = [each.spec for each in proposed(context, size, seed=size)]
    assert len({context.space.digest(spec) for spec in (*found, FEDAVG)}) - 1 == len(found) == size
    assert all(context.space.contains(spec) and not context.space.has_equivalent(spec) for spec in found)
    assert rules.recommend_by_rules(context).spec in (found[0], FEDAVG)


def test_policies_that_are_searched_come_in_turn() -> None:
    context = context_of(diagnosis_of(label_skew="high"))
    chosen = replace(context.space, client_ranges={SELECTION: ChoiceRange(("random", "oort", "flash"))})
    found = proposed(replace(context, space=chosen), size=8)
    assert [each.spec.selection for each in found] == ["random", "oort", "flash"] * 2 + ["random", "oort"]
    assert all(chosen.contains(each.spec) for each in found)
    alone = [each.spec.model_copy(update={SELECTION: None}) for each in found]
    assert proposed(context, size=8)[0].spec == alone[0]
    assert len({context.space.digest(spec) for spec in alone}) == 8


def test_defaults_come_before_what_is_drawn_at_random() -> None:
    """A seed fixes their order. Robust ones take no part without a suspect."""
    context = context_of(diagnosis_of())
    found, defaults = proposed(context, size=40), map(context.space.default, context.space.kinds)
    expected = {spec for spec in defaults if not isinstance(spec, (*rules.ROBUST, FedAvgSpec))}
    assert expected <= {each.spec for each in found if each.explanation != rules.DRAWN}
    drawn = [each.explanation == rules.DRAWN for each in found]
    assert drawn == sorted(drawn)
    assert [each.spec for each in proposed(context, size=40, seed=1)] != [each.spec for each in found]


UNLIKE_INPUTS = diagnosis_of(outlier="high", feature_skew="high", other_inputs=(2,))


@pytest.mark.parametrize("diagnosis", [diagnosis_of(), diagnosis_of(label_skew="high", outlier="high"), UNLIKE_INPUTS])
def test_without_a_suspect_nothing_robust_is_tried(diagnosis: Diagnosis) -> None:
    """Who has other inputs is suspected where clean data judge."""
    context = context_of(diagnosis)
    assert rules.suspected_per_round(context) == 0
    assert robust_in(proposed(context, size=40, priors=LIKE)) == []
    assert rules.suspected_per_round(replace(context, view="clean")) == (diagnosis is UNLIKE_INPUTS)


def test_robust_rules_enter_with_the_number_of_suspects() -> None:
    """Two of ten; Bulyan, proved for one of ten, with as many as it may."""
    context = context_of(POISONED)
    assert rules.suspected_per_round(context) == 2
    robust = robust_in(proposed(context, size=40))
    counts = {(spec.kind, getattr(spec, "num_malicious_nodes", None)) for spec in robust}  # type: ignore[attr-defined]
    assert counts == {("multikrum", 2), ("krum", 2), ("bulyan", 1), ("fedmedian", None), ("fedtrimmedavg", None)}
    trimmed = [int(spec.beta * context.cohort.num_sampled) for spec in robust if isinstance(spec, FedTrimmedAvgSpec)]
    assert trimmed == [2]
    first, second, *_ = proposed(context, priors=LIKE)
    assert second.spec == MultiKrumSpec(num_malicious_nodes=2, num_nodes_to_select=5)
    assert (second.explanation, first.spec) == (LIKE[0].explanation, proposed(context)[0].spec)


@pytest.mark.parametrize("diagnosis", [diagnosis_of(label_skew="high"), POISONED], ids=["nobody", "two suspected"])
def test_each_kind_has_its_turn_and_robust_ones_as_suspected(diagnosis: Diagnosis) -> None:
    context = context_of(diagnosis)
    found = rules.kinds_in_turn(context, seed=3)
    robust = {spec.label for spec in found if isinstance(spec, rules.ROBUST)}
    others = [spec.label for spec in found if not isinstance(spec, rules.ROBUST)]
    suspects = rules.suspected_per_round(context)
    kinds_of_robust = {kind.model_fields["kind"].default for kind in rules.ROBUST}
    assert sorted(others) == sorted({*context.space.kinds} - kinds_of_robust)
    assert bool(robust) == bool(suspects)
    assert all(spec.num_malicious_nodes == suspects for spec in found if isinstance(spec, MultiKrumSpec))
    assert all(context.space.contains(spec) for spec in found)
    assert found != rules.kinds_in_turn(context, seed=4)


@pytest.mark.parametrize(
    "measure", [reward("reward", 500), MEASURES["r2"], MEASURES["mae"]], ids=lambda each: each.name
)
def test_what_was_measured_of_classes_is_not_proposed_for_another_task(measure: Measure) -> None:
    """Whatever the actions of a player, which a report may count as classes."""
    context = context_of(diagnosis_of(label_skew="high", num_classes=10), measure=measure)
    recommendation = rules.recommend_by_rules(context)
    assert (recommendation.spec, recommendation.alternatives) == (FEDAVG, ())
    assert all(each.spec == context.space.default(each.spec.kind) for each in proposed(context))
