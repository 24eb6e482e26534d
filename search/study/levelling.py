"""How many rounds a study trains where that is left to it: until FedAvg levels off.

FedAvg is trained for 10 rounds, then for 20, 40, … from where it was, up to the most that are allowed. It has levelled
off when the mean fitness of its last five rounds is less than half a point above that of the five that end at half of
them. A verdict at fewer rounds is one about speed: what was far ahead there is often level later.

A rate of FedAvg's that fails, or one that learns nothing, levels off as well: the verdict then says that it guesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from fedscout.engine.trials.trial_record import FITNESS_ROUNDS, Trial
from fedscout.search.ledger import Ledger
from fedscout.search.measure import ACCURACY, Measure
from fedscout.search.search_config import View
from fedscout.search.study_trials import BASELINE

FIRST_ROUNDS = 10
LEVEL = 0.005
"""Gain over half of the rounds that counts as none: half a point of a share, as a part of any other score."""


def level_off(ledger: Ledger) -> int:
    """Train FedAvg until it levels off, and let the ledger's further trials have as many rounds.

    Returns:
        The number of rounds; at most those of the ledger's facts.
    """
    facts = ledger.facts
    levelled = facts.num_rounds
    for rounds in shorter_trainings(facts.num_rounds):
        (trial,) = ledger.run([facts.trial("baseline", BASELINE, num_rounds=rounds)])
        if has_levelled(trial, facts.view, facts.measure):
            levelled = rounds
            break
    ledger.facts = replace(facts, num_rounds=levelled, cohort=replace(facts.cohort, num_rounds=levelled))
    return levelled


def shorter_trainings(num_rounds: int) -> Iterator[int]:
    """Yield after how many rounds it is asked whether FedAvg has levelled off: fewer than the most, ascending."""
    rounds = FIRST_ROUNDS
    while rounds < num_rounds:
        yield rounds
        rounds *= 2


def has_levelled(trial: Trial, view: View = "own", measure: Measure = ACCURACY) -> bool:
    """Whether the second half of a trial's rounds brought nothing."""
    if trial.status == "failed":
        return True
    scores = trial.scores("" if view == "own" else "clean_") or ()
    half = len(scores) // 2
    before = scores[max(0, half - FITNESS_ROUNDS) : half]
    if not before:
        return False
    last = fmean(scores[-FITNESS_ROUNDS:])
    return last - fmean(before) < LEVEL * (1 if measure.per_unit == 100 else abs(last))
