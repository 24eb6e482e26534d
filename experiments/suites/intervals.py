"""Coverage of a confirmation's intervals, and its rate of wrong "better" verdicts, in simulated studies.

Each simulated study draws a federation from a population whose truth is known and runs the usual path: the ledger,
`confirm_winner`, its sequential looks, its intervals and its verdict. The truth is the mean difference over newly drawn
federations, each split and trained once. A failed run scores as guessing, as it does in the confirmation.

Trials are classifiers in closed form. A row has a label, 0 or 1 with equal probability, and G groups of features, each
feature N(±δ_g/2, 1) by the label. Configuration g classifies by the nearest of two means over group g alone, estimated
from the training rows of all clients. So configurations with equal δ are equally good, and their accuracy on unseen
rows can be measured on any number of rows. Rows are split by the engine's split, with the trial's seed, so the seeds of
a study share rows as in a real one.

Rows may be dependent, such as visits of a subject: they then share the subject's label and part of the features'
variance, and are on the same side of a split. A configuration may also fail, with its own probability, drawn from the
trial's seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedscout.engine.data.federation import split_client
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import Progress, TrialRunner
from fedscout.experiments.grids.cells import CellContext, CellValues, Values
from fedscout.experiments.grids.experiment import Cell, Settings
from fedscout.experiments.grids.federation_runner import NoLog
from fedscout.search.config import SearchConfig
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.runs import confirm_winner
from fedscout.search.ledger import Ledger, StudyFacts
from fedscout.strategies import FedAdamSpec, FedAvgSpec, StrategySpec

NUM_CLIENTS, CLIENT_ROWS, GROUP_FEATURES = 5, 40, 4

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """The distribution that rows are drawn from.

    Attributes:
        separations: δ_g of each configuration, FedAvg's first.
        failures: Probability that each one fails.
        group_rows: Rows of a subject; divides `CLIENT_ROWS`.
        alike: Share of a feature's within-class variance that rows of a subject have in common, in `[0, 1]`.
    """

    separations: tuple[float, ...]
    failures: tuple[float, ...]
    group_rows: int = 1
    alike: float = 0.0

    def draw(self, num_rows: int, generator: np.random.Generator) -> tuple[npt.NDArray[np.int64], Array]:
        """Return labels, shape `(num_rows,)`, and features, `(groups, num_rows, features)`, ordered by subject."""
        num_subjects = num_rows // self.group_rows
        labels = np.repeat(generator.integers(2, size=num_subjects), self.group_rows)
        features = generator.standard_normal((len(self.separations), num_rows, GROUP_FEATURES))
        if self.alike:
            common = generator.standard_normal((len(self.separations), num_subjects, GROUP_FEATURES))
            features *= np.sqrt(1 - self.alike)
            features += np.sqrt(self.alike) * np.repeat(common, self.group_rows, axis=1)
        features += (np.array(self.separations) / 2)[:, None, None] * (2 * labels - 1)[None, :, None]
        return labels, features


def configurations(count: int) -> list[StrategySpec]:
    """Return `count` configurations, FedAvg first; they only select the group of features."""
    return [FedAvgSpec(), *(FedAdamSpec(eta=0.01 * index) for index in range(1, count))]


class Sample:
    """The rows of one federation, and a runner of trials on them.

    Args:
        population: The distribution of the rows.
        seed: Of the draw.
    """

    def __init__(self, population: Population, seed: int) -> None:
        self._population = population
        generator = stream(seed, "simulated federation")
        self._labels, self._features = population.draw(NUM_CLIENTS * CLIENT_ROWS, generator)
        self._split: tuple[int, npt.NDArray[np.bool_]] | None = None

    @property
    def guessing(self) -> float:
        """Share of the majority class."""
        return float(np.bincount(self._labels).max() / len(self._labels))

    def split(self, seed: int, test_fraction: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return the masks of training and test rows for a seed; the last result is cached."""
        if self._split is not None and self._split[0] == seed:
            return ~self._split[1], self._split[1]
        test = np.zeros(len(self._labels), np.bool_)
        subject_rows = self._population.group_rows
        subjects = None if subject_rows == 1 else np.arange(CLIENT_ROWS) // subject_rows
        for client, first in enumerate(range(0, len(test), CLIENT_ROWS)):
            client_labels = self._labels[first : first + CLIENT_ROWS]
            test[first + split_client(client_labels, seed, client, test_fraction, groups=subjects).test] = True
        self._split = seed, test
        return ~test, test

    def accuracy(self, group: int, train: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]) -> float:
        """Return the test accuracy of a configuration fitted on training rows."""
        features, labels = self._features[group], self._labels
        low, high = (features[train & (labels == label)].mean(axis=0) for label in (0, 1))
        predicted = (features[test] - (low + high) / 2) @ (high - low) > 0
        return float((predicted == labels[test]).mean())

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Yield each trial, as the runner of a ledger."""
        for position, settings in enumerate(batch):
            yield position, self._trial(settings)

    def forget(self, key: str) -> None:
        """Do nothing, as no checkpoints are kept."""

    def _trial(self, settings: TrialSettings) -> Trial:
        session, group = settings.session, configurations(len(self._features)).index(settings.strategy)  # type: ignore[arg-type]
        if stream(session.seed, "simulated failure", group).random() < self._population.failures[group]:
            return Trial.of(settings, status="failed", error="simulated failure")
        train, test = self.split(session.seed, session.test_fraction)
        accuracy = self.accuracy(group, train, test)
        scores = dict.fromkeys(("accuracy", "clean_accuracy"), (accuracy,))
        losses = dict.fromkeys(("loss", "clean_loss", "train_loss"), (0.0,))
        test_rows = tuple([int(test.sum()) // NUM_CLIENTS] * NUM_CLIENTS)
        clients = tuple(range(NUM_CLIENTS))
        return Trial.of(
            settings, status="completed", rounds=scores | losses, clients={"id": clients, "num_examples": test_rows}
        )


NUM_FEDERATIONS = 4000
"""Number of federations from which a truth about new data is computed."""

FIGURES = ("share better", "share wrongly", "seeds used", "half width")
"""Of a study: whether the verdict is better; whether it is better or worse and wrong; the fresh seeds; half the width
of the interval."""


def coverage(cell: Cell, _: Settings, context: CellContext, batch: int | None = None, **population: Any) -> CellValues:
    """Return whether the interval for new data holds the truth, 1 or 0 for each simulated study.

    Args:
        cell: Its column names the maximum number of fresh seeds.
        context: Its number of seeds is that of the studies.
        batch: Seeds between looks; None looks once.
        population: Arguments of a `Population`, FedAvg first, then the candidates.
    """
    num_seeds = int(cell[1].split()[0])
    lists: dict[str, Any] = {name: tuple(own) if isinstance(own, list) else own for name, own in population.items()}
    drawn_from = Population(**lists)
    config = SearchConfig(confirmation_seeds=num_seeds, confirmation_batch=batch)
    studies = [_judged(drawn_from, simulated_study(drawn_from, config, number)) for number in range(context.num_seeds)]
    holds, *others = zip(*studies, strict=True)
    figures = {"truth": (_truths(drawn_from)[1],), **dict(zip(FIGURES, others, strict=True))}
    return CellValues(values=holds, figures=figures)


def _judged(population: Population, confirmation: Confirmation) -> Values:
    """Return whether a study's interval holds the truth about new data, and its figures in the order of `FIGURES`."""
    names = [str(spec) for spec in configurations(len(population.separations))]
    truth = _truths(population)[names.index(confirmation.candidates[0].name)]
    difference = confirmation.versus["own"]
    is_inside, half_width = False, None
    if difference.low is not None and difference.high is not None:
        is_inside, half_width = difference.low <= truth <= difference.high, (difference.high - difference.low) / 2
    better, worse = (confirmation.verdict == verdict for verdict in ("better", "worse"))
    wrong = (better and truth <= 0) or (worse and truth >= 0)
    return float(is_inside), float(better), float(wrong), float(len(confirmation.seeds)), half_width


def simulated_study(population: Population, config: SearchConfig, number: int) -> Confirmation:
    """Return the confirmation of the best candidate on the study's seed, on a drawn federation."""
    sample, specs = Sample(population, number), configurations(len(population.separations))
    facts = StudyFacts(
        "simulated", 1, Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1), Session(seed=number), guessing=sample.guessing
    )
    ledger = Ledger(facts, cast(TrialRunner, sample), NoLog())
    searched = ledger.run([facts.trial("search", spec) for spec in specs[1:]])
    scored = [trial for trial in searched if trial.status == "completed"]
    if not scored:  # no candidate went through: another federation
        return simulated_study(population, config, number + 10**6)
    confirmation = confirm_winner(config, ledger, scored, [])
    assert confirmation is not None
    return confirmation


@cache
def _truths(population: Population) -> tuple[float, ...]:
    """Return each configuration's mean difference from FedAvg over newly drawn federations."""
    failing = np.array(population.failures)
    totals = np.zeros(len(failing))
    for number in range(NUM_FEDERATIONS):
        sample = Sample(population, 10**9 + number)
        train, test = sample.split(number, Session().test_fraction)
        accuracies = np.array([sample.accuracy(group, train, test) for group in range(len(totals))])
        totals += (1 - failing) * accuracies + failing * sample.guessing
    return tuple(((totals - totals[0]) / NUM_FEDERATIONS).tolist())
