"""A searcher of the user's own in a replay: the page's example, and what is said to one that can't search."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError, StrategyError
from fedscout.experiments.benchmarks.choice.replay_measurement import ReplaySummary, run_replay
from fedscout.experiments.benchmarks.choice.trial_table import write_table
from tests.experiments.benchmarks.made_up_tables import by_rate, federation
from tests.snippets import blocks

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
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A table of one federation, in a folder with the page's example and others that are wrong."""
    (page,) = (block for block in blocks() if block.page == "choice.md" and block.text.startswith(SHOWN))
    (tmp_path / "halving.py").write_text(page.text)
    (tmp_path / "wrong.py").write_text(WRONG)
    write_table(tmp_path / "t.parquet", [federation(by_rate)])
    monkeypatch.syspath_prepend(tmp_path)
    yield str(tmp_path / "t.parquet")
    for name in ("halving", "wrong"):
        sys.modules.pop(name, None)


def replayed(table: str, path: str, *settings: str) -> ReplaySummary:
    (summary,) = run_replay(table, [path], None, settings, strategies_alone=False).summary
    return summary


def test_the_example_of_the_page_finds_what_it_tries(table: str) -> None:
    """Its first trial is nearest to eta 0.3, which is the oracle; more than eight trials it is not given."""
    found = replayed(table, "halving:Halving")
    assert found.regret_tuned is not None
    assert found.regret_tuned.mean == pytest.approx(0.0, abs=1e-9)
    assert (found.chooser, found.cost, found.archive) == ("halving:Halving", 8.0, 0.0)


def test_the_budget_is_the_studies(table: str) -> None:
    assert replayed(table, "halving:Halving", "search.budget=3").cost == 3.0


def test_without_a_proposal_fedavg_is_picked(table: str) -> None:
    found = replayed(table, "wrong:Silent")
    assert found.regret_fedavg is not None
    assert (found.cost, found.regret_fedavg.mean) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("nowhere:Search", "nowhere:Search must be importable from the Python path, got ModuleNotFoundError"),
        ("wrong:Nobody", "wrong:Nobody must be a subclass of fedscout.search.searcher.Searcher, got nothing of that"),
        ("wrong:FedAdamSpec", "wrong:FedAdamSpec must be a subclass of fedscout.search.searcher.Searcher, got <class"),
        ("wrong:Idle", "wrong:Idle must define every abstract method, ask missing"),
    ],
)
def test_what_is_no_searcher_is_refused(table: str, path: str, fault: str) -> None:
    with pytest.raises(StrategyError) as caught:
        replayed(table, path)
    assert str(caught.value).startswith(fault)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("wrong:Greedy", "wrong:Greedy must propose at most the 8 that are asked for, got 9"),
        ("wrong:Outside", "wrong:Outside must propose configurations of task.space, got FedExPSpec"),
        ("wrong:Texts", "wrong:Texts must propose configurations of task.space, got 'fedadam'"),
        ("wrong:Faulty", "wrong:Faulty must search without a fault, got AttributeError: 'Faulty' object has no"),
        ("wrong:NoTask", "wrong:NoTask must search without a fault, got TypeError: "),
        ("no searcher:", "--chooser of a replay must be one of FedAvg, "),
    ],
)
def test_a_searcher_that_can_t_search_is_told_in_one_line(table: str, path: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        replayed(table, path)
    assert str(caught.value).startswith(fault)
    assert "\n" not in str(caught.value)
