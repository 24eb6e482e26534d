"""Regrets and archives by hand, and searchers of the user's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError, StrategyError
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import Measured
from fedscout.experiments.grids.federation_runner import other_seeds, search_seeds
from fedscout.experiments.grids.recommenders import RECOMMENDERS
from fedscout.experiments.suites.choice import (
    prior_trainings,
    regret_fedavg,
    regret_tuned,
    trained_by,
    union,
)
from fedscout.experiments.suites.replay import KNOWLEDGE, PUBLISHED, ReplayedFederation, read_table
from fedscout.search.ledger import BASELINE
from fedscout.search.recommenders.diagnosis import Alternative
from fedscout.search.recommenders.priors import SOURCE
from fedscout.search.study import StudyOutcome
from fedscout.strategies import FedAdamSpec
from tests.experiments.suites.made_up_tables import SEEDS, by_rate, federation, replayed, written
from tests.search.studies import FACTS
from tests.snippets import blocks

ADAM = FedAdamSpec(eta=0.3)


def test_a_record_of_answers_is_as_good_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = load_config(["federation.dataset=wine"])
    assert RECOMMENDERS["LLM"].unavailable(config, tmp_path) is not None
    (tmp_path / "llm.jsonl").touch()
    assert RECOMMENDERS["LLM"].unavailable(config, tmp_path) is None


def test_seeds_for_different_purposes_are_different() -> None:
    groups = [search_seeds(50), *(other_seeds(purpose, 50) for purpose in ("fresh", "tuning", "selection"))]
    assert len({seed for group in groups for seed in group}) == 200


@pytest.mark.parametrize(("lost", "regret"), [(0.0, 0.0), (0.1, 1.0), (0.2, 2.0), (-0.05, -0.5)])
def test_the_regret_of_what_a_step_size_does_not_give(lost: float, regret: float) -> None:
    """Gains of 0.11 and 0.09: mean 0.1, deviation 0.01 · √2, standard error 0.01."""
    assert regret_tuned(lost, (0.11, 0.09)) == pytest.approx(regret)
    assert regret_fedavg(lost, 0.1) == pytest.approx(regret)


@pytest.mark.parametrize(
    ("mean", "error", "is_to_win"),
    [(0.0101, 0.0, True), (0.0099, 0.0, False), (0.05, 0.0249, True), (0.05, 0.0251, False), (-0.05, 0.0, False)],
)
def test_a_gain_counts_from_a_point_and_two_standard_errors(mean: float, error: float, is_to_win: bool) -> None:
    """Two gains m ± e have the standard error e."""
    assert (regret_tuned(0.1, (mean + error, mean - error)) is not None) == is_to_win
    assert regret_fedavg(0.1, 0.0199) is None


def trial(spec: object, rounds: int | None = None) -> Trial:
    settings = FACTS.trial("search", spec, num_rounds=rounds)  # type: ignore[arg-type]
    scores = dict.fromkeys(("round_accuracy", "round_clean_accuracy"), (0.5,) * (rounds or FACTS.num_rounds))
    return Trial.of(settings, status="completed", **scores)


def test_a_study_trained_fedavg_and_of_each_configuration_its_longest_training() -> None:
    outcome = StudyOutcome(trial(BASELINE), [trial(ADAM, 1), trial(ADAM, 2)])
    assert sum(trained_by(outcome, FACTS, "here").values()) == pytest.approx(1 + 2 / FACTS.num_rounds)


def test_what_two_studies_share_is_trained_once_and_other_seeds_and_federations_are_others() -> None:
    outcome = StudyOutcome(trial(BASELINE), [trial(ADAM)])
    here = trained_by(outcome, FACTS, "here")
    other_seed = replace(FACTS, session=replace(FACTS.session, seed=FACTS.session.seed + 1))
    assert union([here, here]) == here
    assert sum(union([here, trained_by(outcome, FACTS, "there")]).values()) == 4
    assert sum(union([here, trained_by(outcome, other_seed, "here")]).values()) == 4


@pytest.mark.slow
def test_priors_rest_on_all_trials_but_those_of_the_own_data() -> None:
    table = read_table(PUBLISHED)
    trials = {each.about.name: len(each.trials) for each in [*table, *read_table(KNOWLEDGE)]}
    reasons = (Alternative(ADAM, "It gained.", SOURCE), Alternative(ADAM, "A rule.", "paper"))
    informed = StudyOutcome(trial(BASELINE), first_generation=reasons)
    new = replace(FACTS, config=json.dumps({"federation": {"dataset": "mine"}}), config_hash="new", data_digest="new")
    assert prior_trainings(informed, new) == trials
    own = ReplayedFederation(next(each for each in table if each.about.name == "wine, feature skew, 4 clients"))
    known = own.ledger(own.config).facts
    assert prior_trainings(informed, known) == {name: n for name, n in trials.items() if not name.startswith("wine, ")}
    assert prior_trainings(StudyOutcome(trial(BASELINE), first_generation=reasons[1:]), new) == {}


# A searcher of the user's own in a replay: the page's example, and what is said to one that can't search.


SHOWN = "# file: halving.py"
WRONG = """
from fedscout.search.searcher import Searcher
from fedscout.strategies import FedAdamSpec, parse_strategy

class Idle(Searcher):
    pass

class Greedy(Searcher):
    def ask(self, num_proposals):
        return [FedAdamSpec(eta=0.3)] * (num_proposals + 1)

class Outside(Searcher):
    def ask(self, num_proposals):
        return [parse_strategy("fedexp")]

class Texts(Searcher):
    def ask(self, num_proposals):
        return ["fedadam"]

class Faulty(Searcher):
    def ask(self, num_proposals):
        return self.nothing

class NoTask(Searcher):
    def __init__(self):
        pass

    def ask(self, num_proposals):
        return []

class Silent(Searcher):
    def ask(self, num_proposals):
        return []
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of one federation, in a folder with the page's example and others that are wrong."""
    (page,) = (block for block in blocks() if block.page == "choice.md" and block.text.startswith(SHOWN))
    (tmp_path / "halving.py").write_text(page.text)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    yield written(tmp_path / "t.parquet", federation(by_rate))
    for name in ("halving", "wrong"):
        sys.modules.pop(name, None)


def costs(found: Measured) -> set[float | None]:
    return {cost for costs in found.figures["cost, trainings"].values() for cost in costs}


def test_the_example_of_the_page_finds_what_it_tries(table: Path) -> None:
    """Its first trial is nearest to eta 0.3, which is the oracle; more than eight trials it is not given."""
    found = replayed(table, ["halving:Halving"])
    ((cell, values),) = found.values.items()
    assert values == pytest.approx([0.0] * len(SEEDS), abs=1e-9)
    assert costs(found) == {8.0}
    assert {*found.figures["archives, trainings"][cell]} == {0.0}


def test_the_budget_is_the_studies(table: Path) -> None:
    assert costs(replayed(table, ["halving:Halving"], "search.budget=3")) == {3.0}


def test_without_a_proposal_fedavg_is_chosen(table: Path) -> None:
    found = replayed(table, ["wrong:Silent"])
    (regrets,) = found.figures["R_f"].values()
    assert costs(found) == {0.0}
    assert regrets == pytest.approx([1.0] * len(SEEDS))


@pytest.mark.parametrize("path", ["nowhere:Search", "wrong:Nobody", "wrong:FedAdamSpec", "wrong:Idle"])
def test_what_is_no_searcher_is_refused(table: Path, path: str) -> None:
    with pytest.raises(StrategyError):
        replayed(table, [path])


@pytest.mark.parametrize(
    "path", ["wrong:Greedy", "wrong:Outside", "wrong:Texts", "wrong:Faulty", "wrong:NoTask", "no searcher:"]
)
def test_a_searcher_that_can_t_search_is_told_in_one_line(table: Path, path: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^[^\n]*{path}[^\n]*$"):
        replayed(table, [path])
