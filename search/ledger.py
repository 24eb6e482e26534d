"""The ledger of a study: runs planned trials that are not in the log yet, and logs each as it finishes.

**Identity.** A trial is identified by the configuration, its settings, and the code of a user's own strategy: if that
is edited, its trials are run again. Trials are numbered in the order of planning, so an interrupted study plans the
same trials again and finds those that finished.

**Checkpoints.** A trial of fewer rounds than the study's keeps its final state as a checkpoint, from which a longer
trial of the same configuration continues. These checkpoints are kept until `release`; a lost one costs time but changes
no result.

**Repetitions.** A trial may consist of several trainings and is their median. Each training has its own seed, the first
one the trial's, and trials of one seed share them. So split, initial model, batches and episodes differ between
trainings, not between candidates. With an odd number R of them,

    fitness = median of the R fitnesses, where failed trainings rank lowest

is that of one training, which also gives all fields without a median: clients, bytes, notes, the saved model. Curves
are medians per round over the completed trainings. If most trainings fail, the trial has failed. Seconds are totals. A
training keeps its final state as a checkpoint until the trial is logged, so an interrupted study repeats no finished
one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
"""Exclusive upper limit of a seed."""


def trainings_of(settings: TrialSettings, repetitions: int) -> list[TrialSettings]:
    """Return the trainings of a trial: the trial itself, or `repetitions` trainings with their own seeds."""
    if repetitions == 1:
        return [settings]
    seed = settings.session.seed
    seeds = [seed, *(integer(seed, "repetition", number) % SEEDS for number in range(1, repetitions))]
    return [replace(settings, is_full=False).on_seed(training_seed) for training_seed in seeds]


def median_of(settings: TrialSettings, trainings: Sequence[Trial]) -> Trial:
    """Return the median trial of its trainings.

    Args:
        settings: Settings of the trial.
        trainings: Results of `trainings_of`, in that order, an odd number.
    """
    if len(trainings) == 1:
        return trainings[0]
    completed = [training for training in trainings if training.status == "completed"]
    failed = [training for training in trainings if training.status == "failed"]
    failure_notes = [
        f"{len(failed)} of {len(trainings)} trainings failed, seed {each.seed}: {each.error}" for each in failed[:1]
    ]
    phases = dict.fromkeys(phase for training in trainings for phase in training.seconds)
    common: dict[str, Any] = {
        "asked_rounds": None if settings.is_full else settings.num_rounds,
        "key": settings.key,
        "seed": settings.session.seed,
        "repetition_fitness": tuple(training.fitness for training in trainings),
        "seconds": {phase: sum(each.seconds.get(phase, 0.0) for each in trainings) for phase in phases},
        "finished_at": max(training.finished_at for training in trainings),
    }
    if len(failed) > len(completed):
        return replace(failed[0], error=failure_notes[0], **common)
    fitness = _median((training.fitness for training in completed), len(failed))
    middle = next(training for training in completed if training.fitness == fitness)
    return replace(
        middle,
        **common,
        rounds=_median_curves(completed),
        own_fitness=_median((training.own_fitness for training in completed), len(failed)),
        clean_fitness=_median((training.clean_fitness for training in completed), len(failed)),
        notes=(*middle.notes, *failure_notes),
    )


def _median(values: Iterable[float], num_failed: int) -> float:
    """Return the median of the completed trainings and fewer failed ones, which rank lowest."""
    return median([*values, *[-inf] * num_failed])


def _median_curves(completed: Sequence[Trial]) -> dict[str, tuple[float, ...]]:
    """Return the median of each measure of the rounds, by name."""
    names = dict.fromkeys(name for training in completed for name in training.rounds)
    curves = {name: [each.rounds[name] for each in completed if name in each.rounds] for name in names}
    return {name: tuple(np.median(np.array(measured), axis=0).tolist()) for name, measured in curves.items()}


logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class StudyFacts:
    """Facts shared by all trials of a study.

    Attributes:
        name: Name of the study.
        num_rounds: Rounds of a full training.
        cohort: The clients, on which strategies depend.
        session: Message settings of the trials: the study's seed and local training, split, time limits.
        view: View of the test rows on which the fitness is measured.
        timeout_seconds: Time limit of a trial.
        searcher: Name of the searcher.
        config_hash: Hash of everything that determines results.
        config: The whole configuration as JSON.
        versions: Versions of the libraries.
        data_digest: Digest of the rows and their partition; None if unknown.
        guessing: Fitness of a constant answer, such as the most frequent class, which is assigned to failed trials.
        measure: What the fitness measures.
        objective: Objective of the fitness; None uses the mean score.
        selection: The selection policy used when the strategy samples no clients itself; None leaves it to the
            strategy.
        data_origin: Data set and partition; None if unknown.
        repetitions: Trainings per trial, an odd number; see `fedscout.search.ledger`.
        same_test_rows: Whether every seed tests on the same rows.
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
    objective: Objective | None = None
    selection: SelectionSpec | None = None
    data_origin: DataOrigin | None = None
    repetitions: int = 1
    same_test_rows: bool = False

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
            strategy: The configuration.
            seed: Seed of split, model and batches; None is the study's.
            generation: Generation of the searcher, from 1; 0 outside the search.
            learning_rate: Client learning rate that overrides the study's and the strategy's.
            num_rounds: Rounds from the start, fewer than the study's; None is all of them.
        """
        training = strategy.local_training(self.session.training)
        if learning_rate is not None:
            training = training.model_copy(update={"learning_rate": learning_rate})
        held_back = self.session.validation_fraction and phase not in ("confirmation", "train")
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
            is_full=num_rounds is None,
            full_rounds=self.num_rounds,
            selection=named_selection(strategy.selection, self.selection),
        )


@dataclass(frozen=True)
class StudyEvents:
    """Optional callbacks for a display.

    Attributes:
        on_record: Called when a trial finishes, or is found in the log (second argument True).
        on_rounds: Called with the finished rounds of running trials.
    """

    on_record: Callable[[Trial, bool], None] | None = None
    on_rounds: Progress | None = None


class Ledger:
    """Plans, runs and logs trials.

    Args:
        facts: Facts shared by all trials.
        runner: Runs the trials.
        log: Log of the trials; read once, on construction.
        events: Callbacks for a display.
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

    def suppress_notes(self, strategy: str, notes: Iterable[str]) -> None:
        """Suppress these notes on a strategy's trials, as they were reported before."""
        self._noted.update((strategy, note) for note in notes)

    def run(self, batch: Sequence[TrialSettings]) -> list[Trial]:
        """Run a batch of trials and return them in its order."""
        first = self._next
        self._next += len(batch)
        trials: dict[int, Trial] = {}
        for position, settings in enumerate(batch):
            logged = self._logged.get((first + position, settings.key))
            if logged is not None:
                asked_rounds = None if settings.is_full else settings.num_rounds
                trials[position] = replace(logged, spec=settings.strategy, asked_rounds=asked_rounds)
                self._forget(settings)  # in case the run ended between log and checkpoint
        for trial in trials.values():
            self._tell(trial, known=True)
        missing = [position for position in range(len(batch)) if position not in trials]
        parts = {position: trainings_of(batch[position], self.facts.repetitions) for position in missing}
        planned = [(position, number) for position in missing for number in range(len(parts[position]))]
        finished: dict[int, dict[int, Trial]] = {position: {} for position in missing}
        results = self._runner.run([parts[position][number] for position, number in planned], self._progress(batch))
        try:
            for index, result in results:
                position, number = planned[index]
                finished[position][number] = self._of_this_study(first + position, result)
                if len(finished[position]) < len(parts[position]):
                    continue
                trial = median_of(batch[position], [part for _, part in sorted(finished.pop(position).items())])
                self._log.append(trial)
                self._forget(batch[position])
                trials[position] = trial
                self._tell(trial, known=False)
        finally:
            if isinstance(results, Generator):
                results.close()  # ends the trials that still run, if one could not be logged
        return [trials[position] for position in range(len(batch))]

    def _progress(self, batch: Sequence[TrialSettings]) -> Progress | None:
        """Return the callback of trainings, which reports the mean rounds of each trial's, rounded down."""
        on_rounds, repetitions = self._events.on_rounds, self.facts.repetitions
        if on_rounds is None or repetitions == 1:
            return on_rounds
        trial_of = {part.key: settings.key for settings in batch for part in trainings_of(settings, repetitions)}
        rounds_by_training: dict[str, int] = {}

        def by_trial(rounds: Mapping[str, int]) -> None:
            rounds_by_training.update(rounds)
            totals: Counter[str] = Counter()
            for training, num_done in rounds_by_training.items():
                totals[trial_of[training]] += num_done
            on_rounds({trial: num_done // repetitions for trial, num_done in totals.items()})

        return by_trial

    def release(self) -> None:
        """Remove the checkpoints of short trials that will not be continued."""
        for checkpoint in self._kept:
            self._runner.forget(checkpoint)
        self._kept.clear()

    def _of_this_study(self, number: int, trial: Trial) -> Trial:
        facts = self.facts
        own_fitness, clean_fitness = trial.own_fitness, trial.clean_fitness
        if facts.objective is not None:
            own_fitness, clean_fitness = (facts.objective.fitness(trial, view) for view in ("own", "clean"))
        return replace(
            trial,
            study=facts.name,
            trial=number,
            searcher=facts.searcher,
            fitness=clean_fitness if facts.view == "clean" else own_fitness,
            own_fitness=own_fitness,
            clean_fitness=clean_fitness,
            versions=facts.versions,
        )

    def _forget(self, settings: TrialSettings) -> None:
        for training in trainings_of(settings, self.facts.repetitions):
            if settings.is_full:
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


BASELINE = FedAvgSpec()


def full_trainings_of(trials: Iterable[Trial], num_rounds: int) -> float:
    """Return the cost of trials in full trainings: for a continued configuration, its longest trial counts.

    A trial that failed early counts in full.

    Args:
        trials: Trials of one seed.
        num_rounds: Rounds of a full training.
    """
    longest: dict[str, int] = {}
    for trial in trials:
        key = trial.spec.model_dump_json()
        longest[key] = max(trial.asked_rounds or num_rounds, longest.get(key, 0))
    return sum(longest.values()) / num_rounds


def comparable(trials: Iterable[Trial]) -> list[Trial]:
    """Return the completed full trainings."""
    return [trial for trial in trials if trial.status == "completed" and trial.is_full]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the completed full training of largest fitness, the earliest of ties; None if there is none."""
    return max(comparable(trials), key=lambda trial: trial.fitness, default=None)
