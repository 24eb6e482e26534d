"""Strategies against client drift, whose server rule reads means that the clients report: SCAFFOLD, FedDyn, FedNova.

**SCAFFOLD**: control variates correct the drift of the clients' gradients.

With x the global model, c the server's control variate, c_i client i's, K its steps and η_l their size
(Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic controlled averaging for federated
learning, ICML 2020, arXiv:1910.06378, Algorithm 1):

    client:  y ← x;  K times  y ← y − η_l (g_i(y) + c − c_i)                 eq. 3
             c_i⁺ = c_i − c + (x − y) / (K η_l)                               eq. 4, option II
    server:  x ← x + η_g Σ p_i (y_i − x);  c ← c + |S|/N Σ p_i (c_i⁺ − c_i)   eq. 5

c and c_i start at 0. p_i is 1/|S| as in the paper; `sample_scaling="num-examples"` uses n_i/Σn in both means,
for the row-weighted objective. c is sent to the clients as an auxiliary vector, and c_i⁺ − c_i is returned;
c_i stays.

Eq. 4 is the mean gradient along the path if a step is η_l times a gradient, so clients with momentum or Adam
are refused. Buffers, such as batch-normalisation statistics, have no gradient and no control variates.

**FedDyn**: dynamic regularisation of the clients' losses towards a common minimum.

With x the received model and g_i a vector stored on client i, 0 at first (Acar, Zhao, Matas, Mattina,
Whatmough, Saligrama: Federated learning based on dynamic regularization, ICLR 2021, arXiv:2111.04263,
Algorithm 1; m clients in all, P of them in a round):

    client:  y_i ≈ argmin F_i(y) − ⟨g_i, y⟩ + (α/2)‖y − x‖²;  g_i ← g_i − α (y_i − x)
    server:  h ← h − α/m Σ_P (y_i − x);  x ← 1/|P| Σ_P y_i − h/α

The server stores u = −h/α, so u ← u + |P|/m · mean(y_i − x) and x ← mean y_i + u. Clients send the changes as
auxiliary vectors, without buffers: batch-normalisation statistics are averaged without u.
`sample_scaling="num-examples"` weights both means by rows, for the row-weighted objective.

**FedNova**: normalised averaging, in which clients with more local steps have no more weight.

Client i ends at y_i after τ_i steps. Its change is divided by a_i, the length of τ_i steps along a constant
gradient in units of the step size, and the mean of the normalised changes is scaled back (Wang, Liu, Liang,
Joshi, Poor: Tackling the objective inconsistency problem in heterogeneous federated optimization, NeurIPS
2020, arXiv:2007.07481, eq. 6 and section 4):

    x ← x + τ_eff Σ p_i (y_i − x) / a_i

Clients send unmodified models, which the engine weights by w_i = n_i/a_i. With ȳ that weighted mean the same
step is x ← x + η (ȳ − x), η = τ_eff Σw/Σn.

a_i depends on the clients' optimizer, with momentum ρ and proximal weight μ (eq. 7 ff.). It is the result of
the recurrence b ← ρ b + 1 − η_l μ a, a ← a + b from a = b = 0: τ_i without both, Σ (1 − ρ^k)/(1 − ρ) with
momentum, and (1 − (1 − η_l μ)^τ_i) / (η_l μ) with the proximal term. τ_eff is Σ p_i a_i, for which equal
steps are FedAvg; with the proximal term it is Σ p_i τ_i, as in the authors' code. Adam has no such length and
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.serverapp import strategy as flower

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.strategies.aggregation.rules import DoubleArray, MeanRule, RoundMeans, with_share
from fedscout.strategies.methods.averaging import MeanSpec, SampleScaling, pull_towards
from fedscout.strategies.specification import RealRange, node_counts, parameter

if TYPE_CHECKING:
    from torch import Tensor

CONTROL, CONTROL_CHANGE = "control", "control-change"


@dataclass(frozen=True)
class ControlledDescent(ClientAlgorithm):
    """Client algorithm of SCAFFOLD.

    Attributes:
        weighted_by: Name of the metric that weights the mean of the changes.
    """

    weighted_by: str = "num-clients"

    @property
    def auxiliary(self) -> Mapping[str, str]:
        """Auxiliary vectors sent to the server: the change of the control variate."""
        return {CONTROL_CHANGE: self.weighted_by}

    def train(self, run: LocalRun) -> ClientResults:
        """Train with corrected gradients."""
        zeros = run.received.new_zeros(run.layout.size)
        control, client_control = run.auxiliary.get(CONTROL, zeros), run.kept(CONTROL, zeros)
        trained = run.descend(run.received, add_shift, [control - client_control])  # eq. 3
        drift = (run.received - trained.vectors) / (trained.num_steps[:, None] * run.training.learning_rate)
        drift[:, run.layout.num_trainable :] = 0
        change = drift - control  # eq. 4 without c_i, which is on both sides
        return ClientResults(trained, trained.vectors, {CONTROL: client_control + change}, {CONTROL_CHANGE: change})


class ScaffoldSpec(MeanSpec):
    """SCAFFOLD: control variates correct the drift of the clients' gradients."""

    paper: ClassVar[str] = "Karimireddy et al. 2020, arXiv:1910.06378"
    requires = ("SGD", "no momentum")

    kind: Literal["scaffold"] = "scaffold"
    algorithm = ControlledDescent
    sample_scaling: SampleScaling = parameter(
        "uniform", "p_i, a client's weight in both means: equal, or by its number of examples"
    )
    server_learning_rate: float = parameter(
        1.0, "η_g, the server's step along the mean change", RealRange(0.1, 1.5), gt=0
    )

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self._rule(cohort, Scaffold, self.server_learning_rate, cohort.num_clients)


def add_shift(weights: Tensor, gradient: Tensor, shift: Tensor) -> None:
    """Add a vector to the gradient, in place."""
    del weights
    gradient.add_(shift)


class Scaffold(MeanRule):
    """Server rule of SCAFFOLD.

    Args:
        server_learning_rate: η_g.
        num_clients: N.
        arguments: Arguments of FedAvg.
    """

    def __init__(self, server_learning_rate: float, num_clients: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.server_learning_rate = server_learning_rate
        self.num_clients = num_clients
        self.control: FloatArray | None = None

    def auxiliary(self) -> Mapping[str, FloatArray]:
        """Return c; empty before the first replies, when it is 0."""
        return {} if self.control is None else {CONTROL: self.control}

    def step(self, means: RoundMeans) -> DoubleArray:
        """Update c, and return the new model (eq. 5)."""
        self.control = with_share(self.control, means, CONTROL_CHANGE, self.num_clients).astype("float32")
        return means.received + self.server_learning_rate * (means.model - means.received)


LOCAL_GRADIENT, MODEL_CHANGE = "local-gradient", "model-change"


@dataclass(frozen=True)
class RegularisedDescent(ClientAlgorithm):
    """Client algorithm of FedDyn.

    Attributes:
        dynamic_alpha: α.
        weighted_by: Name of the metric that weights the mean of the changes.
    """

    auxiliary_is_determined: ClassVar[bool] = True

    dynamic_alpha: float
    weighted_by: str = "num-clients"

    @property
    def auxiliary(self) -> Mapping[str, str]:
        """Auxiliary vectors sent to the server: the change of the trainable parameters."""
        return {MODEL_CHANGE: self.weighted_by}

    def train(self, run: LocalRun) -> ClientResults:
        """Train on the regularised loss."""
        stored = run.kept(LOCAL_GRADIENT, run.received.new_zeros(run.layout.size))
        trained = run.descend(run.received, partial(regularise, self.dynamic_alpha), [run.received, stored])
        change = trained.vectors - run.received
        change[:, run.layout.num_trainable :] = 0
        return ClientResults(
            trained, trained.vectors, {LOCAL_GRADIENT: stored - self.dynamic_alpha * change}, {MODEL_CHANGE: change}
        )


class FedDynSpec(MeanSpec):
    """FedDyn: FedAvg with dynamic regularisation of the clients' losses."""

    paper: ClassVar[str] = "Acar et al. 2021, arXiv:2111.04263"

    kind: Literal["feddyn"] = "feddyn"
    algorithm = RegularisedDescent
    sample_scaling: SampleScaling = parameter(
        "uniform", "a client's weight in both means: equal, or by its number of examples"
    )
    dynamic_alpha: float = parameter(0.1, "α, weight of the dynamic regulariser", RealRange(1e-3, 1.0, log=True), gt=0)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self._rule(cohort, FedDyn, cohort.num_clients)


def regularise(alpha: float, weights: Tensor, gradient: Tensor, received: Tensor, own: Tensor) -> None:
    """Add the gradient of −⟨g_i, y⟩ + (α/2)‖y − x‖², in place."""
    gradient.add_(weights - received, alpha=alpha).sub_(own)


class FedDyn(MeanRule):
    """Server rule of FedDyn.

    Args:
        num_clients: m.
        arguments: Arguments of FedAvg.
    """

    def __init__(self, num_clients: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.num_clients = num_clients
        self.lead: FloatArray | None = None

    def step(self, means: RoundMeans) -> DoubleArray:
        """Update u, and return the mean plus u."""
        lead = with_share(self.lead, means, MODEL_CHANGE, self.num_clients)
        self.lead = lead.astype("float32")
        return means.model + lead


MODEL_WEIGHT, EFFECTIVE_STEPS = "model-weight", "effective-steps"


@dataclass(frozen=True)
class NormalizedDescent(ClientAlgorithm):
    """Client algorithm of FedNova.

    Attributes:
        proximal_mu: μ.
        weighted_by: Name of the metric for p_i.
    """

    proximal_mu: float = 0.0
    weighted_by: str = "num-examples"

    def train(self, run: LocalRun) -> ClientResults:
        """Train, and report the normalised weight and the effective steps."""
        mu, training = self.proximal_mu, run.training
        trained = run.descend(run.received, partial(pull_towards, mu) if mu else None, [run.received] if mu else [])
        lengths = path_lengths(trained.num_steps, training.momentum, training.learning_rate * mu)
        shares = run.counts_as.double() if self.weighted_by == "num-examples" else lengths.new_ones(lengths.shape)
        effective = trained.num_steps if mu else lengths
        sums = {MODEL_WEIGHT: shares / lengths, EFFECTIVE_STEPS: shares * effective}
        return ClientResults(trained, trained.vectors, sums=sums)


class FedNovaSpec(MeanSpec):
    """FedNova: the mean of the clients' changes, each divided by the length of its path."""

    paper: ClassVar[str] = "Wang et al. 2020, arXiv:2007.07481"
    requires = ("SGD",)

    kind: Literal["fednova"] = "fednova"
    algorithm = NormalizedDescent
    proximal_mu: float = parameter(
        0.0, "μ, weight of the clients' proximal term (μ/2)‖w − x‖²; 0 is none", RealRange(0.0, 0.1), ge=0
    )

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one mean, weighted by a metric that clients report."""
        return EngineNeeds(arrays="flat", replies="merged", weighted_by=MODEL_WEIGHT)

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: with too large a proximal weight the path length is undefined as well."""
        faults, rate = super().faults(cohort), self.client_learning_rate or cohort.client_learning_rate
        if not faults and self.proximal_mu * rate > 1:
            must = f"be at most {1 / rate:g} with clients of learning rate {rate:g}"
            faults.append(Fault("proximal_mu of fednova", must, f"{self.proximal_mu:g}"))
        return faults

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedNova(self.weighted_by, **node_counts(cohort), weighted_by_key=MODEL_WEIGHT)


def path_lengths(num_steps: Tensor, momentum: float, pull: float) -> Tensor:
    """Return a_i of each client, float64.

    Args:
        num_steps: τ, shape `(clients,)`.
        momentum: ρ.
        pull: η_l μ.
    """
    lengths = [0.0]
    last = 0.0
    for _ in range(int(num_steps.max())):
        last = momentum * last + 1 - pull * lengths[-1]
        lengths.append(lengths[-1] + last)
    return num_steps.double().new_tensor(lengths)[num_steps]


class FedNova(MeanRule):
    """Server rule of FedNova.

    Args:
        shares_by: Name of the metric for p_i.
        arguments: Arguments of FedAvg.
    """

    def __init__(self, shares_by: str, **arguments: object) -> None:
        super().__init__(**arguments)
        self.shares_by = shares_by

    def step(self, means: RoundMeans) -> DoubleArray:
        """Move the model along the normalised mean (eq. 6)."""
        shares = means.sums[self.shares_by]
        effective_steps = means.sums[EFFECTIVE_STEPS] / shares
        rate = effective_steps * means.sums[MODEL_WEIGHT] / shares
        return means.received + rate * (means.model - means.received)
