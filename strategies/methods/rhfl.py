"""RHFL: clients keep their own models and learn from each other's outputs on the server's unlabelled rows.

No model is averaged. In a round, with z_i(r) the probabilities of client i's model for row r of the server
(Fang, Ye: Robust federated learning with noisy and heterogeneous clients, CVPR 2022, section 3):

- local learning: client i minimises the symmetric cross-entropy (`losses.py`), which bounds the effect of a
  wrong label
- collaborative learning: θ_i takes steps along the gradient of Σ_{j≠i} w_j mean_r KL(z_j(r) ‖ z_i(r)), with
  the z_j from before the steps
- confidence: w = softmax(η q_j / Σ q), q_j = max(0, (L_j' − L_j) / L_j'), where L_j' and L_j are the client's
  mean local losses of the round before and of this one, so clients that learn well have more weight. In the
  first round, or if no loss decreases, the weights are equal.

Deviations:

- All clients have one architecture; in the paper they may differ.
- The server takes the collaborative steps for its clients, since it holds the rows; so models are sent
  instead of outputs. The result is the same.
- The paper's confidence also has the inverse of the loss as a factor; as in public code it is the relative
  decrease only.
- A client is scored on its own test rows; the paper scores all clients on one test set.
- Every client trains in every round, unless a selection policy selects, and the collaborative steps are
  Adam's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.data.client import Arrays
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort, EngineNeeds, ServerContext
from fedscout.engine.messages.contents import client_of, metrics_of
from fedscout.strategies import aggregation as quick
from fedscout.strategies.aggregation.groups import Group, GroupedRule
from fedscout.strategies.aggregation.rules import Hosted
from fedscout.strategies.methods.feddf import LEAST_GAIN, batches, divergence
from fedscout.strategies.methods.losses import SymmetricDescent
from fedscout.strategies.specification import (
    IntegerRange,
    RealRange,
    SearchRange,
    StrategySpec,
    clients_text,
    node_counts,
)

if TYPE_CHECKING:
    from torch import Tensor

Losses = npt.NDArray[np.float64]

LARGEST_EXPONENT = 600.0
"""Of exp, which float64 holds up to 709."""


@dataclass(frozen=True)
class Teachers:
    """Server work: the teacher probabilities of each client."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the weighted means of the others' probabilities as `taught`, and Σ_{j≠i} w_j as `share`.

        If all other weights are 0, `taught` is 0, which gives no gradient.

        Args:
            context: Unused.
            arrays: Logits of each client's model on the server's rows as `outputs`, shape `(clients, rows,
                num_classes)`, and `weights` w, shape `(clients,)`.
        """
        import torch

        del context
        probabilities = torch.from_numpy(np.array(arrays["outputs"])).softmax(dim=2)
        weights = torch.from_numpy(np.array(arrays["weights"]))
        taught, share = torch.zeros_like(probabilities), torch.zeros_like(weights)
        for index in range(len(probabilities)):
            others = weights.clone()
            others[index] = 0
            share[index] = others.sum()
            if share[index]:
                taught[index] = (others[:, None, None] * probabilities).sum(dim=0) / share[index]
        return {"taught": taught.numpy(), "share": share.numpy()}


@dataclass(frozen=True)
class Alignment:
    """Server work: the collaborative steps of one model.

    Attributes:
        num_epochs: Passes over the server's rows.
        learning_rate: Learning rate of Adam.
        batch_size: Rows per step.
    """

    num_epochs: int
    learning_rate: float
    batch_size: int = 128

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the aligned `model`: Σ_{j≠i} w_j KL(z_j ‖ z_i) has the gradient of Σ w_j times KL(their mean ‖ z_i).

        Args:
            context: With unlabelled rows.
            arrays: The `model`, shape `(size,)`; its index `place`; and from `Teachers` its `taught`, shape
                `(rows, num_classes)`, and `share`.
        """
        import torch

        model = torch.from_numpy(np.array(arrays["model"], np.float32))
        self._align(context, model, torch.from_numpy(np.array(arrays["taught"])), arrays)
        return {"model": model.numpy()}

    def _align(self, context: ServerContext, model: Tensor, teacher: Tensor, arrays: Arrays) -> None:
        """Train a model in place."""
        from fedscout.engine.training.loop import Adam

        if divergence(teacher, context.outputs(model)).item() < LEAST_GAIN:
            return  # Adam's steps would be as long on rounding alone
        for _ in range(int(arrays["place"]) * self.num_epochs):
            context.generator.permutation(context.num_rows)  # each model has orders of its own
        optimizer, num_passes, share = Adam(self.learning_rate), 0, float(arrays["share"])
        for rows, is_last in batches(context, self.batch_size):
            _, gradient = context.gradient(model, partial(divergence, teacher[rows]), rows)
            optimizer.step(model[: context.layout.num_trainable], gradient * share)
            num_passes += is_last
            if num_passes == self.num_epochs:
                return


def confidences(before: Losses, now: Losses, strength: float) -> FloatArray:
    """Return the weights w of the clients, which sum to 1, from the decrease of their local losses; shape as `now`.

    Args:
        before: Mean local loss of the round before, infinite if there was none.
        now: Mean local loss of this round.
        strength: η.
    """
    has_previous = np.isfinite(before) & (before > 0)
    drops = np.zeros_like(now)
    drops[has_previous] = np.maximum(0, 1 - now[has_previous] / before[has_previous])
    exponents = strength * drops / drops.sum() if drops.any() else drops
    powers = np.exp(exponents - max(0.0, exponents.max() - LARGEST_EXPONENT))
    return np.asarray(powers / powers.sum(), np.float32)


class Rhfl(Hosted, GroupedRule):
    """Server rule of RHFL.

    Args:
        alignment: Work for a host; None for local training only.
        strength: η.
        cohort: All clients.

    Attributes:
        losses: Mean local loss of each client in the last round in which it trained.
    """

    def __init__(self, alignment: Alignment | None, strength: float, cohort: Cohort) -> None:
        super().__init__(_single_client_strategy, cohort)
        self.alignment = alignment
        self.strength = strength
        self.losses: dict[int, float] = {}
        self._seen: dict[int, float] = {}

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return a group for each client."""
        del config
        return [[client_of(node)] for node in grid.get_node_ids()]

    def parts(
        self, group: Group, sent: FloatArray, replies: Sequence[Message], num_groups: int
    ) -> Sequence[Sequence[int]]:
        """Store the client's loss, and return the group unchanged."""
        for reply in replies:
            if reply.has_content():
                self._seen[group.clients[0]] = cast(float, metrics_of(reply)["loss"])
        return super().parts(group, sent, replies, num_groups)

    def record(self, vectors: Sequence[FloatArray] | FloatArray) -> ArrayRecord:
        """Return the models after the collaborative steps."""
        clients = [group.clients[0] for group in self.groups]
        before = np.array([self.losses.get(client, np.inf) for client in clients])
        self.losses |= self._seen
        now = np.array([self.losses.get(client, np.inf) for client in clients])
        if self.alignment is None or len(clients) == 1:
            return super().record(vectors)
        weights = confidences(before, now, self.strength)
        return super().record(self.aligned(self.alignment, vectors, weights))

    def aligned(
        self, alignment: Alignment, models: Sequence[FloatArray] | FloatArray, weights: FloatArray
    ) -> FloatArray:
        """Return the models after the collaborative steps, shape `(clients, size)`.

        Args:
            alignment: The steps.
            models: Models of the clients, each of shape `(size,)`.
            weights: w, shape `(clients,)`.
        """
        outputs = np.stack([*self.outputs(models)])
        teachers = self.serve(Teachers(), {"outputs": outputs, "weights": weights})
        inputs = [
            {"model": model, "place": np.array(index), **{name: values[index] for name, values in teachers.items()}}
            for index, model in enumerate(models)
        ]
        aligned = np.empty((len(models), len(models[0])), np.float32)
        for index, result in enumerate(self.serve_each(alignment, inputs)):
            aligned[index] = result["model"]
        return aligned

    def __getstate__(self) -> dict[str, Any]:
        """Return the checkpoint state."""
        return {**super().__getstate__(), "losses": self.losses}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        super().__setstate__(state)
        self.losses = state["losses"]


def _single_client_strategy(cohort: Cohort) -> flower.Strategy:
    """Return the strategy of a single-client group, which returns the client's model."""
    return quick.FedAvg(**node_counts(cohort))


class RhflSpec(StrategySpec):
    """RHFL: each client keeps its model, trains it on a noise-robust loss, and learns from all others."""

    paper: ClassVar[str] = "Fang and Ye 2022, doi:10.1109/CVPR52688.2022.00983"
    grouped: ClassVar[bool] = True

    kind: Literal["rhfl"] = "rhfl"
    cross_entropy_weight: Annotated[
        float,
        Field(ge=0, le=1000, description="α, weight of the cross-entropy in the local loss"),
        SearchRange(RealRange(0.01, 1.0, log=True)),
    ] = 0.1
    reverse_weight: Annotated[float, Field(ge=0, le=1000, description="β, weight of the reverse cross-entropy")] = 1.0
    alignment_epochs: Annotated[
        int,
        Field(ge=0, le=1000, description="number of alignment epochs over the server's rows per round; 0 is none"),
        SearchRange(IntegerRange(1, 10)),
    ] = 1
    alignment_rate: Annotated[
        float,
        Field(gt=0, le=1, description="learning rate of Adam in the alignment"),
        SearchRange(RealRange(1e-4, 1e-2, log=True)),
    ] = 1e-3
    confidence_strength: Annotated[
        float, Field(ge=0, description="η, how much weight follows a client's learning progress; 0 weights all equally")
    ] = 0.5

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the fault that the server has no rows, or that not all clients train in every round."""
        if cohort.server_rows == 0:
            return Fault("rhfl", "have rows that the server holds (federation.server_rows, such as 200 or 0.1)", "none")
        if cohort.num_sampled < cohort.num_clients and not cohort.chosen:
            given = f"{clients_text(cohort.num_sampled)} of {cohort.num_clients}"
            return Fault("rhfl", "have every client in every round (training.fraction_train=1)", given)
        return None

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client."""
        return EngineNeeds(arrays="flat", replies="individual")

    def client_algorithm(self) -> ClientAlgorithm:
        """Return local training on the symmetric cross-entropy."""
        return SymmetricDescent(self.cross_entropy_weight, self.reverse_weight)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        alignment = Alignment(self.alignment_epochs, self.alignment_rate) if self.alignment_epochs else None
        return Rhfl(alignment, self.confidence_strength, cohort)
