"""What an informed search tries first: from the diagnosis, and by what share from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest

from fedscout.search.objective import MEASURES, Measure, reward
from fedscout.search.recommenders.diagnosis import Alternative, Diagnosis, RecommendationContext
from fedscout.search.recommenders.rules import (
    DRAWN,
    ROBUST,
    first_generation,
    kinds_in_turn,
    recommend_by_rules,
    suspected_per_round,
)
from fedscout.strategies import ChoiceRange, FedAvgSpec, FedTrimmedAvgSpec, MultiKrumSpec
from fedscout.strategies.specification import SELECTION
from tests.search.recommenders.reports import diagnosis_of

SituationOf = Callable[..., RecommendationContext]
FEDAVG = FedAvgSpec()


def proposed(
    situation: RecommendationContext, size: int = 4, seed: int = 0, priors: Sequence[Alternative] = ()
) -> tuple[Alternative, ...]:
    return first_generation(situation, recommend_by_rules(situation), size, seed, (FEDAVG,), priors)


def robust_in(candidates: tuple[Alternative, ...]) -> list[object]:
    return [each.spec for each in candidates if isinstance(each.spec, ROBUST)]


LIKE = (Alternative(MultiKrumSpec(num_malicious_nodes=1, num_nodes_to_select=5), "It did well there.", "priors"),)
POISONED = diagnosis_of(outlier="high", outliers=(2, 5))
SEVERITIES = ("none", "high")


@pytest.mark.parametrize("size", [1, 2, 4, 9])
@pytest.mark.parametrize(("label", "feature", "outlier"), list(product(SEVERITIES, repeat=3)))
def test_a_generation_is_whole_new_and_of_the_space(
    situation_of: SituationOf, size: int, label: str, feature: str, outlier: str
) -> None:
    situation = situation_of(diagnosis_of(label_skew=label, feature_skew=feature, outlier=outlier))
    found = proposed(situation, size)
    digests = {situation.space.digest(each.spec) for each in found}
    assert len(digests) == len(found) == size
    assert situation.space.digest(FEDAVG) not in digests
    assert all(situation.space.contains(each.spec) for each in found)


@pytest.mark.parametrize("diagnosis", [diagnosis_of(label_skew="high"), POISONED, diagnosis_of(num_classes=3)])
def test_the_rules_answer_is_the_first_or_fedavg_itself(situation_of: SituationOf, diagnosis: Diagnosis) -> None:
    situation = situation_of(diagnosis)
    answer = recommend_by_rules(situation).spec
    assert proposed(situation)[0].spec == answer or answer == FEDAVG


def test_policies_that_are_searched_come_in_turn(situation_of: SituationOf) -> None:
    situation = situation_of(diagnosis_of(label_skew="high"))
    chosen = replace(situation.space, client_ranges={SELECTION: ChoiceRange(("random", "oort", "flash"))})
    found = proposed(replace(situation, space=chosen), size=8)
    founded = [each for each in found if each.explanation != DRAWN]
    assert len(founded) == 5
    assert [each.spec.selection for each in founded] == ["random", "oort", "flash", "random", "oort"]
    assert all(chosen.contains(each.spec) for each in found)
    alone = [each.spec.model_copy(update={SELECTION: None}) for each in founded]
    assert proposed(situation, size=8)[0].spec == alone[0]
    assert len({situation.space.digest(spec) for spec in alone}) == 5


@pytest.mark.parametrize("diagnosis", [diagnosis_of(), diagnosis_of(label_skew="high", outlier="high")])
def test_without_a_suspect_nothing_robust_is_tried(situation_of: SituationOf, diagnosis: Diagnosis) -> None:
    situation = situation_of(diagnosis)
    assert suspected_per_round(situation) == 0
    assert robust_in(proposed(situation, size=40)) == []
    assert robust_in(proposed(situation, size=40, priors=LIKE)) == []


def test_robust_rules_enter_with_the_number_of_suspects(situation_of: SituationOf) -> None:
    """Two of ten; Bulyan, proved for one of ten, with as many as it may."""
    situation = situation_of(POISONED)
    assert suspected_per_round(situation) == 2
    robust = robust_in(proposed(situation, size=40))
    counts = {(spec.kind, getattr(spec, "num_malicious_nodes", None)) for spec in robust}  # type: ignore[attr-defined]
    assert counts == {("multikrum", 2), ("krum", 2), ("bulyan", 1), ("fedmedian", None), ("fedtrimmedavg", None)}
    trimmed = [int(spec.beta * situation.cohort.num_sampled) for spec in robust if isinstance(spec, FedTrimmedAvgSpec)]
    assert trimmed == [2]
    first, second, *_ = proposed(situation, priors=LIKE)
    assert second.spec == MultiKrumSpec(num_malicious_nodes=2, num_nodes_to_select=5)
    assert (second.explanation, first.spec) == (LIKE[0].explanation, proposed(situation)[0].spec)


def test_only_strategies_of_the_space_are_tried(situation_of: SituationOf) -> None:
    found = proposed(situation_of(POISONED, kinds=("fedavg", "fedmedian")))
    assert [each.spec.kind for each in found] == ["fedmedian"]


@pytest.mark.parametrize(("view", "expected"), [("own", 0), ("clean", 1)])
def test_who_has_other_inputs_is_suspected_where_clean_data_judge(
    situation_of: SituationOf, view: str, expected: int
) -> None:
    diagnosis = diagnosis_of(outlier="high", feature_skew="high", other_inputs=(2,))
    assert suspected_per_round(situation_of(diagnosis, view=view)) == expected


@pytest.mark.parametrize("diagnosis", [diagnosis_of(label_skew="high"), POISONED], ids=["nobody", "two suspected"])
def test_each_kind_has_its_turn_and_robust_ones_as_suspected(situation_of: SituationOf, diagnosis: Diagnosis) -> None:
    situation = situation_of(diagnosis)
    found = kinds_in_turn(situation, seed=3)
    robust = {spec.label for spec in found if isinstance(spec, ROBUST)}
    others = [spec.label for spec in found if not isinstance(spec, ROBUST)]
    suspects = suspected_per_round(situation)
    assert sorted(others) == sorted({*situation.space.kinds} - {kind.model_fields["kind"].default for kind in ROBUST})
    assert bool(robust) == bool(suspects)
    assert all(spec.num_malicious_nodes == suspects for spec in found if isinstance(spec, MultiKrumSpec))
    assert all(situation.space.contains(spec) for spec in found)
    assert found != kinds_in_turn(situation, seed=4)


@pytest.mark.parametrize(
    "measure", [reward("reward", 500), MEASURES["r2"], MEASURES["mae"]], ids=lambda each: each.name
)
def test_what_was_measured_of_classes_is_not_proposed_for_another_task(
    situation_of: SituationOf, measure: Measure
) -> None:
    """Whatever the actions of a player, which a report may count as classes."""
    situation = situation_of(diagnosis_of(label_skew="high", num_classes=10), measure=measure)
    recommendation = recommend_by_rules(situation)
    assert (recommendation.spec, recommendation.alternatives) == (FEDAVG, ())
    assert {each.explanation for each in proposed(situation)} == {DRAWN}


@pytest.mark.parametrize("num_clients", [4, 10])
def test_nothing_that_is_the_same_as_another_strategy_is_proposed(situation_of: SituationOf, num_clients: int) -> None:
    situation = situation_of(diagnosis_of(outlier="high", num_clients=num_clients, outliers=(2,)), num_clients)
    for seed in range(5):
        assert [each for each in proposed(situation, 6, seed) if situation.space.has_equivalent(each.spec)] == []
