"""A trial that trains its configuration several times, and counts as the median of its trainings.

Each training has a seed of its own, the first the trial's, and all trials of a seed have the same ones. So split,
initial model, batches and episodes differ between trainings, not between candidates. With an odd number R of them,

    fitness = median of the R fitnesses, of which a training that failed has the least

is that of one training, the trial's for all that has no median: clients, bytes, notes, the kept model. Its curves are
medians round by round over the trainings that completed. If most trainings fail, so has the trial. Seconds are those of
all.

A training keeps its end as a checkpoint until the trial is logged: a study that is cut off repeats none that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import inf
from statistics import median
from typing import Any

import numpy as np

from fedscout.engine.seeds import integer
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_runner import Progress
from fedscout.engine.trials.trial_settings import TrialSettings

SEEDS = 2**31
"""Of which a seed is less."""


def trainings_of(settings: TrialSettings, repetitions: int) -> list[TrialSettings]:
    """Return the trainings of a trial: itself alone, or so many on seeds of their own."""
    if repetitions == 1:
        return [settings]
    seed = settings.session.seed
    seeds = [seed, *(integer(seed, "repetition", number) % SEEDS for number in range(1, repetitions))]
    return [replace(settings, whole=False).on_seed(each) for each in seeds]


def median_of(settings: TrialSettings, trainings: Sequence[Trial]) -> Trial:
    """Return the trial that its trainings make.

    Args:
        settings: Of the trial.
        trainings: Of `trainings_of`, in that order, an odd number.
    """
    if len(trainings) == 1:
        return trainings[0]
    completed = [training for training in trainings if training.status == "completed"]
    failed = [training for training in trainings if training.status == "failed"]
    told = [
        f"{len(failed)} of {len(trainings)} trainings failed, seed {each.seed}: {each.error}" for each in failed[:1]
    ]
    common: dict[str, Any] = {
        "asked_rounds": None if settings.whole else settings.num_rounds,
        "key": settings.key,
        "seed": settings.session.seed,
        "repetition_fitness": tuple(training.fitness for training in trainings),
        "seconds": _total_seconds(trainings),
        "finished_at": max(training.finished_at for training in trainings),
    }
    if len(failed) > len(completed):
        return replace(failed[0], error=told[0], **common)
    fitness = _median((training.fitness for training in completed), len(failed))
    middle = next(training for training in completed if training.fitness == fitness)
    return replace(
        middle,
        **common,
        **_median_curves(completed),
        own_fitness=_median((training.own_fitness for training in completed), len(failed)),
        clean_fitness=_median((training.clean_fitness for training in completed), len(failed)),
        objectives=_median_objectives(completed, len(failed)),
        notes=(*middle.notes, *told),
    )


def _median(values: Iterable[float], num_failed: int) -> float:
    """Return the median of some trainings, beside fewer that failed, which are worse than any."""
    return median([*values, *[-inf] * num_failed])


def _median_objectives(completed: Sequence[Trial], num_failed: int) -> tuple[float, ...] | None:
    each = [training.objectives for training in completed if training.objectives is not None]
    return tuple(_median(values, num_failed) for values in zip(*each, strict=True)) if each else None


def _median_curves(completed: Sequence[Trial]) -> dict[str, Any]:
    """Return what was measured in every round, by field."""
    curves = {}
    for name in (field.name for field in fields(Trial) if field.name.startswith("round_")):
        measured = [curve for training in completed if (curve := getattr(training, name)) is not None]
        if measured:
            curves[name] = tuple(np.median(np.array(measured), axis=0).tolist())
    return curves


def _total_seconds(trainings: Sequence[Trial]) -> dict[str, float]:
    phases = dict.fromkeys(phase for training in trainings for phase in training.seconds)
    return {phase: sum(training.seconds.get(phase, 0.0) for training in trainings) for phase in phases}


def told_by_trial(on_rounds: Progress, trial_of: Mapping[str, str], repetitions: int) -> Progress:
    """Return what is told of trainings and tells of trials: the mean of their trainings' rounds, rounded down.

    Args:
        on_rounds: Told of trials, by key.
        trial_of: The trial's key, by that of a training.
        repetitions: Trainings of a trial.
    """
    known: dict[str, int] = {}

    def told(rounds: Mapping[str, int]) -> None:
        known.update(rounds)
        totals: dict[str, int] = {}
        for training, done in known.items():
            trial = trial_of[training]
            totals[trial] = totals.get(trial, 0) + done
        on_rounds({trial: done // repetitions for trial, done in totals.items()})

    return told
