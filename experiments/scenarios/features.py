"""Effects on features, compression of pictures, and attacks on updates.

Effects on features: Gaussian noise, another scale, and features that carry nothing.

Noise is independent on every number of every row, in units of the standardised feature. A feature that is dropped is a
place in a row: a column of a table, one number of an image or of an embedding, a position of a token sequence. It is
the same in all of a client's rows, and each client has its own. It is set to zero, which is the mean of a standardised
column, black in an image and padding among tokens; or to the client's own mean, as of a sensor that got stuck.

Another scale is that of a sensor with another gain: every number of every row times one factor.

A client's pictures went through JPEG: they lose what the eye hardly sees, which is a skew of features all the same.

ITU-T Recommendation T.81 | ISO/IEC 10918-1, "Digital compression and coding of continuous-tone still images", 1992: the
cosine transform of each block of 8 × 8 pixels is divided by a table and rounded. `quality` scales the example tables of
its Annex K as the Independent JPEG Group's library does, by 50 / quality below 50 and by 2 - quality / 50 from there
on: at 100 nothing but rounding is lost, at 1 of most blocks the mean alone is left. Written and read by Pillow; colour
is stored at half the resolution, as is usual (4:2:0).

Pixels are rounded to 8 bits and cut to `[0, 1]` beforehand, which alters what another effect has moved outside of it.
No random numbers are drawn.

Effects on what a client sends up: model poisoning. Data, training, losses and scores stay those of an honest client.

With x the received model and y the one that the client trained, both over trainable parameters:

- `sign_flip` sends x − c (y − x): the update turned round. L. Li, W. Xu, T. Chen, G. B. Giannakis and Q. Ling, "RSA:
  Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous Datasets", AAAI 2019,
  turn the true value itself, with c = 4; here it is the update, which for gradients is the same.
- `scaled_update` sends x + c (y − x): E. Bagdasaryan, A. Veit, Y. Hua, D. Estrin and V. Shmatikov, "How To Backdoor
  Federated Learning", AISTATS 2020, arXiv:1807.00459, eq. 3, where c = n/η makes the mean the attacker's model. On
  honest data it overshoots; behind `poisoning` it is the model replacement of the paper.
- `gaussian_update` sends x + N(0, σ²) on every parameter: P. Blanchard, E. M. El Mhamdi, R. Guerraoui and J. Stainer,
  "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017, arXiv:1703.02757, whose gradients
  had σ = 200. Here σ is in the unit of the parameters, of which most are below 1.
- `little_is_enough`: all attackers of the effect send mean − z · deviation of every parameter, over the models that
  they trained themselves, uniformly and with the deviation of the population as in the authors' code: G. Baruch, M.
  Baruch and Y. Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019,
  arXiv:1902.06156. It is the paper's attacker that is not omniscient: honest clients' updates are unknown to it, and
  taken to be like the attackers' own. Deviations: over models in place of gradients, which turns the side to which it
  drifts; and attackers train for each other also in rounds for which the server did not choose them. With n clients
  and m attackers, the paper's largest z that is still in the crowd is Φ⁻¹((n − m − s)/(n − m)), s = ⌊n/2 + 1⌋ − m; the
  default is the 1.5 of its experiments. One attacker alone is honest.

A client that several attacks name sends what the last one makes of what the one before it sent.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import AttackInputs
from fedscout.experiments.data.images import LARGEST_PIXEL, PixelArray, unit_pixels
from fedscout.experiments.scenarios.base import EffectRequest, ScenarioEffect, ScenarioPlan, with_rows

FillValue = Literal["zero", "mean"]


@dataclass(frozen=True)
class FeatureNoise:
    """Adds independent Gaussian noise to every number of every row.

    Attributes:
        mean: In the scale of the stored features.
        deviation: Standard deviation, in the same scale, >= 0.
    """

    mean: float
    deviation: float

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return noisy features and the same labels."""
        noise = generator.standard_normal(features.shape, dtype=np.float32)
        noise *= np.float32(self.deviation)
        noise += np.float32(self.mean)
        return features + noise, labels.copy()


@dataclass(frozen=True)
class FeatureDrop:
    """Sets the same features of all rows to a constant.

    Attributes:
        num_dropped: How many, drawn without replacement.
        value: Zero, or the mean over the rows.
    """

    num_dropped: int
    value: FillValue = "zero"

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return features without those drawn, and the same labels."""
        kept = features.copy()
        flat = kept.reshape(len(kept), prod(kept.shape[1:]))
        dropped = generator.permutation(flat.shape[1])[: self.num_dropped]
        if self.value == "zero" or not len(flat):
            flat[:, dropped] = 0
        else:
            flat[:, dropped] = flat[:, dropped].mean(axis=0, dtype=np.float64).astype(np.float32)
        return kept, labels.copy()


@dataclass(frozen=True)
class FeatureScale:
    """Multiplies every number of every row.

    Attributes:
        factor: > 0; 1 changes nothing.
    """

    factor: float

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return scaled features and the same labels."""
        return features * np.float32(self.factor), labels.copy()


class FeatureNoiseEffect(ScenarioEffect):
    """Gaussian noise on every feature of every row."""

    needs_measurements: ClassVar[bool] = True

    kind: Literal["feature_noise"] = "feature_noise"
    mean: float = Field(default=0.0, description="in standard deviations of a feature")
    std: float = Field(ge=0, description="standard deviation, in the same unit")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the noise, the same parameters for all clients."""
        noise = FeatureNoise(self.mean * request.feature_unit, self.std * request.feature_unit)
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (noise,)),
            affected_clients=with_rows(clients, request) if self.mean or self.std else (),
            facts={"mean": self.mean, "std": self.std, "feature_unit": request.feature_unit},
        )


class FeatureDropEffect(ScenarioEffect):
    """The same features of all of a client's rows carry nothing; which ones, is drawn for each client."""

    kind: Literal["feature_drop"] = "feature_drop"
    share: float = Field(ge=0, le=1, description="part of the features")
    value: FillValue = Field(default="zero", description="zero, or mean: the client's own; tokens: padding, by zero")

    def faults(self, request: EffectRequest) -> list[str]:
        """Return what does not fit the federation; each fault begins with the key."""
        found = super().faults(request)
        if self.value == "mean" and request.data_kind == "tokens":
            found.append("value must be zero for tokens, which is padding, got 'mean': words have no mean")
        return found

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's loss."""
        drop = FeatureDrop(round(self.share * request.num_features), self.value)
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (drop,)),
            affected_clients=with_rows(clients, request) if drop.num_dropped else (),
            facts={"dropped_features": drop.num_dropped, "features": request.num_features, "value": self.value},
        )


class FeatureScaleEffect(ScenarioEffect):
    """Every feature of every row times a factor, as from a sensor with another gain."""

    needs_measurements: ClassVar[bool] = True

    kind: Literal["feature_scale"] = "feature_scale"
    factor: float = Field(gt=0, description="1 changes nothing")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the factor, the same for all clients."""
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (FeatureScale(self.factor),)),
            affected_clients=with_rows(clients, request) if self.factor != 1 else (),
            facts={"factor": self.factor},
        )


GREY, COLOUR = 1, 3
SUBSAMPLING = "4:2:0"


@dataclass(frozen=True)
class JpegCompression:
    """Writes every picture as JPEG and reads it again.

    Attributes:
        quality: 1 to 100, less loses more.
    """

    quality: int

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return pictures of the same shape `(num_rows, channels, height, width)` in `[0, 1]`, and the same labels."""
        pixels = np.rint(np.clip(features, 0, 1) * LARGEST_PIXEL).astype(np.uint8)
        for row, picture in enumerate(pixels):
            pixels[row] = _compressed(picture, self.quality)
        return unit_pixels(pixels), labels.copy()


def _compressed(picture: PixelArray, quality: int) -> PixelArray:
    from PIL import Image

    grey = len(picture) == GREY
    file = io.BytesIO()
    shown = Image.fromarray(picture[0] if grey else np.ascontiguousarray(np.moveaxis(picture, 0, -1)))
    shown.save(file, "JPEG", quality=quality, **({} if grey else {"subsampling": SUBSAMPLING}))
    with Image.open(file) as read:
        pixels: PixelArray = np.asarray(read, dtype=np.uint8)
    return pixels[None] if grey else np.moveaxis(pixels, -1, 0)


class JpegEffect(ScenarioEffect):
    """Pictures that were compressed by JPEG, as by another camera or archive."""

    kind: Literal["jpeg"] = "jpeg"
    quality: int = Field(ge=1, le=100, description="of the files, less loses more; 75 is usual, 100 loses little")

    def faults(self, request: EffectRequest) -> list[str]:
        """Return what does not fit the federation; each fault begins with the key."""
        found = super().faults(request)
        channels = request.feature_shape[0]
        if request.data_kind != "image":
            found.append(f"kind must be jpeg for pictures alone, got rows that are {request.data_kind}")
        elif channels not in {GREY, COLOUR}:
            found.append(f"kind must be jpeg for grey pictures and those of three colours, got {channels} channels")
        return found

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the compression, the same for all clients."""
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (JpegCompression(self.quality),)),
            affected_clients=with_rows(clients, request),
            facts={"quality": self.quality},
        )


@dataclass(frozen=True)
class ScaledUpdate:
    """Sends the update at another length, x + factor (y − x).

    Attributes:
        factor: 1 sends y to the last bit; below 0 the update is turned round.
    """

    accomplices: ClassVar[tuple[int, ...]] = ()
    factor: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters that are sent, rounded once."""
        exact = inputs.trained.astype(np.float64)
        # the same as x + factor (y − x), and y itself where the factor is 1
        exact += (self.factor - 1) * (exact - inputs.received)
        return exact.astype(np.float32)


@dataclass(frozen=True)
class GaussianUpdate:
    """Sends the received model with noise in place of an update.

    Attributes:
        deviation: Standard deviation of the noise on every parameter, >= 0; 0 sends what was received.
    """

    accomplices: ClassVar[tuple[int, ...]] = ()
    deviation: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters that are sent."""
        noise = inputs.generator.standard_normal(inputs.received.shape, dtype=np.float32)
        noise *= np.float32(self.deviation)
        noise += inputs.received
        return noise


@dataclass(frozen=True)
class LittleIsEnough:
    """Sends, of every parameter, the mean over all accomplices less some of their standard deviations.

    Attributes:
        accomplices: All attackers, this one among them, ascending.
        z: How many, >= 0.
    """

    accomplices: tuple[int, ...]
    z: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters that are sent, the same for all accomplices, rounded once."""
        models = inputs.accomplices.astype(np.float64)
        sent: FloatArray = (models.mean(axis=0) - self.z * models.std(axis=0)).astype(np.float32)
        return sent


class SignFlipEffect(ScenarioEffect):
    """An attacker sends its update turned round: x - factor (y - x) for a received model x and a trained model y."""

    kind: Literal["sign_flip"] = "sign_flip"
    factor: float = Field(default=1.0, gt=0, description="how many times as long as the honest update")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same for all clients."""
        return ScenarioPlan(
            attacks=dict.fromkeys(clients, (ScaledUpdate(-self.factor),)),
            affected_clients=with_rows(clients, request),
            facts={"factor": self.factor},
        )


class ScaledUpdateEffect(ScenarioEffect):
    """An attacker sends its update at another length: x + factor (y - x)."""

    kind: Literal["scaled_update"] = "scaled_update"
    factor: float = Field(default=10.0, gt=0, description="how many times as long; 1 is honest")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same for all clients."""
        return ScenarioPlan(
            attacks=dict.fromkeys(clients, (ScaledUpdate(self.factor),)),
            affected_clients=with_rows(clients, request) if self.factor != 1 else (),
            facts={"factor": self.factor},
        )


class GaussianUpdateEffect(ScenarioEffect):
    """An attacker sends the received model with Gaussian noise on every parameter, in place of what it trained."""

    kind: Literal["gaussian_update"] = "gaussian_update"
    std: float = Field(
        default=1.0, ge=0, description="standard deviation, in the unit of the parameters; 0 sends what was received"
    )

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same parameters for all clients."""
        return ScenarioPlan(
            attacks=dict.fromkeys(clients, (GaussianUpdate(self.std),)),
            affected_clients=with_rows(clients, request),
            facts={"std": self.std},
        )


class LittleIsEnoughEffect(ScenarioEffect):
    """Attackers who know each other's models all send their mean less z standard deviations, parameter by parameter."""

    kind: Literal["little_is_enough"] = "little_is_enough"
    z: float = Field(default=1.5, ge=0, description="how many standard deviations over the attackers' own models")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same for all clients."""
        attackers = with_rows(clients, request)
        return ScenarioPlan(
            attacks=dict.fromkeys(clients, (LittleIsEnough(clients, self.z),)),
            affected_clients=attackers if len(attackers) > 1 else (),
            facts={"z": self.z},
        )
