"""DP-FedAvg: averaging with client-level differential privacy.

With x the global model, Δ_i = y_i − x the update of client i, m clients in a round and C the clipping norm
(McMahan et al. 2018, Algorithm 1, with its f̃_f, the estimator with a fixed denominator):

- Δ_i ← Δ_i · min(1, C/‖Δ_i‖)
- Δ ← (1/m) Σ Δ_i + N(0, (z·C/m)² I)
- the server rule treats x + Δ as the mean of the clients' models: FedAvg makes it the model, FedAdam steps
  towards it.

With `clipping=adaptive`, C follows a quantile of the update norms (Andrew et al. 2021, Algorithm 1), whose
noisy count uses part of the noise multiplier z.

Clipping and noise are Flower's, with the corrections documented below. (ε, δ) are for one client replaced by
another, for Flower's sampling and the number of rounds that are run. The paper samples clients independently of
each other instead.

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

Differentially private mean of client updates for a server rule, and its privacy accounting.

`PrivateMean` clips each client's update, averages, adds Gaussian noise and passes the noisy mean to a server
rule. Clipping, mean and noise are those of Flower's differential-privacy wrappers, with these differences:

- **Noise is added before the server rule.** Flower's wrappers add it to the result of the wrapped strategy.
  Momentum and adaptive steps carry the means of earlier rounds forward and scale them, so noise added
  afterwards bounds nothing. Here the wrapped strategy receives a single reply with the noisy mean, and
  post-processing keeps it private. Around FedAvg and FedProx both orders give the same bits.
- **Clients have equal weights**, otherwise a client with many rows could move the mean by more than the
  clipping norm divided by the number of clients.
- **A round with a missing reply gives no model**: with fewer clients each one moves the mean by more than the
  noise is calibrated for. Flower only warns about a missing reply.
- **Adaptive clipping** (Andrew et al. 2021, Algorithm 1: C ← C·exp(−η(b̄ − γ)), b̄ the noisy share of
  unclipped clients) has two errors in Flower's class that are corrected here. It decreases C if too many
  clients are clipped, so that C tends to 0 or diverges; and it scales the noise by the C of the next round,
  which is too little for the updates clipped in this round if C decreases.

**Accounting.** In each of T rounds m of n clients are sampled, their model updates are clipped to norm C, and
the mean gets Gaussian noise of standard deviation z·C/m per coordinate, z being the noise multiplier.

*Neighbouring federations* differ in one client, which is replaced by another with other data; n is public.
This fits Flower's sampling, a fixed number of clients without replacement. Replacing a client changes the sum
of the clipped updates by up to 2C, so accountants receive z/2. Replacing a client's update by a zero update
is a special case. For added or removed clients, or Poisson sampling, other values hold, often smaller ones
for the same z; Flower does not sample in this way, so they are not given.

*Bounds*: the smaller of two is reported:

- Rényi differential privacy under sampling without replacement (Wang et al. 2019, Theorem 27), with privacy
  amplification by the secrecy of the sample;
- full participation: T rounds of z/2 equal one of z/(2√T), whose ε is exact (Balle and Wang 2018, Theorem 8).
  It is smaller if most clients train in a round.

Both are computed by Google's `dp-accounting`. ε covers all T models together, each of which the clients see.
Real arithmetic is assumed: with float32, an observer of all bits of a model may learn more (Mironov 2012).

References:
    Wang, Balle, Kasiviswanathan: Subsampled Rényi differential privacy and analytical moments accountant.
        AISTATS 2019. arXiv:1808.00087
    Balle, Wang: Improving the Gaussian mechanism for differential privacy: analytical calibration and optimal
        denoising. ICML 2018. arXiv:1805.06530
    Mironov: On significance of the least significant bits for differential privacy. CCS 2012.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy as flower
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import Fault, TrialError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.keys import ARRAYS_KEY, METRICS_KEY
from fedscout.engine.text import shown
from fedscout.strategies.aggregation import rules
from fedscout.strategies.aggregation.rules import Aggregate, Messages, Unevaluated
from fedscout.strategies.methods import averaging
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.specification import RealRange, StrategySpec, clients_text, node_counts, parameter


class AdaptiveClipping(flower.DifferentialPrivacyServerSideAdaptiveClipping):
    """Flower's wrapper with a clipping norm that follows a quantile of the clients' updates, as in the paper.

    Parameters and names are Flower's; `target_clipped_quantile` is the target share of clipped clients, 1 − γ.
    """

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the noisy mean, then update the clipping norm."""
        self._next_clipping_norm = self.clipping_norm
        aggregate = super().aggregate_train(server_round, replies)
        self.clipping_norm = self._next_clipping_norm
        return aggregate

    def _geometric_update(self, clipped_fraction: float) -> None:
        """Increase C if too many are clipped; with b̄ = 1 − clipped_fraction it is the paper's step."""
        excess = clipped_fraction - self.target_clipped_quantile
        self._next_clipping_norm = self.clipping_norm * math.exp(self.clip_norm_lr * excess)


class PrivateMean(Unevaluated):
    """A server rule applied to the noisy mean of clipped updates.

    Args:
        server_rule: Strategy that receives the mean; it also samples the clients, and weights them by
            `num-clients`.
        private: Flower's wrapper around the plain mean with equal weights.
    """

    def __init__(
        self, server_rule: flower.FedAvg, private: flower.DifferentialPrivacyServerSideFixedClipping | AdaptiveClipping
    ) -> None:
        self.strategy = server_rule
        self.private = private

    def summary(self) -> None:
        """Log the settings of both."""
        self.private.summary()
        self.strategy.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return the server rule's messages, and store the model that updates are relative to."""
        self.private.current_arrays = arrays
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the server rule's result for the noisy mean; nothing unless every sampled client replied.

        Raises:
            TrialError: If a client did not change the model at all, which Flower can't clip.
        """
        replies = list(replies)
        if len(replies) != self.private.num_sampled_clients or any(reply.has_error() for reply in replies):
            return None, None
        try:
            arrays, metrics = self.private.aggregate_train(server_round, replies)
        except ZeroDivisionError as error:
            raise TrialError(
                f"round {server_round}: every client must change the model to be clipped, got a change of length 0"
            ) from error
        self.private.current_arrays = ArrayRecord()
        if arrays is None:
            return None, None
        weight = {self.strategy.weighted_by_key: len(replies)}
        mean = replies[0]
        mean.content = RecordDict({ARRAYS_KEY: arrays, METRICS_KEY: MetricRecord({**dict(metrics or {}), **weight})})
        return self.strategy.aggregate_train(server_round, [mean])


LEAST_NOISE, MOST_NOISE = 1e-2, 1e3
"""Noise multipliers among which one is sought."""

_ORDERS = (1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, *range(4, 33), 40, 48, 56, 64, 96, 128, 300, 512, 1024)
"""Of Rényi divergences. Any choice gives a bound; with the library's own 156 it takes several times as long."""

_TOLERANCE = 1e-6
"""Of a noise multiplier that is sought, relative."""


@dataclass(frozen=True)
class Sampling:
    """Client sampling of a training.

    Attributes:
        num_clients: n, clients of the federation.
        num_sampled: m, clients per round, in `[1, num_clients]`; sampled without replacement.
        num_rounds: T, at least 1.
    """

    num_clients: int
    num_sampled: int
    num_rounds: int

    def __str__(self) -> str:
        rounds = "1 round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        return f"{rounds} with {self.num_sampled} of {self.num_clients} clients each"


def default_delta(num_clients: int) -> float:
    """Return n^−1.1, the usual choice: δ must be well below 1/n, the cost of disclosing one client."""
    return float(max(num_clients, 2) ** -1.1)


@lru_cache(maxsize=64)
def epsilon_of(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε, at least 0; infinite without noise.

    Args:
        noise_multiplier: z, at least 0.
        sampling: Client sampling of the training.
        delta: In `(0, 1)`.
    """
    if noise_multiplier == 0:
        return math.inf
    unsampled = _library().get_epsilon_gaussian(noise_multiplier / 2 / math.sqrt(sampling.num_rounds), delta)
    return min(float(unsampled), _drawn(noise_multiplier, sampling, delta))


@lru_cache(maxsize=64)
def noise_for(epsilon: float, sampling: Sampling, delta: float) -> float:
    """Return the noise multiplier for which ε is at most `epsilon`, within tolerance; at least `LEAST_NOISE`.

    Returns:
        Infinity if `MOST_NOISE` does not suffice.
    """
    library = _library()
    if epsilon_of(LEAST_NOISE, sampling, delta) <= epsilon:
        return LEAST_NOISE
    multiplier = 2 * math.sqrt(sampling.num_rounds) * float(library.get_sigma_gaussian(epsilon, delta))
    if _drawn(MOST_NOISE, sampling, delta) < epsilon:
        logarithm = library.calibrate_dp_mechanism(
            _accountant,
            lambda logarithm: _rounds(math.exp(logarithm), sampling),
            epsilon,
            delta,
            library.ExplicitBracketInterval(math.log(LEAST_NOISE), math.log(MOST_NOISE)),
            tol=_TOLERANCE,
        )
        multiplier = min(multiplier, math.exp(logarithm))
    multiplier *= 1 + 2 * _TOLERANCE  # never less than what was asked for
    return multiplier if multiplier <= MOST_NOISE else math.inf


def _drawn(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε under sampling without replacement; infinite if all clients are sampled."""
    if sampling.num_sampled == sampling.num_clients:
        return math.inf
    accountant = _accountant()
    accountant.compose(_rounds(noise_multiplier, sampling))
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    """Return dp-accounting."""
    import dp_accounting
    import dp_accounting.rdp

    return dp_accounting


def _accountant() -> Any:
    library = _library()
    return library.rdp.RdpAccountant(_ORDERS, library.NeighboringRelation.REPLACE_ONE)


def _rounds(noise_multiplier: float, sampling: Sampling) -> Any:
    """Return all rounds as the accountant's event. Its noise is relative to the sensitivity 2C, hence half of z."""
    library = _library()
    noise = library.GaussianDpEvent(noise_multiplier / 2)
    sampled = library.SampledWithoutReplacementDpEvent(sampling.num_clients, sampling.num_sampled, noise)
    return library.SelfComposedDpEvent(sampled, sampling.num_rounds)


DEFAULT_NOISE = 1.0
_ADAPTIVE_CLIPPING_PARAMETERS = ("target_clipped_quantile", "clip_norm_lr", "clipped_count_stddev")


def _averaging(given: Any) -> Any:
    """Return the document of an averaging strategy, with equal weights by default."""
    if isinstance(given, MeanSpec):
        return given
    document = {"kind": given} if isinstance(given, str) else given
    kind = document.get("kind") if isinstance(document, Mapping) else None
    kinds = [spec_class.model_fields["kind"].default for spec_class in get_args(Averaged)]
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


Averaged: TypeAlias = (
    FedAvgSpec
    | averaging.FedProxSpec
    | averaging.FedAvgMSpec
    | averaging.FedAdagradSpec
    | averaging.FedAdamSpec
    | averaging.FedYogiSpec
)
"""Strategies that may be wrapped."""

Averaging = Annotated[
    Averaged,
    Field(discriminator="kind", description="the server rule: a strategy that averages, by kind or with parameters"),
    BeforeValidator(_averaging),
    AfterValidator(_wrappable),
    PlainSerializer(lambda around: {"kind": around.kind, **around.parameters()}),
]


class DPFedAvgSpec(StrategySpec):
    """DP-FedAvg: the mean of clipped updates with noise, for client-level differential privacy."""

    paper: ClassVar[str] = "McMahan et al. 2018, arXiv:1710.06963; Andrew et al. 2021, arXiv:1905.03871"
    unpaired: ClassVar[str] = "it wraps a strategy, which strategy.around names"
    requires = ("no selection", "dp-accounting")

    kind: Literal["dp_fedavg"] = "dp_fedavg"
    around: Averaging = FedAvgSpec(sample_scaling="uniform")
    clipping_norm: float = parameter(
        1.0, "C, norm to which updates are clipped; the initial one if adaptive", RealRange(0.01, 10.0, log=True), gt=0
    )
    noise_multiplier: float | None = parameter(
        None, "z, noise on the sum over C; 1 by default, or what epsilon needs", ge=0, le=MOST_NOISE
    )
    epsilon: float | None = parameter(None, "ε of the whole training, from which the noise follows", gt=0)
    delta: float | None = parameter(None, "δ, below 1/clients; clients^-1.1 by default", gt=0, lt=1)
    clipping: Literal["fixed", "adaptive"] = parameter(
        "fixed", "whether C is fixed or follows a quantile of the update norms"
    )
    target_clipped_quantile: float = parameter(
        0.5, "1 − γ, target fraction of clients that adaptive clipping clips", ge=0, le=1
    )
    clip_norm_lr: float = parameter(0.2, "η_C, the step of adaptive clipping", gt=0, le=10)
    clipped_count_stddev: float | None = parameter(
        None, "σ_b, noise on the count of clipped clients; clients per round / 20 by default", gt=0
    )

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

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: an unreachable ε, or too little noise on the count of clipped clients."""
        if faults := super().faults(cohort):
            return faults
        if self.epsilon is not None:
            if cohort.num_rounds is None:
                return [Fault("epsilon of dp_fedavg", "be left out if the number of rounds is not known")]
            sampling, delta = _sampling(cohort, cohort.num_rounds), self.delta_of(cohort)
            least, most = (epsilon_of(noise, sampling, delta) for noise in (MOST_NOISE, LEAST_NOISE))
            if self.epsilon > most or math.isinf(self.noise(cohort)):
                must = f"be from {least:.3g} to {most:.3g} in {sampling} and delta={delta:.3g}"
                hint = f"noise_multiplier is then in [{LEAST_NOISE:g}, {MOST_NOISE:g}]; for less noise, set it directly"
                return [Fault("epsilon of dp_fedavg", must, f"{self.epsilon:g}", hint)]
        noise, count_deviation = self.noise(cohort), self.clipped_count_stddev or cohort.num_sampled / 20
        if self.clipping == "adaptive" and noise >= 2 * count_deviation:
            where = f"with {clients_text(cohort.num_sampled)} and noise_multiplier={noise:.4g}"
            must = f"be more than {noise / 2:.4g}, half the noise multiplier, {where}"
            return [Fault("clipped_count_stddev of dp_fedavg", must, f"{count_deviation:g}")]
        return []

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

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        plain_mean = rules.FedAvg(**node_counts(cohort), weighted_by_key=self.around.weighted_by)
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
