"""The layout of a model's flat parameter vector, and the loss of a row.

`ParameterLayout` maps named tensors to one flat float32 vector and back. In the engine a model's state is one vector:
trainable parameters first, then floating-point buffers (batch-norm statistics), each in the module's own order. By name
it has the entries of Flower's `ArrayRecord(module.state_dict())`: the same names in the same order, including integer
buffers such as batch normalisation's count of batches, which are not in the vector. A layout needs no torch.

`RowLoss` is the loss of a row for noisy labels: the label's cross-entropy, a pseudo-label's cross-entropy, and a
bounded reverse cross-entropy. With p the model's probabilities of a row with label y, and q those of the received
model, which is fixed in the round:

    L = w −log p_y + α −Σ_c q_c log p_c + m (1 − p_y)

The second term is the cross-entropy of a soft pseudo-label, the third the reverse cross-entropy −Σ_c p_c log 1[c = y]
with log 0 set to −m. The gradient by the logits of a row is

    dL = (w + m p_y) (p − e_y) + α (p − q)

L = CE + α CE(pseudo) + β RCE with log 0 = −4, so w = 1 and m = 4 β, is the local loss of X. Chang et al., "FLASH:
Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024. The reverse term is that of Y. Wang et
al., "Symmetric Cross Entropy for Robust Learning with Noisy Labels", ICCV 2019, arXiv:1908.06112.

`Adjusted` scales and shifts outputs before the cross-entropy, for many clients at once.
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
        name: Its name in the module.
        shape: Its shape.
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
    """An integer or boolean buffer, which is not in the vector.

    Attributes:
        dtype: NumPy name of its type.
        initial: The bytes of its initial value.
    """

    dtype: str = "int64"
    initial: bytes = field(default=bytes(8), compare=False)

    @property
    def value(self) -> npt.NDArray[Any]:
        """Its initial value, read-only."""
        return np.ndarray(self.shape, self.dtype, self.initial)

    @property
    def counts_batches(self) -> bool:
        """Whether it is the batch counter of a batch normalisation layer."""
        return self.name.rpartition(".")[2] == COUNTER and "BatchNorm" in self.layer


@dataclass(frozen=True)
class ParameterLayout:
    """The position of each tensor in the flat vector, and the tensors outside it.

    Attributes:
        parameters: The trainable tensors, in order.
        buffers: The floating-point buffers that follow them.
        integers: The other buffers of the module's state.
        state: The entries of the module's state dict in order, each with the slot that holds it; entries of a shared
            tensor have the same slot. Empty means the slots in order.
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
        """Length of the trainable part of the vector, which comes first."""
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
        """Return a boolean mask of the vector's elements that belong to chosen tensors, shape `(size,)`."""
        return np.repeat([chosen(slot) for slot in self.slots], [slot.size for slot in self.slots])

    def of_kind(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements of layers of these classes, such as `"BatchNorm2d"`, shape `(size,)`."""
        return self.elements(lambda slot: slot.layer in kinds)

    def of_last_layers(self, num_layers: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements of the last layers with parameters, including their buffers."""
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
        """Return the module's state dict: views of the vector and integer buffers, by name in its order.

        Args:
            vector: Shape `(size,)`.
            integers: Values of integer buffers; those left out have their initial values.
        """
        arrays, start = {}, 0
        for slot in self.slots:
            arrays[slot.name] = vector[start : start + slot.size].reshape(slot.shape)
            start += slot.size
        for counter in self.integers:
            arrays[counter.name] = integers.get(counter.name, counter.value)
        return {name: arrays[held] for name, held in self.state} if self.state else arrays

    def join(self, arrays: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
        """Return the flat float32 vector of a state dict; of several entries of a shared tensor, the last one is used.

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
        """Return the integer buffers of a state dict in their types, truncated as by `load_state_dict`."""
        return {
            slot.name: np.asarray(arrays[name]).astype(slot.dtype)
            for name, slot in self.entries.items()
            if isinstance(slot, IntegerSlot)
        }

    def integers_after(self, integers: Mapping[str, npt.NDArray[Any]], num_steps: float) -> dict[str, npt.NDArray[Any]]:
        """Return the integer buffers after training: batch counters are advanced, others are unchanged.

        Args:
            integers: Values before training; those left out have their initial values.
            num_steps: Number of steps, one batch each; for a mean over clients, its mean.
        """
        before = {slot: integers.get(slot.name, slot.value) for slot in self.integers}
        return {slot.name: np.asarray(old + num_steps) if slot.counts_batches else old for slot, old in before.items()}


LOG_OF_ZERO = -4.0
"""log 0 of the reverse cross-entropy that a training may add."""


@dataclass(frozen=True)
class RowLoss:
    """Weights of the loss terms, all >= 0; by default, the cross-entropy alone.

    Attributes:
        cross_entropy: w, weight of the label's cross-entropy, or of an algorithm's loss in its place.
        pseudo_label: α, weight of the cross-entropy with the received model's probabilities.
        miss: m, weight of 1 − p_y.
    """

    cross_entropy: float = 1.0
    pseudo_label: float = 0.0
    miss: float = 0.0

    def plus(self, pseudo_label: float, reverse: float) -> RowLoss:
        """Return the loss with the terms α CE(pseudo) + β RCE added."""
        return replace(self, pseudo_label=self.pseudo_label + pseudo_label, miss=self.miss - LOG_OF_ZERO * reverse)

    @property
    def is_plain(self) -> bool:
        """Whether it is the cross-entropy alone."""
        return self == RowLoss()

    def mean(self, first: Tensor, outputs: Tensor, labels: Tensor, pseudo_labels: Tensor | None) -> Tensor:
        """Return the mean over a batch, for autograd.

        Args:
            first: Mean of the first term, without the weight w.
            outputs: Logits, shape `(rows, classes)`.
            labels: Shape `(rows,)`.
            pseudo_labels: q, shape `(rows, classes)`; None if α is 0.
        """
        logs = outputs.log_softmax(dim=1)
        total = self.cross_entropy * first
        if self.miss:
            total = total + self.miss * (1 - logs.gather(1, labels[:, None]).exp()).mean()
        return total if pseudo_labels is None else total - self.pseudo_label * (pseudo_labels * logs).sum(dim=1).mean()

    def means_and_gradient(
        self, logs: Tensor, targets: Tensor, shares: Tensor, pseudo_labels: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each client's mean, shape `(clients,)`, and its gradient by the logits, shaped as `logs`.

        Args:
            logs: log p, shape `(clients, rows, classes)`; overwritten.
            targets: One-hot labels times shares, same shape.
            shares: Weight of each row, shape `(clients, rows, 1)`.
            pseudo_labels: q, shaped as `logs`; None if α is 0.
        """
        means = (logs * targets).sum(dim=(1, 2)).mul_(-self.cross_entropy)
        if pseudo_labels is not None:
            means -= self.pseudo_label * (logs * pseudo_labels).mul_(shares).sum(dim=(1, 2))
        probabilities = logs.exp_()
        hit = probabilities * targets  # p_y times the share at the label, 0 elsewhere
        label_mass = hit.sum(dim=2, keepdim=True)
        means += self.miss * (shares - label_mass).sum(dim=(1, 2))
        gradient = (probabilities * shares).sub_(targets).mul_(self.cross_entropy)
        gradient += (probabilities * label_mass).sub_(hit).mul_(self.miss)
        if pseudo_labels is not None:
            gradient += (probabilities - pseudo_labels).mul_(shares).mul_(self.pseudo_label)
        return means, gradient


MASKED_LOGIT = -1e9
"""The shift of a class that shall have no part in a loss: its probability is 0."""


@dataclass(frozen=True)
class Adjusted:
    """Adjustment of a model's outputs before the cross-entropy, per client: scale * outputs + shift.

    Attributes:
        scale: Shape `(clients, classes)`; None means 1.
        shift: Same shape, finite; None means 0. `MASKED_LOGIT` excludes a class from the loss.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None

    def of(self, clients: slice) -> Adjusted:
        """Return the adjustment of some clients."""
        return Adjusted(*(None if part is None else part[clients] for part in (self.scale, self.shift)))

    def to(self, device: torch.device) -> Adjusted:
        """Return a copy on a device."""
        return Adjusted(*(None if part is None else part.to(device) for part in (self.scale, self.shift)))

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return adjusted outputs, shape `(clients, rows, classes)`."""
        scaled = outputs if self.scale is None else outputs * self.scale[:, None]
        return scaled if self.shift is None else scaled + self.shift[:, None]
