"""Whole studies with each kind of searcher, on hosts in this process: cut off, continued, the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.search.config import SearchConfig
from tests.kits.refusals import refused
from tests.search.studies import (
    ScriptedRunner,
    completed,
    document,
    failed,
    keep_trials,
    local_runner,
    study,
    tiny_federation,
)

BUDGET = 7
KINDS = ("tpe", "gp", "random", "grid", "cmaes")


def config(kind: Any) -> SearchConfig:
    strategies = ("fedadam",) if kind == "cmaes" else ("fedmedian", "fedadam", "krum", "fedprox")
    return SearchConfig(kind=kind, strategies=strategies, budget=BUDGET, generation_size=3, confirmation_seeds=0)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_that_lost_trials_ends_with_the_same_result(tmp_path: Path, kind: str) -> None:
    """Cut within the second generation, after the first, and with holes as a killed parallel run leaves them."""
    federation = tiny_federation()
    expected = document(study(tmp_path / "whole", local_runner(federation), config(kind), searcher=kind))
    assert len(list((tmp_path / "whole" / "trials").iterdir())) == 1 + BUDGET
    for number, kept in enumerate(([0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [2, 4, 5, 7], [])):
        folder = tmp_path / str(number)
        keep_trials(tmp_path / "whole", folder, kept.__contains__)
        assert document(study(folder, local_runner(federation), config(kind), searcher=kind)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_generations_are_of_the_configured_size_and_go_on_where_all_fail(tmp_path: Path, kind: str) -> None:
    runner = ScriptedRunner(lambda spec: completed(0.5))
    outcome = study(tmp_path / "completed", runner, config(kind))
    assert [len(batch) for batch in runner.batches] == [1 + 3, 3, 1]
    assert [entry.generation for entry in outcome.trials] == [1, 1, 1, 2, 2, 2, 3]
    lost = study(tmp_path / "failed", ScriptedRunner(lambda spec: failed("diverged")), config(kind))
    assert (len(lost.trials), lost.best, lost.worst) == (BUDGET, None, None)


def test_the_worst_is_told_beside_the_best(tmp_path: Path) -> None:
    """Fitness rises with FedProx's μ; FedAvg counts, as a trial like others."""

    def outcome(spec: Any) -> Any:
        return completed(0.4) if spec.strategy.kind == "fedavg" else completed(0.1 + spec.strategy.proximal_mu / 2)

    found = study(tmp_path, ScriptedRunner(outcome), SearchConfig(kind="random", strategies=("fedprox",), budget=5))
    fitness = [entry.fitness for entry in (found.baseline, *found.trials)]
    assert (found.best.fitness, found.worst.fitness) == (max(fitness), min(fitness))


def test_cma_es_over_all_strategies_is_refused_before_any_trial(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: completed(0.5))
    with refused(ConfigurationError, key="search.kind"):
        study(tmp_path, runner, SearchConfig(kind="cmaes"))
    assert runner.batches == []
