"""Runs of client algorithms for each training backend, per-client settings, and validation of updates.

`LoopRun` runs an algorithm on one client, `BlockRun` on a block of small dense nets; the run of a task is in
`fedscout.engine.training.backends`. An algorithm's results are split into one update per client here.

`by_settings` groups clients for which a table, an algorithm or a selection policy chooses equal training settings. The
table is applied first, so an algorithm receives the settings of the client's cell and may change them; a policy then
multiplies the epochs. A table overrides the learning rate, batch size and epochs of the train message.

`with_validation` scores updates on the clients' validation rows, for algorithms that request it and no others.
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
    Correct,
    Descent,
    LocalFacts,
    LocalRun,
    Loss,
    Steps,
    TrainRequest,
)
from fedscout.engine.contracts.client_table import FAR_KEY
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.dense import DenseStack
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.seeds import stream
from fedscout.engine.training import loop
from fedscout.engine.training.vectorised import LayerDraws, descend_block, lockstep_order


@dataclass(frozen=True)
class LoopRun(LocalRun):
    """Run of one client on its rows.

    Attributes:
        model: Scratch, overwritten.
        work: The client's part of the round.
        seen: The model's representation, where a loss uses it.
        integers: Integer buffers of the received model.
    """

    model: FlatModel
    work: loop.RowsWork
    seen: loop.Representation
    integers: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: FlatModel, request: TrainRequest, work: loop.RowsWork) -> Self:
        """Return the run of a client.

        Raises:
            ValueError: If it has no training rows.
        """
        if not len(work.data):
            raise ValueError(loop.NO_ROWS)
        common = known_of(request, model.layout, [work])
        return cls(**common, model=model, work=work, seen=loop.Representation(model), integers=request.integers)

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Run all local steps of the client."""
        data, generator = self.work.data, self.work.generator
        weigh = loop.weighted_rows(self.model, steps, self.received, loop.chunks(self.model, data))
        self.model.load(start.view(-1), self.integers)
        correct = correct_alone(steps, self.model)
        loss = loss_of(steps, self.seen, self.model.device)
        with nullcontext() if steps.compared is None else self.seen:
            num_steps, mean = loop.descend(
                self.model, data, steps.training, generator, correct, loss, steps.ahead, weigh
            )
        vectors = self.model.vector.clone()[None].cpu()
        return Descent(vectors, torch.tensor([num_steps]), torch.tensor([mean], dtype=torch.float64))

    def label_counts(self) -> Tensor:
        """Return the number of the client's training rows of each class."""
        return _label_counts([self.work], self.num_classes)


@dataclass(frozen=True)
class LockstepRun(LocalRun):
    """Run of several clients that make their steps together.

    Attributes:
        works: Their parts of the round.
    """

    works: Sequence[loop.RowsWork]

    def _descend(self, start: Tensor, steps: Steps) -> Descent:
        """Run all local steps of all clients."""
        if steps.loss is not None or steps.ahead is not None:
            raise TypeError("an algorithm with its own loss, or one that looks ahead, must declare one_by_one")
        return self._made(start, steps)

    @abstractmethod
    def _made(self, start: Tensor, steps: Steps) -> Descent:
        """Run the steps, given neither a custom loss nor a look-ahead."""

    def label_counts(self) -> Tensor:
        """Return the number of each client's training rows of each class."""
        return _label_counts(self.works, self.num_classes)


@dataclass(frozen=True)
class BlockRun(LockstepRun):
    """Run of clients of a small dense net in lockstep, ordered by decreasing number of steps.

    Attributes:
        stack: The model.
        draws: The random draws of the clients' layers.
    """

    stack: DenseStack
    draws: LayerDraws

    @classmethod
    def of(
        cls, stack: DenseStack, layout: ParameterLayout, request: TrainRequest, works: Sequence[loop.RowsWork]
    ) -> Self:
        """Return the run of clients that are in lockstep order."""
        common = known_of(request, layout, works)
        return cls(**common, stack=stack, works=works, draws=LayerDraws(stack, request, works))

    def _made(self, start: Tensor, steps: Steps) -> Descent:
        """Run the steps in lockstep."""
        return descend_block(self.stack, start, self.works, steps, self.received, self.draws)


def _label_counts(works: Sequence[loop.RowsWork], num_classes: int) -> Tensor:
    return torch.from_numpy(np.stack([work.data.label_counts(num_classes) for work in works])).float()


def known_of(request: TrainRequest, layout: ParameterLayout, works: Sequence[loop.RowsWork]) -> dict[str, Any]:
    """Return the fields of a run that are common to all backends."""
    num_examples = torch.tensor([len(work.data) for work in works])
    return {
        "received": request.received,
        "layout": layout,
        "states": [work.state for work in works],
        "config": request.config,
        "training": request.training,
        "auxiliary": request.auxiliary,
        "num_examples": num_examples,
        "counts_as": num_examples if request.table is None else torch.ones_like(num_examples),
        "num_classes": request.num_classes,
    }


def correct_alone(steps: Steps, model: FlatModel) -> Correct | None:
    """Return one client's correction of the trainable part, with its auxiliary vectors bound on the device."""
    correct = steps.correct
    if correct is None:
        return None
    others = [vectors.view(-1)[: model.layout.num_trainable].to(model.device) for vectors in steps.extra]
    return lambda weights, gradient: correct(weights, gradient, *others)


def loss_of(steps: Steps, seen: loop.Representation, device: torch.device) -> Loss | None:
    """Return one client's loss; None for the plain one."""
    adjusted = None if steps.adjusted is None else steps.adjusted.to(device)
    compared = steps.compared
    if adjusted is None and compared is None:
        return steps.loss
    models = [] if compared is None else [vector.view(-1).to(device) for vector in compared.others]

    def loss(outputs: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        mean = loop.mean_loss(outputs if adjusted is None else adjusted(outputs[None])[0], labels)
        if compared is None:
            return mean
        others = [seen.under(vector, features).flatten(1)[None] for vector in models]
        return mean + compared.measure(seen.latest().flatten(1)[None], *others).mean()

    return loss


def train_client(model: FlatModel, request: TrainRequest, work: loop.RowsWork) -> ClientUpdate:
    """Train one client by the requested algorithm, or plainly; `model` is scratch and overwritten.

    Raises:
        ValueError: If the client has no training rows.
    """
    (update,) = updates_by(request.algorithm, LoopRun.of(model, request, work))
    return update


def train_block(
    stack: DenseStack, layout: ParameterLayout, request: TrainRequest, works: Sequence[loop.RowsWork]
) -> list[ClientUpdate]:
    """Train clients together by the requested algorithm, or plainly; return one update each, in the order of `works`.

    Raises:
        ValueError: If a client has no training rows.
    """
    order = lockstep_order(stack, works, request.training)
    updates = updates_by(
        request.algorithm, BlockRun.of(stack, layout, request, [works[position] for position in order])
    )
    return [updates[position] for position in np.argsort(order)]


def updates_by(algorithm: ClientAlgorithm | None, run: LocalRun) -> list[ClientUpdate]:
    """Train the clients of a run by an algorithm, or plainly, and return one update per client.

    Raises:
        ValueError: If a result has a wrong shape.
    """
    algorithm = algorithm or ClientAlgorithm()
    finished = algorithm.train(run)
    _check_shapes(algorithm, run, finished)
    vectors = finished.vectors.numpy()
    steps, losses = finished.descent.num_steps.tolist(), finished.descent.losses.tolist()
    state, auxiliary = _rows(finished.state), _rows(finished.auxiliary)
    sums = {name: tensor.tolist() for name, tensor in finished.sums.items()}
    return [
        ClientUpdate(
            vector=vectors[row],
            num_steps=steps[row],
            loss=losses[row],
            state={name: matrix[row].copy() for name, matrix in state.items()},
            auxiliary={name: matrix[row] for name, matrix in auxiliary.items()},
            sums={name: float(column[row]) for name, column in sums.items()},
        )
        for row in range(len(vectors))
    ]


def _rows(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def _check_shapes(algorithm: ClientAlgorithm, run: LocalRun, finished: ClientResults) -> None:
    num_clients, size = len(run.states), run.layout.size
    expected: list[tuple[str, Tensor, tuple[int, ...]]] = [("vectors", finished.vectors, (num_clients, size))]
    expected += [
        (f"auxiliary vector {name!r}", t, (num_clients, *t.shape[1:2])) for name, t in finished.auxiliary.items()
    ]
    expected += [(f"sum {name!r}", tensor, (num_clients,)) for name, tensor in finished.sums.items()]
    expected += [(f"state {name!r}", t, (num_clients, *t.shape[1:])) for name, t in finished.state.items()]
    for name, tensor, shape in expected:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} of {type(algorithm).__name__} must have shape {shape}, got {tuple(tensor.shape)}")
    if set(finished.auxiliary) != set(algorithm.auxiliary):
        declared, returned = sorted(algorithm.auxiliary), sorted(finished.auxiliary)
        raise ValueError(
            f"{type(algorithm).__name__} must return the auxiliary vectors that it declares, {declared}, got {returned}"
        )


SimilarTasks = list[tuple[TrainRequest, Sequence[loop.RowsWork]]]


def by_settings(
    request: TrainRequest, works: Sequence[loop.RowsWork], has_labels: bool
) -> tuple[SimilarTasks, list[loop.Outcome]]:
    """Return the requests and clients grouped by training settings, and the clients whose settings failed.

    Args:
        request: The request of the train message.
        works: The clients' parts of the round.
        has_labels: Whether clients hold labelled rows.
    """
    algorithm = request.algorithm
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if not chooses and request.table is None and all(work.epochs == 1 for work in works):
        return [(request, works)], []
    groups: dict[LocalTraining, list[loop.RowsWork]] = {}
    failed: list[loop.Outcome] = []
    for work in works:
        try:
            training = own_training(request, work.client, work.data, work.epochs, has_labels)
        except Exception as error:  # user code may raise anything; a client's failure is an answer
            failed.append((work, error))
        else:
            groups.setdefault(training, []).append(work)
    return [(replace(request, training=training), members) for training, members in groups.items()], failed


def own_training(request: TrainRequest, client: int, data: Samples, times: int, has_labels: bool) -> LocalTraining:
    """Return a client's training settings.

    They are as requested, unless a table, the client's algorithm or a selection policy changes them.

    Args:
        request: The request of the train message.
        client: Its index.
        data: The client's training rows.
        times: Factor on the number of epochs.
        has_labels: Whether clients hold labelled rows.
    """
    training, algorithm = request.training, request.algorithm
    if request.table is not None and len(data):
        training = request.table.settings(training, data.label_counts(request.num_classes))
    if algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings:
        training = algorithm.settings(replace(facts_of(request, client, data, has_labels), training=training))
    return training if times == 1 else training.model_copy(update={"local_epochs": times * training.local_epochs})


def facts_of(request: TrainRequest, client: int, data: Samples, has_labels: bool) -> LocalFacts:
    """Return the facts about a client that its algorithm may use in a round.

    Args:
        request: The request of the train message.
        client: Its index.
        data: Its training rows.
        has_labels: Whether clients hold labelled rows.
    """
    counts = data.label_counts(request.num_classes) if has_labels else np.empty(0, np.int64)
    generator = stream(request.seed, "settings", request.server_round, client)
    return LocalFacts(request.training, len(data), counts, request.auxiliary, generator)


def with_signals(request: TrainRequest, outcomes: Sequence[loop.Outcome]) -> Sequence[loop.Outcome]:
    """Return the outcomes with each client's report whether it is far from the table's cells, if requested."""
    table = request.table
    if table is None or table.table.threshold is None:
        return outcomes

    def with_signal(work: loop.RowsWork, update: ClientUpdate | Exception) -> loop.Outcome:
        if isinstance(update, Exception):
            return work, update
        is_far = table.reports_far(work.data.label_counts(request.num_classes), request.seed, work.client)
        return work, replace(update, sums={**update.sums, FAR_KEY: float(is_far)})

    return [with_signal(work, update) for work, update in outcomes]


Scores = Callable[[Tensor, Mapping[int, Samples], int], Mapping[int, ClientScore | Exception]]
"""Of models, one a client, the rows of each client and the trial's seed."""


def with_validation(
    scores: Scores,
    request: TrainRequest,
    block: Sequence[loop.RowsWork],
    updates: Sequence[ClientUpdate | Exception],
    has_labels: bool,
) -> Sequence[ClientUpdate | Exception]:
    """Return updates with the sums that their algorithm computes on validation rows; unchanged if it uses none.

    Args:
        scores: Scores models.
        request: The request of the train message.
        block: Clients that were trained together.
        updates: The update of each, or its exception.
        has_labels: Whether clients hold labelled rows.
    """
    algorithm = request.algorithm
    trained = {place: update for place, update in enumerate(updates) if isinstance(update, ClientUpdate)}
    if algorithm is None or not algorithm.validates or not trained:
        return updates
    rows = {place: part for place in trained if (part := block[place].validation) is not None}
    vectors = torch.from_numpy(np.stack([trained[place].vector for place in rows]))
    outcomes = list(updates)
    for place, score in scores(vectors, rows, request.seed).items():
        if isinstance(score, Exception):
            outcomes[place] = score
            continue
        work, update = block[place], trained[place]
        try:
            sums = algorithm.validated(facts_of(request, work.client, work.data, has_labels), score, update.sums)
            outcomes[place] = replace(update, sums={**update.sums, **sums})
        except Exception as error:  # user code may raise anything; a client's failure is an answer
            outcomes[place] = error
    return outcomes
