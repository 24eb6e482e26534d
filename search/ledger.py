"""The ledger of a study: runs planned trials that the log does not hold yet, and writes each as it finishes.

A trial's identity is the configuration, what is tried, and the code of a user's own strategy: once that is edited, its
trials are run again. Trials are numbered in the order in which they are planned, so a study that was cut off plans the
same trials again and finds those that finished.

A trial of fewer rounds than the study's keeps its end as a checkpoint, from which a longer trial of the same
configuration goes on. Such checkpoints stay until `release`; one that is lost costs time and changes no result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_log import TrialLog
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_runner import Progress, TrialSource
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.search.dealing import Dealing
from fedscout.search.measure import ACCURACY, Measure
from fedscout.search.objective import Objective
from fedscout.search.repetitions import median_of, told_by_trial, trainings_of
from fedscout.search.search_config import View
from fedscout.strategies import SelectionSpec, StrategySpec, named_selection

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
        repetitions: Trainings of a trial, an odd number; see `fedscout.search.repetitions`.
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
    dealing: Dealing | None = None
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
