"""DP-FedAvg: averaging with client-level differential privacy.

With x the global model, Δ_i = y_i − x the update of client i, m clients in a round and C the clipping norm
(McMahan et al. 2018, Algorithm 1, with its f̃_f, the estimator with a fixed denominator):

- Δ_i ← Δ_i · min(1, C/‖Δ_i‖)
- Δ ← (1/m) Σ Δ_i + N(0, (z·C/m)² I)
- the server rule treats x + Δ as the mean of the clients' models: FedAvg makes it the model, FedAdam steps
  towards it.

With `clipping=adaptive`, C follows a quantile of the update norms (Andrew et al. 2021, Algorithm 1), whose
noisy count uses part of the noise multiplier z.

Clipping and noise are Flower's, with the corrections documented in `strategies/aggregation/private.py`. (ε,
δ) are for one client replaced by another, for Flower's sampling and the number of rounds that are run; the
accounting is in the same module. The paper samples clients independently of each other instead.

Only averaging strategies are wrapped: a client can change the result of rules that select or sort models,
such as Krum or the median, by more than C/m. Only C is searched; the parameters that trade privacy for
accuracy are not, because a search would always choose less noise.

**Simulation.** The noise is drawn from the trial's seed for reproducibility; anyone who knows the seed can
subtract it. (ε, δ) hold for each trial of a study separately; over all trials they add up.

References:
    McMahan, Ramage, Talwar, Zhang: Learning differentially private recurrent language models. ICLR 2018.
        arXiv:1710.06963
    Andrew, Thakkar, McMahan, Ramaswamy: Differentially private learning with adaptive clipping. NeurIPS 2021.
        arXiv:1905.03871
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from flwr.serverapp import strategy as flower
from pydantic import AfterValidator, BeforeValidator, Field, field_serializer, model_validator

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.text import shown
from fedscout.strategies import aggregation as quick
from fedscout.strategies.aggregation.private import (
    LEAST_NOISE,
    MOST_NOISE,
    AdaptiveClipping,
    PrivateMean,
    Sampling,
    default_delta,
    epsilon_of,
    library_missing,
    noise_for,
)
from fedscout.strategies.methods.averaging import (
    FedAdagradSpec,
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedProxSpec,
    FedYogiSpec,
    MeanSpec,
)
from fedscout.strategies.specification import RealRange, SearchRange, StrategySpec, clients_text, node_counts

AVERAGING: tuple[type[MeanSpec], ...] = (FedAvgSpec, FedProxSpec, FedAvgMSpec, FedAdagradSpec, FedAdamSpec, FedYogiSpec)
"""Strategies that may be wrapped."""

DEFAULT_NOISE = 1.0
_ADAPTIVE_CLIPPING_PARAMETERS = ("target_clipped_quantile", "clip_norm_lr", "clipped_count_stddev")


def _averaging(given: Any) -> Any:
    """Return the document of an averaging strategy, with equal weights by default."""
    if isinstance(given, MeanSpec):
        return given
    document = {"kind": given} if isinstance(given, str) else given
    kind = document.get("kind") if isinstance(document, Mapping) else None
    kinds = [spec_class.model_fields["kind"].default for spec_class in AVERAGING]
    if kind not in kinds:
        raise ValueError(
            f"must be a strategy that averages ({', '.join(kinds)}), got {shown(kind or given)}: the noise "
            "assumes that a client moves the mean by at most clipping_norm / clients, which others do not guarantee"
        )
    return {"sample_scaling": "uniform", **document}


def _wrappable(spec: MeanSpec) -> MeanSpec:
    if spec.sample_scaling != "uniform":
        raise ValueError(
            f"must have sample_scaling=uniform, got {spec.sample_scaling}: a client with many rows would move the mean "
            "by more than the noise covers"
        )
    if client_values := spec.client_values():
        raise ValueError(f"must leave {', '.join(client_values)} to dp_fedavg itself, got {shown(dict(client_values))}")
    return spec


Averaging = Annotated[
    FedAvgSpec | FedProxSpec | FedAvgMSpec | FedAdagradSpec | FedAdamSpec | FedYogiSpec,
    Field(discriminator="kind", description="the server rule: a strategy that averages, by kind or with parameters"),
    BeforeValidator(_averaging),
    AfterValidator(_wrappable),
]


class DPFedAvgSpec(StrategySpec):
    """DP-FedAvg: the mean of clipped updates with noise, for client-level differential privacy."""

    paper: ClassVar[str] = "McMahan et al. 2018, arXiv:1710.06963; Andrew et al. 2021, arXiv:1905.03871"
    unpaired: ClassVar[str] = "it wraps a strategy, which strategy.around names"

    kind: Literal["dp_fedavg"] = "dp_fedavg"
    around: Averaging = FedAvgSpec(sample_scaling="uniform")
    clipping_norm: Annotated[
        float,
        Field(gt=0, description="C, norm to which updates are clipped; the initial one if adaptive"),
        SearchRange(RealRange(0.01, 10.0, log=True)),
    ] = 1.0
    noise_multiplier: Annotated[
        float | None,
        Field(ge=0, le=MOST_NOISE, description="z, noise on the sum over C; 1 by default, or what epsilon needs"),
    ] = None
    epsilon: Annotated[
        float | None, Field(gt=0, description="ε of the whole training, from which the noise follows")
    ] = None
    delta: Annotated[float | None, Field(gt=0, lt=1, description="δ, below 1/clients; clients^-1.1 by default")] = None
    clipping: Annotated[
        Literal["fixed", "adaptive"], Field(description="whether C is fixed or follows a quantile of the update norms")
    ] = "fixed"
    target_clipped_quantile: Annotated[
        float, Field(ge=0, le=1, description="1 − γ, target fraction of clients that adaptive clipping clips")
    ] = 0.5
    clip_norm_lr: Annotated[float, Field(gt=0, le=10, description="η_C, the step of adaptive clipping")] = 0.2
    clipped_count_stddev: Annotated[
        float | None,
        Field(gt=0, description="σ_b, noise on the count of clipped clients; clients per round / 20 by default"),
    ] = None

    @field_serializer("around")
    def _document_of(self, around: MeanSpec) -> Mapping[str, Any]:
        return {"kind": around.kind, **around.parameters()}

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError(
                f"noise_multiplier must be left out where epsilon is given, got {self.noise_multiplier} and "
                f"{self.epsilon}: each follows from the other"
            )
        fields = type(self).model_fields
        unread = [name for name in _ADAPTIVE_CLIPPING_PARAMETERS if getattr(self, name) != fields[name].default]
        if unread and self.clipping == "fixed":
            raise ValueError(f"{', '.join(unread)} must be left out unless clipping=adaptive, got clipping=fixed")
        return self

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: one reply per client."""
        return EngineNeeds(arrays="flat", replies="individual")

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm of the wrapped strategy."""
        return self.around.client_algorithm()

    def delta_of(self, cohort: Cohort) -> float:
        """Return δ."""
        return default_delta(cohort.num_clients) if self.delta is None else self.delta

    def noise(self, cohort: Cohort) -> float:
        """Return z; infinite if no noise multiplier reaches ε."""
        if self.epsilon is None:
            return DEFAULT_NOISE if self.noise_multiplier is None else self.noise_multiplier
        assert cohort.num_rounds is not None, "faults() comes first"
        return noise_for(self.epsilon, _sampling(cohort, cohort.num_rounds), self.delta_of(cohort))

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why no parameters work: clients are not sampled uniformly, or the accountant is missing."""
        if cohort.chosen:
            return "dp_fedavg accounts for clients that are drawn uniformly, so no selection policy may choose them"
        missing = library_missing()
        return f"for dp_fedavg {missing}" if missing else None

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: an unreachable ε, or too little noise on the count of clipped clients."""
        if faults := super().faults(cohort):
            return faults
        if self.epsilon is not None and cohort.num_rounds is None:
            return [Fault("epsilon of dp_fedavg", "be left out if the number of rounds is not known")]
        if self.epsilon is not None and (fault := self._epsilon_fault(self.epsilon, cohort)):
            return [fault]
        noise = self.noise(cohort)
        if self.clipping == "adaptive" and noise >= 2 * self._count_deviation(cohort):
            where = f"with {clients_text(cohort.num_sampled)} and noise_multiplier={noise:.4g}"
            return [
                Fault(
                    "clipped_count_stddev of dp_fedavg",
                    f"be more than {noise / 2:.4g}, half the noise multiplier, {where}",
                    f"{self._count_deviation(cohort):g}",
                )
            ]
        return []

    def _epsilon_fault(self, epsilon: float, cohort: Cohort) -> str | None:
        """Return the fault that no noise multiplier reaches ε; None if one does."""
        assert cohort.num_rounds is not None
        sampling, delta = _sampling(cohort, cohort.num_rounds), self.delta_of(cohort)
        least, most = (epsilon_of(noise, sampling, delta) for noise in (MOST_NOISE, LEAST_NOISE))
        where = f"in {sampling} and delta={delta:.3g}, got {epsilon:g}"
        if epsilon > most:
            return Fault(
                "epsilon of dp_fedavg",
                f"be at most {most:.3g} {where}",
                hint=f"that needs a noise_multiplier of {LEAST_NOISE:g}; for less noise, set it directly",
            )
        if math.isinf(self.noise(cohort)):
            return Fault(
                "epsilon of dp_fedavg",
                f"be at least {least:.3g} {where}",
                hint=f"that needs a noise_multiplier of {MOST_NOISE:g}, the largest allowed",
            )
        return None

    def _count_deviation(self, cohort: Cohort) -> float:
        """Return σ_b, with Flower's default."""
        deviation = self.clipped_count_stddev
        return cohort.num_sampled / 20 if deviation is None else deviation

    def notes(self, cohort: Cohort) -> list[str]:
        """Return notes, including the privacy cost of the whole training."""
        notes = super().notes(cohort)
        if cohort.num_rounds is not None and not self.faults(cohort):
            notes += self._cost(cohort, cohort.num_rounds)
        return notes

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return the privacy cost of the rounds that gave a model."""
        return self._cost(cohort, num_models) if num_models else []

    def _cost(self, cohort: Cohort, num_rounds: int) -> list[str]:
        noise, delta, sampling = self.noise(cohort), self.delta_of(cohort), _sampling(cohort, num_rounds)
        if noise == 0:
            return ["noise_multiplier 0 adds no noise and gives no privacy"]
        cost = (
            f"the models of {sampling} are (ε = {epsilon_of(noise, sampling, delta):.4g}, δ = {delta:.3g})-"
            f"differentially private if one client is replaced by another (noise multiplier {noise:.4g}, fixed-size "
            "sampling without replacement); their scores are not private"
        )
        if delta * cohort.num_clients < 1:
            return [cost]
        return [cost, f"delta should be below 1/{cohort.num_clients}, one over the number of clients; it is {delta}"]

    def _text(self, name: str, value: Any) -> str:
        """Return the display text of a parameter; the wrapped strategy by its own text."""
        return super()._text(name, self.around if name == "around" else value)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        plain_mean = quick.FedAvg(**node_counts(cohort), weighted_by_key=self.around.weighted_by)
        noise, sampled = self.noise(cohort), cohort.num_sampled
        private: flower.DifferentialPrivacyServerSideFixedClipping | AdaptiveClipping
        if self.clipping == "fixed":
            private = flower.DifferentialPrivacyServerSideFixedClipping(plain_mean, noise, self.clipping_norm, sampled)
        else:
            private = AdaptiveClipping(
                plain_mean,
                noise,
                sampled,
                initial_clipping_norm=self.clipping_norm,
                target_clipped_quantile=self.target_clipped_quantile,
                clip_norm_lr=self.clip_norm_lr,
                clipped_count_stddev=self.clipped_count_stddev,
            )
        server_rule = self.around.build(cohort)
        assert isinstance(server_rule, flower.FedAvg)
        return PrivateMean(server_rule, private)


def _sampling(cohort: Cohort, num_rounds: int) -> Sampling:
    return Sampling(cohort.num_clients, cohort.num_sampled, num_rounds)
