"""FedAvg and its variants: FedProx, FedAvgM, FedAdagrad, FedAdam, FedYogi, QFedAvg, FedExP and FedBuff.

With x the global model, y_i client i's model after local training and p_i its weight (Σ p_i = 1):

- FedAvg: x ← Σ p_i y_i (McMahan et al. 2017, Algorithm 1).
- FedProx: as FedAvg; client i minimises F_i(w) + (μ/2)‖w − x‖² (Li et al. 2020a, eq. 2), so every local
  gradient gains μ(w − x). μ is in the train message under the key of Flower's FedProx; under the server rule
  of another strategy, which does not send it, it is an attribute of the algorithm.
- FedAvgM: v ← βv + (x − Σ p_i y_i); x ← x − ηv (Hsu et al. 2019, section 4.3).

p_i is n_i/Σn by default. `sample_scaling="uniform"` uses 1/clients instead; it is not searched. Deviations
from Flower's defaults: FedProx has μ = 0.01 and FedAvgM momentum 0.9, since both of Flower's (0) are plain
FedAvg.

**Adaptive server optimizers.** With Δ_t the mean of the clients' changes (Reddi et al. 2021, Algorithm 2):

- m_t = β₁ m_{t−1} + (1 − β₁) Δ_t
- v_t = v_{t−1} + Δ_t² (FedAdagrad, β₁ = 0); v_{t−1} − (1 − β₂) Δ_t² sign(v_{t−1} − Δ_t²) (FedYogi);
  β₂ v_{t−1} + (1 − β₂) Δ_t² (FedAdam)
- x_{t+1} = x_t + η m_t / (√v_t + τ)

The paper's client rate η_l belongs to local training here; Flower's classes only log it. Deviations of
Flower's classes from the paper: v starts at 0, not at τ²; FedAdam corrects the bias of m and v through η.
FedYogi's default η is 0.1 as for the others; Flower's is 0.01. The default ranges exclude values that waste a
small budget on diverging or stalled runs: η starts at 0.01 and τ at 1e-5.

**q-FedAvg** gives clients with a large loss more weight. With F_i client i's loss of x before training and
L = 1/client_learning_rate (Li et al. 2020b, Algorithm 2):

- Δ_i = F_i^q · L(x − y_i)
- h_i = q F_i^(q−1) ‖L(x − y_i)‖² + L F_i^q
- x ← x − Σ Δ_i / Σ h_i

The client_learning_rate of Flower's class is the clients' learning rate. Equivalent: q = 0 gives Δ_i = L(x −
y_i) and h_i = L, so x ← mean of the y_i with equal weights: FedAvg with uniform weights in exact arithmetic.
Flower's order of operations rounds differently and returns float64.

**FedExP**: FedAvg with an extrapolated server step that grows with the disagreement of the clients.

With x the global model, y_i client i's model after local training, Δ_i = y_i − x and p_i its weight (Σ p_i =
1), Δ̄ the mean of the changes (Jhunjhunwala et al. 2023, Algorithm 1):

- η_g = max(1, Σ p_i ‖Δ_i‖² / (2 (‖Δ̄‖² + ε)))
- x ← x + η_g Δ̄

p_i is 1/clients as in the paper, which makes the first term Σ ‖Δ_i‖² / (2n (‖Δ̄‖² + ε));
`sample_scaling="num-examples"` uses n_i/Σn, as the authors' code does.

Because x oscillates, the result of T rounds is the mean of the last two iterates, (x_{T−1} + x_T)/2. A trial
may end or be pruned after any round, so the model of every round t is (x_{t−1} + x_t)/2, which is scored and
stored, while clients receive x_t, which the strategy stores. Because the scored model is not the one sent
out, its evaluation takes a separate round trip. The authors' code scores the same mean in every round, except
x_1 in the first.

It is not robust: a non-finite client model makes the global model non-finite.

**FedBuff**: buffered asynchronous aggregation, in which every K updates that arrive make a new model.

Clients train asynchronously: slow ones continue while others have contributed to new models. With x the
model, Δ_i = y_i − x_i the update of client i to the model x_i that it received, τ_i the number of models made
since then, and K the buffer size (Nguyen et al. 2022, Algorithm 1; staleness as in its section 5):

    x ← x + η_g / K · Σ Δ_i / √(1 + τ_i)     over the K updates that arrive first

A round is the making of one model. `num_sampled` clients train at a time. The engine's simulated clock
determines the arrivals: an update arrives when its client received the model plus the duration of its
training, and the round lasts until the K-th arrival. Ties are broken by the earlier dispatch, then by the
lower node. Without a clock all updates arrive at once, so the K oldest are used.

Deviations: a client that is done is replaced at the end of the round, by one that receives the newer model;
in the paper it is replaced immediately, with the current model. A failed client frees its slot at the end of
the round. If fewer than K clients are training because of failures, the mean is over those.

Equivalent: with K = `num_sampled` and η_g = 1 every round waits for all clients, which is FedAvg with equal
weights.

References:
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks from
        decentralized data. AISTATS 2017. arXiv:1602.05629
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. MLSys 2020.
        arXiv:1812.06127 (2020a)
    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
        classification. 2019. arXiv:1909.06335
    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization. ICLR
        2021. arXiv:2003.00295
    Li, Sanjabi, Beirami, Smith: Fair resource allocation in federated learning. ICLR 2020. arXiv:1905.10497
        (2020b)
    Jhunjhunwala, Wang, Joshi: FedExP: speeding up federated averaging via extrapolation. ICLR 2023.
        arXiv:2301.09604
    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous
        aggregation. AISTATS 2022. arXiv:2106.06639
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, strategy as flower

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.grid.selection import ChosenNodes
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import client_of, view_record
from fedscout.engine.messages.keys import FLAT_KEY, SIMULATED_SECONDS_KEY
from fedscout.strategies.aggregation import rules
from fedscout.strategies.aggregation.rules import ClientModel, Messages, Vector
from fedscout.strategies.specification import IntegerRange, RealRange, StrategySpec, node_counts, parameter

if TYPE_CHECKING:
    from torch import Tensor


PROXIMAL_MU_KEY = "proximal-mu"


@dataclass(frozen=True)
class ProximalGradient(ClientAlgorithm):
    """Client algorithm that adds μ(w − x) to the gradient; stateless.

    Attributes:
        mu: μ.
    """

    mu: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the proximal term around the received model."""
        trained = run.descend(run.received, partial(pull_towards, self.mu), [run.received])
        return ClientResults(trained, trained.vectors)


@dataclass(frozen=True)
class ProximalTerm(ClientAlgorithm):
    """Client algorithm that adds μ(w − x) to the gradient, with μ from the train message."""

    reads: ClassVar[tuple[str, ...]] = (PROXIMAL_MU_KEY,)
    accepts_auxiliary: ClassVar[bool] = False

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the proximal term around the received model."""
        return ProximalGradient(float(run.config[PROXIMAL_MU_KEY])).train(run)


def pull_towards(mu: float, weights: Tensor, gradient: Tensor, centre: Tensor) -> None:
    """Add the gradient of (μ/2)‖w − centre‖² (gradient of eq. 2), in place."""
    gradient.add_(weights - centre, alpha=mu)


SampleScaling = Literal["num-examples", "uniform"]


def weight_metric(scaling: SampleScaling) -> Literal["num-examples", "num-clients"]:
    """Return the name of the metric that weights a client's reply."""
    return "num-clients" if scaling == "uniform" else "num-examples"


class FlowerSpec(StrategySpec):
    """Base class of strategies whose Flower class takes the specification's own parameters by their names.

    Attributes:
        flower_class: Class of the server rule; `sample_scaling`, if there is one, becomes its `weighted_by_key`.
    """

    flower_class: ClassVar[Callable[..., flower.Strategy]]

    def _construct(self, cohort: Cohort, **others: Any) -> flower.Strategy:
        """Construct the server rule; `others` are further arguments of its class."""
        own = {name: getattr(self, name) for name in type(self).model_fields if name not in StrategySpec.model_fields}
        if "sample_scaling" in own:
            own["weighted_by_key"] = weight_metric(own.pop("sample_scaling"))
        return self.flower_class(**node_counts(cohort), **own, **others)


class MeanSpec(StrategySpec):
    """Base class of strategies that need only the mean of the replies, so the engine may merge them.

    By default the server sets the global model to that mean, as FedAvg does.

    Attributes:
        fedavg_at: Values of parameters with which it is FedAvg; empty if there are none.
    """

    fedavg_at: ClassVar[Mapping[str, float]] = {}

    sample_scaling: SampleScaling = parameter(
        "num-examples", "p_i, a client's weight in the mean: by its number of examples, or equal"
    )

    @property
    def weighted_by(self) -> Literal["num-examples", "num-clients"]:
        """Name of the metric that weights the mean."""
        return weight_metric(self.sample_scaling)

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one exact mean."""
        return EngineNeeds(arrays="flat", replies="merged", weighted_by=self.weighted_by)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: FedAvg at `fedavg_at`; with one client the weight does not matter."""
        if self.fedavg_at and all(getattr(self, name) == value for name, value in self.fedavg_at.items()):
            return FedAvgSpec(sample_scaling=self.sample_scaling)
        if cohort.num_sampled == 1 and self.sample_scaling == "uniform":
            return self.model_copy(update={"sample_scaling": "num-examples"})
        return self

    def paired_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm under another server rule, which sends no parameters."""
        return self.client_algorithm()

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self._rule(cohort, rules.FedAvg)

    def _rule(self, cohort: Cohort, rule: Callable[..., flower.Strategy], *own: Any, **others: Any) -> flower.Strategy:
        """Construct a server rule that samples a cohort's clients and weights them by `weighted_by`."""
        return rule(*own, **node_counts(cohort), weighted_by_key=self.weighted_by, **others)


class FedAvgSpec(MeanSpec):
    """FedAvg: the mean of the clients' models; the reference of every study."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"

    kind: Literal["fedavg"] = "fedavg"


class FedProxSpec(FlowerSpec, MeanSpec):
    """FedProx: FedAvg with a proximal term that keeps clients near the global model."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1812.06127"

    fedavg_at: ClassVar[Mapping[str, float]] = {"proximal_mu": 0}
    kind: Literal["fedprox"] = "fedprox"
    algorithm = ProximalTerm
    flower_class = rules.FedProx
    proximal_mu: float = parameter(
        0.01, "μ, weight of the proximal term (μ/2)‖w − x‖²; 0 is FedAvg", RealRange(1e-4, 1.0, log=True), ge=0
    )

    def paired_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm with μ as an attribute instead of a message value."""
        return ProximalGradient(self.proximal_mu)


class FedAvgMSpec(FlowerSpec, MeanSpec):
    """FedAvgM: FedAvg with momentum on the server."""

    paper: ClassVar[str] = "Hsu et al. 2019, arXiv:1909.06335"

    fedavg_at: ClassVar[Mapping[str, float]] = {"server_learning_rate": 1, "server_momentum": 0}
    kind: Literal["fedavgm"] = "fedavgm"
    flower_class = rules.FedAvgM
    server_learning_rate: float = parameter(1.0, "η, the server's step along the momentum", RealRange(0.1, 1.5), gt=0)
    server_momentum: float = parameter(
        0.9, "β, the share of the last step that is kept; 0 is none", RealRange(0.0, 0.99), ge=0, lt=1
    )


class AdaptiveSpec(FlowerSpec, MeanSpec):
    """Base class of the adaptive server optimizers; search parameters have the names of Flower's arguments."""

    paper: ClassVar[str] = "Reddi et al. 2021, arXiv:2003.00295"
    bound: ClassVar[Mapping[str, str]] = {"eta_l": "the clients' learning rate"}

    eta: float = parameter(0.1, "η, the server's learning rate", RealRange(1e-2, 1.0, log=True), gt=0)
    tau: float = parameter(
        1e-3,
        "τ, the degree of adaptivity: added to √v, so a small one adapts more",
        RealRange(1e-5, 1e-1, log=True),
        gt=0,
    )

    def _construct(self, cohort: Cohort, **others: Any) -> flower.Strategy:
        return super()._construct(cohort, eta_l=cohort.client_learning_rate, **others)


class MomentSpec(AdaptiveSpec):
    """Base class of FedAdam and FedYogi, with moving averages of both moments."""

    beta_1: float = parameter(0.9, "β₁, decay of the first moment m", RealRange(0.0, 0.99), ge=0, lt=1)
    beta_2: float = parameter(0.99, "β₂, decay of the second moment v", RealRange(0.9, 0.999), ge=0, lt=1)


class FedAdagradSpec(AdaptiveSpec):
    """FedAdagrad: server steps divided by the root of the summed squared changes."""

    kind: Literal["fedadagrad"] = "fedadagrad"
    flower_class = rules.FedAdagrad


class FedAdamSpec(MomentSpec):
    """FedAdam: Adam on the server, with the clients' mean change as its gradient."""

    kind: Literal["fedadam"] = "fedadam"
    flower_class = rules.FedAdam


class FedYogiSpec(MomentSpec):
    """FedYogi: as FedAdam, with additive updates of the second moment."""

    kind: Literal["fedyogi"] = "fedyogi"
    flower_class = rules.FedYogi


class QFedAvgSpec(FlowerSpec):
    """QFedAvg: clients with a larger loss have more weight."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1905.10497"

    kind: Literal["qfedavg"] = "qfedavg"
    flower_class = rules.QFedAvg
    q: float = parameter(
        0.1, "q, how much fairness counts; 0 is the mean with equal weights", RealRange(0.0, 5.0), ge=0
    )

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, with the loss before training."""
        return EngineNeeds(arrays="flat", replies="individual", initial_loss=True)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with q = 0 it is the uniform mean."""
        return FedAvgSpec(sample_scaling="uniform") if self.q == 0 else self

    def _construct(self, cohort: Cohort, **others: Any) -> flower.Strategy:
        return super()._construct(cohort, client_learning_rate=cohort.client_learning_rate, **others)


def extrapolated_change(
    received: Vector, models: Sequence[ClientModel], weights: Vector, epsilon: float
) -> tuple[float, Vector]:
    """Return η_g, >= 1, and the mean change Δ̄, shape `(params,)`.

    Args:
        received: x, shape `(params,)`.
        models: y_i, at least one, each of shape `(params,)`.
        weights: p_i, shape `(clients,)`; they sum to 1.
        epsilon: ε, > 0.
    """
    mean = np.zeros_like(received)
    change = np.empty_like(received)
    mean_square = 0.0
    for model, weight in zip(models, weights.tolist(), strict=True):
        np.subtract(model, received, out=change)
        mean_square += weight * float(np.dot(change, change))
        change *= weight
        mean += change
    rate = max(1.0, mean_square / (2 * (float(np.dot(mean, mean)) + epsilon)))  # η_g
    return rate, mean


class FedExP(rules.ServerRule):
    """Server rule of FedExP.

    Args:
        epsilon: ε.
        settings: Arguments of Flower's FedAvg.

    Attributes:
        iterate: x, shape `(params,)`; None before the first model.
    """

    def __init__(self, epsilon: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.epsilon = epsilon
        self.iterate: ClientModel | None = None

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return Flower's messages with x instead of the mean of the last two iterates."""
        sent = arrays if self.iterate is None else view_record({FLAT_KEY: self.iterate})
        return super().configure_train(server_round, sent, config, grid)

    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the mean of the last two iterates, and store the last."""
        rate, mean = extrapolated_change(received, models, weights, self.epsilon)
        self.iterate = (received + rate * mean).astype(np.float32)
        return (received + self.iterate) / 2


class FedExPSpec(FlowerSpec):
    """FedExP: FedAvg with larger server steps when the clients disagree."""

    paper: ClassVar[str] = "Jhunjhunwala et al. 2023, arXiv:2301.09604"

    kind: Literal["fedexp"] = "fedexp"
    flower_class = FedExP
    epsilon: float = parameter(
        1e-3,
        "ε, added to the squared mean change: a larger one shortens the server's steps",
        RealRange(1e-4, 1.0, log=True),
        gt=0,
    )
    sample_scaling: SampleScaling = parameter("uniform", "p_i, a client's weight: equal, or by its number of examples")

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with one client the weight does not matter."""
        if cohort.num_sampled == 1 and self.sample_scaling != "uniform":
            return self.model_copy(update={"sample_scaling": "uniform"})
        return self


ROUNDING_SLACK = 1e-9
"""A share of the clients above 0, as Flower selects none at 0, but too small to raise the minimum number."""


class FedBuff(rules.QuickMessages):
    """Server rule of FedBuff.

    Args:
        buffer_size: K.
        server_learning_rate: η_g.
        settings: Arguments of Flower's FedAvg.

    Attributes:
        in_training: For each client in training: arrival time of its update, number of models made at dispatch,
            node, and Δ_i, shape `(params,)`.
        num_models: Number of models made.
        seconds: Time of the last model, on the simulated clock.
        received: The model sent out last; None between rounds.
    """

    def __init__(self, buffer_size: int, server_learning_rate: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.buffer_size = buffer_size
        self.server_learning_rate = server_learning_rate
        self.num_places = self.min_train_nodes
        self.fraction_train = ROUNDING_SLACK
        self.in_training: list[list[Any]] = []
        self.num_models = 0
        self.seconds = 0.0
        self.received: ArrayRecord | None = None

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return messages to idle clients, one for each free slot."""
        self.received = arrays
        busy = {node for _, _, node, _ in self.in_training}
        self.min_train_nodes = self.min_available_nodes = self.num_places - len(busy)
        if not self.min_train_nodes:
            return []
        free = ChosenNodes(grid, [client_of(node) for node in grid.get_node_ids() if node not in busy])
        return super().configure_train(server_round, arrays, config, cast(Grid, free))

    def aggregate_train(self, server_round: int, replies: Messages) -> rules.Aggregate:
        """Return the model of the K updates that arrive first, and the duration of the round."""
        sent, self.received = self.received, None
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if sent is None or not (valid_replies or self.in_training):
            return None, None
        with np.errstate(over="ignore", invalid="ignore"):
            self._take_in(valid_replies, sent)
            arrived, self.in_training = self.in_training[: self.buffer_size], self.in_training[self.buffer_size :]
            total = np.zeros(len(rules.flat(sent)))
            for _, version, _, change in arrived:
                total += change.astype(np.float64) / sqrt(1 + self.num_models - version)
            moved = rules.flat(sent) + self.server_learning_rate * (total / len(arrived))
            arrays = view_record({FLAT_KEY: moved.astype(np.float32)})
        metrics = self._train_metrics([reply.content for reply in valid_replies]) if valid_replies else MetricRecord()
        end = max(self.seconds, arrived[-1][0])
        metrics[SIMULATED_SECONDS_KEY] = end - self.seconds
        self.seconds, self.num_models = end, self.num_models + 1
        return arrays, metrics

    def _take_in(self, replies: Sequence[Message], sent: ArrayRecord) -> None:
        """Add the updates of a round to the queue, ordered by arrival."""
        received = rules.flat(sent)
        for reply in replies:
            duration = rules.metric_record(reply.content).get(SIMULATED_SECONDS_KEY, 0.0)
            change = rules.flat(rules.array_record(reply.content)) - received
            node = reply.metadata.src_node_id
            self.in_training.append([self.seconds + float(cast(float, duration)), self.num_models, node, change])
        self.in_training.sort(key=lambda one: one[:3])


class FedBuffSpec(FlowerSpec):
    """FedBuff: a new model for every K updates, with less weight for stale ones; needs a simulated clock."""

    paper: ClassVar[str] = "Nguyen et al. 2022, arXiv:2106.06639"
    requires = ("clock", "no selection", "2 clients")

    kind: Literal["fedbuff"] = "fedbuff"
    flower_class = FedBuff
    buffer_size: int = parameter(
        2,
        "K, buffer size: number of updates per server step, 1 to n of n clients in training",
        lambda cohort, _: IntegerRange(1, cohort.num_sampled),
        ge=1,
    )
    server_learning_rate: float = parameter(1.0, "η_g, the server's step size", RealRange(0.1, 1.5), gt=0)

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, with its duration."""
        return EngineNeeds(arrays="flat", replies="individual", durations=True)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: waiting for all clients is FedAvg with equal weights."""
        if self.buffer_size == cohort.num_sampled and self.server_learning_rate == 1:
            return FedAvgSpec(sample_scaling="uniform")
        return self
