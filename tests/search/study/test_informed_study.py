"""A study with a diagnosis: the rules' answer is told, and an informed search begins with what it proposes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.search.config import SearchConfig
from fedscout.search.study import StudyOutcome, run_study
from fedscout.search.warm_start import WarmProposal, WarmStart
from tests.search.recommenders.reports import report_of
from tests.search.studies import NUM_CLIENTS, ScriptedRunner, completed, open_ledger

REPORT = report_of(divergence=0.5, rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS, num_classes=10)
WARM = WarmStart(
    studies=(), proposals=(WarmProposal(strategy={"kind": "fedprox", "proximal_mu": 0.5}, study="earlier", gain=0.1),)
)


def informed_study(
    folder: Path, warm: WarmStart | None = None, data_digest: str | None = None, **config: object
) -> StudyOutcome:
    settings = SearchConfig.model_validate({"confirmation_seeds": 0, "tuned_baseline": False, **config})
    ledger = open_ledger(
        folder, ScriptedRunner(lambda spec: completed(0.5, num_rounds=spec.num_rounds)), data_digest=data_digest
    )
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
