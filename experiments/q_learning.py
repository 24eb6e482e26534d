"""Q-learning on a replay buffer, with a client algorithm's gradient correction applied as in supervised training.

A client keeps its latest transitions as one array that is part of its state: L.-J. Lin, "Self-improving reactive agents
based on reinforcement learning, planning and teaching", Machine Learning 8, 1992.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import Correct
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.training.loop import new_optimizer


@dataclass(frozen=True)
class Transitions:
    """Transitions of several episodes.

    Attributes:
        rows: Observation, action, reward, next observation, whether the episode terminated (not truncated); float32,
            shape `(steps, 2 * observation + 3)`.
        width: Size of an observation.
    """

    rows: FloatArray
    width: int

    @classmethod
    def empty(cls, width: int) -> Transitions:
        """Return an empty replay buffer."""
        return cls(np.empty((0, 2 * width + 3), np.float32), width)

    def extended(self, rows: FloatArray, most: int) -> Transitions:
        """Return the buffer with `rows` appended and the oldest ones beyond `most` removed."""
        return Transitions(np.concatenate([self.rows, rows])[-most:], self.width)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def observations(self) -> FloatArray:
        """Shape `(steps, width)`."""
        return self.rows[:, : self.width]

    @property
    def actions(self) -> FloatArray:
        """Integers, shape `(steps,)`."""
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
        """1 where the episode terminated, not where it was truncated by the step limit; shape `(steps,)`."""
        return self.rows[:, -1]


@torch.no_grad()
def targets(model: FlatModel, memory: Transitions, discount: float) -> Tensor:
    """Return the target of Q(s, a) for every transition, shape `(steps,)`.

    Args:
        model: The target network.
        memory: All transitions.
        discount: γ.
    """
    best: Tensor = model.outputs(torch.from_numpy(np.ascontiguousarray(memory.next_observations))).max(dim=1).values
    rewards = torch.from_numpy((1 - discount) * memory.rewards)
    return rewards + discount * (1 - torch.from_numpy(memory.ended.copy())) * best


def learn(
    model: FlatModel,
    training: LocalTraining,
    generator: np.random.Generator,
    memory: Transitions,
    num_steps: int,
    renewal_steps: int,
    discount: float,
    correct: Correct | None = None,
) -> float:
    """Train the loaded model by Q-learning and return the mean loss over the steps.

    Args:
        model: Changed in place.
        training: Batch size and optimizer.
        generator: Generator for the batches.
        memory: Replay buffer.
        num_steps: Optimizer steps.
        renewal_steps: Steps between updates of the target network.
        discount: γ.
        correct: Changes the gradient of each step in place, called with weights and gradient.
    """
    observations = torch.from_numpy(np.ascontiguousarray(memory.observations))
    actions = torch.from_numpy(memory.actions.astype(np.int64))
    model.module.train()
    optimizer = new_optimizer(training)
    weights, gradient = model.weights, model.gradient
    loss_sum = 0.0
    batch_size = min(training.batch_size, len(memory))
    for step, batch in enumerate(generator.integers(0, len(memory), (num_steps, batch_size))):
        if step % renewal_steps == 0:
            target_values = targets(model, memory, discount)
        rows = torch.from_numpy(batch)
        gradient.zero_()
        values = model.outputs(observations[rows]).gather(1, actions[rows, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(values, target_values[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        if correct is not None:
            correct(weights, gradient)
        optimizer.step(weights, gradient)
        loss_sum += loss.item()
    return loss_sum / num_steps
