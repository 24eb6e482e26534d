"""What a reader of a verdict must know of the trials on which it rests, a short clause each.

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
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from fedscout.engine.trials.trial_record import FITNESS_ROUNDS, Trial
from fedscout.search.confirmation.confirmation import Confirmation, reference_name
from fedscout.search.search_config import View

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
