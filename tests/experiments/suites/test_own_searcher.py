"""A searcher of the user's own in a replay: the page's example, and what is said to one that can't search."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError, StrategyError
from fedscout.experiments.grids.cells import Measured
from tests.experiments.suites.made_up_tables import SEEDS, by_rate, federation, replayed, written
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
