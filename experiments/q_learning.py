"""Q-learning on a replay buffer, with a client algorithm's gradient correction applied as in supervised training.

A client keeps its latest transitions as one array that is part of its state: L.-J. Lin, "Self-improving reactive agents
based on reinforcement learning, planning and teaching", Machine Learning 8, 1992.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import Correct
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.training.loop import new_optimizer


class Transitions(NamedTuple):
    """Columns of the transitions of several episodes, which are float32 rows in this order."""

    observations: FloatArray
    actions: FloatArray
    rewards: FloatArray
    next_observations: FloatArray
    ended: FloatArray
    """1 where the episode terminated, not where it was truncated by the step limit."""

    @classmethod
    def of(cls, rows: FloatArray) -> Transitions:
        """Return the columns of rows, shape `(steps, 2 * observation + 3)`."""
        width = (rows.shape[1] - 3) // 2
        return cls(rows[:, :width], rows[:, width], rows[:, width + 1], rows[:, width + 2 : -1], rows[:, -1])


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
    rows: FloatArray,
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
        rows: Of the replay buffer, as in `Transitions`.
        num_steps: Optimizer steps.
        renewal_steps: Steps between updates of the target network.
        discount: γ.
        correct: Changes the gradient of each step in place, called with weights and gradient.
    """
    memory = Transitions.of(rows)
    observations = torch.from_numpy(np.ascontiguousarray(memory.observations))
    actions = torch.from_numpy(memory.actions.astype(np.int64))
    model.module.train()
    optimizer = new_optimizer(training)
    weights, gradient = model.weights, model.gradient
    loss_sum = 0.0
    batch_size = min(training.batch_size, len(rows))
    for step, batch in enumerate(generator.integers(0, len(rows), (num_steps, batch_size))):
        if step % renewal_steps == 0:
            target_values = targets(model, memory, discount)
        chosen = torch.from_numpy(batch)
        gradient.zero_()
        values = model.outputs(observations[chosen]).gather(1, actions[chosen, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(values, target_values[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        if correct is not None:
            correct(weights, gradient)
        optimizer.step(weights, gradient)
        loss_sum += loss.item()
    return loss_sum / num_steps
