"""Differential privacy of clients' counts and sums: local noise added before anything leaves the client.

With `epsilon` a client releases its label counts and the sums of its clipped features by mechanisms that are
(ε, δ)-differentially private under the exchange of one row (C. Dwork and A. Roth. The algorithmic foundations of
differential privacy. Foundations and Trends in Theoretical Computer Science 9, 2014), with half of ε for each:

- Label counts: exchanging a row changes two counts by one, so the L1 sensitivity is 2; integer Laplace noise of scale
  4/ε.
- Sums: each feature x is clipped to [−B, B]. Σx/(2B) and Σx²/B² of a feature change by at most 1 each, so over d
  features the L2 sensitivity is √(2d); Gaussian noise.

The number of rows is not protected (it is part of every reply), nor are the models that the outlier detector compares.
No other aggregates are queried: no cross-products, per-class sums, histograms, outputs or agreement.

Noise scales come from OpenDP (M. Gaboardi, M. Hay, S. Vadhan. A programming framework for OpenDP. 2020), which proves
them for floating-point arithmetic. There are two sources of noise:

- `secure` draws it with OpenDP from the operating system. It is not reproducible, so two detections differ.
- `seeded` draws noise of the same distribution from the study's seed and the client's rows, so that a simulation is
  reproducible. Anyone who has the seed can remove the noise: it shows the effect of privacy and provides none.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.detectors.report import DetectionConfig
from fedscout.detectors.statistics import flat_features
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, NoisyAggregate, Privacy, QueryInputs
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.seeds import integer, stream


def noise_terms(settings: DetectionConfig, seed: int) -> dict[str, int | float | str | bool]:
    """Return the message configuration of the noise that clients add; requires an epsilon."""
    assert settings.epsilon is not None
    return {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "clip": settings.clip,
        "noise": settings.noise,
        "noise_seed": integer(seed, "privacy-noise"),
    }


def check_library() -> None:
    """Check that OpenDP is installed.

    Raises:
        ConfigurationError: If not.
    """
    if importlib.util.find_spec("opendp") is None:
        raise ConfigurationError.of(
            "detection.epsilon",
            "be left out unless OpenDP, which calibrates the noise, is installed: pip install 'fedscout[privacy]'",
        )


def _opendp() -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp


def _laplace(scale: float) -> Any:
    """Return OpenDP's mechanism that adds integer Laplace noise to a vector."""
    dp = _opendp()
    return dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=scale)


def _gaussian(deviation: float) -> Any:
    """Return OpenDP's mechanism that adds Gaussian noise to a vector."""
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    return dp.m.make_gaussian(*space, scale=deviation)


@lru_cache(maxsize=16)
def counts_scale(epsilon: float) -> float:
    """Return the scale of the integer Laplace noise on label counts, for half of ε."""
    return float(_opendp().binary_search_param(_laplace, d_in=2, d_out=epsilon / 2))


@lru_cache(maxsize=16)
def sums_deviation(epsilon: float, delta: float, num_features: int) -> float:
    """Return the standard deviation of the Gaussian noise on Σx/(2B) and Σx²/B², for half of ε."""
    dp = _opendp()

    def mechanism(deviation: float) -> Any:
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(_gaussian(deviation)), delta)

    sensitivity = float(np.sqrt(2 * num_features))
    return float(dp.binary_search_param(mechanism, d_in=sensitivity, d_out=(epsilon / 2, delta), T=float))


def private_counts(inputs: QueryInputs) -> Answer:
    """Client half: return `counts`, noisy label counts of shape `(num_classes,)`; they may be negative."""
    counts = inputs.data.label_counts(inputs.num_classes)
    privacy = _requested_privacy(inputs, delta=0.0)
    scale = counts_scale(privacy.epsilon)
    if privacy.secure:
        noisy = np.array(_laplace(scale)(counts.tolist()), dtype=np.int64)
    else:
        noisy = counts + integer_laplace(scale, counts.shape, _generator(inputs, "private_counts"))
    return {"counts": NoisyAggregate(noisy, privacy)}


def integer_laplace(scale: float, shape: tuple[int, ...], generator: np.random.Generator) -> IntArray:
    """Return noise with P(z) proportional to exp(−|z| / scale): the difference of two geometric numbers."""
    stop = -np.expm1(-1 / scale)
    return np.asarray(generator.geometric(stop, shape) - generator.geometric(stop, shape), dtype=np.int64)


def private_sums(inputs: QueryInputs) -> Answer:
    """Client half: return noisy `sum` and `squares` of the clipped features, shape `(d,)` each."""
    clip = float(inputs.config["clip"])
    totals = None
    for features, _ in inputs.data.chunks():
        clipped = np.clip(flat_features(features), -clip, clip)
        part = np.stack([clipped.sum(axis=0) / (2 * clip), (clipped**2).sum(axis=0) / clip**2])
        totals = part if totals is None else totals + part
    assert totals is not None, "a client that answers holds rows"
    privacy = _requested_privacy(inputs, delta=float(inputs.config["delta"]))
    deviation = sums_deviation(privacy.epsilon, privacy.delta, totals.shape[1])
    if privacy.secure:
        noisy = np.array(_gaussian(deviation)(totals.reshape(-1).tolist())).reshape(totals.shape)
    else:
        noisy = totals + deviation * _generator(inputs, "private_sums").standard_normal(totals.shape)
    return {"sum": NoisyAggregate(noisy[0] * 2 * clip, privacy), "squares": NoisyAggregate(noisy[1] * clip**2, privacy)}


def _requested_privacy(inputs: QueryInputs, delta: float) -> Privacy:
    """Return the privacy parameters of a message.

    Raises:
        ValueError: If they are invalid; the search for the noise scale would take seconds to fail.
    """
    privacy = Privacy(float(inputs.config["epsilon"]), delta, inputs.config["noise"] == "secure")
    if not (privacy.epsilon > 0 and 0 <= privacy.delta < 1):
        raise ValueError(f"epsilon must be > 0 and delta in [0, 1), got {privacy.epsilon} and {privacy.delta}")
    return privacy


def _generator(inputs: QueryInputs, purpose: str) -> np.random.Generator:
    """Return a random stream derived from the message's seed and the client's rows, as a query has no client index.

    The rows enter as the sum of their values' bits, which does not depend on their order.
    """
    bits = 0
    for features, labels in inputs.data.chunks():
        stored = np.ascontiguousarray(features, dtype=np.float32).view(np.uint32)
        bits += int(stored.sum(dtype=np.uint64)) + int(labels.sum())
    return stream(int(inputs.config["noise_seed"]), purpose, bits % 2**63)


def plausible_counts(
    noisy: npt.NDArray[np.integer] | npt.NDArray[np.floating], num_rows: npt.NDArray[np.integer]
) -> IntArray:
    """Return non-negative integer counts that add up to the numbers of rows, in the nearest proportions.

    Args:
        noisy: Noisy counts or target proportions, shape `(..., classes)`.
        num_rows: Shape `(...)`.
    """
    positive = np.maximum(noisy, 0).astype(np.float64)
    positive[positive.sum(axis=-1) == 0] = 1.0  # nothing is left of them: any class alike
    expected = positive / positive.sum(axis=-1, keepdims=True) * num_rows[..., None]
    whole = np.floor(expected).astype(np.int64)
    missing = num_rows - whole.sum(axis=-1)
    order = np.argsort(-(expected - whole), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    return np.asarray(whole + (rank < missing[..., None]), dtype=np.int64)
