"""The study loop: FedAvg beside the search, the budget, failures, confirmation, and going on after an interruption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.data.federation import Federation, split_client
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import TrialSettings
from fedscout.search.config import SearchConfig
from fedscout.search.study import StudyOutcome, planned_space, run_study
from fedscout.search.warm_start import WarmProposal, WarmStart
from tests.search import studies
from tests.search.recommenders.reports import report_of
from tests.search.studies import NUM_CLIENTS, SEED, Measured, ScriptedRunner, completed, local_runner, study

COHORT = Cohort(NUM_CLIENTS, NUM_CLIENTS, studies.FACTS.session.training.learning_rate)
DRIVES_ITSELF = "tests.strategies.flower_programs:DrivesItself"
CHEAP = ("fedavg", "fedmedian", "fedadam", "krum", "fedtrimmedavg")


def fedavg_scores(score: float, others: float = 0.5) -> Callable[[TrialSettings], Measured]:
    return lambda spec: completed(score if spec.strategy.kind == "fedavg" else others)


def jittered(spec: TrialSettings) -> Measured:
    return completed(studies.generator_of(spec).uniform(0.3, 0.9))


def scripted_study(folder: Path, outcome: Callable[[TrialSettings], Measured], **config: Any) -> StudyOutcome:
    return study(folder, ScriptedRunner(outcome), SearchConfig(**config))


# The search.


@pytest.mark.parametrize(("budget", "generation_size"), [(1, 4), (4, 4), (6, 4), (8, 3)])
def test_the_budget_buys_distinct_trials_in_generations_and_fedavg_is_free(
    tmp_path: Path, budget: int, generation_size: int
) -> None:
    config = SearchConfig(budget=budget, generation_size=generation_size, confirmation_seeds=0)
    runner = ScriptedRunner(jittered)
    outcome = study(tmp_path, runner, config)

    baseline = outcome.baseline
    assert (baseline.trial, baseline.phase, baseline.generation, baseline.strategy) == (0, "baseline", 0, "fedavg")
    assert [entry.trial for entry in outcome.trials] == list(range(1, budget + 1))
    generations = [entry.generation for entry in outcome.trials]
    assert generations == [1 + index // generation_size for index in range(budget)]
    space = planned_space(config, COHORT)
    assert len({space.digest(entry.spec) for entry in (outcome.baseline, *outcome.trials)}) == budget + 1
    # FedAvg runs beside the first generation; a generation's candidates are handed over at once.
    sizes = Counter(generations)
    assert [len(batch) for batch in runner.batches] == [1 + sizes[1], *(sizes[g] for g in sorted(sizes)[1:])]
    assert {spec.session.seed for spec in runner.ran} == {SEED}


@pytest.mark.parametrize(
    ("score", "budget", "num_trials", "is_perfect"), [(1.0, 12, 4, True), (0.999, 12, 12, False), (1.0, 4, 4, False)]
)
def test_the_search_ends_where_nothing_can_be_gained(
    tmp_path: Path, score: float, budget: int, num_trials: int, is_perfect: bool
) -> None:
    """FedAvg is trained beside the first generation, so that costs one generation; what spent its budget just ends."""
    outcome = scripted_study(tmp_path, fedavg_scores(score), budget=budget, confirmation_seeds=2)
    assert (len(outcome.trials), outcome.is_perfect) == (num_trials, is_perfect)
    assert outcome.best is outcome.baseline
    assert outcome.confirmation


@pytest.mark.parametrize(("score", "verdict"), [(0.8, "worse"), (0.5, "no difference")])
def test_fedavg_may_be_the_best_as_of_equals_and_the_best_other_is_confirmed_against_it(
    tmp_path: Path, score: float, verdict: str
) -> None:
    outcome = scripted_study(tmp_path, fedavg_scores(score, others=0.5), confirmation_seeds=3)
    assert outcome.best is outcome.baseline
    assert outcome.confirmation.candidates[0].strategy != "fedavg"
    assert (outcome.confirmation.verdict, outcome.confirmation.advised) == (verdict, "FedAvg")
    assert outcome.confirmation.design.num_tried == len(outcome.trials) == 8


# Failures.


@pytest.mark.parametrize("fedavg", [studies.failed("no"), completed(0.4)])
def test_where_all_others_failed_nothing_is_confirmed(tmp_path: Path, fedavg: Measured) -> None:
    """The best and the worst is FedAvg, or nothing; the budget is spent all the same."""
    runner = ScriptedRunner(lambda spec: fedavg if spec.strategy.kind == "fedavg" else studies.failed("no"))
    outcome = study(tmp_path, runner, SearchConfig(strategies=CHEAP))
    best = None if fedavg["round_accuracy"] == (0.9,) else outcome.baseline
    assert (outcome.best, outcome.worst, outcome.confirmation) == (best, best, None)
    assert len(outcome.trials) == 8


def test_the_worst_is_told_beside_the_best(tmp_path: Path) -> None:
    """Fitness rises with FedProx's μ; FedAvg counts, as a trial like others."""

    def outcome(spec: TrialSettings) -> Measured:
        return completed(0.4 if spec.strategy.kind == "fedavg" else 0.1 + spec.strategy.proximal_mu / 2)

    found = scripted_study(tmp_path, outcome, kind="random", strategies=("fedprox",), budget=5, confirmation_seeds=0)
    fitness = [entry.fitness for entry in (found.baseline, *found.trials)]
    assert (found.best.fitness, found.worst.fitness) == (max(fitness), min(fitness))


# Validation rows.


def with_other_test_rows(federation: Federation) -> Federation:
    """Return the federation with other features in each client's test rows of the search's seed."""
    features = federation.features.copy()
    for client in range(federation.num_clients):
        rows = federation.partition.client(client)
        split = split_client(federation.labels[rows], SEED, client, studies.FACTS.session.test_fraction, 0.25)
        features[rows[split.test]] = 100 * np.random.default_rng(client).normal(size=features[rows[split.test]].shape)
    return replace(federation, features=features)


@pytest.mark.slow
@pytest.mark.parametrize("validation_fraction", [0.0, 0.25])
def test_with_validation_rows_the_search_never_reads_test_rows(tmp_path: Path, validation_fraction: float) -> None:
    config = SearchConfig(
        strategies=CHEAP, budget=4, confirmation_seeds=2, tuned_baseline=True, validation_fraction=validation_fraction
    )
    federation = studies.tiny_federation()
    one = study(tmp_path / "one", local_runner(federation), config)
    two = study(tmp_path / "two", local_runner(with_other_test_rows(federation)), config)

    def searched(outcome: StudyOutcome) -> list[tuple[Any, ...]]:
        entries = [outcome.baseline, *outcome.trials, *outcome.tuned]
        return [(str(e.spec), e.rounds["accuracy"], e.rounds["loss"], e.rounds["train_loss"]) for e in entries]

    assert (searched(one) == searched(two)) == (validation_fraction > 0)
    assert one.confirmation.candidates != two.confirmation.candidates


# Going on.


CONFIG = SearchConfig(strategies=CHEAP, budget=5, generation_size=3, confirmation_seeds=2, tuned_baseline=True)
NUM_TRIALS = 1 + 5 + 3 + 2 * 2


@pytest.fixture(scope="module")
def whole_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    found = studies.document(study(folder, local_runner(studies.tiny_federation(corrupted=True)), CONFIG))
    return folder, found


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("lost", [(0,), (2, 4), (1, 7, 11), *(range(first, NUM_TRIALS) for first in range(0, 14, 2))])
def test_a_study_cut_off_anywhere_or_with_holes_ends_with_the_same_result(
    tmp_path: Path, whole_study: tuple[Path, dict[str, Any]], lost: Sequence[int]
) -> None:
    """Holes are left by a parallel run that is killed."""
    folder, expected = whole_study
    names = [file.name for file in sorted((folder / "trials").iterdir())]
    assert len(names) == NUM_TRIALS
    studies.keep_trials(folder, tmp_path, lambda place: place not in lost)

    assert studies.document(study(tmp_path, local_runner(studies.tiny_federation(corrupted=True)), CONFIG)) == expected

    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == names


# -- A study with a diagnosis: the rules' answer is told, and an informed search begins with what it proposes ----------


REPORT = report_of(divergence=0.5, rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS, num_classes=10)
WARM = WarmStart(
    studies=(), proposals=(WarmProposal(strategy={"kind": "fedprox", "proximal_mu": 0.5}, study="earlier", gain=0.1),)
)


def informed_study(folder: Path, warm: WarmStart | None = None, **config: object) -> StudyOutcome:
    settings = SearchConfig.model_validate({"confirmation_seeds": 0, "tuned_baseline": False, **config})
    ledger = studies.open_ledger(folder, ScriptedRunner(lambda spec: completed(0.5, num_rounds=spec.num_rounds)))
    return run_study(settings, ledger, REPORT, warm)


@pytest.mark.parametrize("kind", ["genetic", "tpe", "gp", "racing"])
def test_the_first_trials_are_those_that_the_diagnosis_proposes(tmp_path: Path, kind: str) -> None:
    outcome = informed_study(tmp_path, kind=kind, informed=True, budget=4)
    assert len(outcome.first_generation) == 4
    assert outcome.first_generation[0].spec == outcome.advice.spec
    proposed = [candidate.spec for candidate in outcome.first_generation]
    assert [trial.spec for trial in outcome.trials[:2]] == proposed[:2]
    assert kind == "racing" or {trial.spec for trial in outcome.trials} == {*proposed}  # a tiny race has room for few


@pytest.mark.parametrize("kind", ["random", "grid"])
def test_searches_to_compare_with_are_not_informed(tmp_path: Path, kind: str) -> None:
    plain, informed = (
        informed_study(tmp_path / str(is_informed), kind=kind, informed=is_informed) for is_informed in (False, True)
    )
    assert informed.first_generation == ()
    assert [trial.spec for trial in informed.trials] == [trial.spec for trial in plain.trials]


@pytest.mark.parametrize("kind", ["genetic", "random", "tpe"])
def test_a_user_s_own_strategy_is_tried_first(tmp_path: Path, kind: str) -> None:
    config = SearchConfig(kind=kind, customs=({"path": DRIVES_ITSELF},), budget=4, confirmation_seeds=0)
    outcome = study(tmp_path / "study", ScriptedRunner(jittered), config)
    assert outcome.trials[0].spec.label == DRIVES_ITSELF


def test_the_published_search_begins_with_uniform_draws_also_with_a_user_s_own_strategy(tmp_path: Path) -> None:
    config = SearchConfig(published=True, strategies=("fedadam",), customs=({"path": DRIVES_ITSELF},))
    first = study(tmp_path, ScriptedRunner(jittered), config).trials[0].spec
    assert first == planned_space(config, COHORT).random(stream(SEED, "genetic search", 0))


def test_uninformed_it_is_the_published_search(tmp_path: Path) -> None:
    """With a report as without; the rules' answer is told all the same."""
    told = informed_study(tmp_path / "report", informed=False)
    ledger = studies.open_ledger(tmp_path / "none", ScriptedRunner(lambda spec: completed(0.5)))
    config = SearchConfig(confirmation_seeds=0, tuned_baseline=False, informed=False)
    untold = run_study(config, ledger)
    assert [trial.spec for trial in told.trials] == [trial.spec for trial in untold.trials]
    assert (told.advice is None, untold.advice is None) == (False, True)


def test_proposals_of_earlier_studies_come_before_those_of_the_diagnosis(tmp_path: Path) -> None:
    outcome = informed_study(tmp_path, WARM, informed=True)
    proposed = [candidate.spec for candidate in outcome.first_generation]
    assert proposed == [
        candidate.spec for candidate in informed_study(tmp_path / "cold", informed=True).first_generation
    ]
    assert [trial.spec for trial in outcome.trials] == [*WARM.specs(), *proposed][: len(outcome.trials)]
