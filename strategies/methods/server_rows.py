"""Strategies that compute on rows which the server holds: FedDF, FedBiO and RHFL.

**FedDF**: ensemble distillation of the clients' models into their mean, on the server's unlabelled rows.

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

**FedBiO**: client weights in the mean are learned from the loss on clean, labelled rows of the server.

It is the bilevel problem of federated data cleaning (Li, Huang, Huang 2023), with a weight per client instead
of per row. L_k is client k's mean loss on its training rows, f that on the server's rows, p the clients'
weights in the mean:

- inner problem: y, the model, minimises g(p, y) = Σ p_k L_k(y)
- outer problem: p minimises f(y); u approximates (∇²_yy g)⁻¹ ∇f, which gives the gradient of f in p

In a round, with y, u and p as before the round:

- y ← Σ p_k y_k, where y_k is y after client k's local training (steps along ∇L_k with the clients' rate)
- u ← u − τ (Σ p_k ∇²L_k(y) u + μ u − ∇f(y))
- p_k ← p_k + η ⟨∇L_k(y), u⟩, projected onto weights >= 0 with the same sum (Duchi et al. 2008)

⟨∇L_k(y), u⟩ is the k-th element of −∇_p f: a client whose gradient opposes that of the server's rows loses
weight. A client's initial weight is n_k, at its first reply. The weights of the clients that reply in a round
are redistributed among them.

Deviations:

- One step of u and p per round, where the paper makes as many as of y; y moves by a whole local training.
- ∇²L_k(y) u is the central difference of two gradients, at y ± `DIFFERENCE` u/‖u‖, with a relative error of
  about 1e-3.
- μ, which the paper does not have, keeps u bounded where g is flat or not convex; 0 disables it.
- The paper's upper variable is unconstrained; here p is on a simplex.
- Gradients are over all training rows, with the model in training mode, as on clients.

η is in shares of the total weight per round: with gradients of norm 1 or more, η = 1 moves half of it in a
few rounds. With wrong labels at 4 of 10 clients, η = 1 and 0.1 gained 17 and 14 points on clean rows in 20
rounds. With Dirichlet(0.1) labels, 1 lost 40 points, because weight oscillates between clients and their
classes, and 0.1 none; so 0.1 is the default. If each class is on only one or two clients, 0.1 is too large as
well.

Equivalent: with η = 0, or τ = 0 and so u = 0, it is FedAvg.

References:
    Li, Huang, Huang: Communication-efficient federated bilevel optimization with local and global lower level
        problems. NeurIPS 2023. arXiv:2302.06701
    Duchi, Shalev-Shwartz, Singer, Chandra: Efficient projections onto the l1-ball for learning in high
        dimensions. ICML 2008.

**RHFL**: clients keep their own models and learn from each other's outputs on the server's unlabelled rows.

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

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid, strategy as flower

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.data.client import Arrays
from fedscout.engine.messages.calls import Cohort, EngineNeeds, ServerContext
from fedscout.engine.messages.contents import client_of, metrics_of, put_auxiliary, replied_auxiliary
from fedscout.engine.messages.keys import NUM_EXAMPLES_KEY
from fedscout.strategies.aggregation import rules
from fedscout.strategies.aggregation.groups import Group, GroupedRule
from fedscout.strategies.aggregation.rules import ClientModel, Hosted, HostedRule, Messages, Vector, weighted_mean
from fedscout.strategies.methods.averaging import FedAvgSpec, FlowerSpec, SampleScaling, weight_metric
from fedscout.strategies.methods.losses import SymmetricDescent
from fedscout.strategies.specification import IntegerRange, RealRange, StrategySpec, node_counts, parameter

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
            optimizer.learning_rate = self.learning_rate * (1 + math.cos(math.pi * (step - 1) / self.num_steps)) / 2
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
        return self.hosts.serve(self.distillation, arrays)["student"].astype(np.float64)


class FedDFSpec(StrategySpec):
    """FedDF: FedAvg, distilled from the clients' ensemble on the server's unlabelled rows."""

    paper: ClassVar[str] = "Lin et al. 2020, arXiv:2006.07242"
    requires = ("server rows", "classes")

    kind: Literal["feddf"] = "feddf"
    distillation_steps: int = parameter(
        500,
        "largest number of distillation steps per round; 0 is FedAvg",
        IntegerRange(50, 2000, log=True),
        ge=0,
        le=100_000,
    )
    distillation_rate: float = parameter(
        1e-3, "initial learning rate of Adam, decayed to 0 along a cosine", RealRange(1e-4, 1e-2, log=True), gt=0, le=1
    )
    distillation_batch: int = parameter(128, "batch size of distillation", ge=1, le=1_000_000)
    distillation_patience: int = parameter(
        2000, "distillation steps without improvement after which a round's distillation stops", ge=1
    )
    sample_scaling: SampleScaling = parameter(
        "num-examples", "p_k, a client's weight in the student: by its number of examples, or equal"
    )

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, or one exact mean without distillation."""
        replies: Literal["merged", "individual"] = "individual" if self.distillation_steps else "merged"
        return EngineNeeds(arrays="flat", replies=replies, weighted_by=weight_metric(self.sample_scaling))

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: without steps, or with one client, it is FedAvg."""
        if cohort.num_sampled == 1:
            return FedAvgSpec()
        return self if self.distillation_steps else FedAvgSpec(sample_scaling=self.sample_scaling)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        settings = self.distillation_steps, self.distillation_rate, self.distillation_batch, self.distillation_patience
        distillation = Distillation(*settings) if self.distillation_steps else None
        return FedDF(distillation, **node_counts(cohort), weighted_by_key=weight_metric(self.sample_scaling))


DIRECTION, CURVATURE, ALIGNMENT = "direction", "curvature", "alignment"

DIFFERENCE = 0.01
"""How far apart, on either side, gradients are taken: rounding and curvature's own change are then both small."""

ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class AlignedDescent(ClientAlgorithm):
    """Client algorithm of FedBiO: local training, and the alignment and curvature of its loss along u."""

    @property
    def auxiliary(self) -> Mapping[str, str]:
        """Auxiliary vectors sent to the server: ∇²L_k(y) u, weighted by rows."""
        return {CURVATURE: NUM_EXAMPLES_KEY}

    def train(self, run: LocalRun) -> ClientResults:
        """Train, then measure alignment and curvature at the received model."""
        trained = run.descend(run.received)
        direction = run.auxiliary.get(DIRECTION)
        if direction is None or not direction.any():
            zeros = run.received.new_zeros(trained.vectors.shape)
            return ClientResults(trained, trained.vectors, {}, {CURVATURE: zeros}, {ALIGNMENT: zeros[:, 0]})
        alignment = row_sums(run.gradient(run.received) * direction)
        curvature = curvature_along(run, direction)
        return ClientResults(trained, trained.vectors, {}, {CURVATURE: curvature}, {ALIGNMENT: alignment})


def curvature_along(run: LocalRun, direction: Tensor) -> Tensor:
    """Return each client's Hessian at the received model times a direction, shape `(clients, size)`."""
    step = DIFFERENCE / row_sums(direction[None].square()).sqrt()
    shift = step * direction
    ahead, behind = run.gradient(run.received + shift), run.gradient(run.received - shift)
    difference: Tensor = (ahead - behind) / (2 * step)
    return difference


def row_sums(matrix: Tensor) -> Tensor:
    """Return the sum of each row; its bits do not depend on other rows or on the memory layout."""
    import torch

    return torch.stack([row.clone().sum() for row in matrix])


@dataclass(frozen=True)
class ValidationGradient:
    """Server work: the gradient ∇f."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the `gradient` of the mean loss on the server's rows, shape `(size,)`, 0 for buffers.

        Args:
            context: With labels.
            arrays: `model`, shape `(size,)`.
        """
        import torch
        from torch import nn

        assert context.labels is not None, "the specification refuses a server without labels"
        model = torch.from_numpy(np.array(arrays["model"], np.float32))
        total = torch.zeros(context.layout.size)
        for start in range(0, context.num_rows, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, context.num_rows))
            loss = partial(nn.functional.cross_entropy, target=context.labels[rows], reduction="sum")
            total[: context.layout.num_trainable] += context.gradient(model, loss, rows)[1]
        return {"gradient": (total / context.num_rows).numpy()}


def on_simplex(point: Vector) -> Vector:
    """Return the projection onto the probability simplex (Duchi et al. 2008, figure 1), shape as `point`."""
    point = point - point.max()  # as near to the same weights, and no 1 is lost beside large numbers
    descending = -np.sort(-point)
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    nearest: Vector = np.maximum(point - thresholds[np.flatnonzero(descending > thresholds)[-1]], 0)
    return nearest


class FedBiO(HostedRule):
    """Server rule of FedBiO.

    Args:
        weight_rate: η.
        direction_rate: τ.
        damping: μ.
        settings: Arguments of Flower's FedAvg.

    Attributes:
        client_weights: Weight of each client that has replied, in rows.
        direction: u, shape `(size,)`; None before the first replies, when it is 0.
    """

    def __init__(self, weight_rate: float, direction_rate: float, damping: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.weight_rate = weight_rate
        self.direction_rate = direction_rate
        self.damping = damping
        self.client_weights: dict[int, float] = {}
        self.direction: FloatArray | None = None

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return the messages of the round, with u in their shared content."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if messages and self.direction is not None:
            put_auxiliary(messages[0].content, {DIRECTION: self.direction})
        return messages

    def aggregate_replies(self, received: Vector, models: Sequence[ClientModel], replies: Sequence[Message]) -> Vector:
        """Return the mean by the current weights, and update u and the weights."""
        clients = [client_of(reply.metadata.src_node_id) for reply in replies]
        rows = np.array([metrics_of(reply)[NUM_EXAMPLES_KEY] for reply in replies], np.float64)
        alignments = np.array([metrics_of(reply)[ALIGNMENT] for reply in replies], np.float64)
        weights = np.array([self.client_weights.get(client, n) for client, n in zip(clients, rows, strict=True)])
        weights = weights if weights.any() else rows
        shares = weights / weights.sum()
        gradient = self.hosts.serve(ValidationGradient(), {"model": received.astype(np.float32)})["gradient"]
        direction = np.zeros_like(received) if self.direction is None else self.direction.astype(np.float64)
        residual = self.damping * direction - gradient
        for share, reply in zip(shares.tolist(), replies, strict=True):
            residual += share * replied_auxiliary(reply.content)[CURVATURE].astype(np.float64)
        self.direction = (direction - self.direction_rate * residual).astype(np.float32)
        if self.weight_rate and np.isfinite(alignments).all():  # else the model says that it diverged
            new_weights = weights.sum() * on_simplex(shares + self.weight_rate * alignments)
            self.client_weights |= dict(zip(clients, new_weights.tolist(), strict=True))
        return self.aggregate_models(received, models, shares)

    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the mean of the clients' models."""
        return weighted_mean(models, weights)


class FedBiOSpec(FlowerSpec):
    """FedBiO: FedAvg whose client weights are learned from the loss on the server's labelled rows."""

    paper: ClassVar[str] = "Li et al. 2023, arXiv:2302.06701"
    requires = ("server rows", "server labels", "classes")

    kind: Literal["fedbio"] = "fedbio"
    algorithm = AlignedDescent
    flower_class = FedBiO
    weight_rate: float = parameter(
        0.1, "η, the step of the clients' weights; 0 is FedAvg", RealRange(0.001, 1.0, log=True), ge=0, le=1000
    )
    direction_rate: float = parameter(
        0.1, "τ, the step of u, below 2 over the largest curvature", RealRange(0.01, 0.2, log=True), ge=0, le=10
    )
    damping: float = parameter(0.1, "μ, which keeps u bounded where the loss is not convex", ge=0)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with fixed weights or one client it is FedAvg."""
        weights_change = self.weight_rate and self.direction_rate and cohort.num_sampled > 1
        return self if weights_change else FedAvgSpec()


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

        from fedscout.engine.training.loop import Adam

        model, teacher = (torch.from_numpy(np.array(arrays[name], np.float32)) for name in ("model", "taught"))
        if divergence(teacher, context.outputs(model)).item() < LEAST_GAIN:
            return {"model": model.numpy()}  # Adam's steps would be as long on rounding alone
        for _ in range(int(arrays["place"]) * self.num_epochs):
            context.generator.permutation(context.num_rows)  # each model has orders of its own
        optimizer, num_passes, share = Adam(self.learning_rate), 0, float(arrays["share"])
        for rows, is_last in batches(context, self.batch_size):
            _, gradient = context.gradient(model, partial(divergence, teacher[rows]), rows)
            optimizer.step(model[: context.layout.num_trainable], gradient * share)
            num_passes += is_last
            if num_passes == self.num_epochs:
                break
        return {"model": model.numpy()}


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
        super().__init__(lambda alone: rules.FedAvg(**node_counts(alone)), cohort)
        self.alignment = alignment
        self.strength = strength
        self.losses: dict[int, float] = {}
        self._seen: dict[int, float] = {}

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return a group for each client."""
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
        teachers = self.hosts.serve(Teachers(), {"outputs": outputs, "weights": weights})
        inputs = [
            {"model": model, "place": np.array(index), **{name: values[index] for name, values in teachers.items()}}
            for index, model in enumerate(models)
        ]
        aligned = np.empty((len(models), len(models[0])), np.float32)
        for index, result in enumerate(self.hosts.serve_each(alignment, inputs)):
            aligned[index] = result["model"]
        return aligned

    def __getstate__(self) -> dict[str, Any]:
        """Return the checkpoint state."""
        return {**super().__getstate__(), "losses": self.losses}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        super().__setstate__(state)
        self.losses = state["losses"]


class RhflSpec(StrategySpec):
    """RHFL: each client keeps its model, trains it on a noise-robust loss, and learns from all others."""

    paper: ClassVar[str] = "Fang and Ye 2022, doi:10.1109/CVPR52688.2022.00983"
    grouped: ClassVar[bool] = True
    requires = ("server rows", "all clients", "classes")

    kind: Literal["rhfl"] = "rhfl"
    algorithm = SymmetricDescent
    cross_entropy_weight: float = parameter(
        0.1, "α, weight of the cross-entropy in the local loss", RealRange(0.01, 1.0, log=True), ge=0, le=1000
    )
    reverse_weight: float = parameter(1.0, "β, weight of the reverse cross-entropy", ge=0, le=1000)
    alignment_epochs: int = parameter(
        1, "number of alignment epochs over the server's rows per round; 0 is none", IntegerRange(1, 10), ge=0, le=1000
    )
    alignment_rate: float = parameter(
        1e-3, "learning rate of Adam in the alignment", RealRange(1e-4, 1e-2, log=True), gt=0, le=1
    )
    confidence_strength: float = parameter(
        0.5, "η, how much weight follows a client's learning progress; 0 weights all equally", ge=0
    )

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        alignment = Alignment(self.alignment_epochs, self.alignment_rate) if self.alignment_epochs else None
        return Rhfl(alignment, self.confidence_strength, cohort)
