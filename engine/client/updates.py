"""Updates that clients return, scores of personalised models, embeddings, server-side models and round durations.

`GatheredUpdates` collects the clients' updates into one host's answer: vectors of each client, or their exact sums.

`sent_by` replaces the updates of attackers, between training and merging. Everything else about an attacker remains
that of its honest training: losses, steps, the state kept for its next round. An attack changes the trainable
parameters. Buffers, which are statistics of batch normalisation, are sent as trained: attacks are defined on gradients
and parameters, and a reversed variance would be negative, so that the model would yield no valid outputs and reveal the
attack. Colluders may train on other hosts, or not be selected by the server in this round. A host therefore
trains all colluders again, from data that every host has: with identical bits on every host, and as clients without
state.

`without_withheld` handles tensors that clients do not send, as a selection policy may request for slow clients; the
server keeps its own values for them.

`clipped` clips updates where a strategy of Flower has its clients do so, as Flower's mod does.

`add_statistics` sums the statistics of a metric over a host's clients, so that only totals leave the host.

`tuned_scores` scores clients whose models are tuned on their rows before scoring.

`Embedding` computes the features that detectors compare if rows are images or token ids, whose raw distances carry
little information. The features are the outputs of a fixed network: a user's extractor, or the input of the last fully
connected layer of the task's own model, freshly initialised from the federation's seed. Every client derives the same
network, so nothing is sent for it; random convolutional features preserve enough information for this (K. Jarrett,
K. Kavukcuoglu, M. Ranzato and Y. LeCun, "What is the best multi-stage architecture for object recognition?",
ICCV 2009).

`round_durations` computes the simulated round durations of a call's clients, before any client trains. Steps are those
of one local training on a client's rows, with the settings that its algorithm or a selection policy chooses for it; an
algorithm that trains several times in a round pays for one. For reinforcement-learning clients, each epoch counts as
one step. A client that fails or abstains takes as long as if it had answered, since the server can't know; a client
that hangs is waited for (`fedscout.engine.grid.watchdog`). Clients that only measure the received model pay for that
(`Device.probe_seconds`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts import algorithm as contracts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import DoubleArray, RowProducts, Samples
from fedscout.engine.data.federation import Device, EmbeddingSource, Federation, RoundWork, simulated_seconds
from fedscout.engine.messages import calls, keys
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.metrics import Metric, add
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.seeds import integer, stream
from fedscout.engine.training.algorithm_runs import own_training
from fedscout.engine.training.backends import Trainer
from fedscout.engine.training.loop import CHUNK_ROWS, Outcome, RowsWork, chunks, gather

NOTHING: FloatArray = np.empty(0, np.float32)


class GatheredUpdates:
    """Collects the updates of the clients of one call, in any order.

    Args:
        call: Determines the form of the replies.
        max_weight: Upper bound of any sum of the federation's weights.
        keeps_state: Whether clients keep state even without a client algorithm.
        num_trainable: Number of trainable parameters, which come first in the vector.
    """

    def __init__(self, call: calls.HostCall, max_weight: int, keeps_state: bool, num_trainable: int) -> None:
        algorithm, received = call.session.algorithm, call.vector
        assert received is not None
        self._results = calls.TrainResults()
        self._num_trainable = num_trainable
        self._keeps_state = algorithm is not None or keeps_state
        self._tells_rows = call.session.client_table is None
        self._weighted_by = call.session.needs.weighted_by
        self._norms_from = received if call.watched is not None and call.watched.observed.update_norms else None
        self._auxiliary_weighted_by = {} if algorithm is None else algorithm.auxiliary
        self._merged = call.config[keys.REPLY_KEY] == "merged"
        self._scale = ExactScale.of(received, max_weight)
        self._auxiliary_scales = {
            name: ExactScale.of(call.auxiliary.get(name), max_weight) for name in self._auxiliary_weighted_by
        }
        self._vectors: dict[int, FloatArray] = {}
        self._auxiliary: dict[int, Mapping[str, FloatArray]] = {}
        self._pending: list[int] = []
        self._total = np.zeros(len(received), np.int64)
        self._updates: dict[int, tuple[int, contracts.ClientUpdate]] = {}  # without what is large of them

    def failed(self, client: int, error: Exception) -> None:
        """Record a client's failure."""
        self._results.failures[client] = f"{type(error).__name__} in local training: {error}"

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add the training outcomes of some clients."""
        successful = []
        for work, update in outcomes:
            failure = update if isinstance(update, Exception) else self._unfit(len(work.data), update)
            if failure is not None:
                self.failed(work.client, failure)
            else:
                assert isinstance(update, contracts.ClientUpdate)
                successful.append((work, update))
        if not successful:
            return
        if self._merged:
            self._sum(successful)
        for work, update in successful:
            if self._norms_from is not None:  # ‖y − x‖ over the trainable parameters
                trained = slice(self._num_trainable)
                moved = update.vector[trained].astype(np.float64) - self._norms_from[trained]
                self._results.update_norms[work.client] = float(np.linalg.norm(moved))
            if not self._merged:
                self._vectors[work.client] = np.ascontiguousarray(update.vector, np.float32)
                self._auxiliary[work.client] = update.auxiliary
            self._pending.append(work.client)
            self._updates[work.client] = (self._rows(work), replace(update, vector=NOTHING, auxiliary={}))

    def _rows(self, work: RowsWork) -> int:
        """Return the training rows that a client reports: 1 with a settings table, which they would reveal."""
        return len(work.data) if self._tells_rows else 1

    def _unfit(self, num_rows: int, update: contracts.ClientUpdate) -> ValueError | None:
        """Return an error if a weight of an update is missing, or outside the range that exact sums have room for."""
        counts = {keys.NUM_CLIENTS_KEY, keys.NUM_EXAMPLES_KEY}
        for name in {self._weighted_by, *self._auxiliary_weighted_by.values()} - counts:
            weight = update.sums.get(name)
            if weight is None:
                reported = ", ".join(sorted(update.sums)) or "none"
                return ValueError(f"the algorithm must report the sum {name!r}, which weights a mean, got {reported}")
            if not 0 <= weight <= num_rows:
                return ValueError(f"the weight {name!r} must be in [0, {num_rows}], the client's rows, got {weight}")
        return None

    def _sum(self, done: Sequence[tuple[RowsWork, contracts.ClientUpdate]]) -> None:
        """Add models and auxiliary vectors to their exact sums, without clients of which one is out of range."""
        vectors = _stacked([update.vector for _, update in done])
        inside = self._scale.holds(vectors)
        auxiliary = {}
        for name, scale in self._auxiliary_scales.items():
            auxiliary[name] = _stacked([update.auxiliary[name] for _, update in done])
            inside &= scale.holds(auxiliary[name])
        self._results.diverged += [work.client for (work, _), fits in zip(done, inside, strict=True) if not fits]

        def add(total: IntArray, scale: ExactScale, rows: FloatArray, weighted_by: str) -> None:
            counted = [
                {**update.sums, keys.NUM_CLIENTS_KEY: 1, keys.NUM_EXAMPLES_KEY: self._rows(work)}
                for work, update in done
            ]
            weights = np.array([counts[weighted_by] for counts in counted])
            scale.add(total, *((rows, weights) if inside.all() else (rows[inside], weights[inside])))

        add(self._total, self._scale, vectors, self._weighted_by)
        totals = self._results.auxiliary_totals
        for name, rows in auxiliary.items():
            total = totals.setdefault(name, np.zeros(rows.shape[1], np.int64))
            add(total, self._auxiliary_scales[name], rows, self._auxiliary_weighted_by[name])

    def taken(self, parts: Sequence[calls.Part], large_bytes: int) -> Iterator[Any]:
        """Yield the separately stored objects of clients added since the last call: for each, these parts in order.

        Args:
            parts: Model, auxiliary vectors or state; a state that is not large is replaced by None.
            large_bytes: Minimum size of a large state.
        """
        clients, self._pending = self._pending, []
        self._results.slots += clients
        for client in clients:
            for part in parts:
                if part == "states":
                    yield self._large_state(client, large_bytes)
                else:
                    yield (self._vectors if part == "vectors" else self._auxiliary).pop(client)

    def _large_state(self, client: int, large_bytes: int) -> contracts.ClientState | None:
        num_examples, update = self._updates[client]
        if not self._keeps_state or calls.state_bytes(update.state) < large_bytes:
            return None
        self._results.large.append(client)
        self._updates[client] = num_examples, replace(update, state={})
        return update.state

    def results(self) -> calls.TrainResults:
        """Return the results in ascending order of the clients, without the objects already taken."""
        results = self._results
        for client in sorted(self._updates):
            num_examples, update = self._updates[client]
            results.clients.append(client)
            results.num_examples.append(num_examples)
            results.num_steps.append(update.num_steps if self._tells_rows else 1)
            results.losses.append(update.loss)
            if update.initial_loss is not None:
                results.initial_losses.append(update.initial_loss)
            for name, value in update.sums.items():
                results.sums.setdefault(name, []).append(value)
            if self._keeps_state and client not in results.large:
                results.states[client] = update.state
        results.diverged.sort()
        if self._merged:
            results.total = self._total if results.clients else None  # nothing, where only others score
            return results
        if len(self._vectors) == len(results.clients):
            results.vectors = [self._vectors.pop(client) for client in results.clients]
        if len(self._auxiliary) == len(results.clients):
            auxiliary = [self._auxiliary.pop(client) for client in results.clients]
            names = self._auxiliary_weighted_by
            results.auxiliary = {name: [vectors[name] for vectors in auxiliary] for name in names}
        return results


def _stacked(rows: Sequence[FloatArray]) -> FloatArray:
    """Return vectors as the rows of a matrix; a single vector, which may be large, is not copied."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


Attacks = Mapping[int, tuple[contracts.UpdateAttack, ...]]
"""One item per attacker, in order."""


def sent_by(
    attacks: Attacks,
    num_trainable: int,
    request: contracts.TrainRequest,
    clients: Sequence[int],
    honest: Callable[[tuple[int, ...]], FloatArray],
) -> Callable[[Sequence[Outcome]], Sequence[Outcome]]:
    """Return what replaces attackers' updates in the outcomes of the clients of one call; failures are unchanged.

    Args:
        attacks: Attacks of the federation's clients.
        num_trainable: Number of leading vector elements that attacks see.
        request: The train request.
        clients: Clients of the call.
        honest: Trains the given clients, in ascending order and whether of the call or not; returns the vectors of
            those that can train, in that order, shape `(clients, layout.size)`.
    """
    groups = {attack.colluders for client in clients for attack in attacks.get(client, ())}
    known = {group: honest(group)[:, :num_trainable] for group in groups}

    def sent(
        work: contracts.ClientWork, update: contracts.ClientUpdate | Exception
    ) -> contracts.ClientUpdate | Exception:
        own = attacks.get(work.client, ())
        if not own or isinstance(update, Exception):
            return update
        parameters = slice(num_trainable)
        received, vector = request.received.numpy()[parameters], update.vector.copy()
        try:
            for place, attack in enumerate(own):
                generator = stream(request.seed, "attack", request.server_round, work.client, place)
                inputs = contracts.AttackInputs(received, vector[parameters], known[attack.colluders], generator)
                with np.errstate(over="ignore", invalid="ignore"):  # what leaves float32's range counts as diverged
                    vector[parameters] = attack(inputs)
        except Exception as error:  # as in training: a client's failure is an answer, not the host's end
            return error
        return replace(update, vector=vector)

    return lambda outcomes: [(work, sent(work, update)) for work, update in outcomes]


def withheld(call: calls.HostCall, layout: ParameterLayout, client: int) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the model values that a client does not send, if a policy wants it so."""
    assigned = None if call.watched is None else call.watched.assigned.get(client)
    if assigned is None or not assigned.withheld:
        return None
    names = [slot.name for slot in layout.parameters]
    generator = stream(call.config[keys.SEED_KEY], "withheld", call.config[keys.ROUND_KEY], client)
    drawn = {names[k] for k in generator.choice(len(names), int(assigned.withheld * len(names)), replace=False)}
    return layout.elements(lambda slot: slot.name in drawn)


def num_withheld(call: calls.HostCall, layout: ParameterLayout, client: int) -> int:
    """Return how many model values a client does not send."""
    elements = withheld(call, layout, client)
    return 0 if elements is None else int(elements.sum())


def without_withheld(call: calls.HostCall, layout: ParameterLayout, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes with withheld tensors replaced by their received values, which the server keeps for them."""

    def sent(work: RowsWork, update: contracts.ClientUpdate | Exception) -> Outcome:
        elements = withheld(call, layout, work.client)
        if elements is None or isinstance(update, Exception):
            return work, update
        assert call.vector is not None
        return work, replace(update, vector=np.where(elements, call.vector, update.vector))

    return [sent(*outcome) for outcome in outcomes]


def clipped(call: calls.HostCall, layout: ParameterLayout, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes with updates clipped if the call asks for it, and a sum of whether they were below the norm.

    The last bits of the norm depend on whether arrays go by the model's names.
    """
    if keys.CLIPPING_KEY not in call.config:
        return outcomes
    from flwr.supercore.differential_privacy import compute_adaptive_clip_model_update

    def clip(update: contracts.ClientUpdate) -> contracts.ClientUpdate:
        assert call.vector is not None
        trained, received = [update.vector.copy()], [call.vector]
        named = call.session.needs.arrays == "named"
        if named:  # the mod measures whatever the record holds, counts of batches included
            counted = layout.integers_after(call.arrays, update.num_steps)
            trained = [*layout.split(trained[0], counted).values()]
            received = [*layout.split(call.vector, call.arrays).values()]
        is_short = compute_adaptive_clip_model_update(trained, received, call.config[keys.CLIPPING_KEY])
        if named:
            trained = [layout.join(dict(zip(layout.entries, map(np.asarray, trained), strict=True)))]
        return replace(update, vector=trained[0], sums={**update.sums, keys.NORM_BIT_KEY: float(is_short)})

    clipped_outcomes: list[Outcome] = []
    for work, update in outcomes:
        try:
            clipped_outcomes.append((work, update if isinstance(update, Exception) else clip(update)))
        except ArithmeticError as error:  # an update of length 0, which Flower's clients fail on as well
            clipped_outcomes.append((work, error))
    return clipped_outcomes


def add_statistics(results: calls.EvaluateResults, unseen: Container[int]) -> None:
    """Sum the clients' metric statistics, and remove them from the clients' scores.

    Args:
        results: Results of a host; modified.
        unseen: Clients that do not train; their sums are separate.
    """
    clean = {client: results.clean.get(client, score) for client, score in results.own.items()}
    seen = {client for client in results.own if client not in unseen}
    parts: Mapping[str, Iterable[contracts.ClientScore]] = {
        "own": [score for client, score in results.own.items() if client in seen],
        "clean": [score for client, score in clean.items() if client in seen],
        "received": results.received.values(),
        "unseen": [score for client, score in results.own.items() if client not in seen],
    }
    for part, scores in parts.items():
        total = add(score.statistics for score in scores)
        if total is not None:
            results.sums[part] = total
    for scores_by_client in (results.own, results.clean, results.received):
        for client, score in scores_by_client.items():
            scores_by_client[client] = replace(score, statistics=None)


@dataclass(frozen=True)
class Tuning(contracts.ClientAlgorithm):
    """Trains the models that clients are scored with, instead of those that they send, on any training backend.

    Attributes:
        algorithm: The client algorithm whose `tuned` is run.
    """

    algorithm: contracts.ClientAlgorithm

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]  # that of another
        """Whether clients are trained one after the other."""
        return self.algorithm.one_by_one

    def settings(self, facts: contracts.LocalFacts) -> LocalTraining:
        """Return the settings of the wrapped algorithm."""
        return self.algorithm.settings(facts)

    def train(self, run: contracts.LocalRun) -> contracts.ClientResults:
        """Return the tuned models as if they were the clients' updates."""
        vectors = self.algorithm.tuned(run)
        nothing = torch.zeros(len(vectors))
        return contracts.ClientResults(contracts.Descent(vectors, nothing, nothing), vectors)


def tuned_scores(
    trainer: Trainer, outcomes: Sequence[Outcome], parts: Mapping[int, Samples], seed: int, metric: Metric | None = None
) -> dict[int, contracts.ClientScore | Exception]:
    """Score each client with its tuned model; a client whose tuning failed gets the exception.

    Args:
        trainer: Scores the models.
        outcomes: Outcomes of `Tuning`.
        parts: Rows on which each client is scored.
        seed: Seed of the trial.
        metric: Metric measured in addition to accuracy and loss.
    """
    tuned = {work.client: update for work, update in outcomes}
    failed = {client: update for client, update in tuned.items() if isinstance(update, Exception)}
    models = {client: update.vector for client, update in tuned.items() if not isinstance(update, Exception)}
    if not models:
        return {**failed}
    vectors = torch.from_numpy(np.stack([*models.values()]))
    return {**failed, **trainer.scores(vectors, {client: parts[client] for client in models}, seed, metric)}


class Embedding:
    """The embedding network.

    Args:
        source: Describes the network.
        seed: Seed of the federation.
        device: Device on which it runs.
    """

    def __init__(self, source: EmbeddingSource, seed: int, device: torch.device | None = None) -> None:
        self._model = new_model(source.network, integer(seed, "embedding"), device)
        self._model.module.eval()
        self._inputs: list[Tensor] = []  # of the fully connected layer that ran last
        if source.penultimate:
            for module in self._model.module.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(self._keep_input)

    def _keep_input(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._inputs[:] = inputs[:1]

    @torch.no_grad()
    def of(self, data: Samples) -> Samples:
        """Return a client's rows with their embeddings as features, shape `(num_rows, width)`."""
        parts: list[FloatArray] = []
        for features, _ in chunks(self._model, data):
            self._inputs.clear()
            outputs = self._model.module(features)
            rows = self._inputs[-1] if self._inputs else outputs
            parts.append(rows.reshape(len(features), -1).float().cpu().numpy().copy())
        labels: IntArray = data.labels[data.rows]
        return Samples(np.concatenate(parts), labels, np.arange(len(data)))


@dataclass(frozen=True)
class ServerModel(calls.ServerContext):
    """Server context of a host: evaluates models on the server's rows, in the host's own module.

    Attributes:
        model: Module that is overwritten by each model.
        data: The server's rows.
    """

    model: FlatModel
    data: Samples

    @classmethod
    def of(cls, federation: Federation, model: FlatModel, generator: np.random.Generator) -> Self:
        """Return the context of a federation.

        Raises:
            ValueError: If its server holds no rows.
        """
        server = federation.server
        if server is None:
            raise ValueError(
                "the server must hold rows (federation.server_rows, such as 200 or 0.1), but it holds none"
            )
        rows = np.arange(server.num_rows)
        labels = np.zeros(server.num_rows, np.int64) if server.labels is None else server.labels
        return cls(
            layout=model.layout,
            num_classes=federation.num_classes,
            num_rows=server.num_rows,
            labels=None if server.labels is None else torch.from_numpy(np.array(server.labels)),
            generator=generator,
            model=model,
            data=Samples(server.features, labels, rows),
        )

    @torch.no_grad()
    def outputs(self, vector: Tensor, rows: IntArray | None = None) -> Tensor:
        """Return a model's outputs, computed in chunks of `CHUNK_ROWS` rows."""
        self._load(vector)
        positions = self.data.rows if rows is None else rows
        starts = range(0, len(positions), CHUNK_ROWS)
        return torch.cat([self._forward(positions[start : start + CHUNK_ROWS]) for start in starts])

    def gradient(
        self, vector: Tensor, loss: Callable[[Tensor], Tensor], rows: IntArray | None = None
    ) -> tuple[float, Tensor]:
        """Return a loss and its gradient."""
        self._load(vector)
        self.model.gradient.zero_()
        value = loss(self._forward(self.data.rows if rows is None else rows))
        value.backward()  # type: ignore[no-untyped-call]
        return value.item(), self.model.gradient.clone()

    def _load(self, vector: Tensor) -> None:
        self.model.load(vector)
        self.model.module.eval()

    def _forward(self, positions: IntArray) -> Tensor:
        features, _ = gather(self.model, self.data, positions)
        return self.model.outputs(features)


def products_on(device: torch.device) -> RowProducts:
    """Return a function that computes XᵀX in float64 on a device, shape `(d, d)` from rows of shape `(rows, d)`."""

    def cross_products(rows: DoubleArray) -> DoubleArray:
        matrix = torch.from_numpy(rows).to(device)
        products: DoubleArray = (matrix.T @ matrix).cpu().numpy()
        return products

    return cross_products


NOBODY = calls.RoundSelection(observed=calls.ReportRequest())


def round_durations(
    call: calls.HostCall,
    request: contracts.TrainRequest,
    layout: ParameterLayout,
    devices: Mapping[int, Device],
    rows: Callable[[int, calls.HostCall], Samples] | None,
) -> dict[int, float]:
    """Return the simulated seconds of each client of a call, 0 for a client without a device.

    Args:
        call: The call, with the clients that train and those that only measure.
        request: The train request.
        layout: Layout of the model.
        devices: Devices of clients.
        rows: Returns a client's training rows, or raises if it has none for this call; None if clients have a task.
    """
    watched, algorithm, free = call.watched or NOBODY, call.session.algorithm, Device()

    def num_steps(client: int, times: int) -> int:
        if rows is None:
            return times * request.training.local_epochs
        try:
            data = rows(client, call)
            training = own_training(request, client, data, times, has_labels=True)
        except Exception:  # it will fail in training, and say why there
            return 0
        return int(training.num_steps(np.array([len(data)]))[0])

    def trained(client: int) -> float:
        assigned = watched.assigned.get(client)
        work = RoundWork(
            num_steps(client, 1 if assigned is None else assigned.epochs),
            keys.client_bytes_down(layout, algorithm, call.auxiliary.values()),
            keys.client_bytes_up(layout, algorithm) - keys.BYTES_A_VALUE * num_withheld(call, layout, client),
        )
        return simulated_seconds(devices.get(client, free), work, request.seed, request.server_round, client)

    def measured(client: int) -> float:
        work = RoundWork(num_steps(client, 1), keys.client_bytes_down(layout, algorithm, ()), bytes_up=0)
        return devices.get(client, free).probe_seconds(work, request.training.local_epochs)

    return {c: measured(c) for c in watched.measured} | {c: trained(c) for c in call.clients}
