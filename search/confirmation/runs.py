"""Confirmation runs: the tuned FedAvg reference, the sequential confirmation of the winner, and caveats on its verdict.

**Tuned reference.** FedAvg at its best client learning rate, as most of a gain over plain FedAvg may come from the step
size. Every rate is trained on the search's seed. The two best rates without a failure, which may include the study's
own, are trained on `search.tuning_seeds` − 1 further seeds, distinct from those of the search and the confirmation. The
tuned reference is the better one over all these seeds: by fewer failed seeds, then by larger mean, in which a failure
counts as guessing, then by distance to the study's rate. One seed is not enough: a rate at the edge of stability is
often the best if it does not fail. Two further seeds still miss half of the rates that fail on one seed in five, so the
confirmation compares with the stronger of FedAvg and tuned FedAvg on its own seeds
(`fedscout.search.confirmation.confirmation`).

**Caveats.** A verdict depends on the number of rounds and the test rows. Reported for the fresh seeds in the deciding
view:

- **still rising**: the mean score of the last rounds is at least a point above that of as many rounds before, by a
  paired difference over the seeds beyond two standard errors (a point is a hundredth of the best possible score). The
  windows are those of the fitness, five rounds, or half of the training if that is shorter. A gain after few rounds is
  often only faster initial convergence;
- **near guessing**: both are within a tenth of the way from guessing, such as the share of the most frequent class, to
  the best possible score;
- **at the ceiling**: the reference is within half a point of the best possible score, or within a test row of one of
  the seeds: no gain is possible, and a rise is not reported;
- **few test rows**: a significant difference of accuracies is less than three test rows of the federation.

Accuracy is uninformative if one class has four fifths of the rows, or if neither of the two is two points above the
share of the most frequent class: `uninformative` gives the reason, and there is no verdict. All limits are our own
choices.
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
        learning_rate: Client learning rate.
        trials: One per seed, that of the search first.
        scores: Their fitness in the deciding view; that of guessing if a trial failed.
    """

    learning_rate: float
    trials: tuple[Trial, ...]
    scores: tuple[float, ...]

    @property
    def num_failures(self) -> int:
        """Number of seeds on which it failed."""
        return sum(trial.status == "failed" for trial in self.trials)

    def document(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        seeds = [trial.seed for trial in self.trials]
        scores = {"scores": list(self.scores), "num_failures": self.num_failures}
        return {"learning_rate": self.learning_rate, "seeds": seeds, **scores}


def tune(config: SearchConfig, ledger: Ledger, baseline: Trial) -> list[TunedRate]:
    """Train FedAvg at other client learning rates; return the best first, and the finalists before all others.

    Args:
        config: Rates, and number of seeds of the finalists.
        ledger: Runs and logs the trials.
        baseline: FedAvg at the study's own rate, on the search's seed.
    """
    facts = ledger.facts
    study_rate = facts.session.training.learning_rate
    rates = sorted({float(f"{study_rate * factor:.6g}") for factor in config.tuning_factors} - {study_rate})
    other_trials = ledger.run([facts.trial("tuned-baseline", BASELINE, learning_rate=rate) for rate in rates])
    tried = [_rate(ledger, [trial]) for trial in (baseline, *other_trials)]
    tried.sort(key=lambda rate: _sort_key(rate, study_rate))
    finalists = [rate for rate in tried if not rate.num_failures][:NUM_FINALISTS]
    if len(finalists) < NUM_FINALISTS:
        return tried
    seeds = fresh_seeds("tuning-seed", facts.session.seed, config.tuning_seeds - 1)
    rates = [rate.learning_rate for rate in finalists]
    plans = [facts.trial("tuned-baseline", BASELINE, seed, learning_rate=rate) for rate in rates for seed in seeds]
    further = iter(ledger.run(plans))
    retrained = [_rate(ledger, [*rate.trials, *(next(further) for _ in seeds)]) for rate in finalists]
    return sorted(retrained, key=lambda rate: _sort_key(rate, study_rate)) + tried[NUM_FINALISTS:]


def num_tuning_trials(config: SearchConfig) -> int:
    """Return the largest number of trainings of a tuned baseline, without those of its confirmation."""
    return len(config.tuning_factors) + NUM_FINALISTS * (config.tuning_seeds - 1) if config.has_tuned_reference else 0


def _rate(ledger: Ledger, trials: Sequence[Trial]) -> TunedRate:
    view, guessing = ledger.facts.view, ledger.facts.guessing
    scores = tuple(score_of(trial, view, guessing) for trial in trials)
    return TunedRate(trials[0].learning_rate, tuple(trials), scores)


def _sort_key(rate: TunedRate, own: float) -> tuple[float, ...]:
    return (rate.num_failures, -fmean(rate.scores), abs(math.log(rate.learning_rate / own)), rate.learning_rate)


RISE = 0.01
ABOVE_GUESSING = 0.1
CEILING = 0.005
FEW_ROWS = 3
IMBALANCED = 0.8
AT_CHANCE = 0.02
BETTER_METRICS = "training.metric=balanced_accuracy or training.metric=auroc"


def judged(confirmation: Confirmation, trials: Mapping[str, Sequence[Trial]], guessing: float) -> Confirmation:
    """Return a confirmation with its caveats, or without a verdict if the measure is uninformative.

    Args:
        confirmation: The confirmation.
        trials: Trials of the pick and the baselines on the fresh seeds, by role.
        guessing: Score of a constant answer, such as the most frequent class; 0 may mean unknown.
    """
    with_guessing = confirmation.model_copy(update={"guessing": guessing})
    if reason := uninformative(with_guessing):
        sentence = f"No verdict: {reason}. {with_guessing.scores_text}."
        return with_guessing.model_copy(update={"verdict": "not confirmed", "no_verdict": reason, "sentence": sentence})
    found = caveats(with_guessing, trials)
    return with_guessing.model_copy(update={"caveats": found, "sentence": " ".join([confirmation.sentence, *found])})


def uninformative(confirmation: Confirmation) -> str:
    """Return why the accuracies of a confirmation are uninformative; empty if they are not, and for other measures."""
    guessing, measure = confirmation.guessing, confirmation.measure
    if not measure.is_accuracy or not guessing:
        return ""
    if guessing >= IMBALANCED:
        share = measure.value(guessing)
        return f"one class has {share} of the test rows, so accuracy is not informative; set {BETTER_METRICS}"
    if max(confirmation.means) - guessing <= AT_CHANCE:
        return (
            "neither configuration beats always predicting the most frequent class; train longer, change the learning "
            f"rate or set {BETTER_METRICS}"
        )
    return ""


def caveats(confirmation: Confirmation, trials: Mapping[str, Sequence[Trial]]) -> tuple[str, ...]:
    """Return the caveats on a verdict, each a sentence, the most important first.

    Args:
        confirmation: The confirmation, with the score of a constant answer; 0 may mean unknown.
        trials: Trials of the pick and the baselines on the fresh seeds, by role.
    """
    reference, means = confirmation.baseline, confirmation.means
    names: dict[str, str] = {"challenger": confirmation.contestants[0].name, reference.role: reference_name(reference)}
    measure, guessing = confirmation.measure, confirmation.guessing
    best, row = measure.best, confirmation.design.resolution
    sentences = [*_few_rows(confirmation, row)] if measure.is_accuracy else []
    known = guessing > 0 or measure.guessing_is_zero
    if best is not None and known and max(means) - guessing < ABOVE_GUESSING * (best - guessing):
        constant = "always predicting the most frequent class" if measure.is_accuracy else "a constant prediction"
        sentences.append(f"Neither is far above guessing: {constant} gives {measure.value(guessing)}.")
    if best is not None and best - means[1] <= max(CEILING * best, row / len(confirmation.seeds)):
        sentences.append(f"{names[reference.role]} is at the ceiling, {measure.value(means[1])}: no gain is possible.")
    elif measure.of != "target":
        sentences += _rising(names, trials, confirmation)
    return tuple(sentences)


def rise(trial: Trial, view: View) -> float | None:
    """Return the mean score of the last rounds minus that of as many before; None if it is undefined."""
    scores = trial.scores("" if view == "own" else "clean_") or ()
    window = min(FITNESS_ROUNDS, len(scores) // 2)
    if trial.status == "failed" or not window:
        return None
    gain = fmean(scores[-window:]) - fmean(scores[-2 * window : -window])
    return None if math.isnan(gain) else gain


def _rising(
    names: Mapping[str, str], trials: Mapping[str, Sequence[Trial]], confirmation: Confirmation
) -> Iterator[str]:
    """Yield a sentence on the configurations whose score still rises."""
    view, measure = confirmation.view, confirmation.measure
    min_rise = RISE * (1.0 if measure.best is None else measure.best)
    rises = {names[role]: value for role in names if (value := _mean_rise(trials[role], view, min_rise)) is not None}
    if not rises:
        return
    rounds = max(trial.num_rounds for role in names for trial in trials[role])
    window = min(FITNESS_ROUNDS, rounds // 2)
    rises_text = " and ".join(f"{name} by {measure.told(value).removeprefix('+')}" for name, value in rises.items())
    window_text = f"the last {window} rounds" if window > 1 else "the last round"
    score = measure.name.removesuffix(" of the worst tenth")
    yield f"The verdict holds for {rounds} rounds, and {score} still rises: {rises_text} over {window_text}."


def _mean_rise(trials: Sequence[Trial], view: View, least: float) -> float | None:
    """Return the mean rise over the seeds; None if it is small or within noise."""
    rises = [value for trial in trials if (value := rise(trial, view)) is not None]
    if not rises or fmean(rises) < least:
        return None
    error = stdev(rises) / math.sqrt(len(rises)) if len(rises) > 1 else 0.0
    return fmean(rises) if fmean(rises) > 2 * error else None


def _few_rows(confirmation: Confirmation, row: float) -> Iterator[str]:
    difference = abs(confirmation.versus[confirmation.reference][confirmation.view].mean)
    if confirmation.verdict in ("better", "worse") and difference < FEW_ROWS * row:
        yield f"One test row is worth {100 * row:.1f} points: the difference equals {difference / row:.1f} rows."


def confirm_winner(
    config: SearchConfig, ledger: Ledger, trials: Sequence[Trial], tuned: Sequence[TunedRate]
) -> Confirmation | None:
    """Compare the best configurations other than FedAvg with the baselines on fresh seeds.

    Args:
        config: Number of configurations, seeds and looks.
        ledger: Runs and logs the trials.
        trials: Trials of the search; full trainings are candidates, FedAvg is excluded.
        tuned: FedAvg at several client learning rates, best first; empty without tuning. If the study's own rate is the
            best, there is no further baseline.
    """
    facts = ledger.facts
    others = [trial for trial in trials if trial.spec != BASELINE]
    challengers = challengers_of(others, config.confirmation_top)
    tried = {trial.spec.model_dump_json() for trial in others}
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
    return _train_until_decided(ledger, design, entrants)


def challengers_of(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the best configurations of a search, best first; fewer if fewer trials completed."""
    remaining = list(trials)
    challengers: list[Trial] = []
    while len(challengers) < count and (best := best_of(remaining)) is not None:
        challengers.append(best)
        remaining = [trial for trial in remaining if trial.spec != best.spec]
    return challengers


def _train_until_decided(
    ledger: Ledger, design: SequentialDesign, entrants: Sequence[tuple[Role, TrialSettings]]
) -> Confirmation:
    """Train batches of seeds until the comparison is decided.

    Args:
        ledger: Runs and logs the trials.
        design: The sequential design; its resolution is taken from the trials.
        entrants: Contenders, of which one is picked, then FedAvg, then any other baseline; their seeds are replaced.
    """
    view, guessing = ledger.facts.view, ledger.facts.guessing
    seeds = confirmation_seeds(ledger.facts.session.seed, design.max_seeds)
    trials: list[list[Trial]] = [[] for _ in entrants]
    contenders = [index for index, (role, _) in enumerate(entrants) if role == "contender"]
    baselines = [index for index in range(len(entrants)) if index not in contenders]
    remaining, pick, num_done = tuple(contenders), contenders[0], 0
    for look in design.looks:
        active = [*remaining, *baselines]
        fresh = seeds[num_done:look]
        new = ledger.run([entrants[index][1].on_seed(seed) for seed in fresh for index in active])
        for offset, index in enumerate(active):
            trials[index] += new[offset :: len(active)]
        num_done = look
        design = design.model_copy(update={"resolution": resolution(trials, ledger.facts.measure)})
        scores = {index: [score_of(trial, view, guessing) for trial in trials[index]] for index in active}
        reference = baselines[strongest([scores[index] for index in baselines])]
        decision = assess(design, {index: scores[index] for index in remaining}, scores[reference])
        remaining, pick = decision.remaining, decision.pick
        if decision.settled:
            break
    in_order = [pick, *baselines, *(index for index in contenders if index != pick)]
    contestants = [
        contestant("challenger" if index == pick else entrants[index][0], trials[index], guessing, ledger.facts.measure)
        for index in in_order
    ]
    confirmation = confirm(seeds[:num_done], contestants, view, design, ledger.facts.measure)
    by_role: dict[str, Sequence[Trial]] = {
        candidate.role: trials[index] for candidate, index in zip(contestants, in_order, strict=True)
    }
    return judged(confirmation, by_role, guessing)


def resolution(groups: Iterable[Sequence[Trial]], measure: Measure = ACCURACY) -> float:
    """Return the step of a measure's scale, the largest of any trial.

    It is the share of one deciding test row, times the best score. The deciding rows are all rows, or, for the worst
    clients, the smallest client's rows times the number of the worst clients. The step is 0 if no trial was scored.
    """
    if measure.step is not None:
        return measure.step
    rows = [_deciding_rows(trial, measure) for trials in groups for trial in trials]
    scale = 1.0 if measure.best is None else measure.best
    return scale / min((count for count in rows if count), default=float("inf"))


def _deciding_rows(trial: Trial, measure: Measure) -> int:
    counts = [int(count) for count in trial.clients["num_examples"] if count]
    if measure.of == "worst":
        return min(counts, default=0) * -(-len(counts) // WORST_OF)
    return sum(counts)
