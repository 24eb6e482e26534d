"""Differentially private mean of client updates for a server rule, and its privacy accounting.

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

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedscout.engine.errors import Fault, TrialError
from fedscout.engine.messages.keys import ARRAYS_KEY, METRICS_KEY
from fedscout.engine.seeds import unseeded_generators
from fedscout.strategies.aggregation.rules import Aggregate


class AdaptiveClipping(flower.DifferentialPrivacyServerSideAdaptiveClipping):
    """Flower's wrapper with a clipping norm that follows a quantile of the clients' updates, as in the paper.

    Parameters and names are Flower's; `target_clipped_quantile` is the target share of clipped clients, 1 − γ.
    """

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the noisy mean, then update the clipping norm."""
        self._next_clipping_norm = self.clipping_norm
        aggregate = super().aggregate_train(server_round, replies)
        self.clipping_norm = self._next_clipping_norm
        return aggregate

    def _geometric_update(self, clipped_fraction: float) -> None:
        """Increase C if too many are clipped; with b̄ = 1 − clipped_fraction it is the paper's step."""
        excess = clipped_fraction - self.target_clipped_quantile
        self._next_clipping_norm = self.clipping_norm * math.exp(self.clip_norm_lr * excess)


class PrivateMean(flower.Strategy):
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

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the server rule's messages, and store the model that updates are relative to."""
        self.private.current_arrays = arrays
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
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

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the server rule's messages."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the server rule's mean metrics."""
        return self.strategy.aggregate_evaluate(server_round, replies)


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


def library_missing() -> str | None:
    """Return an installation hint if the accounting library is missing; None otherwise."""
    if importlib.util.find_spec("dp_accounting") is not None:
        return None
    return Fault("dp-accounting", "be installed, which computes (ε, δ)", hint="pip install 'fedscout[privacy]'")


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
    return min(_unsampled_epsilon(noise_multiplier, sampling, delta), _drawn(noise_multiplier, sampling, delta))


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


def _unsampled_epsilon(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε for full participation in every round."""
    library = _library()
    return float(library.get_epsilon_gaussian(noise_multiplier / 2 / math.sqrt(sampling.num_rounds), delta))


def _drawn(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε under sampling without replacement; infinite if all clients are sampled."""
    if sampling.num_sampled == sampling.num_clients:
        return math.inf
    accountant = _accountant()
    accountant.compose(_rounds(noise_multiplier, sampling))
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    """Return dp-accounting.

    Its imports create unseeded random generators, which must not be reported as those of a strategy.
    """
    with unseeded_generators():
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
