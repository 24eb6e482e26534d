"""Interface of effects; effects on availability, devices, features and images, and attacks on model updates.

An effect is an immutable value, discriminated by `kind`. Random numbers drawn at planning time, such as the affected
clients, come from a stream keyed by (seed, kind, number of preceding effects of this kind). So another effect in the
list changes neither which clients this one affects nor how much. Random numbers of a client's corruption come from the
engine, keyed by client and position among the client's transforms.

An effect selects clients by index, a share of all, or all. A share is drawn by seed: the first clients of a random
order. So a larger share includes the clients of a smaller one, and a study over shares adds clients without exchanging
them.

`latency`: a shift plus an exponential time, in simulated seconds: the usual model of a slow worker (K. Lee, M. Lam, R.
Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64 (3), 2018). With `per_row` both times are per row that the client holds, as in X.
Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024.

`dropout`: rounds are missed independently of other rounds and clients.

`devices`: speeds and bandwidths of clients, equal for all, log-normally distributed, or by device classes with shares.
A client's round then takes its number of steps times the seconds per step, the transfer times of what it receives and
sends at its bandwidths, and its latency (`fedscout.engine.data.federation`). With `sigma` σ > 0 each client's value is
the given one times e^{σz}, z standard normal and drawn for each value and client, so the given one is the median. Each
class has its share of the clients, rounded, and its members are drawn.

If several effects set the same value of a client, the last one applies; `latency` overrides `latency_seconds`.

`feature_noise`: independent Gaussian noise on every value of every row, in units of the standardised feature.

`feature_drop`: the dropped features are positions in a row: columns of a table, values of an image, positions of a
token sequence. They are the same in all rows of a client, and drawn for each client. They are set to zero, which is the
mean of a standardised column, black in an image and padding among tokens.

`feature_scale`: a sensor with another gain: every value of every row is multiplied by one factor.

`jpeg`: a client's images are compressed by JPEG, a feature skew that is hardly visible. ITU-T Recommendation T.81 |
ISO/IEC 10918-1, "Digital compression and coding of continuous-tone still images", 1992: the cosine transform of each
block of 8 × 8 pixels is divided by a table and rounded. `quality` scales the example tables of its Annex K as the
Independent JPEG Group's library does, by 50 / quality below 50 and by 2 - quality / 50 from there on: at 100 only
rounding errors occur, at 1 only the mean of most blocks remains. Written and read by Pillow; colour is stored at half
the resolution, as is usual (4:2:0). Pixels are rounded to 8 bits and clipped to `[0, 1]` first, which changes values
that another effect has moved outside this range. No random numbers are drawn.

The attacks change the update that a client sends: model poisoning. Data, training, losses and scores remain those of an
honest client. With x the received model and y the one that the client trained, both over trainable parameters:

- `sign_flip` sends x − c (y − x), the reversed update. L. Li, W. Xu, T. Chen, G. B. Giannakis and Q. Ling, "RSA:
  Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous Datasets", AAAI
  2019, flip the sign of the true value itself, with c = 4; here it is the update, which for gradients is the
  same.
- `scaled_update` sends x + c (y − x): E. Bagdasaryan, A. Veit, Y. Hua, D. Estrin and V. Shmatikov, "How To
  Backdoor Federated Learning", AISTATS 2020, arXiv:1807.00459, eq. 3, where c = n/η makes the mean the attacker's
  model. On honest data it overshoots; after `poisoning` it is the model replacement of the paper.
- `gaussian_update` sends x + N(0, σ²) on every parameter: P. Blanchard, E. M. El Mhamdi, R. Guerraoui and J.
  Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017, arXiv:1703.02757,
  whose gradients had σ = 200. Here σ is in the unit of the parameters, most of which are below 1.
- `little_is_enough`: all attackers of the effect send mean − z · deviation of every parameter, over the models
  that they trained themselves, unweighted and with the population standard deviation as in the authors' code: G.
  Baruch, M. Baruch and Y. Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
  NeurIPS 2019, arXiv:1902.06156. It is the paper's non-omniscient attacker: it has no access to honest clients'
  updates and assumes them to be distributed like the attackers' own. Deviations: statistics are over models
  instead of gradients, which reverses the direction of the drift; and attackers train for each other even in
  rounds in which the server did not select them. With n clients and m attackers, the paper's largest z that
  remains undetected is Φ⁻¹((n − m − s)/(n − m)), s = ⌊n/2 + 1⌋ − m; the default is the 1.5 of its experiments. A
  single attacker is honest.

If several attacks select a client, each is applied to the result of the preceding one.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import AttackInputs, UpdateAttack
from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.data.federation import Device
from fedscout.engine.errors import Fault
from fedscout.engine.seeds import stream
from fedscout.experiments.data.dataset import LARGEST_PIXEL, DataKind, PixelArray, unit_pixels

SHARE_EXAMPLE = 0.3


def _validated_choice(value: Any) -> Any:
    """Return the client choice in its stored form, with indices ascending."""
    if value is None or value == "all":
        return value
    if isinstance(value, float) and 0 < value <= 1:
        return value
    if isinstance(value, list | tuple) and value and all(type(index) is int and index >= 0 for index in value):
        if len(set(value)) == len(value):
            return tuple(sorted(value))
        raise ValueError(f"must name each client once, got {list(value)}")
    received = list(value) if isinstance(value, tuple) else value
    hint = ""
    if type(value) is int:
        hint = f"; write [{value}] for client {value}" if value != 1 else "; write [1] for client 1, all for all"
    raise ValueError(
        f"must be a list of client indices, such as [2], a share above 0 and up to 1.0, such as {SHARE_EXAMPLE}, or "
        f"all, got {received!r}{hint}"
    )


ClientChoice = Annotated[tuple[int, ...] | float | Literal["all"] | None, BeforeValidator(_validated_choice)]


@dataclass(frozen=True)
class EffectRequest:
    """The federation to which an effect is applied.

    Attributes:
        partition: Rows of each client.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Number of classes, >= 2.
        feature_shape: Shape of one row's features.
        seed: Seed of the federation.
        data_kind: Type of a row.
        feature_unit: One standard deviation of a feature in the stored scale.
        occurrence: Number of preceding effects of the same kind.
        predicts_quantity: Whether the task is regression, with labels that are deciles of the target.
        has_rows: Whether clients hold rows, rather than generate episodes.
    """

    partition: Partition
    labels: IntArray
    num_classes: int
    feature_shape: tuple[int, ...]
    seed: int
    data_kind: DataKind = "table"
    feature_unit: float = 1.0
    occurrence: int = 0
    predicts_quantity: bool = False
    has_rows: bool = True

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.partition.num_clients

    @property
    def num_features(self) -> int:
        """Number of values in one row."""
        return prod(self.feature_shape)

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a random generator specific to this effect."""
        return stream(self.seed, f"scenario {purpose}", self.occurrence, *indices)

    def with_rows(self, clients: tuple[int, ...]) -> tuple[int, ...]:
        """Return the clients that hold any rows."""
        sizes = self.partition.sizes
        return tuple(client for client in clients if sizes[client])


@dataclass(frozen=True)
class ScenarioPlan:
    """Outcome of one effect, or of several in sequence.

    Attributes:
        transforms: Corruption of a client's local data, applied in order.
        affected_clients: Clients whose data or updates it changes.
        dropout: For clients that may miss rounds, the probability in `[0, 1)` of missing one.
        timings: For clients whose rounds take simulated time, the fields of their `Device` that are set.
        attacks: Attacks on the update that a client sends, in order.
        partition: New partition, in which each client has as many rows as before; None if unchanged.
        facts: Facts to record.
    """

    transforms: Mapping[int, tuple[ClientTransform, ...]] = field(default_factory=dict)
    affected_clients: tuple[int, ...] = ()
    dropout: Mapping[int, float] = field(default_factory=dict)
    timings: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    attacks: Mapping[int, tuple[UpdateAttack, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    partition: Partition | None = None

    @property
    def devices(self) -> dict[int, Device]:
        """Device of each client whose rounds take simulated time."""
        return {client: Device(**fields) for client, fields in self.timings.items()}


class ScenarioEffect(BaseModel):
    """Effect on some clients. The first line of a subclass's docstring describes it to users."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    needs: ClassVar[frozenset[str]] = frozenset()
    """What clients must hold: `rows`, `measurements` (which tokens are not) or, to change labels, `classes`."""

    changes_partition: ClassVar[bool] = False
    """Whether rows move between clients; this precedes every corruption."""

    takes_time: ClassVar[bool] = False
    """Whether it simulates durations of the clients' rounds."""

    kind: str
    clients: ClientChoice = Field(
        default=None,
        description=(
            "affected clients: indices such as [2], a fraction such as 0.3 drawn by seed, or all; [2] by default"
        ),
    )

    def faults(self, request: EffectRequest) -> list[Fault]:
        """Return what is incompatible with the federation, by the effect's keys."""
        faults = []
        if isinstance(self.clients, tuple) and self.clients[-1] >= request.num_clients:
            outside = [client for client in self.clients if client >= request.num_clients]
            must = f"be below the number of clients, {request.num_clients}"
            faults.append(Fault("clients", must, ", ".join(map(str, outside)), "they are counted from 0"))
        if self.needs and not request.has_rows:
            hint = "latency, devices, dropout and attacks on updates without colluders need none"
            return [*faults, Fault("kind", f"not be {self.kind}, as clients hold no rows", hint=hint)]
        if "classes" in self.needs and request.predicts_quantity:
            faults.append(Fault("kind", f"not be {self.kind} for regression, as it changes classes"))
        if "measurements" in self.needs and request.data_kind == "tokens":
            must = f"not be {self.kind} for tokens, as it would change them into other words or characters"
            hint = "label_flip, poisoning, feature_drop and concept_shift work on tokens"
            faults.append(Fault("kind", must, hint=hint))
        return faults

    def chosen(self, request: EffectRequest) -> tuple[int, ...]:
        """Return the clients selected by the effect, ascending.

        Without a choice it is the affected client of published scenarios, the third, or the last if there are fewer.
        """
        num_clients = request.num_clients
        match self.clients:
            case None:
                return (min(2, num_clients - 1),)
            case float() as share:
                order = request.stream(f"{self.kind} clients").permutation(num_clients)
                return tuple(sorted(order[: max(1, round(share * num_clients))].tolist()))
            case tuple() as indices:
                return indices
        return tuple(range(num_clients))

    @abstractmethod
    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the plan for the selected clients of a federation without faults."""

    def same_for_all(
        self,
        clients: tuple[int, ...],
        request: EffectRequest,
        facts: Mapping[str, Any],
        *,
        transforms: tuple[ClientTransform, ...] = (),
        attack: UpdateAttack | None = None,
        changes: bool = True,
    ) -> ScenarioPlan:
        """Return the plan that applies the same transforms or attack to all clients.

        Args:
            clients: The selected clients.
            request: The federation.
            facts: Facts to record.
            transforms: Corruption of their rows, in order.
            attack: Attack on their updates, or None.
            changes: Whether it changes anything; if so, clients with rows are affected.
        """
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, transforms) if transforms else {},
            attacks={} if attack is None else dict.fromkeys(clients, (attack,)),
            affected_clients=request.with_rows(clients) if changes else (),
            facts=facts,
        )


class LatencyEffect(ScenarioEffect):
    """Client latency: a fixed and a random time per round, in simulated seconds; the last such effect applies."""

    takes_time: ClassVar[bool] = True

    kind: Literal["latency"] = "latency"
    shift_seconds: float = Field(default=0.0, ge=0, description="shortest duration of a round")
    mean_seconds: float = Field(ge=0, description="mean of the exponential time added to it")
    per_row: bool = Field(default=False, description="whether both times are per row of the client")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the times of each client."""
        sizes = request.partition.sizes
        timings = {}
        for client in clients:
            scale = int(sizes[client]) if self.per_row else 1
            timings[client] = {"shift_seconds": self.shift_seconds * scale, "mean_seconds": self.mean_seconds * scale}
        facts = {name: [fields[name] for fields in timings.values()] for name in ("shift_seconds", "mean_seconds")}
        return ScenarioPlan(timings=timings, facts=facts)


class DropoutEffect(ScenarioEffect):
    """Client dropout: a client misses rounds at random; the last such effect applies."""

    kind: Literal["dropout"] = "dropout"
    probability: float = Field(ge=0, lt=1, description="probability that the client misses a round")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the dropout probability of each client."""
        return ScenarioPlan(dropout=dict.fromkeys(clients, self.probability), facts={"probability": self.probability})


FIELDS = {
    "seconds_per_step": "seconds_per_step",
    "bytes_per_second_down": "bytes_per_second_down",
    "bytes_per_second_up": "bytes_per_second_up",
    "latency_seconds": "shift_seconds",
}
"""Fields of a `Device` by their configuration keys."""


class DeviceClass(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A class of devices; values that are not set are unchanged."""

    share: float = Field(gt=0, le=1, description="fraction of the clients; all fractions add up to 1")
    seconds_per_step: float | None = Field(default=None, ge=0)
    bytes_per_second_down: float | None = Field(default=None, gt=0)
    bytes_per_second_up: float | None = Field(default=None, gt=0)
    latency_seconds: float | None = Field(default=None, ge=0)


class DevicesEffect(ScenarioEffect):
    """Device speed: simulated seconds per step and bandwidths of a client; for each value the last effect applies."""

    takes_time: ClassVar[bool] = True

    kind: Literal["devices"] = "devices"
    seconds_per_step: float | None = Field(default=None, ge=0, description="duration of an optimizer step")
    bytes_per_second_down: float | None = Field(default=None, gt=0, description="bandwidth from the server")
    bytes_per_second_up: float | None = Field(default=None, gt=0, description="bandwidth to the server")
    latency_seconds: float | None = Field(default=None, ge=0, description="additional duration of every round")
    sigma: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description=(
            "if above 0, values are medians of log-normal distributions with this standard deviation of the logarithm"
        ),
    )
    classes: tuple[DeviceClass, ...] | None = Field(
        default=None, description="instead of values: device classes, such as [{share: 0.5, seconds_per_step: 0.1}, …]"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        values = [name for name in FIELDS if getattr(self, name) is not None]
        if bool(values) == bool(self.classes):
            received = "both" if values else "neither"
            raise ValueError(f"must give either values ({', '.join(FIELDS)}) or classes, got {received}")
        if self.sigma and self.classes:
            raise ValueError(f"sigma must be left out where classes is given, got {self.sigma:g}")
        total = sum(device_class.share for device_class in self.classes or ())
        if self.classes and abs(total - 1) > 1e-6:
            raise ValueError(f"classes must have shares that add up to 1, got {total:g}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the device of each client."""
        if self.classes is not None:
            values_by_client = self._values_by_class(self.classes, clients, request)
        else:
            values_by_client = {client: self._drawn(client, request) for client in clients}
        timings = {
            client: {FIELDS[name]: value for name, value in values_by_client[client].items()} for client in clients
        }
        return ScenarioPlan(timings=timings, facts={"devices": [values_by_client[client] for client in clients]})

    def _drawn(self, client: int, request: EffectRequest) -> dict[str, float]:
        """Return a client's values: the configured ones, or log-normal ones with these medians."""
        factors = np.exp(self.sigma * request.stream("device values", client).standard_normal(len(FIELDS)))
        values = zip(FIELDS, (getattr(self, name) for name in FIELDS), factors.tolist(), strict=True)
        return {name: value * factor for name, value, factor in values if value is not None}

    def _values_by_class(
        self, classes: tuple[DeviceClass, ...], clients: tuple[int, ...], request: EffectRequest
    ) -> dict[int, dict[str, float]]:
        """Return each client's values: those of its class."""
        order = request.stream("device classes").permutation(clients)
        ends = np.rint(np.cumsum([device_class.share for device_class in classes]) * len(clients)).astype(np.int64)
        values_by_client: dict[int, dict[str, float]] = {}
        for device_class, members in zip(classes, np.split(order, ends[:-1]), strict=True):
            values = device_class.model_dump(exclude={"share"}, exclude_none=True)
            values_by_client |= dict.fromkeys(members.tolist(), values)
        return values_by_client


class FeatureTransform:
    """Changes the features of a client's rows and keeps their labels."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return changed features and the same labels."""
        return self.changed(features, generator), labels.copy()

    @abstractmethod
    def changed(self, features: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Return new features of the same shape."""


@dataclass(frozen=True)
class FeatureNoise(FeatureTransform):
    """Adds independent Gaussian noise to every value of every row.

    Attributes:
        mean: Mean in the scale of the stored features.
        deviation: Standard deviation, in the same scale, >= 0.
    """

    mean: float
    deviation: float

    def changed(self, features: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Return noisy features."""
        noise = generator.standard_normal(features.shape, dtype=np.float32)
        noise *= np.float32(self.deviation)
        noise += np.float32(self.mean)
        return features + noise


@dataclass(frozen=True)
class FeatureDrop(FeatureTransform):
    """Sets the same features of all rows to zero.

    Attributes:
        num_dropped: Number of features, drawn without replacement.
    """

    num_dropped: int

    def changed(self, features: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Return features with zeros for the dropped ones."""
        changed = features.copy()
        flat = changed.reshape(len(changed), prod(changed.shape[1:]))
        flat[:, generator.permutation(flat.shape[1])[: self.num_dropped]] = 0
        return changed


@dataclass(frozen=True)
class FeatureScale(FeatureTransform):
    """Multiplies every value of every row by a factor.

    Attributes:
        factor: > 0; 1 changes nothing.
    """

    factor: float

    def changed(self, features: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Return scaled features."""
        return features * np.float32(self.factor)


class FeatureNoiseEffect(ScenarioEffect):
    """Gaussian noise on every feature of every row."""

    needs: ClassVar[frozenset[str]] = frozenset({"measurements"})

    kind: Literal["feature_noise"] = "feature_noise"
    mean: float = Field(default=0.0, description="mean of the shift in standard deviations of a feature")
    std: float = Field(ge=0, description="standard deviation of the noise, in the same unit")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the noise, the same parameters for all clients."""
        noise = FeatureNoise(self.mean * request.feature_unit, self.std * request.feature_unit)
        facts = {"mean": self.mean, "std": self.std, "feature_unit": request.feature_unit}
        return self.same_for_all(clients, request, facts, transforms=(noise,), changes=bool(self.mean or self.std))


class FeatureDropEffect(ScenarioEffect):
    """Dropped features: some features of all of a client's rows become zero, drawn for each client."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})

    kind: Literal["feature_drop"] = "feature_drop"
    share: float = Field(ge=0, le=1, description="fraction of the features")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the transform that drops features, drawn for each client when it is applied."""
        drop = FeatureDrop(round(self.share * request.num_features))
        facts = {"dropped_features": drop.num_dropped, "features": request.num_features}
        return self.same_for_all(clients, request, facts, transforms=(drop,), changes=drop.num_dropped > 0)


class FeatureScaleEffect(ScenarioEffect):
    """Every feature of every row multiplied by a factor, as from a sensor with another gain."""

    needs: ClassVar[frozenset[str]] = frozenset({"measurements"})

    kind: Literal["feature_scale"] = "feature_scale"
    factor: float = Field(gt=0, description="factor of the features; 1 changes nothing")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the factor, the same for all clients."""
        scale, changes = FeatureScale(self.factor), self.factor != 1
        return self.same_for_all(clients, request, {"factor": self.factor}, transforms=(scale,), changes=changes)


GREY, COLOUR = 1, 3
SUBSAMPLING = "4:2:0"


@dataclass(frozen=True)
class JpegCompression(FeatureTransform):
    """Compresses every image by JPEG and decodes it.

    Attributes:
        quality: 1 to 100; lower values lose more.
    """

    quality: int

    def changed(self, features: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Return images of the same shape `(num_rows, channels, height, width)` in `[0, 1]`."""
        pixels = np.rint(np.clip(features, 0, 1) * LARGEST_PIXEL).astype(np.uint8)
        for row, picture in enumerate(pixels):
            pixels[row] = _compressed(picture, self.quality)
        return unit_pixels(pixels)


def _compressed(picture: PixelArray, quality: int) -> PixelArray:
    from PIL import Image

    grey = len(picture) == GREY
    file = io.BytesIO()
    image = Image.fromarray(picture[0] if grey else np.ascontiguousarray(np.moveaxis(picture, 0, -1)))
    image.save(file, "JPEG", quality=quality, **({} if grey else {"subsampling": SUBSAMPLING}))
    with Image.open(file) as decoded:
        pixels: PixelArray = np.asarray(decoded, dtype=np.uint8)
    return pixels[None] if grey else np.moveaxis(pixels, -1, 0)


class JpegEffect(ScenarioEffect):
    """JPEG compression of images, as by another camera or archive."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})

    kind: Literal["jpeg"] = "jpeg"
    quality: int = Field(ge=1, le=100, description="JPEG quality; lower values lose more, 75 is usual")

    def faults(self, request: EffectRequest) -> list[Fault]:
        """Return what is incompatible with the federation, by the effect's keys."""
        faults = super().faults(request)
        channels = request.feature_shape[0]
        if request.has_rows and request.data_kind != "image":
            faults.append(Fault("kind", "be jpeg only for pictures", f"rows that are {request.data_kind}"))
        elif request.has_rows and channels not in {GREY, COLOUR}:
            faults.append(Fault("kind", "be jpeg only for pictures of 1 or 3 channels", f"{channels} channels"))
        return faults

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the compression, the same for all clients."""
        return self.same_for_all(
            clients, request, {"quality": self.quality}, transforms=(JpegCompression(self.quality),)
        )


@dataclass(frozen=True)
class ScaledUpdate:
    """Sends the scaled update, x + factor (y − x).

    Attributes:
        factor: 1 sends y bit for bit; a negative factor reverses the update.
    """

    colluders: ClassVar[tuple[int, ...]] = ()
    factor: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters to send, rounded once."""
        exact = inputs.trained.astype(np.float64)
        # the same as x + factor (y − x), and y itself where the factor is 1
        exact += (self.factor - 1) * (exact - inputs.received)
        return exact.astype(np.float32)


@dataclass(frozen=True)
class GaussianUpdate:
    """Sends the received model with noise instead of an update.

    Attributes:
        deviation: Standard deviation of the noise on every parameter, >= 0; 0 sends the received model.
    """

    colluders: ClassVar[tuple[int, ...]] = ()
    deviation: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters to send."""
        noise = inputs.generator.standard_normal(inputs.received.shape, dtype=np.float32)
        noise *= np.float32(self.deviation)
        noise += inputs.received
        return noise


@dataclass(frozen=True)
class LittleIsEnough:
    """Sends, for every parameter, the mean over all colluders minus z of their standard deviations.

    Attributes:
        colluders: All attackers, including this one, ascending.
        z: Number of standard deviations, >= 0.
    """

    colluders: tuple[int, ...]
    z: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        """Return the parameters to send, the same for all colluders, rounded once."""
        models = inputs.colluders.astype(np.float64)
        sent: FloatArray = (models.mean(axis=0) - self.z * models.std(axis=0)).astype(np.float32)
        return sent


class SignFlipEffect(ScenarioEffect):
    """Attack with the reversed update: x - factor (y - x) for a received model x and a trained model y."""

    kind: Literal["sign_flip"] = "sign_flip"
    factor: float = Field(
        default=1.0, gt=0, description="factor by which the reversed update is longer than the honest one"
    )

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same for all clients."""
        return self.same_for_all(clients, request, {"factor": self.factor}, attack=ScaledUpdate(-self.factor))


class ScaledUpdateEffect(ScenarioEffect):
    """Attack with the scaled update: x + factor (y - x) for a received model x and a trained model y."""

    kind: Literal["scaled_update"] = "scaled_update"
    factor: float = Field(default=10.0, gt=0, description="factor by which the update is scaled; 1 is honest")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same for all clients."""
        attack, changes = ScaledUpdate(self.factor), self.factor != 1
        return self.same_for_all(clients, request, {"factor": self.factor}, attack=attack, changes=changes)


class GaussianUpdateEffect(ScenarioEffect):
    """Attack with Gaussian noise: the received model plus noise on every parameter, instead of the trained model."""

    kind: Literal["gaussian_update"] = "gaussian_update"
    std: float = Field(
        default=1.0, ge=0, description="standard deviation in the unit of the parameters; 0 returns the received model"
    )

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same parameters for all clients."""
        return self.same_for_all(clients, request, {"std": self.std}, attack=GaussianUpdate(self.std))


class LittleIsEnoughEffect(ScenarioEffect):
    """Colluding attack: all attackers send the mean of their models minus z standard deviations, per parameter."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})  # replay buffers can't be read by other attackers

    kind: Literal["little_is_enough"] = "little_is_enough"
    z: float = Field(default=1.5, ge=0, description="number of standard deviations over the attackers' own models")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the attack, the same for all clients."""
        attack, changes = LittleIsEnough(clients, self.z), len(request.with_rows(clients)) > 1
        return self.same_for_all(clients, request, {"z": self.z}, attack=attack, changes=changes)
