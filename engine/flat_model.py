"""A torch module whose parameters, gradients and float buffers are views of flat tensors.

Loading a model, an optimiser's step and a client rule then cost a handful of vector operations, whatever the number
of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.federation import ModelFactory
from engine.parameters import ParameterLayout, TensorSlot


class FlatModel:
    """One module, reused for every client that a host trains.

    Attributes:
        module: The module itself.
        layout: The names and shapes behind the vector.
        vector: All parameters and float buffers, shape `(layout.size,)`.
        gradient: Gradient of the trainable part, shape `(layout.num_trainable,)`.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.named_parameters())
        buffers = [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]
        self.module = module
        self.layout = ParameterLayout(
            parameters=tuple(TensorSlot(name, tuple(tensor.shape)) for name, tensor in parameters),
            buffers=tuple(TensorSlot(name, tuple(tensor.shape)) for name, tensor in buffers),
        )
        self.vector = torch.cat([tensor.detach().reshape(-1).float() for _, tensor in parameters + buffers])
        self.gradient = torch.zeros(self.layout.num_trainable)
        self._bind(parameters, buffers)
        self._counters = [(buffer, buffer.clone()) for buffer in module.buffers() if not buffer.is_floating_point()]

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
            self.module.get_submodule(owner)._buffers[attribute] = self.vector[start:stop].view(buffer.shape)
            start = stop

    @property
    def weights(self) -> Tensor:
        """The trainable part of the vector, a view."""
        return self.vector[: self.layout.num_trainable]

    def load(self, vector: Tensor) -> None:
        """Overwrite parameters and buffers with `vector`, shape `(layout.size,)`; integer buffers start anew."""
        self.vector.copy_(vector)
        for buffer, initial in self._counters:  # such as batch norm's count, which must not pass to the next client
            buffer.copy_(initial)


def new_model(factory: ModelFactory, seed: int) -> FlatModel:
    """Return a freshly initialised model; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FlatModel(factory())
