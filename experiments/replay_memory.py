"""A client's memory of what it has seen: the latest transitions, as one array that travels as the client's state.

L.-J. Lin, "Self-improving reactive agents based on reinforcement learning, planning and teaching", Machine Learning 8,
1992.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedscout.engine.errors import FloatArray


@dataclass(frozen=True)
class Transitions:
    """Steps of some episodes.

    Attributes:
        rows: Observation, action, reward, next observation, whether the episode ended there by its own rules; float32,
            shape `(steps, 2 * observation + 3)`.
        width: Numbers in one observation.
    """

    rows: FloatArray
    width: int

    @classmethod
    def empty(cls, width: int) -> Transitions:
        """Return a memory of nothing."""
        return cls(np.empty((0, 2 * width + 3), np.float32), width)

    def extended(self, rows: FloatArray, most: int) -> Transitions:
        """Return the memory with `rows` at its end, the oldest ones beyond `most` forgotten."""
        return Transitions(np.concatenate([self.rows, rows])[-most:], self.width)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def observations(self) -> FloatArray:
        """Shape `(steps, width)`."""
        return self.rows[:, : self.width]

    @property
    def actions(self) -> FloatArray:
        """Whole numbers, shape `(steps,)`."""
        return self.rows[:, self.width]

    @property
    def rewards(self) -> FloatArray:
        """Shape `(steps,)`."""
        return self.rows[:, self.width + 1]

    @property
    def next_observations(self) -> FloatArray:
        """Shape `(steps, width)`."""
        return self.rows[:, self.width + 2 : -1]

    @property
    def ended(self) -> FloatArray:
        """1 where the episode ended by its own rules, not by the limit of steps; shape `(steps,)`."""
        return self.rows[:, -1]
