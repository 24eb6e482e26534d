"""Trials of which the truth is known: classifiers in closed form on rows drawn from a known population.

A row has a label, 0 or 1 with equal chances, and G groups of features, each feature N(±δ_g/2, 1) by the label.
Configuration g classifies by the nearest of two means over group g alone, which it takes from the training rows of all
clients. So configurations with equal δ are equally good, and how good they are on rows that nobody has seen can be
measured on as many as one likes. Rows are split as the engine splits them, by the trial's seed, so seeds of a study
share their rows just as they do for real.

Rows may belong together, as visits of a subject do: they then have the label of the subject, a part of the features'
variance between them, and go to one side of a split together.

A configuration may also fail, with a chance of its own, drawn from the trial's seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.data.client_split import split_client
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_runner import Progress
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.strategies import FedAdamSpec, FedAvgSpec, StrategySpec

NUM_CLIENTS, CLIENT_ROWS, GROUP_FEATURES = 5, 40, 4

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """What rows are drawn from.

    Attributes:
        separations: δ_g of each configuration, FedAvg's first.
        failures: Chance of each to fail.
        group_rows: Rows of a subject; divides `CLIENT_ROWS`.
        alike: Share of a feature's variance within a class that rows of a subject have in common, in `[0, 1]`.
    """

    separations: tuple[float, ...]
    failures: tuple[float, ...]
    group_rows: int = 1
    alike: float = 0.0

    @classmethod
    def of(cls, separations: Sequence[float], failures: Sequence[float], **rest: Any) -> Population:
        """Return a population that can be told from others, from lists of a file."""
        return cls(tuple(separations), tuple(failures), **rest)

    def draw(self, num_rows: int, generator: np.random.Generator) -> tuple[npt.NDArray[np.int64], Array]:
        """Return labels, shape `(num_rows,)`, and features, shape `(groups, num_rows, features)`; subjects in turn."""
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
    """Return so many configurations, FedAvg first; which one it is decides the group of features, and nothing else."""
    return [FedAvgSpec(), *(FedAdamSpec(eta=0.01 * place) for place in range(1, count))]


class Sample:
    """The rows of one federation, and what trials on them give.

    Args:
        population: Where they come from.
        seed: Of the draw.
    """

    def __init__(self, population: Population, seed: int) -> None:
        self._population = population
        generator = stream(seed, "simulated federation")
        self._labels, self._features = population.draw(NUM_CLIENTS * CLIENT_ROWS, generator)
        self._split: tuple[int, npt.NDArray[np.bool_]] | None = None

    @property
    def guessing(self) -> float:
        """Share of the more frequent class."""
        return float(np.bincount(self._labels).max() / len(self._labels))

    def split(self, seed: int, test_fraction: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which rows train and which test under a seed; the last answer is kept."""
        if self._split is not None and self._split[0] == seed:
            return ~self._split[1], self._split[1]
        test = np.zeros(len(self._labels), np.bool_)
        subject_rows = self._population.group_rows
        subjects = None if subject_rows == 1 else np.arange(CLIENT_ROWS) // subject_rows
        for client, first in enumerate(range(0, len(test), CLIENT_ROWS)):
            own = self._labels[first : first + CLIENT_ROWS]
            test[first + split_client(own, seed, client, test_fraction, groups=subjects).test] = True
        self._split = seed, test
        return ~test, test

    def accuracy(self, group: int, train: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]) -> float:
        """Return the accuracy on test rows of what a configuration learns of training rows."""
        features, labels = self._features[group], self._labels
        low, high = (features[train & (labels == label)].mean(axis=0) for label in (0, 1))
        found = (features[test] - (low + high) / 2) @ (high - low) > 0
        return float((found == labels[test]).mean())

    def fails(self, group: int, seed: int) -> bool:
        """Return whether a configuration fails under a seed."""
        return float(stream(seed, "simulated failure", group).random()) < self._population.failures[group]


@dataclass
class SimulatedRunner:
    """Runs trials on a sample; satisfies what a ledger needs of a runner.

    Attributes:
        sample: The rows.
        specs: The configurations, by their group of features.
    """

    sample: Sample
    specs: Sequence[StrategySpec]

    @property
    def facts(self) -> Any:
        """Nothing is known of a federation."""
        raise NotImplementedError("simulated trials have no federation")

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Yield each trial."""
        del progress
        for position, settings in enumerate(batch):
            yield position, self._trial(settings)

    def forget(self, key: str) -> None:
        """Nothing was kept."""

    def _trial(self, settings: TrialSettings) -> Trial:
        session, group = settings.session, self.specs.index(settings.strategy)
        if self.sample.fails(group, session.seed):
            return Trial.of(settings, status="failed", error="it was drawn to fail")
        train, test = self.sample.split(session.seed, session.test_fraction)
        accuracy = self.sample.accuracy(group, train, test)
        rounds = dict.fromkeys(("round_accuracy", "round_clean_accuracy"), (accuracy,))
        rest = dict.fromkeys(("round_loss", "round_clean_loss", "round_train_loss"), (0.0,))
        tested = tuple([int(test.sum()) // NUM_CLIENTS] * NUM_CLIENTS)
        return Trial.of(
            settings, status="completed", **rounds, **rest, client=tuple(range(NUM_CLIENTS)), client_num_examples=tested
        )
