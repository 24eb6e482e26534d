"""The tuned reference: FedAvg at its best client learning rate, as most of a gain over plain FedAvg may be step size.

Every rate is trained on the search's seed. The two best of those that did not fail, the study's own among them or not,
are trained on `search.tuning_seeds` − 1 further seeds, neither the search's nor the confirmation's. The better of them
over all these seeds is the tuned reference: a rate that failed on fewer seeds comes first, then one of larger mean, in
which a failure counts as guessing, then the one that is nearer to the study's own.

One seed is not enough: a rate at the edge of stability is often the best where it does not fail. Two further seeds
still miss half of the rates that fail on one seed in five, so the confirmation compares with the stronger of FedAvg and
tuned FedAvg on its own seeds (`fedscout.search.confirmation.confirmation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedscout.engine.trials.trial_record import Trial
from fedscout.search.confirmation.confirmation import fresh_seeds, score_of
from fedscout.search.ledger import Ledger
from fedscout.search.search_config import SearchConfig
from fedscout.search.study_trials import BASELINE

NUM_FINALISTS = 2
"""Rates that are trained on further seeds."""


@dataclass(frozen=True)
class TunedRate:
    """FedAvg at one client learning rate.

    Attributes:
        learning_rate: The clients' step size.
        trials: One a seed, that of the search's first.
        scores: Their fitness in the deciding view; that of guessing where a trial failed.
    """

    learning_rate: float
    trials: tuple[Trial, ...]
    scores: tuple[float, ...]

    @property
    def num_failures(self) -> int:
        """On how many seeds it failed."""
        return sum(trial.status == "failed" for trial in self.trials)

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        seeds = [trial.seed for trial in self.trials]
        scores = {"scores": list(self.scores), "num_failures": self.num_failures}
        return {"learning_rate": self.learning_rate, "seeds": seeds, **scores}


def tune(config: SearchConfig, ledger: Ledger, baseline: Trial) -> list[TunedRate]:
    """Try FedAvg at other client learning rates; the best comes first, and the finalists before all others.

    Args:
        config: Which rates, and on how many seeds the finalists are trained.
        ledger: Runs and logs the trials.
        baseline: FedAvg at the study's own rate, on the search's seed.
    """
    facts = ledger.facts
    own = facts.session.training.learning_rate
    rates = sorted({float(f"{own * factor:.6g}") for factor in config.tuning_factors} - {own})
    others = ledger.run([facts.trial("tuned-baseline", BASELINE, learning_rate=rate) for rate in rates])
    tried = [_rate(ledger, [trial]) for trial in (baseline, *others)]
    tried.sort(key=lambda rate: _place(rate, own))
    finalists = [rate for rate in tried if not rate.num_failures][:NUM_FINALISTS]
    if len(finalists) < NUM_FINALISTS:
        return tried
    again = _on_further_seeds(config, ledger, finalists)
    return sorted(again, key=lambda rate: _place(rate, own)) + tried[NUM_FINALISTS:]


def _on_further_seeds(config: SearchConfig, ledger: Ledger, finalists: Sequence[TunedRate]) -> list[TunedRate]:
    """Return the finalists with the trials of all their seeds."""
    facts = ledger.facts
    seeds = fresh_seeds("tuning-seed", facts.session.seed, config.tuning_seeds - 1)
    rates = [rate.learning_rate for rate in finalists]
    asked = [facts.trial("tuned-baseline", BASELINE, seed, learning_rate=rate) for rate in rates for seed in seeds]
    further = iter(ledger.run(asked))
    return [_rate(ledger, [*rate.trials, *(next(further) for _ in seeds)]) for rate in finalists]


def num_tuning_trials(config: SearchConfig) -> int:
    """Return how many trainings a tuned baseline takes at most, those of its confirmation not counted."""
    return len(config.tuning_factors) + NUM_FINALISTS * (config.tuning_seeds - 1) if config.has_tuned_reference else 0


def _rate(ledger: Ledger, trials: Sequence[Trial]) -> TunedRate:
    view, guessing = ledger.facts.view, ledger.facts.guessing
    scores = tuple(score_of(trial, view, guessing) for trial in trials)
    return TunedRate(trials[0].learning_rate, tuple(trials), scores)


def _place(rate: TunedRate, own: float) -> tuple[float, ...]:
    return (rate.num_failures, -fmean(rate.scores), abs(math.log(rate.learning_rate / own)), rate.learning_rate)
