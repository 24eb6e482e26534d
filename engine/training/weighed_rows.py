"""The loop's half of `fedscout.engine.model.row_loss`: one client's rows, and what the received model says of them.

That is asked once a round, in evaluation mode. Probabilities are of outputs that are adjusted as the client's own are;
a loss of an algorithm's own may read the outputs as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_algorithm import Loss, Steps
from fedscout.engine.model.adjusted_outputs import Adjusted
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.model.row_loss import RowLoss


@dataclass(frozen=True)
class WeighedRows:
    """Weighs a batch's loss and adds further terms to it.

    Attributes:
        row_loss: The weights.
        told: Probabilities under the received model, shape `(rows of the client, classes)`; None where nobody asks.
        adjusted: What is made of outputs ahead of every term.
        received: Outputs of the received model, likewise; None unless the algorithm's loss reads them.
    """

    row_loss: RowLoss
    told: Tensor | None
    adjusted: Adjusted | None
    received: Tensor | None = None

    def __call__(self, loss: Loss, positions: IntArray, outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        """Return the mean over a batch.

        Args:
            loss: What is weighed.
            positions: Of the batch's rows among the client's.
            outputs: Of the model.
            labels: Of the rows.
            features: Likewise.
        """
        rows = torch.from_numpy(positions).to(outputs.device)
        told = None if self.told is None else self.told[rows]
        read = () if self.received is None else (self.received[rows],)
        first = loss(outputs, labels, features, *read)
        return self.row_loss.mean(first, _adjusted(self.adjusted, outputs), labels, told)


def weighed_rows(
    model: FlatModel, steps: Steps, received: Tensor, batches: Iterable[tuple[Tensor, Tensor]]
) -> WeighedRows | None:
    """Return what weighs a client's rows, or None where there is nothing to weigh; `model` is overwritten then.

    Args:
        model: Scratch.
        steps: How the client trains.
        received: The model that tells pseudo-labels, shape `(size,)`.
        batches: All of the client's rows, in order.
    """
    row_loss = steps.weighed
    if row_loss.is_plain and not steps.reads_received:
        return None
    adjusted = None if steps.adjusted is None else steps.adjusted.to(model.device)
    asked = row_loss.pseudo_label or steps.reads_received
    outputs = _outputs(model, received, batches) if asked else []
    told = [_adjusted(adjusted, each).softmax(dim=1) for each in outputs] if row_loss.pseudo_label else []
    return WeighedRows(
        row_loss,
        torch.cat(told) if told else None,
        adjusted,
        torch.cat(outputs) if steps.reads_received else None,
    )


@torch.no_grad()
def _outputs(model: FlatModel, received: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
    model.load(received)
    model.module.eval()
    return [model.outputs(features) for features, _ in batches]


def _adjusted(adjusted: Adjusted | None, outputs: Tensor) -> Tensor:
    return outputs if adjusted is None else adjusted(outputs[None])[0]
