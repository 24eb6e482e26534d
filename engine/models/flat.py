"""A torch module whose parameters, gradients and float buffers are views of flat tensors.

Loading a model, an optimiser's step and a client algorithm's correction then take a few vector operations, for any
number of layers.

Images are passed to convolutions with their channels last in memory: the same numbers, but pooling and normalisation
then work on whole vectors, and convolutions need not rearrange. Measured on one core on 2026-11-21, a training step of
32 rows and the evaluation of as many: LeNet 1.22 and 1.67 times as fast, two convolutions of 32 and 64 channels 1.17
and 1.58 times, a small residual net with group normalisation 1.17 and 1.16 times, with batch normalisation 1.37 and
1.50 times. The weights stay in the order of the layout, so that optimisers and client algorithms are unaffected;
arranging them alike as well gained at most 6 %.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedscout.engine.models.convolution import ConvolutionStack, quick
from fedscout.engine.models.layout import IntegerSlot, ModelFactory, ParameterLayout, TensorSlot

PROBE_ROWS = 2
"""Fewest rows that batch normalisation trains on."""


class FlatModel:
    """One module, reused for every client that a host trains.

    Attributes:
        module: The module itself.
        outputs: Calls the module, with faster layers where available.
        stack: The module as a convolutional stack with a hand-written gradient; None for other modules.
        layout: The names and shapes behind the vector.
        vector: All parameters and the float buffers in the module's state dict, shape `(layout.size,)`.
        gradient: Gradient of the trainable part, shape `(layout.num_trainable,)`.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters, state = list(module.named_parameters()), module.state_dict()
        persistent = {name: buffer for name, buffer in module.named_buffers() if name in state}
        buffers = [(name, buffer) for name, buffer in persistent.items() if buffer.is_floating_point()]
        self.module = module
        self.layout = ParameterLayout(
            parameters=tuple(_slot(module, name, tensor) for name, tensor in parameters),
            buffers=tuple(_slot(module, name, tensor) for name, tensor in buffers),
            integers=tuple(
                _integer_slot(module, name, buffer)
                for name, buffer in persistent.items()
                if not buffer.is_floating_point()
            ),
            state=_state_entries(module, {*dict(parameters), *persistent}),
        )
        self.vector = torch.cat([tensor.detach().reshape(-1).float() for _, tensor in parameters + buffers])
        self.gradient = torch.zeros(self.layout.num_trainable, device=self.vector.device)
        self._bind(parameters, buffers)
        bound = dict(buffers)
        self._reset_buffers = {name: (b, b.clone()) for name, b in module.named_buffers() if name not in bound}
        on_cpu = self.device.type == "cpu"
        self.outputs: Callable[[Tensor], Tensor] = quick(module) if on_cpu else module
        self.stack = ConvolutionStack.of(module) if on_cpu else None
        self._formats: dict[tuple[int, ...], torch.memory_format] = {}

    def _bind(self, parameters: list[tuple[str, nn.Parameter]], buffers: list[tuple[str, Tensor]]) -> None:
        start = 0
        for _, parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.vector[start:stop].view(parameter.shape)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop
        for name, buffer in buffers:
            stop = start + buffer.numel()
            owner, _, attribute = name.rpartition(".")
            setattr(self.module.get_submodule(owner), attribute, self.vector[start:stop].view(buffer.shape))
            start = stop

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.vector.device

    @property
    def weights(self) -> Tensor:
        """The trainable part of the vector, a view."""
        return self.vector[: self.layout.num_trainable]

    def load(self, vector: Tensor, integers: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Overwrite parameters and buffers.

        Args:
            vector: Shape `(layout.size,)`.
            integers: Integer buffers. Those left out, and buffers outside the state dict, are reset to their initial
                values.
        """
        self.vector.copy_(vector)
        for name, (buffer, initial) in self._reset_buffers.items():  # what one client counted must not pass to the next
            buffer.copy_(integers.get(name, initial))

    def narrow_outputs(self, rows: Tensor) -> Tensor:
        """Call the module under bfloat16 autocast; return float32."""
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs: Tensor = self.module(rows)
        return outputs.float()

    def input_format(self, row_shape: tuple[int, ...]) -> torch.memory_format:
        """Return the best memory format for rows of this shape; it depends only on the module and the shape.

        Args:
            row_shape: Shape of one row; `(channels, height, width)` for images.
        """
        if row_shape not in self._formats:
            convolves = len(row_shape) == 3 and any(isinstance(part, nn.Conv2d) for part in self.module.modules())
            last = convolves and self._takes_channels_last(row_shape)
            self._formats[row_shape] = torch.channels_last if last else torch.contiguous_format
        return self._formats[row_shape]

    @torch.no_grad()
    def _takes_channels_last(self, row_shape: tuple[int, ...]) -> bool:
        """Return whether the module accepts channels last; one that calls `view` after a convolution does not."""
        rows = torch.empty((PROBE_ROWS, *row_shape), device=self.device, memory_format=torch.channels_last).zero_()
        vector, training = self.vector.clone(), self.module.training
        try:
            with torch.random.fork_rng(devices=[]):
                for mode in (True, False):
                    self.module.train(mode)
                    self.outputs(rows)
        except Exception:  # one that is not about memory comes again with the client's own rows
            return False
        finally:
            self.module.train(training)
            self.load(vector)
        return True


def _slot(module: nn.Module, name: str, tensor: Tensor) -> TensorSlot:
    return TensorSlot(name, tuple(tensor.shape), _layer(module, name))


def _integer_slot(module: nn.Module, name: str, buffer: Tensor) -> IntegerSlot:
    value = buffer.detach().cpu().numpy()
    return IntegerSlot(name, value.shape, _layer(module, name), str(value.dtype), value.tobytes())


def _layer(module: nn.Module, name: str) -> str:
    return type(module.get_submodule(name.rpartition(".")[0])).__name__


def _state_entries(module: nn.Module, names: Container[str]) -> tuple[tuple[str, str], ...]:
    """Return each entry of a module's state dict, in order, with the name of the slot that holds its tensor.

    Args:
        module: A module whose tensors may have several names.
        names: The names of the slots, one per tensor.
    """
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    slot_of_tensor = {id(tensor): name for name, tensor in reversed(tensors) if name in names}
    slot_of = {name: slot_of_tensor[id(tensor)] for name, tensor in tensors if id(tensor) in slot_of_tensor}
    places = {name: place for place, name in enumerate(module.state_dict())}
    entries = [name for name in slot_of if name in places or slot_of[name] == name]
    return tuple((name, slot_of[name]) for name in sorted(entries, key=lambda name: places.get(name, len(places))))


def new_model(factory: ModelFactory, seed: int, device: torch.device | None = None) -> FlatModel:
    """Return a newly initialised model, the same on any device; torch's global generator is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = factory()
    return FlatModel(module if device is None else module.to(device))
