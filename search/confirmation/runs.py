"""What follows a search: the confirmation of the winner, as trials of the same ledger.

The tuned reference: FedAvg at its best client learning rate, as most of a gain over plain FedAvg may be step size.

Every rate is trained on the search's seed. The two best of those that did not fail, the study's own among them or not,
are trained on `search.tuning_seeds` − 1 further seeds, neither the search's nor the confirmation's. The better of them
over all these seeds is the tuned reference: a rate that failed on fewer seeds comes first, then one of larger mean, in
which a failure counts as guessing, then the one that is nearer to the study's own.

One seed is not enough: a rate at the edge of stability is often the best where it does not fail. Two further seeds
still miss half of the rates that fail on one seed in five, so the confirmation compares with the stronger of FedAvg and
tuned FedAvg on its own seeds (`fedscout.search.confirmation.confirmation`).

What a reader of a verdict must know of the trials on which it rests, a short clause each.

A verdict is about a number of rounds and some test rows. Told is, of the fresh seeds in the deciding view:

- **still rising**: the mean score of the last rounds is at least a point above that of as many rounds before, by a
  paired difference over the seeds beyond two standard errors (a point is a hundredth of the best score there can be).
  The windows are those of the fitness, five rounds, or half of the training where that is shorter. A gain at few rounds
  is often only the speed of the first ones;
- **near guessing**: neither of the two has come a tenth of the way from guessing, as by the share of the most frequent
  class, to the best score there can be;
- **at the ceiling**: the reference is within half a point of that, or a test row of one of the seeds: nothing is to be
  gained, and a rise is not mentioned;
- **few test rows**: a difference of accuracies that is called one is less than three test rows of the federation.

Accuracy decides nothing where one class has four fifths of the rows, or where neither of the two is two points above
that share: `uninformative` says so, and there is no verdict.

The limits are choices of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedscout.engine.grid.replies import WORST_OF
from fedscout.engine.trials.record import FITNESS_ROUNDS, Trial, TrialSettings
from fedscout.search.config import SearchConfig, View
from fedscout.search.confirmation.confirmation import (
    Confirmation,
    Role,
    assess,
    confirm,
    confirmation_seeds,
    contestant,
    fresh_seeds,
    reference_name,
    score_of,
    strongest,
)
from fedscout.search.confirmation.intervals import SequentialDesign, tested_to_trained
from fedscout.search.ledger import BASELINE, Ledger, best_of
from fedscout.search.objective import ACCURACY, Measure

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


RISE = 0.01
ABOVE_GUESSING = 0.1
CEILING = 0.005
FEW_ROWS = 3
IMBALANCED = 0.8
AT_CHANCE = 0.02
BETTER_METRICS = "training.metric=balanced_accuracy or training.metric=auroc"


def judged(confirmation: Confirmation, trials: Mapping[str, Sequence[Trial]], guessing: float) -> Confirmation:
    """Return a confirmation with all that a reader of its verdict must know, and without one where none can be drawn.

    Args:
        confirmation: Whose verdict it is.
        trials: Of the pick and the baselines on the fresh seeds, by role.
        guessing: Score of a constant answer, such as the most frequent class; 0 may mean that it is not known.
    """
    known = confirmation.model_copy(update={"guessing": guessing})
    if reason := uninformative(known):
        sentence = f"No verdict: {reason}. {known.scores_text}."
        return known.model_copy(update={"verdict": "not confirmed", "no_verdict": reason, "sentence": sentence})
    return known.with_caveats(caveats(known, trials, guessing))


def uninformative(confirmation: Confirmation) -> str:
    """Return why the accuracies of a confirmation decide nothing; empty where they do, and for other measures."""
    guessing, measure = confirmation.guessing, confirmation.measure
    if not measure.is_accuracy or not guessing:
        return ""
    if guessing >= IMBALANCED:
        share = measure.value(guessing)
        return f"one class has {share} of the test rows, so that accuracy says little; set {BETTER_METRICS}"
    if max(confirmation.means) - guessing <= AT_CHANCE:
        return (
            "neither configuration is above the most frequent class alone; train longer, or set another rate or "
            f"{BETTER_METRICS}"
        )
    return ""


def caveats(confirmation: Confirmation, trials: Mapping[str, Sequence[Trial]], guessing: float) -> tuple[str, ...]:
    """Return what is worth knowing of a verdict, each a sentence, the weightiest first.

    Args:
        confirmation: Whose verdict it is.
        trials: Of the pick and the baselines on the fresh seeds, by role.
        guessing: Score of a constant answer, such as the most frequent class; 0 may mean that it is not known.
    """
    pick = confirmation.contestants[0]
    reference = next(one for one in confirmation.contestants if one.role == confirmation.reference)
    names: dict[str, str] = {"challenger": pick.name, reference.role: reference_name(reference)}
    means = [fmean(one.scores(confirmation.view)) for one in (pick, reference)]
    measure = confirmation.measure
    best, row = measure.best, confirmation.design.resolution
    found = [*_few_rows(confirmation, row)] if measure.is_accuracy else []
    known = guessing > 0 or measure.guessing_is_zero
    if best is not None and known and max(means) - guessing < ABOVE_GUESSING * (best - guessing):
        alone = "the most frequent class alone" if measure.is_accuracy else "a constant answer"
        found.append(f"Neither is far above guessing: {alone} gives {measure.value(guessing)}.")
    at_ceiling = best is not None and best - means[1] <= max(
        CEILING * best, row / len(reference.scores(confirmation.view))
    )
    if at_ceiling:
        found.append(f"{names[reference.role]} is at the ceiling, {measure.value(means[1])}: nothing can be gained.")
    elif measure.of != "target":
        found += _rising(names, trials, confirmation)
    return tuple(found)


def rise(trial: Trial, view: View) -> float | None:
    """Return the mean score of the last rounds less that of as many before; None where it has none."""
    scores = trial.scores("" if view == "own" else "clean_") or ()
    window = min(FITNESS_ROUNDS, len(scores) // 2)
    if trial.status == "failed" or not window:
        return None
    gain = fmean(scores[-window:]) - fmean(scores[-2 * window : -window])
    return None if math.isnan(gain) else gain


def _rising(
    names: Mapping[str, str], trials: Mapping[str, Sequence[Trial]], confirmation: Confirmation
) -> Iterator[str]:
    """Yield a sentence on those whose score still rises."""
    view, measure = confirmation.view, confirmation.measure
    least = RISE * (1.0 if measure.best is None else measure.best)
    rises = {names[role]: value for role in names if (value := _mean_rise(trials[role], view, least)) is not None}
    if not rises:
        return
    rounds = max(trial.num_rounds for role in names for trial in trials[role])
    window = min(FITNESS_ROUNDS, rounds // 2)
    told = " and ".join(f"{name} by {measure.told(value).removeprefix('+')}" for name, value in rises.items())
    over = f"the last {window} rounds" if window > 1 else "the last round"
    score = measure.name.removesuffix(" of the worst tenth")
    yield f"The verdict is about {rounds} rounds, and {score} still rises: {told} over {over}."


def _mean_rise(trials: Sequence[Trial], view: View, least: float) -> float | None:
    """Return the mean rise over the seeds; None where it is small or within noise."""
    rises = [value for trial in trials if (value := rise(trial, view)) is not None]
    if not rises or fmean(rises) < least:
        return None
    error = stdev(rises) / math.sqrt(len(rises)) if len(rises) > 1 else 0.0
    return fmean(rises) if fmean(rises) > 2 * error else None


def _few_rows(confirmation: Confirmation, row: float) -> Iterator[str]:
    difference = abs(confirmation.versus[confirmation.reference][confirmation.view].mean)
    if confirmation.verdict in ("better", "worse") and difference < FEW_ROWS * row:
        yield f"A single test row is {100 * row:.1f} points: the difference is that of {difference / row:.1f} rows."


def confirm_winner(
    config: SearchConfig,
    ledger: Ledger,
    trials: Sequence[Trial],
    tuned: Sequence[TunedRate],
    front: Sequence[Trial] = (),
) -> Confirmation | None:
    """Pit the best configurations other than FedAvg against the baselines on fresh seeds.

    Args:
        config: How many configurations, seeds and looks.
        ledger: Runs and logs the trials.
        trials: Of the search; full trainings are candidates, FedAvg is left out.
        tuned: FedAvg at several client learning rates, best first; empty if that was not asked for. The study's own
            rate is FedAvg itself, and no further baseline.
        front: Of two objectives the trials that no other beats, to which the choice is limited unless FedAvg alone is
            among them.
    """
    facts = ledger.facts
    of_front = [trial for trial in front if trial.spec != BASELINE]
    others = of_front or [trial for trial in trials if trial.spec != BASELINE]
    challengers = challengers_of(others, config.confirmation_top)
    tried = {trial.spec.model_dump_json() for trial in trials if trial.spec != BASELINE}
    if not challengers:
        return None
    entrants: list[tuple[Role, TrialSettings]] = [
        *(("contender", facts.trial("confirmation", trial.spec)) for trial in challengers),
        ("fedavg", facts.trial("confirmation", BASELINE)),
    ]
    best_rate = tuned[0].learning_rate if tuned else facts.session.training.learning_rate
    if best_rate != facts.session.training.learning_rate:
        entrants.append(("tuned-fedavg", facts.trial("confirmation", BASELINE, learning_rate=best_rate)))
    design = SequentialDesign(
        max_seeds=config.confirmation_seeds,
        batch=config.confirmation_batch,
        num_challengers=len(challengers),
        num_tried=max(1, len(tried)),
        test_to_train=tested_to_trained(facts.session.test_fraction, facts.session.validation_fraction),
        span=facts.measure.span,
        same_rows=facts.same_test_rows,
    )
    found = _train_until_decided(ledger, design, entrants)
    if facts.second_measure is None:
        return found
    alone = "the front is FedAvg alone, and of what else was tried"
    whose = "of the front's configurations other than FedAvg" if of_front else alone
    trained = f"{len(challengers)} of {len(others)} trained on fresh seeds"
    return found.with_caveats([f"The verdict is by {facts.measure.name} alone; {whose} {trained}."])


def challengers_of(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the best configurations of a search, best first; fewer if fewer trials went through."""
    left = list(trials)
    found: list[Trial] = []
    while len(found) < count and (best := best_of(left)) is not None:
        found.append(best)
        left = [trial for trial in left if trial.spec != best.spec]
    return found


def _train_until_decided(
    ledger: Ledger, design: SequentialDesign, entrants: Sequence[tuple[Role, TrialSettings]]
) -> Confirmation:
    """Train batch after batch.

    Args:
        ledger: Runs and logs the trials.
        design: The plan; the step of the scores' scale is taken from the trials.
        entrants: Contenders, of which one is picked, then FedAvg, then any other baseline; on whatever seed.
    """
    view, guessing = ledger.facts.view, ledger.facts.guessing
    seeds = confirmation_seeds(ledger.facts.session.seed, design.max_seeds)
    trials: list[list[Trial]] = [[] for _ in entrants]
    contenders = [place for place, (role, _) in enumerate(entrants) if role == "contender"]
    baselines = [place for place in range(len(entrants)) if place not in contenders]
    remaining, pick, num_done = tuple(contenders), contenders[0], 0
    for look in design.looks:
        going = [*remaining, *baselines]
        fresh = seeds[num_done:look]
        new = ledger.run([entrants[place][1].on_seed(seed) for seed in fresh for place in going])
        for offset, place in enumerate(going):
            trials[place] += new[offset :: len(going)]
        num_done = look
        design = design.model_copy(update={"resolution": resolution(trials, ledger.facts.measure)})
        scores = {place: _scores(trials[place], view, guessing) for place in going}
        reference = baselines[strongest([scores[place] for place in baselines])]
        standing = assess(design, {place: scores[place] for place in remaining}, scores[reference])
        remaining, pick = standing.remaining, standing.pick
        if standing.settled:
            break
    in_order = [pick, *baselines, *(place for place in contenders if place != pick)]
    contestants = [
        contestant("challenger" if place == pick else entrants[place][0], trials[place], guessing, ledger.facts.measure)
        for place in in_order
    ]
    found = confirm(seeds[:num_done], contestants, view, design, ledger.facts.measure)
    by_role: dict[str, Sequence[Trial]] = {
        one.role: trials[place] for one, place in zip(contestants, in_order, strict=True)
    }
    return judged(found, by_role, guessing)


def _scores(trials: Sequence[Trial], view: View, guessing: float) -> list[float]:
    return [score_of(trial, view, guessing) for trial in trials]


def resolution(groups: Iterable[Sequence[Trial]], measure: Measure = ACCURACY) -> float:
    """Return the step of a measure's scale, the largest of any trial.

    It is the share of one test row among those that decide, times the best score: all rows, or, of the worst clients,
    as many times the smallest client's as there are clients among the worst. It is 0 if no trial was scored.
    """
    if measure.step is not None:
        return measure.step
    rows = [_deciding_rows(trial, measure) for trials in groups for trial in trials]
    scale = 1.0 if measure.best is None else measure.best
    return scale / min((count for count in rows if count), default=float("inf"))


def _deciding_rows(trial: Trial, measure: Measure) -> int:
    counts = [count for count in trial.client_num_examples if count]
    if measure.of == "worst":
        return min(counts, default=0) * -(-len(counts) // WORST_OF)
    return sum(counts)
