"""A searcher of the user's own in a replay: `--searcher package.module:Class`.

The class is a `Searcher` (`fedscout.search.searcher`), made from a `SearchTask` as the built-in ones are. Its study is
theirs: FedAvg beside what is proposed first, then what it asks for until `search.budget` trials are spent, or to its
own end where it has a budget of its own. No warm start learns from it, so that the built-in recommenders' figures are
the same with it and without.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedscout.engine.errors import ConfigurationError, Fault, FedscoutError, first_line
from fedscout.engine.fault_text import shown
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.grids.federation_runner import Choice
from fedscout.experiments.grids.recommenders import ChoiceTask, Recommender
from fedscout.search.ledger import Ledger
from fedscout.search.searcher import Proposal, Searcher, SearchTask
from fedscout.search.study.study import study_space
from fedscout.search.study_trials import BASELINE, best_of, trainings_of
from fedscout.strategies import StrategySpec
from fedscout.strategies.import_path import imported_class


def own_recommender(path: str) -> Recommender:
    """Return the recommender that searches with the class at a path.

    Raises:
        StrategyError: If it can't be imported, is no searcher or lacks a method.
    """
    searcher: type[Searcher] = imported_class(path, {"fedscout.search.searcher.Searcher": Searcher})
    return Recommender(path, lambda task: _choose(searcher, path, task))


def _choose(searcher: type[Searcher], path: str, task: ChoiceTask) -> Choice:
    config = task.config()
    ledger = task.context.ledger(config)
    facts = ledger.facts
    search = SearchTask(
        space=study_space(config.search, facts),
        seed=facts.session.seed,
        settings=config.search,
        num_rounds=facts.num_rounds,
        references=(BASELINE,),
        measure=facts.measure,
    )
    with _code_of(path):
        found = searcher(search)
    baseline, trials = _search(found, path, ledger, sys.maxsize if found.has_own_budget else config.search.budget)
    best = best_of([baseline, *trials])
    return Choice(BASELINE if best is None else best.spec, trainings_of(trials, facts.num_rounds))


def _search(searcher: Searcher, path: str, ledger: Ledger, budget: int) -> tuple[Trial, list[Trial]]:
    """Return FedAvg's trial and those of the search; FedAvg is told with the first proposals, as in any study."""
    facts = ledger.facts
    told = ledger.run([facts.trial("baseline", BASELINE)])
    baseline, trials = told[0], list[Trial]()
    while budget > len(trials):
        with _code_of(path):
            proposals = searcher.plan(budget - len(trials))
        _check(proposals, path, searcher, budget - len(trials))
        if not proposals:
            break
        new = ledger.run([facts.trial("search", each.spec, num_rounds=each.num_rounds) for each in proposals])
        with _code_of(path):
            searcher.tell([*told, *new])
        told, trials = [], [*trials, *new]
    return baseline, trials


def _check(proposals: Sequence[Proposal], path: str, searcher: Searcher, left: int) -> None:
    """Refuse what a study could not train.

    Raises:
        ConfigurationError: With the first of it.
    """
    if len(proposals) > left:
        raise ConfigurationError(Fault(path, f"propose at most the {left} that are asked for", len(proposals)))
    for each in proposals:
        if not (isinstance(each.spec, StrategySpec) and searcher.task.space.contains(each.spec)):
            raise ConfigurationError(Fault(path, "propose configurations of task.space", shown(each.spec)))


@contextmanager
def _code_of(path: str) -> Iterator[None]:
    """Tell a fault of the user's code in one line, with its place."""
    try:
        yield
    except FedscoutError:
        raise
    except Exception as error:  # user code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        raise ConfigurationError(
            f"{path} must search without a fault, got {type(error).__name__}: {first_line(error)} ({where})"
        ) from error
