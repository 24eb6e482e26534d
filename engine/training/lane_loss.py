"""The loss of one client's batch as a function of its model's tensors; `torch.func` makes of it that of many clients.

What differs between clients beside their models and rows comes as `Beyond`, tensors whose first axis are the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedscout.engine.contracts.client_algorithm import Compared
from fedscout.engine.model.adjusted_outputs import Adjusted
from fedscout.engine.model.row_loss import RowLoss
from fedscout.engine.training.lane_dropout import LaneDropout
from fedscout.engine.training.mean_loss import mean_loss
from fedscout.engine.training.representation import Representation

Tensors = dict[str, Tensor]

Beyond = Mapping[str, Any]
"""`scale` and `shift` of `Adjusted`, `teacher` and `others`, tensors of models by name, and of each batch `masks` of
dropout, which these do without; what nobody wants is absent."""


@dataclass(frozen=True)
class LaneLoss:
    """What a descent minimises.

    Attributes:
        module: Called with other tensors than its own.
        row_loss: What weighs the cross-entropy, and is added to it.
        compared: What is added by the representations of rows.
        seen: Those of the module, entered.
        dropout: Of the module, entered.
        narrow: Whether layers compute in bfloat16, as far as PyTorch takes them so.
    """

    module: nn.Module
    row_loss: RowLoss
    compared: Compared | None
    seen: Representation
    dropout: LaneDropout
    narrow: bool = False

    def __call__(
        self, weights: Tensors, buffers: Tensors, rows: Tensor, answers: Tensor, shares: Tensor, beyond: Beyond
    ) -> Tensor:
        """Return the mean over a batch whose rows count by their shares, which add up to 1."""
        with self.dropout.wearing(beyond.get("masks", ())):
            outputs = self._outputs({**weights, **buffers}, rows)
        if answers.is_floating_point():
            return (mean_loss(outputs, answers, reduction="none") * shares).sum()
        logits = _adjusted(outputs, beyond)
        own = self.seen.latest() if self.compared is not None else None  # ahead of what else is called
        costs = mean_loss(logits, answers, reduction="none")
        if not self.row_loss.is_plain:
            costs = self._weighed(costs, logits, rows, answers, beyond)
        if own is not None:
            costs = costs + self._compared(own, rows, beyond["others"])
        return (costs * shares).sum()

    def _outputs_of_another(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return what a model that is not trained says, in evaluation mode."""
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            return self._outputs(tensors, rows)
        finally:
            for part, training in modes:
                part.training = training

    def _outputs(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return what the module says of a batch with these tensors, float32."""
        with torch.autocast(rows.device.type, torch.bfloat16) if self.narrow else nullcontext():
            outputs: Tensor = functional_call(self.module, tensors, (rows,))
        return outputs.float()

    def _weighed(self, costs: Tensor, logits: Tensor, rows: Tensor, answers: Tensor, beyond: Beyond) -> Tensor:
        """Return what rows cost by `row_loss`, see `fedscout.engine.model.row_loss`."""
        logs, loss = logits.log_softmax(dim=1), self.row_loss
        total = loss.cross_entropy * costs + loss.miss * (1 - logs.gather(1, answers[:, None])[:, 0].exp())
        if not loss.pseudo_label:
            return total
        said = self._outputs_of_another(beyond["teacher"], rows)
        told = _adjusted(said, beyond).softmax(dim=1).detach()
        return total - loss.pseudo_label * (told * logs).sum(dim=1)

    def _compared(self, own: Tensor, rows: Tensor, others: Sequence[Tensors]) -> Tensor:
        """Return what rows cost by their representations."""
        assert self.compared is not None
        found = []
        for tensors in others:
            self._outputs_of_another(tensors, rows)
            found.append(self.seen.latest().detach().flatten(1)[None])
        costs: Tensor = self.compared.measure(own.flatten(1)[None], *found)[0]
        return costs


def _adjusted(outputs: Tensor, beyond: Beyond) -> Tensor:
    """Return one client's outputs, adjusted if they are to be."""
    parts = [None if (part := beyond.get(name)) is None else part[None] for name in ("scale", "shift")]
    return Adjusted(*parts)(outputs[None])[0]
