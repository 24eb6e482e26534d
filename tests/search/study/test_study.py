"""The study loop: FedAvg beside the search, the budget, failures, confirmation, and going on after an interruption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.data.federation import Federation, split_client
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.config import SearchConfig
from fedscout.search.confirmation.confirmation import confirmation_seeds
from fedscout.search.study import StudyOutcome, planned_space, run_study
from fedscout.search.warm_start import WarmProposal, WarmStart
from tests.kits.refusals import refused
from tests.search.recommenders.reports import report_of
from tests.search.studies import (
    FACTS,
    NUM_CLIENTS,
    SEED,
    Measured,
    ScriptedRunner,
    by_map,
    completed,
    document,
    failed,
    generator_of,
    keep_trials,
    local_runner,
    open_ledger,
    study,
    tiny_federation,
)

COHORT = Cohort(NUM_CLIENTS, NUM_CLIENTS, FACTS.session.training.learning_rate)
CHEAP = ("fedavg", "fedmedian", "fedadam", "krum", "fedtrimmedavg")


def fedavg_scores(score: float, others: float = 0.5) -> Callable[[TrialSettings], Measured]:
    return lambda spec: completed(score if spec.strategy.kind == "fedavg" else others)


def jittered(spec: TrialSettings) -> Measured:
    return completed(generator_of(spec).uniform(0.3, 0.9))


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


def test_all_trials_of_a_study_share_what_the_facts_say(tmp_path: Path) -> None:
    runner = ScriptedRunner(jittered)
    study(tmp_path, runner, SearchConfig(confirmation_seeds=2), num_rounds=3, test_fraction=0.3, timeout_seconds=9.0)
    told = {
        (spec.num_rounds, spec.session.test_fraction, spec.timeout_seconds, spec.num_sampled) for spec in runner.ran
    }
    assert told == {(3, 0.3, 9.0, NUM_CLIENTS)}


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
    assert outcome.confirmation.contestants[0].strategy != "fedavg"
    assert (outcome.confirmation.verdict, outcome.confirmation.advised) == (verdict, "FedAvg")
    assert outcome.confirmation.design.num_tried == len(outcome.trials) == 8


# Failures.


def test_failed_candidates_stay_with_fitness_zero_and_never_win(tmp_path: Path) -> None:
    fails = {"fedmedian", "krum"}
    outcome = scripted_study(
        tmp_path,
        lambda spec: failed(f"{spec.strategy.kind} broke") if spec.strategy.kind in fails else jittered(spec),
        strategies=CHEAP,
        budget=12,
        confirmation_seeds=0,
    )
    broken = [entry for entry in outcome.trials if entry.spec.kind in fails]
    assert broken  # both have no, or one, parameter: the first generation holds one of each kind
    for entry in broken:
        assert (entry.status, entry.fitness) == ("failed", 0)
        assert entry.error == f"{entry.spec.kind} broke"
    assert outcome.best.spec.kind not in fails
    assert len(outcome.trials) == 12


def test_a_search_in_which_all_failed_ends_without_a_winner(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: failed("no"))
    outcome = study(tmp_path, runner, SearchConfig(tuned_baseline=True))
    assert (outcome.best, outcome.confirmation) == (None, None)
    assert len(outcome.trials) == 8
    assert {spec.session.seed for spec in runner.ran} == {SEED}


def test_where_only_fedavg_went_through_it_is_the_best_and_nothing_is_confirmed(tmp_path: Path) -> None:
    outcome = scripted_study(tmp_path, lambda spec: completed(0.4) if spec.strategy.kind == "fedavg" else failed("no"))
    assert outcome.best is outcome.baseline
    assert outcome.confirmation is None


def test_a_winner_that_fails_on_fresh_seeds_is_not_announced(tmp_path: Path) -> None:
    def outcome(spec: TrialSettings) -> Measured:
        if spec.strategy.kind == "fedavg":
            return completed(0.5)
        return completed(0.9) if spec.session.seed == SEED else failed("diverged")

    confirmation = scripted_study(tmp_path, outcome, confirmation_seeds=3).confirmation
    assert confirmation.verdict == "worse"
    assert set(confirmation.contestants[0].failures.values()) == {"diverged"}


# Confirmation.


def test_confirmation_pairs_fresh_seeds(tmp_path: Path) -> None:
    runner = ScriptedRunner(jittered)
    outcome = study(tmp_path, runner, SearchConfig(confirmation_seeds=4, tuned_baseline=False))
    best_other = max(outcome.trials, key=lambda entry: entry.fitness)
    fresh = [spec for spec in runner.ran if spec.session.seed != SEED]
    seeds = confirmation_seeds(SEED, 4)
    assert Counter((str(spec.strategy), spec.session.seed) for spec in fresh) == Counter(
        (name, seed) for name in (str(best_other.spec), "fedavg") for seed in seeds
    )
    assert outcome.confirmation.seeds == seeds
    for one in outcome.confirmation.contestants:
        spec = best_other.spec if one.role == "challenger" else outcome.baseline.spec
        settings = [replace(runner.ran[0], strategy=spec).on_seed(seed) for seed in seeds]
        assert one.own == pytest.approx([Trial.of(each, **by_map(jittered(each))).fitness for each in settings])


# Validation rows.


def with_other_test_rows(federation: Federation) -> Federation:
    """Return the federation with other features in each client's test rows of the search's seed."""
    features = federation.features.copy()
    for client in range(federation.num_clients):
        rows = federation.partition.client(client)
        split = split_client(federation.labels[rows], SEED, client, FACTS.session.test_fraction, 0.25)
        features[rows[split.test]] = 100 * np.random.default_rng(client).normal(size=features[rows[split.test]].shape)
    return replace(federation, features=features)


@pytest.mark.slow
@pytest.mark.parametrize("validation_fraction", [0.0, 0.25])
def test_with_validation_rows_the_search_never_reads_test_rows(tmp_path: Path, validation_fraction: float) -> None:
    config = SearchConfig(
        strategies=CHEAP, budget=4, confirmation_seeds=2, tuned_baseline=True, validation_fraction=validation_fraction
    )
    federation = tiny_federation()
    one = study(tmp_path / "one", local_runner(federation), config)
    two = study(tmp_path / "two", local_runner(with_other_test_rows(federation)), config)

    def searched(outcome: StudyOutcome) -> list[tuple[Any, ...]]:
        entries = [outcome.baseline, *outcome.trials, *(rate.trials[0] for rate in outcome.tuned)]
        return [(str(e.spec), e.rounds["accuracy"], e.rounds["loss"], e.rounds["train_loss"]) for e in entries]

    assert (searched(one) == searched(two)) == (validation_fraction > 0)
    assert one.confirmation.contestants != two.confirmation.contestants


def test_the_search_is_scored_on_validation_rows_and_the_confirmation_on_test_rows(tmp_path: Path) -> None:
    runner = ScriptedRunner(jittered)
    study(tmp_path, runner, SearchConfig(validation_fraction=0.25, tuned_baseline=True, confirmation_seeds=2))
    parts = {(spec.phase == "confirmation", spec.session.evaluate_on) for spec in runner.ran}
    assert parts == {(False, "validation"), (True, "test")}
    assert {spec.session.validation_fraction for spec in runner.ran} == {0.25}  # the same rows train in both


# Going on.


CONFIG = SearchConfig(strategies=CHEAP, budget=5, generation_size=3, confirmation_seeds=2, tuned_baseline=True)
NUM_TRIALS = 1 + 5 + 4 + 2 * 1 + 3 * 2


@pytest.fixture(scope="module")
def whole_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    found = document(study(folder, local_runner(tiny_federation(corrupted=True)), CONFIG))
    return folder, found


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("num_lost", range(0, NUM_TRIALS + 1, 2))
def test_a_study_cut_off_anywhere_ends_with_the_same_result(
    tmp_path: Path, whole_study: tuple[Path, dict[str, Any]], num_lost: int
) -> None:
    folder, expected = whole_study
    names = [file.name for file in sorted((folder / "trials").iterdir())]
    assert len(names) == NUM_TRIALS
    keep_trials(folder, tmp_path, range(NUM_TRIALS - num_lost).__contains__)

    assert document(study(tmp_path, local_runner(tiny_federation(corrupted=True)), CONFIG)) == expected

    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == names


@pytest.mark.parametrize("lost", [(0,), (2, 4), (1, 7, 12), (15,)])
def test_trials_that_a_parallel_run_left_out_are_filled_in(
    tmp_path: Path, whole_study: tuple[Path, dict[str, Any]], lost: tuple[int, ...]
) -> None:
    folder, expected = whole_study
    keep_trials(folder, tmp_path, lambda place: place not in lost)
    assert document(study(tmp_path, local_runner(tiny_federation(corrupted=True)), CONFIG)) == expected


def test_the_seed_decides_the_search(tmp_path: Path) -> None:
    found = [
        document(study(tmp_path / str(seed), ScriptedRunner(jittered), SearchConfig(), seed=seed)) for seed in (1, 2)
    ]
    assert found[0]["trials"] != found[1]["trials"]
    again = document(study(tmp_path / "again", ScriptedRunner(jittered, backwards=True), SearchConfig(), seed=1))
    assert again == found[0]


# -- A study with a diagnosis: the rules' answer is told, and an informed search begins with what it proposes ----------


REPORT = report_of(divergence=0.5, rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS, num_classes=10)
WARM = WarmStart(
    studies=(), proposals=(WarmProposal(strategy={"kind": "fedprox", "proximal_mu": 0.5}, study="earlier", gain=0.1),)
)


def informed_study(folder: Path, warm: WarmStart | None = None, **config: object) -> StudyOutcome:
    settings = SearchConfig.model_validate({"confirmation_seeds": 0, "tuned_baseline": False, **config})
    ledger = open_ledger(folder, ScriptedRunner(lambda spec: completed(0.5, num_rounds=spec.num_rounds)))
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


def test_uninformed_it_is_the_published_search(tmp_path: Path) -> None:
    """With a report as without; the rules' answer is told all the same."""
    told = informed_study(tmp_path / "report", informed=False)
    ledger = open_ledger(tmp_path / "none", ScriptedRunner(lambda spec: completed(0.5)))
    config = SearchConfig(confirmation_seeds=0, tuned_baseline=False, informed=False)
    untold = run_study(config, ledger)
    assert [trial.spec for trial in told.trials] == [trial.spec for trial in untold.trials]
    assert (told.advice is None, untold.advice is None) == (False, True)


def test_beside_earlier_studies_the_rules_answer_alone_is_tried(tmp_path: Path) -> None:
    outcome = informed_study(tmp_path, WARM, informed=True)
    assert [trial.spec for trial in outcome.trials[:2]] == [WARM.specs()[0], outcome.advice.spec]
    assert [candidate.spec for candidate in outcome.first_generation] == [outcome.advice.spec]


def test_what_cannot_be_searched_is_refused_before_any_trial() -> None:
    with refused(StrategyError, key="kinds"):
        planned_space(SearchConfig(strategies=("nosuch",)), COHORT)
    with refused(StrategyError, key="no_such_module"):
        planned_space(SearchConfig(customs=({"path": "no_such_module:Thing"},)), COHORT)
    with refused(StrategyError, key="krum"):
        planned_space(SearchConfig(strategies=("krum",)), Cohort(2, 2, 0.2))
