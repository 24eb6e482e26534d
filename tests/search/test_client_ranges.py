"""Client parameters in a search: configured, applied to local training, logged, confirmed; the reference stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.config import load_config
from fedscout.search.config import ClientRanges, SearchConfig
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.genetic import GeneticSearcher
from fedscout.strategies import FedAvgSpec, IntegerRange, QFedAvgSpec, RealRange, SearchSpace, space_of
from tests.kits.refusals import refused
from tests.search.searcher_conformance import COHORT, SearcherLaws, task
from tests.search.studies import (
    FACTS,
    Measured,
    ScriptedRunner,
    completed,
    document,
    facts_of,
    local_runner,
    open_ledger,
    study,
    tiny_federation,
)

RANGES = {
    "learning_rate": {"low": 0.05, "high": 0.8, "log": True},
    "local_epochs": {"low": 1, "high": 3},
    "batch_size": {"low": 4, "high": 16},
}


def test_ranges_have_the_names_of_a_specification() -> None:
    assert ClientRanges.model_validate(RANGES).ranges() == {
        "client_learning_rate": RealRange(0.05, 0.8, log=True),
        "client_local_epochs": IntegerRange(1, 3),
        "client_batch_size": IntegerRange(4, 16),
    }
    assert ClientRanges().ranges() == {}


@pytest.mark.parametrize(
    ("name", "low", "high", "key", "named"),
    [
        ("learning_rate", 1, 0.1, "learning_rate", "[1.0, 0.1]"),
        ("learning_rate", 0, 1, "learning_rate.low", "got 0.0"),
        ("local_epochs", 1, 9999, "local_epochs.high", "got 9999"),
        ("batch_size", 1.5, 4, "batch_size.low", "got 1.5"),
        ("momentum", 0, 1, "momentum", "training.momentum"),
    ],
)
def test_ranges_that_cannot_be_trained_with_are_refused(
    name: str, low: float, high: float, key: str, named: str
) -> None:
    with refused(ConfigurationError, key=f"search.client_ranges.{key}", names=named):
        load_config([f"search.client_ranges={{{name}: {{low: {low}, high: {high}}}}}"])


class TestGeneticSearchOfClientParameters(SearcherLaws):
    @pytest.fixture
    def space(self) -> SearchSpace:
        return space_of(COHORT, client_ranges=ClientRanges.model_validate(RANGES).ranges())

    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GeneticSearcher(task(space, seed))


def by_rate(spec: TrialSettings) -> Measured:
    return completed(1 - abs(spec.session.training.learning_rate - 0.4))


def test_a_study_trains_logs_and_confirms_with_them_and_fedavg_stays(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_rate)
    config = SearchConfig(
        client_ranges=ClientRanges.model_validate(RANGES),
        strategies=("fedavg", "fedadam"),
        confirmation_seeds=2,
        tuned_baseline=False,
    )
    outcome = study(tmp_path, runner, config)

    assert outcome.baseline.learning_rate == FACTS.session.training.learning_rate
    assert runner.ran[0].session.training == FACTS.session.training
    table = read_trials(tmp_path).sort_values("trial").reset_index(drop=True)
    searched = table[table["phase"] == "search"]
    for spec, (_, row) in zip(runner.ran[1:9], searched.iterrows(), strict=True):
        assert spec.session.training.learning_rate == row["learning_rate"] == row["param_client_learning_rate"]
        assert spec.session.training.local_epochs == row["param_client_local_epochs"]
        assert spec.session.training.batch_size == row["param_client_batch_size"]
    assert searched["param_client_local_epochs"].isin([1, 2, 3]).all()
    assert table["param_client_learning_rate"].isna()[0]
    assert "fedavg" in set(searched["strategy"])  # at other client parameters it is a candidate
    challenger, fedavg = outcome.confirmation.contestants
    assert challenger.learning_rate == min(searched["learning_rate"], key=lambda rate: abs(rate - 0.4))
    assert fedavg.learning_rate == FACTS.session.training.learning_rate


def test_a_candidate_at_the_study_s_own_values_is_the_reference(tmp_path: Path) -> None:
    ranges = {"local_epochs": {"low": 1, "high": 2}}
    config = SearchConfig(
        client_ranges=ClientRanges.model_validate(ranges), strategies=("fedavg",), confirmation_seeds=0
    )
    outcome = study(tmp_path, ScriptedRunner(by_rate), config)
    assert FACTS.session.training.local_epochs == 1
    assert [entry.spec for entry in outcome.trials] == [FedAvgSpec(client_local_epochs=2)]


@pytest.mark.slow
def test_a_study_with_them_goes_on_with_the_same_result(tmp_path: Path) -> None:
    config = SearchConfig(
        client_ranges=ClientRanges.model_validate(RANGES),
        strategies=("fedavg", "fedadam", "qfedavg"),
        budget=4,
        generation_size=2,
        confirmation_seeds=1,
    )
    whole = document(study(tmp_path, local_runner(tiny_federation()), config))
    for path in sorted((tmp_path / "trials").iterdir())[2::2]:
        path.unlink()
    assert document(study(tmp_path, local_runner(tiny_federation()), config)) == whole


def test_a_plan_s_own_rate_comes_first_and_the_strategy_s_reaches_flower(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_rate)
    spec = QFedAvgSpec(q=1.0, client_learning_rate=0.05)
    own, planned = open_ledger(tmp_path, runner).run(
        [FACTS.trial("search", spec), FACTS.trial("search", spec, learning_rate=0.6)]
    )
    assert (own.learning_rate, planned.learning_rate) == (0.05, 0.6)
    assert own.key != planned.key


def test_a_rate_of_the_strategy_trains_as_the_same_rate_of_the_study(tmp_path: Path) -> None:
    """q-FedAvg uses the clients' rate on the server as well, so both must have it."""
    runner = local_runner(tiny_federation())
    spec = QFedAvgSpec(q=1.0, client_learning_rate=0.05)
    (of_strategy,) = open_ledger(tmp_path / "a", runner).run([FACTS.trial("search", spec)])
    slower = facts_of(training=FACTS.session.training.model_copy(update={"learning_rate": 0.05}))
    (of_study,) = open_ledger(tmp_path / "b", runner).run([slower.trial("search", QFedAvgSpec(q=1.0))])
    (other,) = open_ledger(tmp_path / "c", runner).run([FACTS.trial("search", QFedAvgSpec(q=1.0))])
    assert of_strategy.round_loss == of_study.round_loss
    assert of_strategy.round_loss != other.round_loss
