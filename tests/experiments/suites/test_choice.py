"""Regrets and archives by hand, and searchers of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError, StrategyError
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import Measured
from fedscout.experiments.grids.federation_runner import other_seeds, search_seeds
from fedscout.experiments.grids.recommenders import RECOMMENDERS
from fedscout.experiments.suites.replay import (
    regret_fedavg,
    regret_tuned,
)
from fedscout.strategies import FedAdamSpec
from tests.experiments.suites.made_up_tables import SEEDS, by_rate, federation, replayed, written
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
    (values,) = found.values.values()
    assert values == pytest.approx([0.0] * len(SEEDS), abs=1e-9)
    assert costs(found) == {8.0}


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
