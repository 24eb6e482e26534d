"""What was trained elsewhere before a chooser could choose, in full trainings, each training counted once.

A warm start rests on the studies of other federations that it may read: their trials, FedAvg's included, and what these
studies rest on themselves. An informed search into whose first generation the project's priors came rests on the table
of trials of which the priors were made: every configuration on every seed of its development federations. Neither reads
what is of its own federation, and that is not counted; only through the priors of others' studies a warm start rests on
the whole table.

What the rules and the defaults were set on is in no count: nobody reads those trials to choose.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from fedscout.experiments.benchmarks.choice.trial_table import PUBLISHED, trial_counts
from fedscout.search.ledger import StudyFacts
from fedscout.search.study.earlier_studies import EarlierStudy
from fedscout.search.study.priors import SOURCE, project_studies
from fedscout.search.study.study import StudyOutcome
from fedscout.search.study_trials import trainings_of

Trained = Mapping[Hashable, float]
"""Full trainings by what was trained, so that what several studies share is one entry."""


@dataclass(frozen=True)
class Archived:
    """A study from which later ones may learn.

    Attributes:
        study: As a later one would read it from its folder.
        trained: Its own trainings, and those on which they rest.
    """

    study: EarlierStudy
    trained: Trained


def together(parts: Iterable[Trained]) -> Trained:
    """Return what all of them trained; of a configuration the longest training counts."""
    found: dict[Hashable, float] = {}
    for part in parts:
        for what, trainings in part.items():
            found[what] = max(trainings, found.get(what, 0.0))
    return found


def trained_by(outcome: StudyOutcome, facts: StudyFacts, federation: str) -> Trained:
    """Return what a study of a federation, by its name, trained, FedAvg included."""
    trials = [outcome.baseline, *outcome.trials]
    return together(
        {(federation, facts.session.seed, trial.spec): trainings_of([trial], facts.num_rounds)} for trial in trials
    )


def rested_on(outcome: StudyOutcome, facts: StudyFacts) -> Trained:
    """Return what was trained for the priors that came into a study's first generation; nothing where none did."""
    if not any(each.source == SOURCE for each in outcome.first_generation):
        return {}
    config = json.loads(facts.config)
    return {
        study.name: float(trials)
        for study, trials in _tabled()
        if not study.is_of(facts.config_hash, config, facts.data_digest) and not study.is_of_data(config)
    }


@cache
def _tabled() -> tuple[tuple[EarlierStudy, int], ...]:
    """Return the federations of the priors, each as a study, with the number of its trials in the table."""
    counts = trial_counts(PUBLISHED)
    return tuple((study, counts[study.name]) for study in project_studies() if study.name in counts)
