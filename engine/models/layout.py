"""The layout of a flat vector, the loss of a row, and adjusted outputs.

Named tensors <-> one flat float32 vector.

Inside the engine a model's state is one vector: trainable parameters first, then floating-point buffers (batch-norm
statistics), each in the module's own order. By name it is what Flower's `ArrayRecord(module.state_dict())` holds: the
same names in the same order, with buffers of whole numbers such as batch normalisation's count of batches, which are
not in the vector. A layout is the key to both and needs no torch.

What a row costs where labels may be wrong: a label's cross-entropy, a pseudo-label's, and a miss that is bounded.

With p a model's probabilities of a row with label y, and q those by which the received model, fixed in the round, tells
of it:

    L = w −log p_y + α −Σ_c q_c log p_c + m (1 − p_y)

The second term is the cross-entropy of a soft pseudo-label, the third the reverse cross-entropy −Σ_c p_c log 1[c = y]
with log 0 set to −m. By the logits, of a row,

    dL = (w + m p_y) (p − e_y) + α (p − q)

L = CE + α CE(pseudo) + β RCE with log 0 = −4, so w = 1 and m = 4 β, is the local loss of X. Chang et al., "FLASH:
Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024. The reverse term is that of Y. Wang et
al., "Symmetric Cross Entropy for Robust Learning with Noisy Labels", ICCV 2019, arXiv:1908.06112.

Outputs that are adjusted client by client ahead of the cross-entropy, so that many clients can do so at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


ModelFactory = Callable[[], "nn.Module"]

COUNTER = "num_batches_tracked"
"""Batches on which a layer of batch normalisation has trained."""


@dataclass(frozen=True)
class TensorSlot:
    """Name and shape of one tensor of the model.

    Attributes:
        name: The module's.
        shape: Of the tensor.
        layer: Class of the layer that owns it, such as `"BatchNorm2d"`.
    """

    name: str
    shape: tuple[int, ...]
    layer: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def owner(self) -> str:
        """Name of the layer that owns it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class IntegerSlot(TensorSlot):
    """A buffer of whole numbers or truth values, which no vector holds.

    Attributes:
        dtype: NumPy's name of its type.
        initial: The bytes of what a new module holds there.
    """

    dtype: str = "int64"
    initial: bytes = field(default=bytes(8), compare=False)

    @property
    def value(self) -> npt.NDArray[Any]:
        """What a new module holds, to be read only."""
        return np.ndarray(self.shape, self.dtype, self.initial)

    @property
    def counts_batches(self) -> bool:
        """Whether it counts the batches of a layer of batch normalisation."""
        return self.name.rpartition(".")[2] == COUNTER and "BatchNorm" in self.layer


@dataclass(frozen=True)
class ParameterLayout:
    """Which part of the flat vector is which tensor, and which tensors are in no vector.

    Attributes:
        parameters: The trainable tensors, in order.
        buffers: The floating-point buffers that follow them.
        integers: The other buffers of the module's state.
        state: The entries of the module's state dict in order, each beside the slot that holds it; several entries of
            a shared tensor have one slot. Empty stands for the slots in order.
    """

    parameters: tuple[TensorSlot, ...]
    buffers: tuple[TensorSlot, ...] = ()
    integers: tuple[IntegerSlot, ...] = ()
    state: tuple[tuple[str, str], ...] = ()

    @property
    def slots(self) -> tuple[TensorSlot, ...]:
        """All tensors in the order of the vector."""
        return self.parameters + self.buffers

    @property
    def num_trainable(self) -> int:
        """Elements of the vector that training changes by gradient; they come first."""
        return sum(slot.size for slot in self.parameters)

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(slot.size for slot in self.slots)

    @property
    def layers(self) -> frozenset[str]:
        """Classes of the layers that own tensors."""
        return frozenset(slot.layer for slot in self.slots)

    def elements(self, chosen: Callable[[TensorSlot], bool]) -> npt.NDArray[np.bool_]:
        """Return which elements of a vector belong to chosen tensors, shape `(size,)`, truth values."""
        return np.repeat([chosen(slot) for slot in self.slots], [slot.size for slot in self.slots])

    def of_kind(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Return which elements belong to layers of these classes, such as `"BatchNorm2d"`, shape `(size,)`."""
        return self.elements(lambda slot: slot.layer in kinds)

    def of_last_layers(self, num_layers: int) -> npt.NDArray[np.bool_]:
        """Return which elements belong to the last layers that hold parameters, their buffers included."""
        last = [*dict.fromkeys(slot.owner for slot in self.parameters)][-num_layers:]
        return self.elements(lambda slot: slot.owner in last)

    @property
    def entries(self) -> dict[str, TensorSlot]:
        """The slot of each entry of the module's state dict, in its order."""
        slots: dict[str, TensorSlot] = {slot.name: slot for slot in (*self.slots, *self.integers)}
        return {name: slots[held] for name, held in self.state} if self.state else slots

    def split(
        self, vector: npt.NDArray[Any], integers: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the module's state dict: views of the vector and integer buffers, keyed by name in its order.

        Args:
            vector: Shape `(size,)`.
            integers: Values of integer buffers; those left out are a new module's.
        """
        arrays, start = {}, 0
        for slot in self.slots:
            arrays[slot.name] = vector[start : start + slot.size].reshape(slot.shape)
            start += slot.size
        for counter in self.integers:
            arrays[counter.name] = integers.get(counter.name, counter.value)
        return {name: arrays[held] for name, held in self.state} if self.state else arrays

    def join(self, arrays: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
        """Return the flat vector of a state dict, cast to float32; of a shared tensor's entries the last one counts.

        Raises:
            ValueError: If a name is missing or unknown, or a shape differs.
        """
        entries = self.entries
        if set(arrays) != set(entries):
            raise ValueError(f"arrays must be named {[*entries]}, got {list(arrays)}")
        held = {}
        for name, slot in entries.items():
            if arrays[name].shape != slot.shape:
                raise ValueError(f"array {name!r} must have shape {slot.shape}, got {arrays[name].shape}")
            held[slot.name] = arrays[name]
        return np.concatenate([np.asarray(held[slot.name], dtype=np.float32).reshape(-1) for slot in self.slots])

    def integers_of(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the integer buffers of a state dict in their types, fractions cut off as `load_state_dict` does."""
        names = {slot.name for slot in self.integers}
        entries = {name: slot for name, slot in self.entries.items() if slot.name in names}
        return {
            slot.name: np.asarray(arrays[name]).astype(slot.dtype)
            for name, slot in entries.items()
            if isinstance(slot, IntegerSlot)
        }

    def integers_after(self, integers: Mapping[str, npt.NDArray[Any]], num_steps: float) -> dict[str, npt.NDArray[Any]]:
        """Return the integer buffers after training: batch normalisation has counted the batches, others stay.

        Args:
            integers: Before it; those left out are a new module's.
            num_steps: One batch each; of several clients' mean, the mean.
        """
        before = {slot: integers.get(slot.name, slot.value) for slot in self.integers}
        return {
            slot.name: np.asarray(value + num_steps) if slot.counts_batches else value for slot, value in before.items()
        }


LOG_OF_NOTHING = -4.0
"""log 0 of the reverse cross-entropy that a training may add."""


@dataclass(frozen=True)
class RowLoss:
    """How much each term counts, all >= 0; as it stands, the cross-entropy alone.

    Attributes:
        cross_entropy: w, of the label's cross-entropy, or of what an algorithm has in its place.
        pseudo_label: α, of the cross-entropy of what the received model says.
        miss: m, of the probability that is not the label's.
    """

    cross_entropy: float = 1.0
    pseudo_label: float = 0.0
    miss: float = 0.0

    def plus(self, pseudo_label: float, reverse: float) -> RowLoss:
        """Return the same with what a training adds: α CE(pseudo) + β RCE."""
        return replace(self, pseudo_label=self.pseudo_label + pseudo_label, miss=self.miss - LOG_OF_NOTHING * reverse)

    @property
    def is_plain(self) -> bool:
        """Whether it is the cross-entropy alone."""
        return self == RowLoss()

    def mean(self, first: Tensor, outputs: Tensor, labels: Tensor, told: Tensor | None) -> Tensor:
        """Return the mean over a batch, for autograd.

        Args:
            first: The mean that w is for.
            outputs: Logits, shape `(rows, classes)`.
            labels: Shape `(rows,)`.
            told: q, shape `(rows, classes)`; None where α is 0.
        """
        logs = outputs.log_softmax(dim=1)
        total = self.cross_entropy * first
        if self.miss:
            total = total + self.miss * (1 - logs.gather(1, labels[:, None]).exp()).mean()
        return total if told is None else total - self.pseudo_label * (told * logs).sum(dim=1).mean()

    def means_and_gradient(
        self, logs: Tensor, targets: Tensor, shares: Tensor, told: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each client's mean, shape `(clients,)`, and its gradient by the logits, as `logs`.

        Args:
            logs: Of p, shape `(clients, rows, classes)`; overwritten.
            targets: One-hot labels times shares, likewise.
            shares: Weight of each row, shape `(clients, rows, 1)`.
            told: q, as `logs`; None where α is 0.
        """
        means = (logs * targets).sum(dim=(1, 2)).mul_(-self.cross_entropy)
        if told is not None:
            means -= self.pseudo_label * (logs * told).mul_(shares).sum(dim=(1, 2))
        probabilities = logs.exp_()
        hit = probabilities * targets  # p_y times the share at the label, 0 elsewhere
        right = hit.sum(dim=2, keepdim=True)
        means += self.miss * (shares - right).sum(dim=(1, 2))
        gradient = (probabilities * shares).sub_(targets).mul_(self.cross_entropy)
        gradient += (probabilities * right).sub_(hit).mul_(self.miss)
        if told is not None:
            gradient += (probabilities - told).mul_(shares).mul_(self.pseudo_label)
        return means, gradient


OUT_OF_IT = -1e9
"""The shift of a class that shall have no part in a loss: its probability is 0."""


@dataclass(frozen=True)
class Adjusted:
    """What is made of a model's outputs ahead of the cross-entropy, client by client: scale * outputs + shift.

    Attributes:
        scale: Shape `(clients, classes)`; None is 1.
        shift: Likewise, finite; None is 0. `OUT_OF_IT` takes a class out of the loss.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None

    def of(self, clients: slice) -> Adjusted:
        """Return that of some clients."""
        return Adjusted(*(None if part is None else part[clients] for part in (self.scale, self.shift)))

    def to(self, device: torch.device) -> Adjusted:
        """Return the same on a device."""
        return Adjusted(*(None if part is None else part.to(device) for part in (self.scale, self.shift)))

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return adjusted outputs, shape `(clients, rows, classes)`."""
        scaled = outputs if self.scale is None else outputs * self.scale[:, None]
        return scaled if self.shift is None else scaled + self.shift[:, None]
