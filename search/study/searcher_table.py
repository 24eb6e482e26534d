"""The table of searchers: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.search.recommenders.diagnosis import diagnose
from fedscout.search.recommenders.llm_recommender import LanguageModel
from fedscout.search.search_config import ONE_SHOT, SearchConfig
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.search.searchers.cma_search import CmaEsSearcher, cma_faults
from fedscout.search.searchers.genetic_search import GeneticSearcher
from fedscout.search.searchers.gp_search import GPSearcher
from fedscout.search.searchers.grid_search import GridSearcher, grid_parts
from fedscout.search.searchers.llm_search import LLMGeneticSearcher, MultiShotLLMSearcher
from fedscout.search.searchers.one_shot import OneShotSearcher
from fedscout.search.searchers.racing_search import RacingSearcher
from fedscout.search.searchers.random_search import RandomSearcher
from fedscout.search.searchers.tpe_search import TPESearcher
from fedscout.strategies import SearchSpace

SEARCHERS: Mapping[str, Callable[[SearchTask], Searcher]] = {
    "genetic": GeneticSearcher,
    "tpe": TPESearcher,
    "gp": GPSearcher,
    "cmaes": CmaEsSearcher,
    "random": RandomSearcher,
    "grid": GridSearcher,
    "racing": RacingSearcher,
}

ASKS_A_LANGUAGE_MODEL: Mapping[str, type[MultiShotLLMSearcher]] = {
    "multishot_llm": MultiShotLLMSearcher,
    "llm_genetic": LLMGeneticSearcher,
}


def check_space(settings: SearchConfig, space: SearchSpace) -> None:
    """Refuse a space that the configured searcher can't search.

    Raises:
        ConfigurationError: With what would help.
    """
    if settings.kind == "cmaes" and (faults := cma_faults(space, settings.generation_size)):
        raise ConfigurationError(faults)
    if settings.kind == "grid":
        grid_parts(space, settings.grid_points)


def new_searcher(
    task: SearchTask, report: HeterogeneityReport | None = None, model: LanguageModel | None = None
) -> Searcher:
    """Return the configured searcher.

    Args:
        task: What is searched for.
        report: How the clients' data differ, if that was measured.
        model: A language model, for searchers that ask one.
    """
    kind = task.settings.kind
    if kind == ONE_SHOT:
        return _one_shot(task)
    if kind in SEARCHERS:
        return SEARCHERS[kind](task)
    assert model is not None, "the study must open the language model"
    return ASKS_A_LANGUAGE_MODEL[kind](task, model, None if report is None else diagnose(report))


def _one_shot(task: SearchTask) -> Searcher:
    if not task.first:
        raise ConfigurationError(
            Fault(
                f"search.kind={ONE_SHOT}",
                "be given a recommendation, for which `fedscout run` asks, and was given none",
            )
        )
    return OneShotSearcher(task)
