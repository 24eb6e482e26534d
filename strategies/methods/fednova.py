"""FedNova: normalised averaging, in which clients with more local steps have no more weight.

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

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from flwr.serverapp import strategy as flower
from pydantic import Field

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.strategies.aggregation.rules import DoubleArray, MeanRule, RoundMeans
from fedscout.strategies.methods.averaging import MeanSpec, pull_towards
from fedscout.strategies.specification import RealRange, SearchRange, node_counts

if TYPE_CHECKING:
    from torch import Tensor

MODEL_WEIGHT, EFFECTIVE_STEPS = "model-weight", "effective-steps"


class FedNovaSpec(MeanSpec):
    """FedNova: the mean of the clients' changes, each divided by the length of its path."""

    paper: ClassVar[str] = "Wang et al. 2020, arXiv:2007.07481"

    kind: Literal["fednova"] = "fednova"
    proximal_mu: Annotated[
        float,
        Field(ge=0, description="μ, weight of the clients' proximal term (μ/2)‖w − x‖²; 0 is none"),
        SearchRange(RealRange(0.0, 0.1)),
    ] = 0.0

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one mean, weighted by a metric that clients report."""
        return EngineNeeds(arrays="flat", replies="merged", weighted_by=MODEL_WEIGHT)

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the fault that the clients' optimizer has no defined path length."""
        if cohort.client_optimizer == "sgd":
            return None
        return Fault(
            "fednova", "have clients with SGD (training.optimizer=sgd)", f"optimizer {cohort.client_optimizer}"
        )

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: with too large a proximal weight the path length is undefined as well."""
        faults, rate = super().faults(cohort), self.client_learning_rate or cohort.client_learning_rate
        if not faults and self.proximal_mu * rate > 1:
            faults.append(
                Fault(
                    "proximal_mu of fednova",
                    f"be at most {1 / rate:g} with clients of learning rate {rate:g}",
                    f"{self.proximal_mu:g}",
                )
            )
        return faults

    def client_algorithm(self) -> ClientAlgorithm:
        """Return the client algorithm."""
        return NormalizedDescent(self.proximal_mu, self.weighted_by)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return FedNova(self.weighted_by, **node_counts(cohort), weighted_by_key=MODEL_WEIGHT)


@dataclass(frozen=True)
class NormalizedDescent(ClientAlgorithm):
    """Client algorithm of FedNova.

    Attributes:
        proximal_mu: μ.
        shares_by: Name of the metric for p_i.
    """

    proximal_mu: float = 0.0
    shares_by: str = "num-examples"

    def train(self, run: LocalRun) -> ClientResults:
        """Train, and report the normalised weight and the effective steps."""
        mu, training = self.proximal_mu, run.training
        trained = run.descend(run.received, partial(pull_towards, mu) if mu else None, [run.received] if mu else [])
        lengths = path_lengths(trained.num_steps, training.momentum, training.learning_rate * mu)
        shares = run.counts_as.double() if self.shares_by == "num-examples" else lengths.new_ones(lengths.shape)
        effective = trained.num_steps if mu else lengths
        sums = {MODEL_WEIGHT: shares / lengths, EFFECTIVE_STEPS: shares * effective}
        return ClientResults(trained, trained.vectors, sums=sums)


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
