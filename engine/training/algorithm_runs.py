"""Runs of client algorithms by each way of training, validation of updates, and settings of each client.

Client algorithms over the ways of training: one run for the loop, one for a block of small dense nets.

A task's run is `fedscout.engine.training.backends`. What an algorithm gives is cut into one update a client here.

What clients send, measured on their validation rows: for algorithms that ask for it, and for no other.

Settings of each client's own: clients for which a table, an algorithm or a selection policy chooses alike.

The table comes first, so an algorithm is told of the settings from the client's cell and may change them; a policy's
epochs are times those. What a message says of rate, batches and epochs a table overrides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.contracts.algorithm import (
    ClientAlgorithm,
    ClientResults,
    ClientScore,
    ClientUpdate,
    ClientWork,
    Correct,
    Descent,
    LocalFacts,
    LocalRun,
    Loss,
    Steps,
    TrainRequest,
    Validation,
)
from fedscout.engine.contracts.client_table import FAR_KEY
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.dense import DenseStack
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.seeds import stream
from fedscout.engine.training.loop import (
    NO_ROWS,
    Outcome,
    Representation,
    RowsWork,
    chunks,
    descend,
    mean_loss,
    weighed_rows,
)
from fedscout.engine.training.vectorised import BlockDescent, LayerDraws, descend_block, lockstep_order


@dataclass(frozen=True)
class LoopRun(LocalRun):
    """One client on its rows.

    Attributes:
        model: Scratch, overwritten.
        work: The client's part of the round.
        seen: The model's representation, where a loss looks at it.
        integers: Integer buffers of the received model.
    """

    model: FlatModel
    work: RowsWork
    seen: Representation
    integers: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: FlatModel, asked: TrainRequest, work: RowsWork) -> Self:
        """Return the run of a client.

        Raises:
            ValueError: If it has no training rows.
        """
        if not len(work.data):
            raise ValueError(NO_ROWS)
        return cls(
            **known_of(asked, model.layout, [work], [len(work.data)]),
            model=model,
            work=work,
            seen=Representation(model),
            integers=asked.integers,
        )

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps of the client."""
        data, drawn_from = self.work.data, self.work.generator
        weigh = weighed_rows(self.model, steps, self.received, chunks(self.model, data))
        self.model.load(start.view(-1), self.integers)
        alone = correct_alone(steps, self.model)
        loss = loss_of(steps, self.seen, self.model.device)
        with nullcontext() if steps.compared is None else self.seen:
            made = descend(self.model, data, steps.training, drawn_from, alone, loss, steps.ahead, weigh)
        vectors = self.model.vector.clone()[None].cpu()
        return Descent(vectors, torch.tensor([made.num_steps]), torch.tensor([made.loss], dtype=torch.float64))

    def label_counts(self) -> Tensor:
        """Return the client's training rows of each class."""
        return _label_counts([self.work], self.num_classes)


@dataclass(frozen=True)
class TogetherRun(LocalRun):
    """Clients that make their steps together.

    Attributes:
        works: Their parts of the round.
    """

    works: Sequence[RowsWork]

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Make all local steps of all clients."""
        if steps.loss is not None or steps.ahead is not None:
            raise TypeError("an algorithm with a loss of its own, or one that looks ahead, must declare one_by_one")
        if self.works[0].training is not None and steps.training != self.training:
            raise TypeError("an algorithm that mixes must train as clients' settings say, of all parameters")
        made = self._made(start, steps)
        return Descent(made.vectors, torch.tensor(made.num_steps), torch.tensor(made.losses, dtype=torch.float64))

    @abstractmethod
    def _made(self, start: Tensor, steps: Steps) -> BlockDescent:
        """Make them, without a loss of its own and without looking ahead."""

    def label_counts(self) -> Tensor:
        """Return each client's training rows of each class."""
        return _label_counts(self.works, self.num_classes)


@dataclass(frozen=True)
class BlockRun(TogetherRun):
    """Clients of a small dense net in lockstep, those with most steps first.

    Attributes:
        stack: The model.
        draws: What the clients' layers draw.
    """

    stack: DenseStack
    draws: LayerDraws

    @classmethod
    def of(cls, stack: DenseStack, layout: ParameterLayout, asked: TrainRequest, works: Sequence[RowsWork]) -> Self:
        """Return the run of clients that are in lockstep order."""
        sizes = [len(work.data) for work in works]
        known = known_of(asked, layout, works, sizes)
        return cls(**known, stack=stack, works=works, draws=LayerDraws(stack, asked, works))

    def _made(self, start: Tensor, steps: Steps) -> BlockDescent:
        """Make the steps in lockstep."""
        return descend_block(self.stack, start, self.works, steps, self.received, self.draws)


def _label_counts(works: Sequence[RowsWork], num_classes: int) -> Tensor:
    return torch.from_numpy(np.stack([work.data.label_counts(num_classes) for work in works])).float()


def known_of(
    asked: TrainRequest, layout: ParameterLayout, works: Sequence[ClientWork], num_examples: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a run that are the same for all ways of training."""
    return {
        "received": asked.received,
        "layout": layout,
        "states": [work.state for work in works],
        "config": asked.config,
        "training": asked.training,
        "companions": asked.companions,
        "num_examples": torch.tensor(num_examples),
        "counts_as": torch.tensor(num_examples if asked.table is None else [1] * len(works)),
        "num_classes": asked.num_classes,
    }


def correct_alone(steps: Steps, model: FlatModel) -> Correct | None:
    """Return the correction of one client's trainable part, bound to what lies beside it, where the model is."""
    correct = steps.correct
    if correct is None:
        return None
    others = [vectors.view(-1)[: model.layout.num_trainable].to(model.device) for vectors in steps.beside]
    return lambda weights, gradient: correct(weights, gradient, *others)


def loss_of(steps: Steps, seen: Representation, device: torch.device) -> Loss | None:
    """Return one client's loss where it is not the plain one."""
    adjusted = None if steps.adjusted is None else steps.adjusted.to(device)
    compared = steps.compared
    if adjusted is None and compared is None:
        return steps.loss
    models = [] if compared is None else [vector.view(-1).to(device) for vector in compared.others]

    def loss(outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        mean = mean_loss(outputs if adjusted is None else adjusted(outputs[None])[0], labels)
        if compared is None:
            return mean
        others = [seen.under(vector, features).flatten(1)[None] for vector in models]
        return mean + compared.measure(seen.latest().flatten(1)[None], *others).mean()

    return loss


def train_client_by(algorithm: ClientAlgorithm, model: FlatModel, asked: TrainRequest, work: RowsWork) -> ClientUpdate:
    """Train one client as an algorithm says; `model` is scratch and overwritten.

    Raises:
        ValueError: If the client has no training rows.
    """
    (update,) = updates_by(algorithm, LoopRun.of(model, asked, work))
    return update


def train_block_by(
    algorithm: ClientAlgorithm,
    stack: DenseStack,
    layout: ParameterLayout,
    asked: TrainRequest,
    works: Sequence[RowsWork],
) -> list[ClientUpdate]:
    """Train clients together as an algorithm says; one update a client, in the order of `works`.

    Raises:
        ValueError: If a client has no training rows.
    """
    order = lockstep_order(stack, works, asked.training)
    updates = updates_by(algorithm, BlockRun.of(stack, layout, asked, [works[position] for position in order]))
    return [updates[position] for position in np.argsort(order)]


def updates_by(algorithm: ClientAlgorithm, run: LocalRun) -> list[ClientUpdate]:
    """Have an algorithm train the clients of a run, and return each one's part of what it gives.

    Raises:
        ValueError: If it gives something of another shape.
    """
    finished = algorithm.train(run)
    _check_shapes(algorithm, run, finished)
    vectors = finished.vectors.numpy()
    steps, losses = finished.descent.num_steps.tolist(), finished.descent.losses.tolist()
    state, companions = _rows(finished.state), _rows(finished.companions)
    sums = {name: tensor.tolist() for name, tensor in finished.sums.items()}
    return [
        ClientUpdate(
            vector=vectors[row],
            num_steps=steps[row],
            loss=losses[row],
            state={name: matrix[row].copy() for name, matrix in state.items()},
            companions={name: matrix[row] for name, matrix in companions.items()},
            sums={name: float(column[row]) for name, column in sums.items()},
        )
        for row in range(len(vectors))
    ]


def _rows(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def _check_shapes(algorithm: ClientAlgorithm, run: LocalRun, finished: ClientResults) -> None:
    num_clients, size = len(run.states), run.layout.size
    wanted: list[tuple[str, Tensor, tuple[int, ...]]] = [("vectors", finished.vectors, (num_clients, size))]
    wanted += [(f"companion {name!r}", t, (num_clients, *t.shape[1:2])) for name, t in finished.companions.items()]
    wanted += [(f"sum {name!r}", tensor, (num_clients,)) for name, tensor in finished.sums.items()]
    wanted += [(f"state {name!r}", t, (num_clients, *t.shape[1:])) for name, t in finished.state.items()]
    for name, tensor, shape in wanted:
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} of {type(algorithm).__name__} must be of shape {shape}, got {tuple(tensor.shape)}"
            )
    if set(finished.companions) != set(algorithm.companions):
        declared, given = sorted(algorithm.companions), sorted(finished.companions)
        raise ValueError(
            f"{type(algorithm).__name__} must give the companions that it declares, {declared}, got {given}"
        )


_MIXED = {"learning_rate", "batch_size", "local_epochs"}

Alike = list[tuple[TrainRequest, Sequence[RowsWork]]]


def by_settings(
    asked: TrainRequest, works: Sequence[RowsWork], has_labels: bool, mixes: bool = False
) -> tuple[Alike, list[Outcome]]:
    """Return what is asked of which clients, and those whose settings can't be told.

    Args:
        asked: By the train message.
        works: The clients' parts of the round.
        has_labels: Whether clients hold labelled rows.
        mixes: Whether clients of different rates, batches and epochs may be together, each with its own.
    """
    algorithm = asked.algorithm
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if not chooses and asked.table is None and all(work.epochs == 1 for work in works):
        return [(asked, works)], []
    groups: dict[LocalTraining, list[RowsWork]] = {}
    failed: list[Outcome] = []
    for work in works:
        try:
            own = own_training(asked, work.client, work.data, work.epochs, has_labels)
        except Exception as error:  # user code may raise anything; a client's failure is an answer
            failed.append((work, error))
        else:
            together = own.model_copy(update=asked.training.model_dump(include=_MIXED)) if mixes else own
            groups.setdefault(together, []).append(replace(work, training=own) if mixes else work)
    return [(replace(asked, training=training), members) for training, members in groups.items()], failed


def own_training(asked: TrainRequest, client: int, data: Samples, times: int, has_labels: bool) -> LocalTraining:
    """Return how a client trains on its rows: as asked, unless a table, its algorithm or a selection policy chooses.

    Args:
        asked: By the train message.
        client: Its index.
        data: The client's training rows.
        times: Epochs are so many times the others'.
        has_labels: Whether clients hold labelled rows.
    """
    training, algorithm = asked.training, asked.algorithm
    if asked.table is not None and len(data):
        training = asked.table.settings(training, data.label_counts(asked.num_classes))
    if algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings:
        training = algorithm.settings(replace(facts_of(asked, client, data, has_labels), training=training))
    return training if times == 1 else training.model_copy(update={"local_epochs": times * training.local_epochs})


def facts_of(asked: TrainRequest, client: int, data: Samples, has_labels: bool) -> LocalFacts:
    """Return what a client knows of itself in a round.

    Args:
        asked: By the train message.
        client: Its index.
        data: Its training rows.
        has_labels: Whether clients hold labelled rows.
    """
    counts = data.label_counts(asked.num_classes) if has_labels else np.empty(0, np.int64)
    generator = stream(asked.seed, "settings", asked.server_round, client)
    return LocalFacts(asked.training, len(data), counts, asked.companions, generator)


def with_signals(asked: TrainRequest, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes with what each client says of how far it lies from the table's cells, if it is to."""
    table = asked.table
    if table is None or table.table.threshold is None:
        return outcomes

    def told(work: RowsWork, update: ClientUpdate | Exception) -> Outcome:
        if isinstance(update, Exception):
            return work, update
        says = table.says_far(work.data.label_counts(asked.num_classes), asked.seed, work.client)
        return work, replace(update, sums={**update.sums, FAR_KEY: float(says)})

    return [told(work, update) for work, update in outcomes]


Scores = Callable[[Tensor, Mapping[int, Samples], int], Mapping[int, ClientScore | Exception]]
"""Of models, one a client, the rows of each client and the trial's seed."""


def with_validation(
    scores: Scores,
    asked: TrainRequest,
    block: Sequence[RowsWork],
    updates: Sequence[ClientUpdate | Exception],
    has_labels: bool,
) -> Sequence[ClientUpdate | Exception]:
    """Return updates with the sums that their algorithm makes of validation rows; as they are if it looks at none.

    Args:
        scores: Scores models.
        asked: By the train message.
        block: Clients that were trained together.
        updates: Of each, or what it ended with.
        has_labels: Whether clients hold labelled rows.
    """
    algorithm = asked.algorithm
    trained = {place: update for place, update in enumerate(updates) if isinstance(update, ClientUpdate)}
    if algorithm is None or not algorithm.validates or not trained:
        return updates
    rows = {place: part for place in trained if (part := block[place].validation) is not None}
    vectors = torch.from_numpy(np.stack([trained[place].vector for place in rows]))
    found = list(updates)
    for place, score in scores(vectors, rows, asked.seed).items():
        found[place] = _reported(algorithm, asked, block[place], trained[place], score, has_labels)
    return found


def _reported(
    algorithm: ClientAlgorithm,
    asked: TrainRequest,
    work: RowsWork,
    update: ClientUpdate,
    score: ClientScore | Exception,
    has_labels: bool,
) -> ClientUpdate | Exception:
    if isinstance(score, Exception):
        return score
    validation = Validation(score.num_examples, score.num_correct, score.loss_sum, update.sums)
    try:
        sums = algorithm.validated(facts_of(asked, work.client, work.data, has_labels), validation)
    except Exception as error:  # user code may raise anything; a client's failure is an answer
        return error
    return replace(update, sums={**update.sums, **sums})
