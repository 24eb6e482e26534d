"""FedAvg and its variants: FedProx, FedAvgM, FedAdagrad, FedAdam, FedYogi and QFedAvg.

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
small budget on diverging or stalled runs: η starts at 0.01 and τ at 1e-5, with `"wide"` at 1e-3 and 1e-9.

**q-FedAvg** gives clients with a large loss more weight. With F_i client i's loss of x before training and
L = 1/client_learning_rate (Li et al. 2020b, Algorithm 2):

- Δ_i = F_i^q · L(x − y_i)
- h_i = q F_i^(q−1) ‖L(x − y_i)‖² + L F_i^q
- x ← x − Σ Δ_i / Σ h_i

The client_learning_rate of Flower's class is the clients' learning rate. Equivalent: q = 0 gives Δ_i = L(x −
y_i) and h_i = L, so x ← mean of the y_i with equal weights: FedAvg with uniform weights in exact arithmetic.
Flower's order of operations rounds differently and returns float64.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.strategies import aggregation as quick
from fedscout.strategies.specification import RealRange, SearchRange, StrategySpec, node_counts

if TYPE_CHECKING:
    from torch import Tensor


PROXIMAL_MU_KEY = "proximal-mu"


@dataclass(frozen=True)
class ProximalGradient(ClientAlgorithm):
    """Client algorithm that adds μ(w − x) to the gradient; stateless.

    Attributes:
        mu: μ.
    """

    mixes: ClassVar[bool] = True

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
    mixes: ClassVar[bool] = True

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


class MeanSpec(StrategySpec):
    """Base class of strategies that need only the mean of the replies, so the engine may merge them.

    By default the server sets the global model to that mean, as FedAvg does.

    Attributes:
        fedavg_at: Values of parameters with which it is FedAvg; empty if there are none.
    """

    fedavg_at: ClassVar[Mapping[str, float]] = {}

    sample_scaling: Annotated[
        SampleScaling, Field(description="p_i, a client's weight in the mean: by its number of examples, or equal")
    ] = "num-examples"

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
        return quick.FedAvg(**node_counts(cohort), weighted_by_key=self.weighted_by)


class FedAvgSpec(MeanSpec):
    """FedAvg: the mean of the clients' models; the reference of every study."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"

    kind: Literal["fedavg"] = "fedavg"


class FedProxSpec(MeanSpec):
    """FedProx: FedAvg with a proximal term that keeps clients near the global model."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1812.06127"

    fedavg_at: ClassVar[Mapping[str, float]] = {"proximal_mu": 0}
    kind: Literal["fedprox"] = "fedprox"
    proximal_mu: Annotated[
        float,
        Field(ge=0, description="μ, weight of the proximal term (μ/2)‖w − x‖²; 0 is FedAvg"),
        SearchRange(RealRange(1e-4, 1.0, log=True)),
    ] = 0.01

    def client_algorithm(self) -> ClientAlgorithm:
        """Return local training with the proximal term."""
        return ProximalTerm()

    def paired_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm with μ as an attribute instead of a message value."""
        return ProximalGradient(self.proximal_mu)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return quick.FedProx(**node_counts(cohort), weighted_by_key=self.weighted_by, proximal_mu=self.proximal_mu)


class FedAvgMSpec(MeanSpec):
    """FedAvgM: FedAvg with momentum on the server."""

    paper: ClassVar[str] = "Hsu et al. 2019, arXiv:1909.06335"

    fedavg_at: ClassVar[Mapping[str, float]] = {"server_learning_rate": 1, "server_momentum": 0}
    kind: Literal["fedavgm"] = "fedavgm"
    server_learning_rate: Annotated[
        float, Field(gt=0, description="η, the server's step along the momentum"), SearchRange(RealRange(0.1, 1.5))
    ] = 1.0
    server_momentum: Annotated[
        float,
        Field(ge=0, lt=1, description="β, the share of the last step that is kept; 0 is none"),
        SearchRange(RealRange(0.0, 0.99)),
    ] = 0.9

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return quick.FedAvgM(
            **node_counts(cohort),
            weighted_by_key=self.weighted_by,
            server_learning_rate=self.server_learning_rate,
            server_momentum=self.server_momentum,
        )


class AdaptiveSpec(MeanSpec):
    """Base class of the adaptive server optimizers; search parameters have the names of Flower's arguments."""

    flower_class: ClassVar[Callable[..., flower.Strategy]]
    paper: ClassVar[str] = "Reddi et al. 2021, arXiv:2003.00295"
    bound: ClassVar[Mapping[str, str]] = {"eta_l": "the clients' learning rate"}

    eta: Annotated[
        float,
        Field(gt=0, description="η, the server's learning rate"),
        SearchRange(RealRange(1e-2, 1.0, log=True), wide=RealRange(1e-3, 1.0, log=True)),
    ] = 0.1
    tau: Annotated[
        float,
        Field(gt=0, description="τ, the degree of adaptivity: added to √v, so a small one adapts more"),
        SearchRange(RealRange(1e-5, 1e-1, log=True), wide=RealRange(1e-9, 1e-1, log=True)),
    ] = 1e-3

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self.flower_class(
            **node_counts(cohort),
            weighted_by_key=self.weighted_by,
            eta_l=cohort.client_learning_rate,
            **{name: getattr(self, name) for name in self.search_names()},
        )


class MomentSpec(AdaptiveSpec):
    """Base class of FedAdam and FedYogi, with moving averages of both moments."""

    beta_1: Annotated[
        float, Field(ge=0, lt=1, description="β₁, decay of the first moment m"), SearchRange(RealRange(0.0, 0.99))
    ] = 0.9
    beta_2: Annotated[
        float, Field(ge=0, lt=1, description="β₂, decay of the second moment v"), SearchRange(RealRange(0.9, 0.999))
    ] = 0.99


class FedAdagradSpec(AdaptiveSpec):
    """FedAdagrad: server steps divided by the root of the summed squared changes."""

    kind: Literal["fedadagrad"] = "fedadagrad"
    flower_class = quick.FedAdagrad


class FedAdamSpec(MomentSpec):
    """FedAdam: Adam on the server, with the clients' mean change as its gradient."""

    kind: Literal["fedadam"] = "fedadam"
    flower_class = quick.FedAdam


class FedYogiSpec(MomentSpec):
    """FedYogi: as FedAdam, with additive updates of the second moment."""

    kind: Literal["fedyogi"] = "fedyogi"
    flower_class = quick.FedYogi


class QFedAvgSpec(StrategySpec):
    """QFedAvg: clients with a larger loss have more weight."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1905.10497"

    kind: Literal["qfedavg"] = "qfedavg"
    q: Annotated[
        float,
        Field(ge=0, description="q, how much fairness counts; 0 is the mean with equal weights"),
        SearchRange(RealRange(0.0, 5.0)),
    ] = 0.1

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client, with the loss before training."""
        return EngineNeeds(arrays="flat", replies="individual", initial_loss=True)

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with q = 0 it is the uniform mean."""
        del cohort
        return FedAvgSpec(sample_scaling="uniform") if self.q == 0 else self

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return quick.QFedAvg(**node_counts(cohort), client_learning_rate=cohort.client_learning_rate, q=self.q)
