"""A study: FedAvg and a search side by side, then confirmation on fresh seeds.

    plan:   trial 0 = FedAvg  +  generation 1 ... generation n  ->  [tuned FedAvg]  ->  confirmation
    each:   ask -> trials at once over shared hosts -> Parquet log -> tell

A study is resumed by running it again over the same log: what finished is read, the rest is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.strategy_contract import Cohort
from engine.trial_log import TrialRecord
from search.confirmation import Confirmation, confirm, confirmation_seeds, contestant
from search.genetic import GeneticSearcher
from search.ledger import Ledger, Planned
from search.search_config import SearchConfig
from search.searcher import Evaluation, Searcher
from strategies import CustomSpec, FedAvgSpec, SearchSpace, StrategySpec, parse_strategy, space_of

BASELINE = FedAvgSpec()


@dataclass(frozen=True)
class Archived:
    """One trial of the search or the baseline, for results and reports."""

    record: TrialRecord
    spec: StrategySpec


@dataclass
class StudyOutcome:
    """What a study found.

    Attributes:
        baseline: FedAvg on the search's seed.
        trials: The search's trials, in order.
        best: The best of all of them, FedAvg included; None if every trial failed.
        tuned: FedAvg at other client learning rates, if asked for; the best of them and of trial 0 is first.
        confirmation: On fresh seeds, if asked for and possible.
    """

    baseline: Archived
    trials: list[Archived] = field(default_factory=list)
    best: Archived | None = None
    tuned: list[Archived] = field(default_factory=list)
    confirmation: Confirmation | None = None


def planned_space(config: SearchConfig, cohort: Cohort) -> SearchSpace:
    """Return the space of a study.

    Raises:
        StrategyError: If a strategy that was asked for is unknown or impossible with these clients.
    """
    customs = [parse_strategy({"kind": "custom", **custom}) for custom in config.customs]
    own = [custom for custom in customs if isinstance(custom, CustomSpec)]
    return space_of(cohort, config.strategies, ranges=config.ranges, customs=own)


def new_searcher(config: SearchConfig, space: SearchSpace, seed: int) -> Searcher:
    """Return the configured searcher."""
    return GeneticSearcher(
        space, seed, references=(BASELINE,), population=config.generation_size, mutation_rate=config.mutation_rate
    )


def run_study(config: SearchConfig, ledger: Ledger) -> StudyOutcome:
    """Search, and confirm what was found.

    Raises:
        StrategyError: If the space can't be built.
    """
    space = planned_space(config, ledger.facts.cohort)
    searcher = new_searcher(config, space, ledger.facts.seed)
    outcome = _search(config, ledger, searcher)
    if config.tuned_baseline:
        outcome.tuned = _tune(config, ledger, outcome.baseline)
    if config.confirmation_seeds:
        outcome.confirmation = _confirm(config, ledger, outcome)
    return outcome


def _search(config: SearchConfig, ledger: Ledger, searcher: Searcher) -> StudyOutcome:
    """Spend the budget; FedAvg runs beside the first generation."""
    seed = ledger.facts.seed
    outcome: StudyOutcome | None = None
    trials: list[Archived] = []
    generation = 0
    while len(trials) < config.budget or outcome is None:
        specs = searcher.ask(config.budget - len(trials))
        if not specs and outcome is not None:
            break
        generation += 1
        plans = [Planned("search", spec, seed, generation) for spec in specs]
        if outcome is None:
            baseline, *records = ledger.run([Planned("baseline", BASELINE, seed), *plans])
            outcome = StudyOutcome(Archived(baseline, BASELINE))
            searcher.tell([evaluation(outcome.baseline)])
        else:
            records = ledger.run(plans)
        batch = [Archived(record, spec) for record, spec in zip(records, specs, strict=True)]
        searcher.tell([evaluation(entry) for entry in batch])
        trials += batch
    outcome.trials = trials
    outcome.best = best_of([outcome.baseline, *trials])
    return outcome


def evaluation(entry: Archived) -> Evaluation:
    """Return a trial as a searcher is told it."""
    if entry.record.status == "failed":
        return Evaluation.failure(entry.spec, entry.record.error or "")
    return Evaluation(entry.spec, entry.record.fitness)


def best_of(entries: Sequence[Archived]) -> Archived | None:
    """Return the completed trial of largest fitness, the earliest of equals; None if all failed."""
    completed = [entry for entry in entries if entry.record.status == "completed"]
    return max(completed, key=lambda entry: entry.record.fitness, default=None)


def _tune(config: SearchConfig, ledger: Ledger, baseline: Archived) -> list[Archived]:
    """Try FedAvg at other client learning rates on the search's seed; the best comes first."""
    rate = ledger.facts.training.learning_rate
    rates = sorted({float(f"{rate * factor:.6g}") for factor in config.tuning_factors} - {rate})
    plans = [Planned("tuned-baseline", BASELINE, ledger.facts.seed, learning_rate=value) for value in rates]
    entries = [baseline, *(Archived(record, BASELINE) for record in ledger.run(plans))]
    return sorted(entries, key=lambda entry: -entry.record.fitness)


def _confirm(config: SearchConfig, ledger: Ledger, outcome: StudyOutcome) -> Confirmation | None:
    """Pit the best configuration other than FedAvg against the baselines on fresh seeds."""
    challenger = best_of(outcome.trials)
    if challenger is None:
        return None
    seeds = confirmation_seeds(ledger.facts.seed, config.confirmation_seeds)
    entries: list[tuple[Any, StrategySpec, float | None]] = [
        ("challenger", challenger.spec, None),
        ("fedavg", BASELINE, None),
    ]
    if outcome.tuned:
        entries.append(("tuned-fedavg", BASELINE, outcome.tuned[0].record.learning_rate))
    plans = [Planned("confirmation", spec, seed, learning_rate=rate) for seed in seeds for _, spec, rate in entries]
    records = ledger.run(plans)
    contestants = [
        contestant(role, str(spec), records[index :: len(entries)]) for index, (role, spec, _) in enumerate(entries)
    ]
    return confirm(seeds, contestants, ledger.facts.view)


def trial_summary(entry: Archived) -> Mapping[str, Any]:
    """Return a trial as a result file shows it; nothing in it depends on the machine's speed."""
    record = entry.record
    return {
        "trial": record.trial,
        "phase": record.phase,
        "generation": record.generation,
        "strategy": record.strategy,
        "parameters": dict(record.parameters),
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        "status": record.status,
        "error": record.error,
        "fitness": record.fitness,
        "own_fitness": record.own_fitness,
        "clean_fitness": record.clean_fitness,
    }


__all__ = ["Archived", "StudyOutcome", "planned_space", "run_study", "trial_summary"]
