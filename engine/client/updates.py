"""What clients send: updates gathered into exact sums or one by one, scores of personal models, embeddings, durations.

From clients' updates to one host's answer: each client's vectors, or their exact sums.

From what clients trained to what they send: the one place where an attacker's update is exchanged.

It lies between training, in whichever way, and merging. What else is known of the client stays that of its honest
training: losses, steps, what it keeps for its next round. An attack changes the trainable parameters. Buffers, which
are statistics of batch normalisation, go up as they were trained: attacks are defined on gradients and parameters, and
a turned variance would be negative, a model that tells of itself as it gives no numbers at all.

Accomplices may train on other hosts, and in rounds for which the server did not choose them. So a host trains all of
them once more, from what every host has: with equal bits wherever, and as clients that have kept nothing.

Tensors that clients do not send, as a selection policy may ask of slow ones: the server keeps its own values.

The sums of a metric over a host's clients: what travels on is the total, and no client's own.

Scores where clients have models of their own: kept, or tuned on their rows before they are scored.

What detectors compare where rows are images or token numbers: embeddings instead of raw values.

Distances of pixels or of token numbers say little. The features are then what a fixed network makes of a row: an
extractor of the user's, or the input of the task's own last fully connected layer, freshly initialised from the
federation's seed. Every client derives the same network, so nothing is sent for it; random convolutional features keep
enough of a row for this (K. Jarrett, K. Kavukcuoglu, M. Ranzato and Y. LeCun, "What is the best multi-stage
architecture for object recognition?", ICCV 2009).

The server's context on a host: the host's own model over the server's rows.

What detectors have multiplied of many rows, where a host trains: on a core by NumPy, on a device by PyTorch.

How long a round takes the clients of a call on the simulated clock: known before anybody trains.

Steps are those of one local training on a client's rows, with the settings that its algorithm or a selection policy
chooses for it; an algorithm that trains several times in a round pays for one. Where clients play, each epoch counts as
one step. Who fails or abstains takes as long as if it had answered, as its server can't know; who hangs is waited for
(`fedscout.engine.grid.watchdog`). Clients that only measure the received model pay for that (`Device.probe_seconds`).
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
from fedscout.engine.contracts.algorithm import (
    AttackInputs,
    ClientAlgorithm,
    ClientResults,
    Clients,
    ClientScore,
    ClientState,
    ClientUpdate,
    ClientWork,
    Descent,
    LocalFacts,
    LocalRun,
    TrainRequest,
    UpdateAttack,
)
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import DoubleArray, RowProducts, Samples
from fedscout.engine.data.devices import Device, RoundWork, simulated_seconds
from fedscout.engine.data.federation import EmbeddingSource, Federation
from fedscout.engine.messages.calls import (
    NO_SERVER_ROWS,
    EvaluateResults,
    HostCall,
    Part,
    ReportRequest,
    RoundSelection,
    ServerContext,
    TrainResults,
    state_bytes,
)
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.messages.keys import (
    BYTES_A_VALUE,
    NUM_CLIENTS_KEY,
    NUM_EXAMPLES_KEY,
    REPLY_KEY,
    ROUND_KEY,
    SEED_KEY,
    client_bytes_down,
    client_bytes_up,
)
from fedscout.engine.metrics import Metric, add
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.seeds import integer, stream
from fedscout.engine.training.algorithm_runs import own_training
from fedscout.engine.training.backends import MOST_CLIENTS, Trainer
from fedscout.engine.training.loop import CHUNK_ROWS, Outcome, RowsWork, chunks, gather

NOTHING: FloatArray = np.empty(0, np.float32)


class GatheredUpdates:
    """Gathers what the clients of one call have trained, in any order.

    Args:
        call: Says how replies are wanted.
        received: The global vector, shape `(params,)`.
        max_weight: Which no sum of the federation's weights exceeds.
        keeps_state: Whether clients keep something although no algorithm does.
        num_trainable: Parameters of the model that training moves, which come first; None is all.
    """

    def __init__(
        self,
        call: HostCall,
        received: FloatArray,
        max_weight: int,
        keeps_state: bool = False,
        num_trainable: int | None = None,
    ) -> None:
        algorithm = call.session.algorithm
        self._results = TrainResults()
        self._num_trainable = num_trainable
        self._keeps_state = algorithm is not None or keeps_state
        self._tells_rows = call.session.client_table is None
        self._weighted_by = call.session.needs.weighted_by
        self._norms_from = received if call.watched is not None and call.watched.observed.update_norms else None
        self._companions_weighted_by = {} if algorithm is None else algorithm.companions
        self._merged = call.config[REPLY_KEY] == "merged"
        self._scale = ExactScale.of(received, max_weight)
        self._companion_scales = {
            name: ExactScale.of_companion(call.companions.get(name), max_weight)
            for name in self._companions_weighted_by
        }
        self._vectors: dict[int, FloatArray] = {}
        self._companions: dict[int, Mapping[str, FloatArray]] = {}
        self._untaken: list[int] = []
        self._total = np.zeros(len(received), np.int64)
        self._updates: dict[int, tuple[int, ClientUpdate]] = {}  # without what is large of them

    def failed(self, client: int, error: Exception) -> None:
        """Note a client's failure."""
        self._results.failures[client] = f"{type(error).__name__} in local training: {error}"

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Take in what some clients have trained."""
        done = []
        for work, update in outcomes:
            failure = update if isinstance(update, Exception) else self._unfit(len(work.data), update)
            if failure is not None:
                self.failed(work.client, failure)
            else:
                assert isinstance(update, ClientUpdate)
                done.append((work, update))
        if not done:
            return
        if self._merged:
            self._sum(done)
        for work, update in done:
            if self._norms_from is not None:
                self._results.update_norms[work.client] = self._norm(update.vector)
            if not self._merged:
                self._vectors[work.client] = np.ascontiguousarray(update.vector, np.float32)
                self._companions[work.client] = update.companions
            self._untaken.append(work.client)
            self._updates[work.client] = (self._rows(work), replace(update, vector=NOTHING, companions={}))

    def _rows(self, work: RowsWork) -> int:
        """Return the training rows that a client says it has: one under a table of settings, as rows tell the cell."""
        return len(work.data) if self._tells_rows else 1

    def _norm(self, vector: FloatArray) -> float:
        """Return ‖y − x‖ over the trainable parameters."""
        assert self._norms_from is not None
        moved = vector[: self._num_trainable].astype(np.float64) - self._norms_from[: self._num_trainable]
        return float(np.linalg.norm(moved))

    def _unfit(self, num_examples: int, update: ClientUpdate) -> ValueError | None:
        """Return why an update has no place in a mean: sums weigh means, for which exact sums leave so much room."""
        for name in {self._weighted_by, *self._companions_weighted_by.values()} - {NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY}:
            weight = update.sums.get(name)
            if weight is None:
                given = ", ".join(sorted(update.sums)) or "none"
                return ValueError(f"the algorithm must report the sum {name!r}, which weighs a mean, got {given}")
            if not 0 <= weight <= num_examples:
                return ValueError(
                    f"the weight {name!r} must be in [0, {num_examples}], the client's rows, got {weight}"
                )
        return None

    def _sum(self, done: Sequence[tuple[RowsWork, ClientUpdate]]) -> None:
        """Add vectors and companions to their exact sums, without clients of which one can't be added."""
        vectors = _stacked([update.vector for _, update in done])
        inside = self._scale.holds(vectors)
        companions = {}
        for name, scale in self._companion_scales.items():
            companions[name] = _stacked([update.companions[name] for _, update in done])
            inside &= scale.holds(companions[name])
        self._results.diverged += [work.client for (work, _), fits in zip(done, inside, strict=True) if not fits]

        def add(total: IntArray, scale: ExactScale, rows: FloatArray, weighted_by: str) -> None:
            weights = np.array([weight_of(weighted_by, self._rows(work), update.sums) for work, update in done])
            scale.add(total, *((rows, weights) if inside.all() else (rows[inside], weights[inside])))

        add(self._total, self._scale, vectors, self._weighted_by)
        totals = self._results.companion_totals
        for name, rows in companions.items():
            total = totals.setdefault(name, np.zeros(rows.shape[1], np.int64))
            add(total, self._companion_scales[name], rows, self._companions_weighted_by[name])

    def taken(self, parts: Sequence[Part], large_bytes: int) -> Iterator[Any]:
        """Yield what of the clients that were added since lies beside the results: of each these parts, in this order.

        Args:
            parts: A model; its companions; a state, in place of which there is None if it is not large.
            large_bytes: From which a state is.
        """
        waiting, self._untaken = self._untaken, []
        self._results.slots += waiting
        for client in waiting:
            for part in parts:
                yield self._part(part, client, large_bytes)

    def _part(self, part: Part, client: int, large_bytes: int) -> Any:
        if part == "states":
            return self._large_state(client, large_bytes)
        return (self._vectors if part == "vectors" else self._companions).pop(client)

    def _large_state(self, client: int, large_bytes: int) -> ClientState | None:
        num_examples, update = self._updates[client]
        if not self._keeps_state or state_bytes(update.state) < large_bytes:
            return None
        self._results.large.append(client)
        self._updates[client] = num_examples, replace(update, state={})
        return update.state

    def results(self) -> TrainResults:
        """Return the answer, its lists in ascending order of the clients, without what was taken."""
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
        if len(self._companions) == len(results.clients):
            beside = [self._companions.pop(client) for client in results.clients]
            names = self._companions_weighted_by
            results.companions = {name: [vectors[name] for vectors in beside] for name in names}
        return results


def _stacked(rows: Sequence[FloatArray]) -> FloatArray:
    """Return vectors as the rows of a matrix; of one, which may be large, without a copy."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


def weight_of(name: str, num_examples: int, sums: Mapping[str, float]) -> float:
    """Return a client's weight in a mean: 1, its rows or a sum that it reports."""
    if name == NUM_CLIENTS_KEY:
        return 1
    return num_examples if name == NUM_EXAMPLES_KEY else sums[name]


Attacks = Mapping[int, tuple[UpdateAttack, ...]]
"""Of each attacker, in order."""


class SentUpdates:
    """What the clients of one call send.

    Args:
        attacks: Of the federation.
        num_trainable: Elements of the vectors that attacks see; they come first.
        asked: By the train message.
        clients: Of the call.
        honest: Trains clients, told ascending, of the call or not; returns the vectors of those that can train, in
            that order, shape `(clients, layout.size)`.
    """

    def __init__(
        self,
        attacks: Attacks,
        num_trainable: int,
        asked: TrainRequest,
        clients: Sequence[int],
        honest: Callable[[tuple[int, ...]], FloatArray],
    ) -> None:
        self._attacks = attacks
        self._num_trainable = num_trainable
        self._asked = asked
        groups = {attack.accomplices for client in clients for attack in attacks.get(client, ())}
        self._known = {group: honest(group)[:, :num_trainable] for group in groups}

    def of(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes of honest training with the updates that are sent; a failure stays one."""
        if not self._attacks:
            return outcomes
        return [(work, self._sent(work, update)) for work, update in outcomes]

    def _sent(self, work: ClientWork, update: ClientUpdate | Exception) -> ClientUpdate | Exception:
        """Return what one client sends; of an attacker the exception, if an attack ends with one."""
        attacks, asked = self._attacks.get(work.client, ()), self._asked
        if not attacks or isinstance(update, Exception):
            return update
        parameters = slice(self._num_trainable)
        received, vector = asked.received.numpy()[parameters], update.vector.copy()
        try:
            for place, attack in enumerate(attacks):
                generator = stream(asked.seed, "attack", asked.server_round, work.client, place)
                inputs = AttackInputs(received, vector[parameters], self._known[attack.accomplices], generator)
                with np.errstate(over="ignore", invalid="ignore"):  # what leaves float32's range counts as diverged
                    vector[parameters] = attack(inputs)
        except Exception as error:  # as in training: a client's failure is an answer, not the host's end
            return error
        return replace(update, vector=vector)


class WithheldTensors:
    """What the clients of one call do not send.

    Args:
        call: With assignments, if a policy makes any.
        layout: Of the model.

    Attributes:
        num_values: Of their models, over all clients so far.
    """

    def __init__(self, call: HostCall, layout: ParameterLayout) -> None:
        assigned = {} if call.watched is None else call.watched.assigned
        self._shares = {client: each.withheld for client, each in assigned.items() if each.withheld}
        self._call = call
        self._layout = layout
        self.num_values = 0

    def of(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return what clients send: tensors that they withhold are as they were received."""
        if not self._shares:
            return outcomes
        return [
            (work, self._without(work.client, update) if isinstance(update, ClientUpdate) else update)
            for work, update in outcomes
        ]

    def _without(self, client: int, update: ClientUpdate) -> ClientUpdate:
        if client not in self._shares:
            return update
        elements = self._elements(client)
        self.num_values += int(elements.sum())
        assert self._call.vector is not None
        return replace(update, vector=np.where(elements, self._call.vector, update.vector))

    def num_values_of(self, client: int) -> int:
        """Return how many values of its model a client does not send."""
        return int(self._elements(client).sum()) if client in self._shares else 0

    def _elements(self, client: int) -> npt.NDArray[np.bool_]:
        """Return whether a client withholds each value of the model."""
        config, names = self._call.config, [slot.name for slot in self._layout.parameters]
        generator = stream(config[SEED_KEY], "withheld", config[ROUND_KEY], client)
        drawn = {names[k] for k in generator.choice(len(names), int(self._shares[client] * len(names)), replace=False)}
        return self._layout.elements(lambda slot: slot.name in drawn)


def add_statistics(results: EvaluateResults, unseen: Container[int]) -> None:
    """Add the clients' statistics and take them out of their scores.

    Args:
        results: Of a host; changed.
        unseen: Clients that take no part, whose sums stand apart.
    """
    clean = {client: results.clean.get(client, score) for client, score in results.own.items()}
    seen = {client for client in results.own if client not in unseen}
    parts: Mapping[str, Iterable[ClientScore]] = {
        "own": [score for client, score in results.own.items() if client in seen],
        "clean": [score for client, score in clean.items() if client in seen],
        "received": results.received.values(),
        "unseen": [score for client, score in results.own.items() if client not in seen],
    }
    for part, scores in parts.items():
        total = add(score.statistics for score in scores)
        if total is not None:
            results.sums[part] = total
    for told in (results.own, results.clean, results.received):
        for client, score in told.items():
            told[client] = replace(score, statistics=None)


MODELS_BYTES_TOGETHER = 2**26
"""Of clients' own models that are made and scored together, at least one; an algorithm holds each some times."""


def personal_scores(
    algorithm: ClientAlgorithm,
    trainer: Trainer,
    layout: ParameterLayout,
    received: Tensor,
    clients: Mapping[int, Samples],
    states: Mapping[int, ClientState],
    config: Mapping[str, Any],
    seed: int,
    metric: Metric | None = None,
) -> dict[int, ClientScore | Exception]:
    """Score each client's own model on its rows; the exception stands where there is no score.

    Args:
        algorithm: Makes the models.
        trainer: Scores them.
        layout: Of the model.
        received: The global model, shape `(size,)`.
        clients: The rows of each.
        states: What clients kept; none of those that never trained.
        config: The message's scalars.
        seed: The trial's.
        metric: What is measured beside accuracy and loss.
    """

    def scored(group: Mapping[int, Samples]) -> dict[int, ClientScore | Exception]:
        known = Clients(received, layout, [states.get(client) or {} for client in group], config)
        try:
            return trainer.scores(algorithm.scored(known), group, seed, metric)
        except Exception as error:  # user code may raise anything; who shares its group depends on the host
            if len(group) == 1:
                return dict.fromkeys(group, error)
        return {client: score for one in group for client, score in scored({one: group[one]}).items()}

    found: dict[int, ClientScore | Exception] = {}
    most = min(MOST_CLIENTS, max(1, MODELS_BYTES_TOGETHER // received.nbytes))
    for first in range(0, len(clients), most):
        found |= scored({client: clients[client] for client in [*clients][first : first + most]})
    return found


@dataclass(frozen=True)
class Tuning(ClientAlgorithm):
    """Trains what clients are scored with in place of what they send, in whatever way clients are trained.

    Attributes:
        algorithm: Whose.
    """

    algorithm: ClientAlgorithm

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]  # that of another
        """Whether clients are trained one after the other."""
        return self.algorithm.one_by_one

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return those of the other."""
        return self.algorithm.settings(facts)

    def train(self, run: LocalRun) -> ClientResults:
        """Return what clients tune as if it went up."""
        vectors = self.algorithm.tuned(run)
        nothing = torch.zeros(len(vectors))
        return ClientResults(Descent(vectors, nothing, nothing), vectors)


def tuned_scores(
    trainer: Trainer, outcomes: Sequence[Outcome], parts: Mapping[int, Samples], seed: int, metric: Metric | None = None
) -> dict[int, ClientScore | Exception]:
    """Score clients with what each has tuned; an exception stands for itself.

    Args:
        trainer: Scores them.
        outcomes: Of `Tuning`.
        parts: The rows that each is scored on.
        seed: The trial's.
        metric: What is measured beside accuracy and loss.
    """
    tuned = {work.client: update for work, update in outcomes}
    failed = {client: update for client, update in tuned.items() if isinstance(update, Exception)}
    models = {client: update.vector for client, update in tuned.items() if not isinstance(update, Exception)}
    if not models:
        return {**failed}
    vectors = torch.from_numpy(np.stack([*models.values()]))
    return {**failed, **trainer.scores(vectors, {client: parts[client] for client in models}, seed, metric)}


@dataclass
class _LastInput:
    """Remembers what the fully connected layer that ran last was given."""

    rows: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.rows = inputs[0]


class Embedding:
    """The network, built.

    Args:
        source: Which network.
        seed: Of the federation.
        device: Where it runs.
    """

    def __init__(self, source: EmbeddingSource, seed: int, device: torch.device | None = None) -> None:
        self._model = new_model(source.network, integer(seed, "embedding"), device)
        self._model.module.eval()
        self._last = _LastInput()
        if source.penultimate:
            for module in self._model.module.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(self._last)

    @torch.no_grad()
    def of(self, data: Samples) -> Samples:
        """Return a client's rows with their embeddings as features, shape `(num_rows, width)`."""
        parts: list[FloatArray] = []
        for features, _ in chunks(self._model, data):
            self._last.rows = None
            outputs = self._model.module(features)
            rows = outputs if self._last.rows is None else self._last.rows
            parts.append(rows.reshape(len(features), -1).float().cpu().numpy().copy())
        labels: IntArray = data.labels[data.rows]
        return Samples(np.concatenate(parts), labels, np.arange(len(data)))


@dataclass(frozen=True)
class ServerModel(ServerContext):
    """Computes with a model that is overwritten.

    Attributes:
        model: Scratch.
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
            raise ValueError(NO_SERVER_ROWS)
        rows = np.arange(server.num_rows)
        known = np.zeros(server.num_rows, np.int64) if server.labels is None else server.labels
        return cls(
            layout=model.layout,
            num_classes=federation.num_classes,
            num_rows=server.num_rows,
            labels=None if server.labels is None else torch.from_numpy(np.array(server.labels)),
            generator=generator,
            model=model,
            data=Samples(server.features, known, rows),
        )

    @torch.no_grad()
    def outputs(self, vector: Tensor, rows: IntArray | None = None) -> Tensor:
        """Return a model's outputs, some hundreds of rows at a time."""
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
    """Return what gives XᵀX in float64 on a device, shape `(d, d)` from rows of shape `(rows, d)`."""

    def cross_products(rows: DoubleArray) -> DoubleArray:
        there = torch.from_numpy(rows).to(device)
        found: DoubleArray = (there.T @ there).cpu().numpy()
        return found

    return cross_products


NOBODY = RoundSelection(observed=ReportRequest())


class RoundDurations:
    """Durations of the clients of one call.

    Args:
        call: Whose clients train, and in which others measure.
        asked: By it.
        layout: Of the model.
        rows: Returns a client's training rows; raises where it has none for this call.
        plays: Whether clients play, and rows only count.
    """

    def __init__(
        self,
        call: HostCall,
        asked: TrainRequest,
        layout: ParameterLayout,
        rows: Callable[[int, HostCall], Samples],
        plays: bool,
    ) -> None:
        self._call = call
        self._asked = asked
        self._layout = layout
        self._rows = rows
        self._plays = plays
        self._watched = call.watched or NOBODY
        self._withheld = WithheldTensors(call, layout)

    def of(self, devices: Mapping[int, Device]) -> dict[int, float]:
        """Return the simulated seconds of each client of the call, 0 of one without a device."""
        free = Device()
        probes = {client: self._measured(client, devices.get(client, free)) for client in self._watched.measured}
        return probes | {client: self._trained(client, devices.get(client, free)) for client in self._call.clients}

    def _trained(self, client: int, device: Device) -> float:
        algorithm, companions = self._call.session.algorithm, self._call.companions.values()
        assigned = self._watched.assigned.get(client)
        work = RoundWork(
            self._num_steps(client, 1 if assigned is None else assigned.epochs),
            client_bytes_down(self._layout, algorithm, companions),
            client_bytes_up(self._layout, algorithm) - BYTES_A_VALUE * self._withheld.num_values_of(client),
        )
        return simulated_seconds(device, work, self._asked.seed, self._asked.server_round, client)

    def _measured(self, client: int, device: Device) -> float:
        bytes_down = client_bytes_down(self._layout, self._call.session.algorithm, ())
        work = RoundWork(self._num_steps(client, 1), bytes_down, bytes_up=0)
        return device.probe_seconds(work, self._asked.training.local_epochs)

    def _num_steps(self, client: int, times: int) -> int:
        if self._plays:
            return times * self._asked.training.local_epochs
        try:
            data = self._rows(client, self._call)
            training = own_training(self._asked, client, data, times, has_labels=True)
        except Exception:  # it will fail in training, and say why there
            return 0
        return int(training.num_steps(np.array([len(data)]))[0])
