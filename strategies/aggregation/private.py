"""Clip each client's change, average, add noise, and hand the noisy mean to a server rule.

Clipping, mean and noise are those of Flower's wrappers for differential privacy. What is done around them, and why:

- **The noise comes before the server rule.** Flower's wrappers add it to what the wrapped strategy returns. Momentum
  and adaptive steps carry the mean of earlier rounds on, and scale it, so noise after them bounds nothing. Here the
  wrapped strategy gets one reply, the noisy mean, and whatever it makes of that is as private. Around FedAvg and
  FedProx both are the same to the bit.
- **Clients count equally**, or a client with many rows could move the mean by more than clipping norm over clients.
- **A round in which not every sampled client answered gives no model**: with fewer clients each moves the mean by more
  than the noise is made for. Flower only warns where a reply is missing.
- **Adaptive clipping** (Andrew et al. 2021, Algorithm 1: C ← C·exp(−η(b̄ − γ)), b̄ the noisy share of clients that are
  not clipped) deviates in Flower's class twice. It shrinks C where too many are clipped, so that C runs to 0 or without
  bound; and it makes the noise by the C of the next round, less than the changes of this one were clipped to call for
  wherever C shrinks. Both are put right here.

What clipping and Gaussian noise in every round promise a client: (ε, δ), and the noise that a wanted ε takes.

In each of T rounds m of n clients are drawn, the changes that they made to the model are clipped to length C, and the
mean gets Gaussian noise of the standard deviation z·C/m in each coordinate, z being the noise multiplier.

**Neighbours.** Two federations that differ in one client, exchanged for another one with other data; n is public. That
fits Flower's sampling, which draws a fixed number of clients without replacement. Exchanging a client moves the sum of
the clipped changes by up to 2C, so accountants are told z/2. A client whose change is replaced by none is a special
case of it. For clients that are added or removed, or that join a round independently of each other (Poisson sampling),
other numbers hold, often smaller ones for the same z; Flower does not draw so, and they are not given here.

**Bounds.** Two hold, and the smaller one is told:

- Rényi differential privacy under sampling without replacement (Wang et al. 2019, Theorem 27), which gains from a
  client not knowing in which rounds it was drawn;
- as if every client trained in every round: T rounds of z/2 are one of z/(2√T), whose ε is exact (Balle and Wang 2018,
  Theorem 8). This is the smaller one where most clients train in a round.

All of this is Google's `dp-accounting`. ε is that of all T models together, each of which the clients see. Real numbers
are assumed: with float32, who sees all bits of a model may learn more (Mironov 2012).

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
    """Flower's wrapper with a clipping norm that follows a quantile of the clients' changes, as the paper has it.

    Parameters and names are Flower's; `target_clipped_quantile` is the share of clients that shall be clipped, 1 − γ.
    """

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the noisy mean, then move the clipping norm."""
        self._next_clipping_norm = self.clipping_norm
        aggregate = super().aggregate_train(server_round, replies)
        self.clipping_norm = self._next_clipping_norm
        return aggregate

    def _geometric_update(self, clipped_fraction: float) -> None:
        """Grow where more are clipped than shall be; with b̄ = 1 − clipped_fraction it is the paper's step."""
        too_many = clipped_fraction - self.target_clipped_quantile
        self._next_clipping_norm = self.clipping_norm * math.exp(self.clip_norm_lr * too_many)


class PrivateMean(flower.Strategy):
    """A server rule on the noisy mean of clipped changes.

    Args:
        server_rule: What is done with the mean; it samples the clients, too, and weighs them by `num-clients`.
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
        """Return the server rule's messages, and keep the model that changes are counted from."""
        self.private.current_arrays = arrays
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return what the server rule makes of the noisy mean; nothing unless every sampled client answered.

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
    """Who trains, and how often.

    Attributes:
        num_clients: n, of the federation.
        num_sampled: m, of each round, in `[1, num_clients]`; drawn without replacement.
        num_rounds: T, at least 1.
    """

    num_clients: int
    num_sampled: int
    num_rounds: int

    def __str__(self) -> str:
        rounds = "1 round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        return f"{rounds} with {self.num_sampled} of {self.num_clients} clients each"


def library_missing() -> str | None:
    """Return what to install where the accountant is missing."""
    if importlib.util.find_spec("dp_accounting") is not None:
        return None
    return Fault("dp-accounting", "be installed, which computes (ε, δ)", hint="pip install 'fedscout[privacy]'")


def default_delta(num_clients: int) -> float:
    """Return n^−1.1, the usual choice: δ must be well below 1/n, which giving one client away would cost."""
    return float(max(num_clients, 2) ** -1.1)


@lru_cache(maxsize=64)
def epsilon_of(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε, at least 0; infinite without noise.

    Args:
        noise_multiplier: z, at least 0.
        sampling: Who trained how often.
        delta: In `(0, 1)`.
    """
    if noise_multiplier == 0:
        return math.inf
    return min(_everybody(noise_multiplier, sampling, delta), _drawn(noise_multiplier, sampling, delta))


@lru_cache(maxsize=64)
def noise_for(epsilon: float, sampling: Sampling, delta: float) -> float:
    """Return the noise multiplier that takes ε to `epsilon` or just below; at least `LEAST_NOISE`.

    Returns:
        Infinity if `MOST_NOISE` does not suffice.
    """
    library = _library()
    if epsilon_of(LEAST_NOISE, sampling, delta) <= epsilon:
        return LEAST_NOISE
    found = 2 * math.sqrt(sampling.num_rounds) * float(library.get_sigma_gaussian(epsilon, delta))
    if _drawn(MOST_NOISE, sampling, delta) < epsilon:
        logarithm = library.calibrate_dp_mechanism(
            _accountant,
            lambda logarithm: _rounds(math.exp(logarithm), sampling),
            epsilon,
            delta,
            library.ExplicitBracketInterval(math.log(LEAST_NOISE), math.log(MOST_NOISE)),
            tol=_TOLERANCE,
        )
        found = min(found, math.exp(logarithm))
    found *= 1 + 2 * _TOLERANCE  # never less than what was asked for
    return found if found <= MOST_NOISE else math.inf


def _everybody(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε as if every client trained in every round."""
    library = _library()
    return float(library.get_epsilon_gaussian(noise_multiplier / 2 / math.sqrt(sampling.num_rounds), delta))


def _drawn(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Return ε under sampling without replacement; infinite where nobody is left out."""
    if sampling.num_sampled == sampling.num_clients:
        return math.inf
    accountant = _accountant()
    accountant.compose(_rounds(noise_multiplier, sampling))
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    """Return dp-accounting.

    What it imports makes random generators without seeds; a trial that watches for those shall not think of a strategy.
    """
    with unseeded_generators():
        import dp_accounting
        import dp_accounting.rdp
    return dp_accounting


def _accountant() -> Any:
    library = _library()
    return library.rdp.RdpAccountant(_ORDERS, library.NeighboringRelation.REPLACE_ONE)


def _rounds(noise_multiplier: float, sampling: Sampling) -> Any:
    """Return all rounds as the accountant's event. Its multiplier is that of the sensitivity, 2C, so half of z."""
    library = _library()
    noise = library.GaussianDpEvent(noise_multiplier / 2)
    drawn = library.SampledWithoutReplacementDpEvent(sampling.num_clients, sampling.num_sampled, noise)
    return library.SelfComposedDpEvent(drawn, sampling.num_rounds)
