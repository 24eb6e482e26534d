"""The ledger of a study: runs planned trials that the log does not hold yet, and writes each as it finishes.

A trial's identity is the configuration, what is tried, and the code of a user's own strategy: once that is edited, its
trials are run again. Trials are numbered in the order in which they are planned, so a study that was cut off plans the
same trials again and finds those that finished.

A trial of fewer rounds than the study's keeps its end as a checkpoint, from which a longer trial of the same
configuration goes on. Such checkpoints stay until `release`; one that is lost costs time and changes no result.

A trial that trains its configuration several times, and counts as the median of its trainings.

Each training has a seed of its own, the first the trial's, and all trials of a seed have the same ones. So split,
initial model, batches and episodes differ between trainings, not between candidates. With an odd number R of them,

    fitness = median of the R fitnesses, of which a training that failed has the least

is that of one training, the trial's for all that has no median: clients, bytes, notes, the kept model. Its curves are
medians round by round over the trainings that completed. If most trainings fail, so has the trial. Seconds are those of
all.

A training keeps its end as a checkpoint until the trial is logged: a study that is cut off repeats none that ended.

The trials of a study beside each other: the best, the worst, what they cost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from statistics import median
from typing import Any

import numpy as np

from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.seeds import integer
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import Progress, TrialSource
from fedscout.search.config import View
from fedscout.search.objective import ACCURACY, DataOrigin, Measure, Objective
from fedscout.strategies import FedAvgSpec, SelectionSpec, StrategySpec, named_selection

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
    for name in (one.name for one in fields(Trial) if one.name.startswith("round_")):
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


logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class StudyFacts:
    """What all trials of a study share.

    Attributes:
        name: Of the study.
        num_rounds: Rounds of a full training.
        cohort: The clients, on which strategies depend.
        session: What trials fix for their messages: the study's seed and local training, split, limits of time.
        view: Whose rows the fitness is measured on.
        timeout_seconds: Of a trial.
        searcher: Name of the searcher.
        config_hash: Of everything that decides results.
        config: The whole configuration as JSON.
        versions: Of the libraries.
        data_digest: Of the rows and who holds which; None where it is not known.
        guessing: Fitness of a constant answer, such as the most frequent class: what a failed trial is worth.
        measure: What the fitness measures.
        objectives: What makes the fitness of a trial, and beside it what else a front is of; none takes its mean score.
        second_measure: What the second objective measures, if there is one.
        selection: Who trains where a strategy does not say; None leaves that to the strategy.
        dealing: How rows came to the clients; None where nobody knows.
        repetitions: Trainings of a trial, an odd number; see `fedscout.search.ledger`.
        same_test_rows: Whether every seed tests on the same rows.
        is_measured: Whether the search itself is measured, so that it may know nothing of these data.
    """

    name: str
    num_rounds: int
    cohort: Cohort
    session: Session
    view: View = "own"
    timeout_seconds: float | None = None
    searcher: str = ""
    config_hash: str = ""
    config: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    data_digest: str | None = None
    guessing: float = 0.0
    measure: Measure = ACCURACY
    objectives: tuple[Objective, ...] = ()
    second_measure: Measure | None = None
    selection: SelectionSpec | None = None
    dealing: DataOrigin | None = None
    repetitions: int = 1
    same_test_rows: bool = False
    is_measured: bool = False

    @property
    def selection_kind(self) -> str | None:
        """Kind of the policy that says who trains; None where the strategy does."""
        return None if self.selection is None else self.selection.kind

    def trial(
        self,
        phase: str,
        strategy: StrategySpec,
        seed: int | None = None,
        generation: int = 0,
        learning_rate: float | None = None,
        num_rounds: int | None = None,
    ) -> TrialSettings:
        """Return the settings of a trial of the study.

        Args:
            phase: `baseline`, `search`, `tuned-baseline`, `confirmation` or `train`.
            strategy: What is tried.
            seed: Of split, model and batches; None is the study's.
            generation: Of the searcher, from 1; 0 outside the search.
            learning_rate: The clients' step size, where it is neither the study's nor the strategy's.
            num_rounds: Rounds from the start, fewer than the study's; None is all of them.
        """
        training = strategy.local_training(self.session.training)
        if learning_rate is not None:
            training = training.model_copy(update={"learning_rate": learning_rate})
        held_back = self.session.validation_fraction and phase != "confirmation"
        return TrialSettings(
            strategy,
            num_rounds=self.num_rounds if num_rounds is None else num_rounds,
            num_sampled=self.cohort.num_sampled,
            session=replace(
                self.session,
                seed=self.session.seed if seed is None else seed,
                training=training,
                evaluate_on="validation" if held_back else "test",
            ),
            timeout_seconds=self.timeout_seconds,
            config_hash=self.config_hash,
            phase=phase,
            generation=generation,
            whole=num_rounds is None,
            full_rounds=self.num_rounds,
            selection=named_selection(strategy.selection, self.selection),
        )


@dataclass(frozen=True)
class StudyEvents:
    """What a display may want to know; every callback is optional.

    Attributes:
        on_record: A trial finished, or was found in the log (second argument True).
        on_rounds: Rounds done by running trials.
    """

    on_record: Callable[[Trial, bool], None] | None = None
    on_rounds: Progress | None = None


class Ledger:
    """Plans, runs, logs.

    Args:
        facts: What all trials share.
        runner: Gives the trials.
        log: Where they are written; read once, here.
        events: For a display.
    """

    def __init__(
        self, facts: StudyFacts, runner: TrialSource, log: TrialLog, events: StudyEvents | None = None
    ) -> None:
        self.facts = facts
        self._runner = runner
        self._log = log
        self._events = events or StudyEvents()
        self._logged = {(trial.trial, trial.key): trial for trial in log.read(facts.config_hash)}
        self._next = 0
        self._kept: dict[str, None] = {}
        self._noted: set[tuple[str, str]] = set()

    def know_told(self, strategy: str, notes: Iterable[str]) -> None:
        """Tell none of these notes of a strategy's trials, as they were told before."""
        self._noted.update((strategy, note) for note in notes)

    def run(self, batch: Sequence[TrialSettings]) -> list[Trial]:
        """Bring a batch of trials to its end and return them, in its order."""
        first = self._next
        self._next += len(batch)
        trials: dict[int, Trial] = {}
        for position, settings in enumerate(batch):
            logged = self._logged.get((first + position, settings.key))
            if logged is not None and _has_every_round(logged, settings):
                asked = None if settings.whole else settings.num_rounds
                trials[position] = replace(logged, spec=settings.strategy, asked_rounds=asked)
                self._forget(settings)  # in case the run ended between log and checkpoint
        for trial in trials.values():
            self._tell(trial, known=True)
        missing = [position for position in range(len(batch)) if position not in trials]
        parts = {position: self._trainings(batch[position]) for position in missing}
        planned = [(position, place) for position in missing for place in range(len(parts[position]))]
        ended: dict[int, dict[int, Trial]] = {position: {} for position in missing}
        results = self._runner.run([parts[position][place] for position, place in planned], self._progress(batch))
        try:
            for index, result in results:
                position, place = planned[index]
                ended[position][place] = self._of_this_study(first + position, result)
                if len(ended[position]) < len(parts[position]):
                    continue
                trial = median_of(batch[position], [part for _, part in sorted(ended.pop(position).items())])
                self._log.append(trial)
                self._forget(batch[position])
                trials[position] = trial
                self._tell(trial, known=False)
        finally:
            if isinstance(results, Generator):
                results.close()  # ends the trials that still run, if one could not be logged
        return [trials[position] for position in range(len(batch))]

    def _trainings(self, settings: TrialSettings) -> list[TrialSettings]:
        return trainings_of(settings, self.facts.repetitions)

    def _progress(self, batch: Sequence[TrialSettings]) -> Progress | None:
        on_rounds, repetitions = self._events.on_rounds, self.facts.repetitions
        if on_rounds is None or repetitions == 1:
            return on_rounds
        trial_of = {part.key: settings.key for settings in batch for part in self._trainings(settings)}
        return told_by_trial(on_rounds, trial_of, repetitions)

    def release(self) -> None:
        """Remove the ends of short trials that nothing will go on from."""
        for checkpoint in self._kept:
            self._runner.forget(checkpoint)
        self._kept.clear()

    def _of_this_study(self, number: int, trial: Trial) -> Trial:
        facts = self.facts
        own, clean = trial.own_fitness, trial.clean_fitness
        found = [objective.fitness(trial, facts.view) for objective in facts.objectives]
        if facts.objectives:
            own, clean = (facts.objectives[0].fitness(trial, view) for view in ("own", "clean"))
        return replace(
            trial,
            study=facts.name,
            trial=number,
            searcher=facts.searcher,
            fitness=clean if facts.view == "clean" else own,
            own_fitness=own,
            clean_fitness=clean,
            objectives=tuple(found) if len(found) > 1 else None,
            versions=facts.versions,
            config=facts.config,
        )

    def _forget(self, settings: TrialSettings) -> None:
        for training in self._trainings(settings):
            if settings.whole:
                self._kept.pop(training.checkpoint, None)
                self._runner.forget(training.checkpoint)
            else:
                self._kept[training.checkpoint] = None

    def _tell(self, trial: Trial, known: bool) -> None:
        for note in trial.notes:
            if (trial.strategy, note) not in self._noted:
                self._noted.add((trial.strategy, note))
                logger.warning("%s: %s", trial.strategy, note)
        if self._events.on_record is not None:
            self._events.on_record(trial, known)


def _has_every_round(logged: Trial, settings: TrialSettings) -> bool:
    """Whether a logged trial may be compared with others.

    Earlier versions logged a strategy with its own `start` with as many rounds as it happened to tell of.
    """
    return logged.status == "failed" or logged.num_rounds == settings.num_rounds


BASELINE = FedAvgSpec()


def full_trainings_of(trials: Iterable[Trial], num_rounds: int) -> float:
    """Return what trials cost, in full trainings: of a configuration that went on, its longest trial counts.

    A trial that failed early counts in full.

    Args:
        trials: Of one seed.
        num_rounds: Rounds of a full training.
    """
    longest: dict[str, int] = {}
    for trial in trials:
        key = trial.spec.model_dump_json()
        longest[key] = max(trial.asked_rounds or num_rounds, longest.get(key, 0))
    return sum(longest.values()) / num_rounds


def comparable(trials: Iterable[Trial]) -> list[Trial]:
    """Return the full trainings that went through."""
    return [trial for trial in trials if trial.status == "completed" and trial.whole]


def front_of(trials: Iterable[Trial]) -> list[Trial]:
    """Return the full trainings that no other beats, best by the first objective first; none without two objectives.

    One beats another if it is no worse by any objective and better by one. Of equals the earliest stands for all.
    """
    left = sorted((trial for trial in comparable(trials) if trial.objectives), key=lambda trial: trial.trial)
    found: list[Trial] = []
    for trial in left:
        others = [other.objectives or () for other in left if other is not trial]
        known = [one.objectives for one in found]
        if trial.objectives not in known and not any(beats(other, trial.objectives or ()) for other in others):
            found.append(trial)
    return sorted(found, key=lambda trial: -trial.fitness)


def beats(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether one is no worse than the other by any objective, and better by one."""
    return tuple(ours) != tuple(theirs) and all(our >= their for our, their in zip(ours, theirs, strict=True))


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the completed full training of largest fitness, the earliest of equals; None if there is none."""
    return max(comparable(trials), key=lambda trial: trial.fitness, default=None)


def worst_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the completed full training of smallest fitness, the earliest of equals; None if there is none."""
    return min(comparable(trials), key=lambda trial: trial.fitness, default=None)
