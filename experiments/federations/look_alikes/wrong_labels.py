"""Wrong labels in given numbers: of a client's rows of each class so many have each label."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class WrongLabels:
    """Gives a client's rows of each class labels in given numbers; which rows, is drawn.

    Attributes:
        num_wrong: Labels that differ from the class.
        confusion: Rows by class and label, shape `(classes, classes)`; its rows add up to those of the client.
    """

    num_wrong: int
    confusion: IntArray = field(repr=False)

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and partly wrong labels."""
        given = labels.copy()
        for actual, numbers in enumerate(self.confusion):
            rows = generator.permutation(np.flatnonzero(labels == actual))
            given[rows] = np.repeat(np.arange(num_classes), numbers)
        return features.copy(), given


def wrong_labels(confusion: IntArray) -> WrongLabels:
    """Return the transform that a confusion asks for."""
    return WrongLabels(int(confusion.sum() - np.trace(confusion)), confusion)
