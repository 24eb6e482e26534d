"""Which way clients are trained: the per-client loop, or many at once.

The choice depends on the model alone, never on how clients are spread over hosts, as the two ways differ in their
last bits. Measured on one core on 2026-11-21 (250 rows a client, batches of 32): for a dense 254-64-32-2 net the
vectorised way was 1.9 times as fast as the loop at 4 clients and 3.1 times at 100; at 99,000 parameters 1.4 and 1.25
times (4 and 20 clients), at 264,000 no faster, as the products are then large enough to fill a core one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from engine.client_rule import ClientRule
from engine.dense_stack import DenseStack
from engine.flat_model import FlatModel
from engine.local_training import ClientUpdate, ClientWork, score_client, train_client
from engine.training_config import LocalTraining
from engine.vectorised import train_block

Backend = Literal["auto", "loop"]

BLOCK_CLIENTS = 50
"""Parameters, gradients and activations of so many small clients stay in a core's cache."""

MAX_VECTORISED_PARAMETERS = 150_000


class Trainer:
    """Trains clients one after the other or in blocks.

    Args:
        model: Scratch model, overwritten.
    """

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        small = model.layout.size <= MAX_VECTORISED_PARAMETERS
        self._stack = DenseStack.of(model.module, model.layout) if small else None

    def train(
        self,
        received: Tensor,
        works: Sequence[ClientWork],
        training: LocalTraining,
        rule: ClientRule | None,
        config: Mapping[str, Any],
        initial_loss: bool,
        backend: Backend,
    ) -> Iterator[tuple[ClientWork, ClientUpdate | Exception]]:
        """Yield each client's update, or the exception that it ended with.

        Args:
            received: The global vector, shape `(params,)`.
            works: The clients.
            training: Epochs, batches, optimiser.
            rule: What the strategy changes, or None.
            config: The train message's configuration, for the rule.
            initial_loss: Whether to measure the received model on the training rows first.
            backend: `loop` forbids the vectorised way.
        """
        if self._stack is None or backend == "loop":
            yield from self._loop(received, works, training, rule, config, initial_loss)
            return
        empty = [work for work in works if not len(work.data)]
        yield from self._loop(received, empty, training, rule, config, initial_loss)
        filled = [work for work in works if len(work.data)]
        for start in range(0, len(filled), BLOCK_CLIENTS):
            block = filled[start : start + BLOCK_CLIENTS]
            updates = _train_or_blame(self._stack, received, block, training, rule, config)
            for work, update in zip(block, updates, strict=True):
                yield work, self._with_initial_loss(received, work, update) if initial_loss else update

    def _loop(
        self,
        received: Tensor,
        works: Sequence[ClientWork],
        training: LocalTraining,
        rule: ClientRule | None,
        config: Mapping[str, Any],
        initial_loss: bool,
    ) -> Iterator[tuple[ClientWork, ClientUpdate | Exception]]:
        for work in works:
            torch.default_generator.manual_seed(work.layer_seed)
            try:
                yield (
                    work,
                    train_client(
                        self._model,
                        received,
                        work.data,
                        training,
                        work.generator,
                        rule=rule,
                        config=config,
                        state=work.state,
                        initial_loss=initial_loss,
                    ),
                )
            except Exception as error:  # a client's failure is an answer, not the host's end
                yield work, error

    def _with_initial_loss(
        self, received: Tensor, work: ClientWork, update: ClientUpdate | Exception
    ) -> ClientUpdate | Exception:
        if isinstance(update, Exception):
            return update
        self._model.load(received)
        return replace(update, initial_loss=score_client(self._model, work.data).loss_sum / len(work.data))


def _train_or_blame(
    stack: DenseStack,
    received: Tensor,
    block: Sequence[ClientWork],
    training: LocalTraining,
    rule: ClientRule | None,
    config: Mapping[str, Any],
) -> Sequence[ClientUpdate | Exception]:
    """Train a block; if a rule raises, its clients alone, so that only those fail that must.

    Who shares a block depends on the number of hosts, who fails may not. A client alone has the same bits.
    """
    drawn_from = [work.generator.bit_generator.state for work in block]
    try:
        return train_block(stack, received, block, training, rule, config)
    except Exception as error:  # a rule of anybody's may raise
        if len(block) == 1:
            return [error]
    for work, state in zip(block, drawn_from, strict=True):
        work.generator.bit_generator.state = state
    return [_train_or_blame(stack, received, [work], training, rule, config)[0] for work in block]
