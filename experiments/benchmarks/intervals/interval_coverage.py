"""How often a confirmation's intervals hold the truth, and how often it says "better" wrongly.

Each study draws a federation from a population of which the truth is known (`simulated_trials.py`), and goes the way
that every study goes: the ledger, `confirm_winner`, its plan of looks, its intervals and its verdict. Truths:

- *new data*: the mean difference over federations drawn anew, each split and trained once;
- *here*: the mean difference over all splits of the very rows, from many other seeds.

A run that fails is worth guessing in both, as it is in the confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_log import TrialLog
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_runner import TrialRunner
from fedscout.experiments.benchmarks.intervals.simulated_trials import (
    NUM_CLIENTS,
    Population,
    Sample,
    SimulatedRunner,
    configurations,
)
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.confirmation_runs import confirm_winner
from fedscout.search.ledger import Ledger, StudyFacts
from fedscout.search.search_config import SearchConfig

NUM_FEDERATIONS = 4000
"""From which a truth about new data is taken."""

SPLITS_A_SEED = 20
"""A truth about these rows is taken from so many times the splits that an interval rests on: its own error is small."""

HERE_STUDIES = 100
"""In so many studies of a scene at most, as that takes long."""


@dataclass(frozen=True)
class Scene:
    """What is simulated.

    Attributes:
        name: For people.
        population: FedAvg first, then the candidates.
        batch: Seeds between looks; None looks once.
    """

    name: str
    population: Population
    batch: int | None = None


SCENES: tuple[Scene, ...] = (
    Scene("no difference", Population((0.6, 0.6), (0, 0))),
    Scene("a difference", Population((0.5, 0.8), (0, 0))),
    Scene("no difference, looked at as it comes", Population((0.6, 0.6), (0, 0)), batch=2),
    Scene("a difference, looked at as it comes", Population((0.5, 0.8), (0, 0)), batch=2),
    Scene("the best of eight that are no better", Population((0.6,) * 9, (0,) * 9)),
    Scene(
        "the best of eight that are no better, subjects of four rows",
        Population((0.6,) * 9, (0,) * 9, group_rows=4, alike=0.5),
    ),
    Scene("no difference, either side fails in a tenth of runs", Population((0.6, 0.6), (0.1, 0.1))),
    Scene("a little better, but fails in a tenth of runs", Population((0.6, 0.62), (0, 0.1))),
    Scene("no difference, subjects of four rows", Population((0.6, 0.6), (0, 0), group_rows=4, alike=0.5)),
    Scene("a difference, subjects of four rows", Population((0.5, 0.8), (0, 0), group_rows=4, alike=0.5)),
)


class Coverage(BaseModel):
    """What many studies of one scene found; shares of studies, in `[0, 1]`.

    Attributes:
        scene: Its name.
        seeds: Fresh seeds at most.
        seeds_used: On average.
        truth: Difference on new data.
        new_data: Intervals for new data that hold it.
        here: Intervals for another run that hold the mean over all splits of their rows, of the first studies.
        better: Studies that say "better".
        wrong: Studies that say "better" where it is not, or "worse" where it is not.
        half_width: Of the interval for new data, on average.
    """

    model_config = ConfigDict(frozen=True)

    scene: str
    seeds: int
    seeds_used: float
    truth: float
    new_data: float
    here: float
    better: float
    wrong: float
    half_width: float


def measure_coverage(
    num_seeds: Sequence[int], num_studies: int, scenes: Sequence[Scene] = SCENES, note: Callable[[str], None] = print
) -> list[Coverage]:
    """Simulate studies of every scene.

    Args:
        num_seeds: Fresh seeds at most.
        num_studies: Of each scene and number of seeds.
        scenes: What is simulated.
        note: Told what is done.
    """
    found = []
    for scene in scenes:
        for seeds in num_seeds:
            note(f"{scene.name}, {seeds} seeds")
            found.append(_coverage(scene, seeds, num_studies))
    return found


def coverage_lines(found: Sequence[Coverage]) -> list[str]:
    """Return the table for people, in Markdown."""
    head = "| scene | seeds | used | truth | new data | here | better | wrongly | half width |"
    rows = [
        f"| {one.scene} | {one.seeds} | {one.seeds_used:.1f} | {100 * one.truth:+.1f} | {100 * one.new_data:.0f} % | "
        f"{100 * one.here:.0f} % | {100 * one.better:.0f} % | {100 * one.wrong:.1f} % | {100 * one.half_width:.1f} |"
        for one in found
    ]
    return [head, "|" + " --- |" * 9, *rows]


class _Judged(NamedTuple):
    """What one study found, held against the truth."""

    seeds_used: float
    new_data: float
    here: float
    better: float
    wrong: float
    half_width: float


def _coverage(scene: Scene, seeds: int, num_studies: int) -> Coverage:
    judged = [_judged(scene, *_study(scene, seeds, number), number) for number in range(num_studies)]
    means = dict(zip(_Judged._fields, np.nanmean(judged, axis=0).tolist(), strict=True))
    return Coverage(scene=scene.name, seeds=seeds, truth=_truths(scene.population)[1], **means)


def _judged(scene: Scene, sample: Sample, confirmation: Confirmation, number: int) -> _Judged:
    names = [str(spec) for spec in configurations(len(scene.population.separations))]
    pick = names.index(confirmation.contestants[0].name)
    truth, difference = _truths(scene.population)[pick], confirmation.versus["fedavg"]["own"]
    low, high, here_low, here_high = (
        np.nan if end is None else end
        for end in (difference.low, difference.high, difference.here_low, difference.here_high)
    )
    here = np.nan
    if number < HERE_STUDIES:
        here = here_low <= _here(scene.population, sample, number, pick, len(confirmation.seeds)) <= here_high
    better, worse = (confirmation.verdict == verdict for verdict in ("better", "worse"))
    return _Judged(
        seeds_used=len(confirmation.seeds),
        new_data=low <= truth <= high,
        here=here,
        better=better,
        wrong=(better and truth <= 0) or (worse and truth >= 0),
        half_width=(high - low) / 2,
    )


class _NoLog:
    """A study that nobody goes on with."""

    def read(self, config_hash: str | None = None) -> list[Trial]:
        del config_hash
        return []

    def append(self, trial: Trial) -> Path:
        del trial
        return Path()


def _study(scene: Scene, seeds: int, number: int) -> tuple[Sample, Confirmation]:
    """Draw a federation, let every candidate be scored on the study's seed, and confirm the best."""
    sample, specs = Sample(scene.population, number), configurations(len(scene.population.separations))
    facts = StudyFacts(
        "simulated", 1, Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1), Session(seed=number), guessing=sample.guessing
    )
    runner = cast(TrialRunner, SimulatedRunner(sample, specs))
    ledger = Ledger(facts, runner, cast(TrialLog, _NoLog()))
    searched = ledger.run([facts.trial("search", spec) for spec in specs[1:]])
    scored = [trial for trial in searched if trial.status == "completed"]
    if not scored:  # no candidate went through: another federation
        return _study(scene, seeds, number + 10**6)
    config = SearchConfig(confirmation_seeds=seeds, confirmation_batch=scene.batch)
    confirmation = confirm_winner(config, ledger, scored, [])
    assert confirmation is not None
    return sample, confirmation


def _worth(population: Population, group: int, accuracy: float, guessing: float) -> float:
    """Return what a configuration is worth, its failures counted as guessing."""
    failing = population.failures[group]
    return (1 - failing) * accuracy + failing * guessing


@cache
def _truths(population: Population) -> tuple[float, ...]:
    """Return each configuration's mean difference to FedAvg over federations drawn anew."""
    totals = np.zeros(len(population.separations))
    for number in range(NUM_FEDERATIONS):
        sample = Sample(population, 10**9 + number)
        train, test = sample.split(number, Session().test_fraction)
        for group in range(len(totals)):
            totals[group] += _worth(population, group, sample.accuracy(group, train, test), sample.guessing)
    return tuple(((totals - totals[0]) / NUM_FEDERATIONS).tolist())


def _here(population: Population, sample: Sample, number: int, pick: int, num_seeds: int) -> float:
    """Return the mean difference of the pick to FedAvg over splits of the very rows."""
    total, num_splits = 0.0, SPLITS_A_SEED * num_seeds
    for seed in range(num_splits):
        train, test = sample.split(2**40 + 10_000 * number + seed, Session().test_fraction)
        pair = [_worth(population, group, sample.accuracy(group, train, test), sample.guessing) for group in (pick, 0)]
        total += pair[0] - pair[1]
    return total / num_splits
