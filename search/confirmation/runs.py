"""Confirmation runs: the tuned FedAvg reference, the sequential confirmation of the winner, and caveats on its verdict.

**Tuned reference.** FedAvg at its best client learning rate, as most of a gain over plain FedAvg may come from the step
size. On the search's seed FedAvg is trained at the smallest and the largest rate, then at those between the study's own
and the better of these two: with the default five rates three trainings, after which the best one is as good on other
seeds as after six trainings of all rates and of the best two on a further seed (docs/confirmation.md). A rate at the
edge of stability may be the best on one seed and fail on another. So before the pick is called better than a tuned rate
that scores less on the fresh seeds than the study's own did on the search's seed, or if such a rate failed on one of
them, FedAvg at the study's own rate is trained on them, too, and the stronger of the two is the reference.

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import fmean, stdev

from fedscout.engine.grid.replies import WORST_OF
from fedscout.engine.trials.record import FITNESS_ROUNDS, Trial, TrialSettings
from fedscout.search.config import SearchConfig, View
from fedscout.search.confirmation.confirmation import (
    Confirmation,
    assess,
    candidate_of,
    confirm,
    confirmation_seeds,
    reference_name,
    score_of,
)
from fedscout.search.confirmation.intervals import SequentialDesign, tested_to_trained
from fedscout.search.ledger import BASELINE, Ledger, best_of
from fedscout.search.objective import ACCURACY, Measure


def tune(config: SearchConfig, ledger: Ledger, baseline: Trial) -> list[Trial]:
    """Train FedAvg at other client learning rates on the search's seed; return its trials, that of `baseline` included.

    Args:
        config: Rates, in multiples of the study's.
        ledger: Runs and logs the trials.
        baseline: FedAvg at the study's own rate, on the search's seed.

    Returns:
        The best first, failed ones last; of equal ones the nearest to the study's rate.
    """
    facts, study_rate = ledger.facts, baseline.learning_rate
    rates = {study_rate, *(float(f"{study_rate * factor:.6g}") for factor in config.tuning_factors)}

    def rank(trial: Trial) -> tuple[float, ...]:
        rate, score = trial.learning_rate, score_of(trial, facts.view, facts.guessing)
        return trial.status == "failed", -score, abs(math.log(rate / study_rate)), rate

    def trained(rates: Iterable[float]) -> list[Trial]:
        return ledger.run([facts.trial("tuned-baseline", BASELINE, learning_rate=rate) for rate in rates])

    ends = trained(_ends(rates, study_rate))
    better = min(ends, key=rank, default=baseline).learning_rate
    return sorted([baseline, *ends, *trained(_between(rates, study_rate, better))], key=rank)


def _ends(rates: Collection[float], own: float) -> list[float]:
    return sorted({min(rates), max(rates)} - {own})


def _between(rates: Collection[float], own: float, end: float) -> list[float]:
    return sorted(rate for rate in rates if min(own, end) < rate < max(own, end))


def num_tuning_trials(config: SearchConfig) -> int:
    """Return the largest number of trainings of a tuned baseline, without those of its confirmation."""
    if not config.has_tuned_reference:
        return 0
    factors = {1.0, *config.tuning_factors}
    ends = _ends(factors, 1.0)
    return len(ends) + max((len(_between(factors, 1.0, end)) for end in ends), default=0)


RISE = 0.01
ABOVE_GUESSING = 0.1
CEILING = 0.005
FEW_ROWS = 3
IMBALANCED = 0.8
AT_CHANCE = 0.02
BETTER_METRICS = "training.metric=balanced_accuracy or training.metric=auroc"


def judged(confirmation: Confirmation, trials: Sequence[Sequence[Trial]], guessing: float) -> Confirmation:
    """Return a confirmation with its caveats, or without a verdict if the measure is uninformative.

    Args:
        confirmation: The confirmation.
        trials: Trials of the pick and of the reference on the fresh seeds.
        guessing: Score of a constant answer, such as the most frequent class; 0 may mean unknown.
    """
    with_guessing = confirmation.model_copy(update={"guessing": guessing})
    if reason := uninformative(with_guessing):
        return with_guessing.model_copy(update={"verdict": "not confirmed", "no_verdict": reason})
    return with_guessing.model_copy(update={"caveats": caveats(with_guessing, trials)})


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


def caveats(confirmation: Confirmation, trials: Sequence[Sequence[Trial]]) -> tuple[str, ...]:
    """Return the caveats on a verdict, each a sentence, the most important first.

    Args:
        confirmation: The confirmation, with the score of a constant answer; 0 may mean unknown.
        trials: Trials of the pick and of the reference on the fresh seeds.
    """
    means, names = confirmation.means, (confirmation.candidates[0].name, reference_name(confirmation.reference))
    measure, guessing = confirmation.measure, confirmation.guessing
    best, row = measure.best, confirmation.design.resolution
    sentences = [*_few_rows(confirmation, row)] if measure.is_accuracy else []
    known = guessing > 0 or measure.guessing_is_zero
    if best is not None and known and max(means) - guessing < ABOVE_GUESSING * (best - guessing):
        constant = "always predicting the most frequent class" if measure.is_accuracy else "a constant prediction"
        sentences.append(f"Neither is far above guessing: {constant} gives {measure.value(guessing)}.")
    if best is not None and best - means[1] <= max(CEILING * best, row / len(confirmation.seeds)):
        sentences.append(f"{names[1]} is at the ceiling, {measure.value(means[1])}: no gain is possible.")
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


def _rising(names: Sequence[str], trials: Sequence[Sequence[Trial]], confirmation: Confirmation) -> Iterator[str]:
    """Yield a sentence on the configurations whose score still rises."""
    view, measure = confirmation.view, confirmation.measure
    min_rise = RISE * (1.0 if measure.best is None else measure.best)
    by_name = zip(names, (_mean_rise(own, view, min_rise) for own in trials), strict=True)
    rises = {name: value for name, value in by_name if value is not None}
    if not rises:
        return
    rounds = max(trial.num_rounds for own in trials for trial in own)
    window = min(FITNESS_ROUNDS, rounds // 2)
    rises_text = " and ".join(
        f"{name} by {measure.difference_text(value).removeprefix('+')}" for name, value in rises.items()
    )
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
    difference = abs(confirmation.difference.mean)
    if confirmation.verdict in ("better", "worse") and difference < FEW_ROWS * row:
        yield f"One test row is worth {100 * row:.1f} points: the difference equals {difference / row:.1f} rows."


def confirm_winner(
    config: SearchConfig, ledger: Ledger, trials: Sequence[Trial], tuned: Sequence[Trial]
) -> Confirmation | None:
    """Compare the best configurations other than FedAvg with the reference on fresh seeds.

    Args:
        config: Number of configurations, seeds and looks.
        ledger: Runs and logs the trials.
        trials: Trials of the search; full trainings are candidates, FedAvg is excluded.
        tuned: FedAvg at several client learning rates, best first, the study's own among them; empty without tuning.
    """
    facts = ledger.facts
    others = [trial for trial in trials if trial.spec != BASELINE]
    challengers = challengers_of(others, config.confirmation_top)
    if not challengers:
        return None
    design = SequentialDesign(
        max_seeds=config.confirmation_seeds,
        batch=config.confirmation_batch,
        num_challengers=len(challengers),
        num_tried=len({trial.spec.model_dump_json() for trial in others}),
        test_to_train=tested_to_trained(facts.session.test_fraction, facts.session.validation_fraction),
        span=facts.measure.span,
        same_rows=facts.same_test_rows,
    )
    plans = [facts.trial("confirmation", trial.spec) for trial in challengers]
    return _train_until_decided(ledger, design, plans, tuned)


def challengers_of(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the best configurations of a search, best first; fewer if fewer trials completed."""
    remaining = list(trials)
    challengers: list[Trial] = []
    while len(challengers) < count and (best := best_of(remaining)) is not None:
        challengers.append(best)
        remaining = [trial for trial in remaining if trial.spec != best.spec]
    return challengers


def _train_until_decided(
    ledger: Ledger, design: SequentialDesign, challengers: Sequence[TrialSettings], tuned: Sequence[Trial]
) -> Confirmation:
    """Train batches of seeds until the comparison is decided.

    Args:
        ledger: Runs and logs the trials.
        design: The sequential design; its resolution is taken from the trials.
        challengers: At least one, of which one is picked; their seeds are replaced.
        tuned: FedAvg at several client learning rates, best first; may be empty.
    """
    facts, fedavg = ledger.facts, ledger.facts.trial("confirmation", BASELINE)
    measure, study_rate = facts.measure, facts.session.training.learning_rate
    is_tuned = bool(tuned) and tuned[0].learning_rate != study_rate
    reference = facts.trial("confirmation", BASELINE, learning_rate=tuned[0].learning_rate) if is_tuned else fedavg

    def scores_of(trials: Iterable[Trial]) -> list[float]:
        return [score_of(trial, facts.view, facts.guessing) for trial in trials]

    seeds = confirmation_seeds(facts.session.seed, design.max_seeds)
    entrants = [*challengers, reference]
    trials: list[list[Trial]] = [[] for _ in entrants]
    remaining, pick, num_done = tuple(range(len(challengers))), 0, 0
    for look in design.looks:
        active = [*remaining, len(challengers)]
        fresh = seeds[num_done:look]
        new = ledger.run([entrants[index].on_seed(seed) for seed in fresh for index in active])
        for offset, index in enumerate(active):
            trials[index] += new[offset :: len(active)]
        num_done = look
        design = design.model_copy(update={"resolution": resolution(trials, measure)})
        decision = assess(design, {index: scores_of(trials[index]) for index in remaining}, scores_of(trials[-1]))
        remaining, pick = decision.remaining, decision.pick
        if decision.settled:
            break
    chosen, compared = trials[pick], trials[-1]
    own_score = next((scores_of([trial])[0] for trial in tuned if trial.learning_rate == study_rate), -math.inf)
    loses = design.against_baseline(scores_of(chosen), scores_of(compared)).verdict > 0
    fails = any(trial.status == "failed" for trial in compared)
    if is_tuned and (loses or fails) and fmean(scores_of(compared)) < own_score:
        own = ledger.run([fedavg.on_seed(seed) for seed in seeds[:num_done]])
        if fmean(scores_of(own)) >= fmean(scores_of(compared)):
            compared, is_tuned = own, False
    candidates = [
        candidate_of("challenger", chosen, facts.guessing, measure),
        candidate_of("tuned-fedavg" if is_tuned else "fedavg", compared, facts.guessing, measure),
    ]
    others = [own for own in trials[:-1] if own is not chosen]
    candidates += [candidate_of("contender", own, facts.guessing, measure) for own in others]
    confirmation = confirm(seeds[:num_done], candidates, facts.view, design, measure)
    return judged(confirmation, (chosen, compared), facts.guessing)


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
