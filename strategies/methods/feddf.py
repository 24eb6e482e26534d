"""FedDF: ensemble distillation of the clients' models into their mean, on the server's unlabelled rows.

With y_k client k's model after local training, p_k its weight (Σ p_k = 1), z(v; r) a model's logits on row r
and D the server's rows, without labels (Lin et al. 2020, Algorithm 1 and eq. 1):

- teacher: t(r) = softmax(mean_k z(y_k; r)), with equal weights
- student: v ← Σ p_k y_k, then steps of Adam along ∇_v mean_r KL(t(r) ‖ softmax(z(v; r))) over batches of D

The learning rate decreases from `distillation_rate` to 0 by a cosine schedule over `distillation_steps`. The
student's divergence from the teacher on all of D is evaluated before the first step, after each pass over D
and after the last step; the best student is the model of the round. Distillation stops early without an
improvement for `distillation_patience` steps, or when the divergence is within float32 precision
(`LEAST_GAIN`).

Deviations:

- At most 500 steps per round by default; the authors' code makes up to 10,000.
- The authors stop and select by accuracy on labelled validation rows; here rows have no labels, so the
  divergence is used.
- The model is in evaluation mode throughout: batch-normalisation statistics are the clients' mean, as in Σ
  p_k y_k, and are not trained; dropout is off.
- All clients have one architecture, rows are not augmented, and the teacher's outputs are computed once.
- If the teacher's outputs are not finite, there is no distillation.

Equivalent: with no step it is FedAvg, to the last bit; with one client the student equals the teacher.

Reference:
    Lin, Kong, Stich, Jaggi: Ensemble distillation for robust model fusion in federated learning. NeurIPS
        2020. arXiv:2006.07242
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Arrays
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort, EngineNeeds, ServerContext
from fedscout.strategies.aggregation.rules import ClientModel, HostedRule, Vector, weighted_mean
from fedscout.strategies.methods.averaging import FedAvgSpec, SampleScaling, weight_metric
from fedscout.strategies.specification import IntegerRange, RealRange, SearchRange, StrategySpec, node_counts

if TYPE_CHECKING:
    from torch import Tensor

LEAST_GAIN = 1e-6
"""In nats. Less is rounding: probabilities in float32 have errors of 1e-7."""


@dataclass(frozen=True)
class Distillation:
    """Server work: distillation.

    Attributes:
        num_steps: Maximum number of steps.
        learning_rate: Initial learning rate.
        batch_size: Rows per step.
        patience: Steps without an improvement after which it stops.
    """

    num_steps: int
    learning_rate: float
    batch_size: int
    patience: int

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the `student` after distillation, and its `divergences` from the teacher before and after.

        Args:
            context: With unlabelled rows.
            arrays: `student`, shape `(size,)`, and the clients' mean `outputs`, shape `(rows, num_classes)`.
        """
        import torch

        start = torch.from_numpy(np.array(arrays["student"], np.float32))
        teacher = torch.from_numpy(np.array(arrays["outputs"])).softmax(dim=1)
        before = divergence(teacher, context.outputs(start)).item()
        student, after = self._distilled(context, teacher, start, before) if before >= LEAST_GAIN else (start, before)
        return {"student": student.numpy(), "divergences": np.array([before, after])}

    def _distilled(
        self, context: ServerContext, teacher: Tensor, student: Tensor, before: float
    ) -> tuple[Tensor, float]:
        """Return the best student and its divergence."""
        from fedscout.engine.training.loop import Adam

        best, best_divergence, best_step = student.clone(), before, 0
        optimizer, weights = Adam(self.learning_rate), student[: context.layout.num_trainable]
        for step, (rows, is_last) in enumerate(batches(context, self.batch_size), start=1):
            optimizer.learning_rate = self._rate(step)
            _, gradient = context.gradient(student, partial(divergence, teacher[rows]), rows)
            optimizer.step(weights, gradient)
            if not (is_last or step == self.num_steps):
                continue
            current = divergence(teacher, context.outputs(student)).item()
            if current <= best_divergence - LEAST_GAIN:
                best, best_divergence, best_step = student.clone(), current, step
            if step == self.num_steps or step - best_step >= self.patience or best_divergence < LEAST_GAIN:
                break
        return best, best_divergence

    def _rate(self, step: int) -> float:
        return self.learning_rate * (1 + math.cos(math.pi * (step - 1) / self.num_steps)) / 2


def divergence(teacher: Tensor, outputs: Tensor) -> Tensor:
    """Return the mean of KL(teacher ‖ softmax(outputs)) over rows, in nats."""
    from torch import nn

    return nn.functional.kl_div(outputs.log_softmax(dim=1), teacher, reduction="batchmean")


def batches(context: ServerContext, batch_size: int) -> Iterator[tuple[IntArray, bool]]:
    """Yield batches of rows indefinitely, shuffled in each pass, and whether each is the last of its pass."""
    while True:
        order = context.generator.permutation(context.num_rows)
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size], start + batch_size >= len(order)


class FedDF(HostedRule):
    """Server rule of FedDF.

    Args:
        distillation: Work for a host; None only averages.
        settings: Arguments of Flower's FedAvg.
    """

    def __init__(self, distillation: Distillation | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.distillation = distillation

    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the distilled student."""
        student = weighted_mean(models, weights)
        if self.distillation is None:
            return student
        arrays = {
            "student": student.astype(np.float32),
            "outputs": reduce(np.add, self.outputs(models)) / np.float32(len(models)),
        }
        return self.serve(self.distillation, arrays)["student"].astype(np.float64)


class FedDFSpec(StrategySpec):
    """FedDF: FedAvg, distilled from the clients' ensemble on the server's unlabelled rows."""

    paper: ClassVar[str] = "Lin et al. 2020, arXiv:2006.07242"

    kind: Literal["feddf"] = "feddf"
    distillation_steps: Annotated[
        int,
        Field(ge=0, le=100_000, description="largest number of distillation steps per round; 0 is FedAvg"),
        SearchRange(IntegerRange(50, 2000, log=True)),
    ] = 500
    distillation_rate: Annotated[
        float,
        Field(gt=0, le=1, description="initial learning rate of Adam, decayed to 0 along a cosine"),
        SearchRange(RealRange(1e-4, 1e-2, log=True)),
    ] = 1e-3
    distillation_batch: Annotated[int, Field(ge=1, le=1_000_000, description="batch size of distillation")] = 128
    distillation_patience: Annotated[
        int, Field(ge=1, description="distillation steps without improvement after which a round's distillation stops")
    ] = 2000
    sample_scaling: Annotated[
        SampleScaling, Field(description="p_k, a client's weight in the student: by its number of examples, or equal")
    ] = "num-examples"

    @property
    def weighted_by(self) -> Literal["num-examples", "num-clients"]:
        """Name of the metric that weights the student's mean."""
        return weight_metric(self.sample_scaling)

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the fault that the server has no rows."""
        if cohort.server_rows == 0:
            return Fault(
                "feddf", "have rows that the server holds (federation.server_rows, such as 200 or 0.1)", "none"
            )
        return None

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, or one exact mean without distillation."""
        replies: Literal["merged", "individual"] = "individual" if self.distillation_steps else "merged"
        return EngineNeeds(arrays="flat", replies=replies, weighted_by=self.weighted_by)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: without steps, or with one client, it is FedAvg."""
        if cohort.num_sampled == 1:
            return FedAvgSpec()
        return self if self.distillation_steps else FedAvgSpec(sample_scaling=self.sample_scaling)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        distillation = Distillation(
            self.distillation_steps, self.distillation_rate, self.distillation_batch, self.distillation_patience
        )
        return FedDF(
            distillation if self.distillation_steps else None, **node_counts(cohort), weighted_by_key=self.weighted_by
        )
