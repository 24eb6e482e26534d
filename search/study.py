"""A study: FedAvg and a search, then confirmation on fresh seeds.

    plan:   trial 0 = FedAvg  +  generation 1 ... generation n  ->  [tuned FedAvg]  ->  confirmation
    each:   ask -> concurrent trials on shared hosts -> Parquet log -> tell

A searcher may request trials of fewer rounds than the study's. They are logged like all others; only full trainings can
be the best, or be confirmed. A study is resumed by running it again with the same log: finished trials are read, the
others are run. `SEARCHERS` is the registry of searchers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.seeds import integer
from fedscout.engine.trials.record import Trial
from fedscout.search.config import ONE_SHOT, SearchConfig
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.runs import confirm_winner, tune
from fedscout.search.ledger import BASELINE, Ledger, StudyFacts, best_of, comparable, full_trainings_of
from fedscout.search.recommenders.diagnosis import (
    Alternative,
    Diagnosis,
    Recommendation,
    RecommendationContext,
    diagnose,
)
from fedscout.search.recommenders.priors import Evidence
from fedscout.search.recommenders.rules import first_generation, is_robust, kinds_in_turn, recommend_by_rules
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.search.searchers.genetic import GeneticSearcher, GridSearcher, RandomSearcher, grid_parts
from fedscout.search.searchers.llm import LanguageModel, LLMGeneticSearcher, MultiShotLLMSearcher, OneShotSearcher
from fedscout.search.searchers.racing import RacingSearcher
from fedscout.search.warm_start import WarmStart
from fedscout.strategies import ChoiceRange, CustomSpec, SearchSpace, SelectionSpec, StrategySpec
from fedscout.strategies.selection.table import named_selection
from fedscout.strategies.space import space_of
from fedscout.strategies.specification import SELECTION, given_values
from fedscout.strategies.table import parse_strategy


def _of_optuna(name: str) -> Callable[[SearchTask], Searcher]:
    def make(task: SearchTask) -> Searcher:
        from fedscout.search.searchers import optuna  # not before: it loads slowly

        searcher: Searcher = getattr(optuna, name)(task)
        return searcher

    return make


SEARCHERS: Mapping[str, Callable[[SearchTask], Searcher]] = {
    "genetic": GeneticSearcher,
    "tpe": _of_optuna("TPESearcher"),
    "gp": _of_optuna("GPSearcher"),
    "cmaes": _of_optuna("CmaEsSearcher"),
    "random": RandomSearcher,
    "grid": GridSearcher,
    "racing": RacingSearcher,
}

ASKS_A_LANGUAGE_MODEL: Mapping[str, type[MultiShotLLMSearcher]] = {
    "multishot_llm": MultiShotLLMSearcher,
    "llm_genetic": LLMGeneticSearcher,
}


def new_searcher(
    task: SearchTask, report: HeterogeneityReport | None = None, model: LanguageModel | None = None
) -> Searcher:
    """Return the configured searcher.

    Args:
        task: The search task.
        report: How the clients' data differ, if measured.
        model: A language model, for searchers that use one.
    """
    kind = task.settings.kind
    if kind == ONE_SHOT:
        if not task.first:
            raise ConfigurationError.of(f"search.kind={ONE_SHOT}", "be given a recommendation by `fedscout run`")
        return OneShotSearcher(task)
    if kind in SEARCHERS:
        return SEARCHERS[kind](task)
    assert model is not None, "the study must open the language model"
    return ASKS_A_LANGUAGE_MODEL[kind](task, model, None if report is None else diagnose(report))


Timed = Callable[[str], AbstractContextManager[None]]


@dataclass
class StudyOutcome:
    """Results of a study.

    Attributes:
        baseline: FedAvg on the search's seed.
        trials: The search's trials, in order, including those of fewer rounds.
        best: The best full training, including FedAvg; None if all failed.
        trainings: Cost of the search in full trainings, without FedAvg.
        tuned: FedAvg at several client learning rates, if configured; the best is first.
        confirmation: Confirmation on fresh seeds, if configured and possible.
        warm_start: Proposals of earlier studies, if there were any.
        advice: The rules' recommendation, which takes no trial; None without a diagnosis.
        first_generation: Initial proposals from the diagnosis; empty unless the search is informed.
        is_perfect: Whether the search ended early, as FedAvg has the best possible score.
        recommendation: The configuration trained by a one-shot study, and its source; None for a search.
        notes: The searcher's notes on configurations that it did not try.
    """

    baseline: Trial
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    trainings: float = 0.0
    tuned: list[Trial] = field(default_factory=list)
    confirmation: Confirmation | None = None
    warm_start: WarmStart | None = None
    advice: Recommendation | None = None
    first_generation: tuple[Alternative, ...] = ()
    is_perfect: bool = False
    recommendation: Recommendation | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def full_trials(self) -> list[Trial]:
        """The search's full trainings, in order."""
        return [trial for trial in self.trials if trial.is_full]

    @property
    def worst(self) -> Trial | None:
        """The worst completed full training, including FedAvg: with the best, the observed range."""
        return min(comparable([self.baseline, *self.trials]), key=lambda trial: trial.fitness, default=None)


def planned_space(
    config: SearchConfig, cohort: Cohort, training: LocalTraining | None = None, selection: SelectionSpec | None = None
) -> SearchSpace:
    """Return the search space of a study.

    Args:
        config: Configuration of the search.
        cohort: The clients.
        training: Default local training; with it, a client parameter at that value is equivalent to an unset one.
        selection: The study's selection policy, which is searched with its parameters; None if it has none.

    Raises:
        StrategyError: If a configured strategy is unknown or impossible with these clients.
    """
    customs = [parse_strategy({"kind": "custom", **custom}) for custom in config.customs]
    custom_specs = [custom for custom in customs if isinstance(custom, CustomSpec)]
    searched_ranges = {**config.client_ranges.ranges()}
    if config.selection is not None:
        for kind in config.selection:
            named_selection(kind, selection, cohort)  # refuses what does not fit
        searched_ranges[SELECTION] = ChoiceRange(tuple(config.selection))
    return space_of(
        cohort,
        config.strategies,
        customs=custom_specs,
        client_ranges=searched_ranges,
        given=None if training is None else given_values(training),
    )


def check_search(
    config: SearchConfig, cohort: Cohort, training: LocalTraining, selection: SelectionSpec | None = None
) -> None:
    """Check that a search can begin, before any resources are started; arguments as for `planned_space`.

    Raises:
        StrategyError: If the space can't be built.
        ConfigurationError: If the configured searcher can't search it.
    """
    space = planned_space(config, cohort, training, selection)
    if config.kind == "cmaes":
        from fedscout.search.searchers.optuna import cma_faults  # not before: it loads slowly

        if faults := cma_faults(space, config.generation_size):
            raise ConfigurationError(faults)
    if config.kind == "grid":
        grid_parts(space, config.grid_points)


def study_space(config: SearchConfig, facts: StudyFacts) -> SearchSpace:
    """Return the search space of a study."""
    return planned_space(config, facts.cohort, facts.session.training, facts.selection)


def run_study(
    config: SearchConfig,
    ledger: Ledger,
    report: HeterogeneityReport | None = None,
    warm_start: WarmStart | None = None,
    model: LanguageModel | None = None,
    recommendation: Recommendation | None = None,
    timed: Timed = lambda _: nullcontext(),
) -> StudyOutcome:
    """Search, tune the reference, and confirm the winner.

    Args:
        config: Configuration of search and confirmation.
        ledger: Runs and logs the trials.
        report: How the clients' data differ, for searchers that use it.
        warm_start: Proposals of earlier studies, to try first.
        model: A language model, for searchers that use one.
        recommendation: The configuration of a one-shot study.
        timed: Opens a context around each stage: training, tuning, confirmation.

    Raises:
        StrategyError: If the space can't be built.
        ConfigurationError: If a one-shot study has no recommendation.
    """
    facts = ledger.facts
    space = study_space(config, facts)
    given = [recommendation.spec] if recommendation is not None else warm_start.specs() if warm_start else []
    advice, informed, kinds = (None, (), ()) if report is None else advised(config, space, facts, report)
    own = [] if recommendation or config.published else [s for s in space.members.values() if isinstance(s, CustomSpec)]
    first = [*own, *given, *(candidate.spec for candidate in informed)]
    task = SearchTask(space, facts.session.seed, config, facts.num_rounds, first, kinds, (BASELINE,), facts.measure)
    with timed("training"):
        outcome = search_by(new_searcher(task, report, model), config, ledger)
    outcome.recommendation = recommendation
    outcome.warm_start, outcome.advice, outcome.first_generation = warm_start, advice, informed
    if config.has_tuned_reference and not _is_best_possible(outcome.baseline, facts):
        with timed("tuning"):
            outcome.tuned = tune(config, ledger, outcome.baseline)
    if config.confirmation_seeds:
        with timed("confirmation"):
            outcome.confirmation = confirm_winner(config, ledger, outcome.trials, outcome.tuned)
    return outcome


PORTFOLIO = 8
"""Configurations with which an informed search begins."""


def context_of(
    space: SearchSpace, facts: StudyFacts, diagnosis: Diagnosis | None = None, description: str | None = None
) -> RecommendationContext:
    """Return a study's federation as one that needs a strategy."""
    return RecommendationContext(
        space, facts.num_rounds, facts.view, diagnosis, description, facts.measure, facts.data_origin
    )


def advised(
    config: SearchConfig, space: SearchSpace, facts: StudyFacts, report: HeterogeneityReport
) -> tuple[Recommendation, tuple[Alternative, ...], tuple[StrategySpec, ...]]:
    """Return the rules' recommendation, initial proposals of an informed search, and one configuration of each kind."""
    context = context_of(space, facts, diagnose(report))
    seed = integer(facts.session.seed, f"drawn for {facts.data_digest}")
    advice = recommend_by_rules(context)
    if not config.is_informed:
        return advice, (), ()
    kinds = kinds_in_turn(context, seed)
    size, references = min(config.budget, PORTFOLIO), (BASELINE,)
    evidence = Evidence.of(context, is_robust(advice.spec), references, by_labels=False)
    portfolio = () if evidence is None else evidence.portfolio(3 * size)  # robust ones may be left out
    return advice, first_generation(context, advice, size, seed, references, portfolio), kinds


def _is_best_possible(trial: Trial, facts: StudyFacts) -> bool:
    """Whether a trial has the best possible score."""
    return facts.measure.best is not None and trial.fitness >= facts.measure.best


def search_by(searcher: Searcher, config: SearchConfig, ledger: Ledger) -> StudyOutcome:
    """Run the search until the budget is spent, or stop if FedAvg, trained first, has the best possible score."""
    facts = ledger.facts
    outcome: StudyOutcome | None = None
    trials: list[Trial] = []
    generation = 0
    while True:
        remaining = sys.maxsize if searcher.has_own_budget else config.budget - len(trials)
        if outcome is not None and remaining > 0 and _is_best_possible(outcome.baseline, facts):
            outcome.is_perfect = True
            break
        proposals = searcher.plan(remaining) if remaining > 0 else []
        if not proposals and outcome is not None:
            break
        generation += 1
        batch = [
            facts.trial("search", planned.spec, generation=generation, num_rounds=planned.num_rounds)
            for planned in proposals
        ]
        if outcome is None:
            baseline, *new = ledger.run([facts.trial("baseline", BASELINE), *batch])
            outcome = StudyOutcome(baseline)
            searcher.tell([baseline])
        else:
            new = ledger.run(batch)
        searcher.tell(new)
        trials += new
    ledger.release()
    outcome.trials = trials
    outcome.best = best_of([outcome.baseline, *trials])
    outcome.trainings = full_trainings_of(trials, facts.num_rounds)
    outcome.notes = [] if outcome.is_perfect else searcher.notes()
    return outcome
