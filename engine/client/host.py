"""Client host: answers messages for any clients of a federation. The Ray actor and the in-process grid wrap this class.

Hosts keep no state that affects results: everything that a client's answer depends on comes with the call or from the
federation, so a host can be replaced at any time and the work repeated with bitwise identical results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client import updates
from fedscout.engine.config import CPU, HostDevice
from fedscout.engine.contracts import algorithm as contracts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import (
    Arrays,
    QueryInputs,
    QueryTable,
    Samples,
    TargetScale,
    WithheldError,
    products_on_a_core,
)
from fedscout.engine.data.federation import AbsentError, ClientSplit, Federation, RowPart, check_takes_part, misses
from fedscout.engine.messages import calls
from fedscout.engine.messages.keys import FUNCTION_KEY, INITIAL_LOSS_KEY, ROUND_KEY, SEED_KEY, OwnValue
from fedscout.engine.metrics import RowLosses
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.runtime.processes import keep_freed_memory
from fedscout.engine.seeds import integer, stream
from fedscout.engine.training.algorithm_runs import with_signals
from fedscout.engine.training.backends import MOST_CLIENTS, LoopTrainer, TaskTrainer, Trainer, fastest_trainer
from fedscout.engine.training.loop import RowsWork

SEEDS_KEPT, CLIENTS_KEPT = 16, 2**16
"""A host caches the splits of its latest seeds and, for each seed, of its latest clients (1 KiB per small client), as
splits are cheap to draw again. The rows that it has read are cached likewise."""

MODELS_BYTES_TOGETHER = 2**26
"""Size of the personal models that are built and scored together, at least one; each is in memory several times."""

SplitKey = tuple[int, float, float]
"""What fixes how clients split their rows: seed, share of test rows, share of validation rows."""


class ClientHost:
    """Answers `train`, `evaluate` and `query` calls for clients of one federation, and runs server-side work.

    Args:
        federation: The whole federation; large arrays are shared memory if Ray provides it.
        queries: Table of the queries that clients answer.
        device: Device for training, embeddings, cross products and detectors' model outputs; tasks and server-side work
            run on the CPU.
    """

    def __init__(self, federation: Federation, queries: QueryTable, device: HostDevice = CPU) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._federation = federation
        self._queries = queries
        self._device = device
        self._model = new_model(federation.model, seed=0)
        self._trainers = _trainers(self._model, federation, device)
        source = federation.embedding
        torch_device = device.opened()
        self._embedding = None if source is None else updates.Embedding(source, federation.seed, torch_device)
        self._cross_products = updates.products_on(torch_device) if device.in_lanes else products_on_a_core
        self._embedded: dict[int, Samples] = {}
        self._client = lru_cache(CLIENTS_KEPT)(federation.client_data)
        self._splits = lru_cache(SEEDS_KEPT)(self._splits_of)
        self._scales: dict[SplitKey, TargetScale | None] = {}
        self._released: dict[tuple[int, str], tuple[Mapping[str, Any], Arrays]] = {}
        self._max_weight = max(1, len(federation.partition.rows))

    def facts(self) -> calls.FederationFacts:
        """Return the facts of the federation that the driver needs."""
        federation, server = self._federation, self._federation.server
        return calls.FederationFacts(
            num_clients=federation.num_clients,
            client_rows=federation.partition.sizes,
            num_classes=federation.num_classes,
            layout=self._model.layout,
            devices=federation.devices,
            holds_rows=federation.task is None,
            unseen=federation.unseen,
            server_rows=0 if server is None else server.num_rows,
            server_labels=server is not None and server.labels is not None,
            grouped=federation.groups is not None,
            classifies=federation.targets is None,
            ordered=federation.has_ordered_classes,
            trained_on=f"{self._device.name()}, {self._trainers['auto'].description()}",
            least_training_rows=federation.release.least_rows,
        )

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        model = new_model(self._federation.model, integer(seed, "initial-model"))
        return model.vector.numpy().copy()

    def train(self, call: calls.HostCall) -> calls.TrainResults:
        """Train each client from `call.vector`; the clients of `call.evaluated` score it first."""
        _, results = self.train_apart(call)
        return results

    def train_apart(
        self, call: calls.HostCall, parts: Sequence[calls.Part] = (), large_bytes: int = 0
    ) -> tuple[list[Any], calls.TrainResults]:
        """Train as `train` does; return the objects that `training` yields, and its return value."""
        training, objects = self.training(call, parts, large_bytes), []
        while True:
            try:
                objects.append(next(training))
            except StopIteration as stop:
                return objects, stop.value

    def training(
        self, call: calls.HostCall, parts: Sequence[calls.Part] = (), large_bytes: int = 0
    ) -> Generator[Any, None, calls.TrainResults]:
        """Train as `train` does, and yield the separately stored objects of each block of clients once it is trained.

        Args:
            call: The train call.
            parts: See `GatheredUpdates.taken`.
            large_bytes: See `GatheredUpdates.taken`.

        Returns:
            The results without the yielded objects.
        """
        with torch.random.fork_rng(devices=[]):  # dropout draws from torch's global generator, which is put back
            started, layout = time.perf_counter(), self._model.layout
            evaluation = self.evaluate(replace(call, clients=call.evaluated)) if call.evaluated else None
            request = replace(_train_request(call), num_classes=self._federation.num_classes)
            has_task = self._federation.task is not None
            gathered = updates.GatheredUpdates(call, self._max_weight, has_task, layout.num_trainable)
            honest = partial(self._honest_vectors, call, request)
            sent = updates.sent_by(self._federation.attacks, layout.num_trainable, request, call.clients, honest)
            durations = self._durations(call, request)
            works = []
            for client in call.clients:
                try:
                    works.append(self._work(client, call, durations))
                except Exception as error:  # a client's failure is an answer, not the host's end
                    gathered.failed(client, error)
            for block in self._trainer(call, request).train(request, works):
                sendable = with_signals(request, updates.without_withheld(call, layout, sent(block)))
                gathered.add(updates.clipped(call, layout, sendable))
                if parts:
                    yield from gathered.taken(parts, large_bytes)
            results = gathered.results()
            results.num_withheld = sum(updates.num_withheld(call, layout, client) for client in results.clients)
            if call.watched is not None:
                results.received_losses = self._received_losses(call, call.watched, durations, results.clients)
            results.evaluation = evaluation
            results.durations = durations
            results.memory_note = self._trainers["auto"].memory_note()
            results.seconds = time.perf_counter() - started
            return results

    def _can_measure(self, client: int, call: calls.HostCall, durations: Mapping[int, float]) -> bool:
        """Return whether a client that does not train answers; a client too late for training may still measure."""
        deadline = call.session.deadline_seconds
        if misses(self._federation.dropout, call.config[SEED_KEY], call.config[ROUND_KEY], client):
            return False
        if deadline is not None and durations.get(client, 0.0) > deadline:
            return False
        return self._federation.release.participates(len(self._training_rows(client, call)))

    def _received_losses(
        self,
        call: calls.HostCall,
        watched: calls.RoundSelection,
        durations: Mapping[int, float],
        trained: Sequence[int],
    ) -> dict[str, dict[int, contracts.ClientScore]]:
        """Return the losses of the received model for clients that trained and for those that only measure."""
        clients = [*trained, *(client for client in watched.measured if self._can_measure(client, call, durations))]
        requested = {"train": watched.observed.training_losses, "validation": watched.observed.validation_losses}
        losses: dict[str, dict[int, contracts.ClientScore]] = {part: {} for part, wanted in requested.items() if wanted}
        places = [(part, client) for part in losses for client in clients]
        rows = {
            place: self._unless_abstaining(self._part(client, call, part, clean=False))
            for place, (part, client) in enumerate(places)
        }
        trainer, received, seed = self._trainers[call.session.backend], _tensor(call.vector), int(call.config[SEED_KEY])
        for place, score in trainer.scores(received, rows, seed, RowLosses()).items():
            part, client = places[place]
            if isinstance(score, contracts.ClientScore):
                losses[part][client] = score
        return losses

    def _durations(self, call: calls.HostCall, request: contracts.TrainRequest) -> dict[int, float]:
        """Return the simulated seconds of a call's clients; empty if the federation has no devices."""
        if not self._federation.devices:
            return {}
        rows = self._training_rows if self._federation.task is None else None
        return updates.round_durations(call, request, self._model.layout, self._federation.devices, rows)

    def _trainer(self, call: calls.HostCall, request: contracts.TrainRequest) -> Trainer:
        """Return the training backend of a call."""
        one_by_one = request.algorithm is not None and request.algorithm.one_by_one
        one_by_one |= request.training.is_narrow and not self._device.in_lanes  # blocks of small nets gain nothing
        return self._trainers["loop" if one_by_one else call.session.backend]

    def _honest_vectors(
        self, call: calls.HostCall, request: contracts.TrainRequest, clients: Sequence[int]
    ) -> FloatArray:
        """Train clients as in a call, but without client states; return the vectors of those that can train.

        Args:
            call: The train call; its clients may be others.
            request: The call's train request.
            clients: Clients to train, ascending.

        Returns:
            Shape `(clients that trained, layout.size)`.
        """
        stateless, works = replace(call, clients=tuple(clients), states={}), []
        durations = self._durations(stateless, request)
        for client in clients:
            with suppress(Exception):  # a client that can't train or misses the round has no update
                works.append(self._work(client, stateless, durations))
        blocks = self._trainer(call, request).train(replace(request, initial_loss=False), works)
        trained = {work.client: update for block in blocks for work, update in block}
        sent = [trained[client] for client in sorted(trained)]
        vectors = [update.vector for update in sent if isinstance(update, contracts.ClientUpdate)]
        return np.array(vectors, np.float32).reshape(len(vectors), self._model.layout.size)

    def evaluate(self, call: calls.HostCall) -> calls.EvaluateResults:
        """Score `call.vector` on each client's evaluation rows, observed and uncorrupted.

        If an algorithm scores clients with another model than that, participating clients are scored under both.
        """
        started = time.perf_counter()
        results = calls.EvaluateResults()
        assert call.vector is not None
        algorithm = call.session.algorithm
        own_models = algorithm if algorithm is not None and (algorithm.personal or algorithm.tunes) else None
        own = self._scores(call, call.clients, own_models, clean=False)
        corrupted = [
            c for c, score in own.items() if isinstance(score, contracts.ClientScore) and self._client(c).corrupted
        ]
        clean = self._scores(call, corrupted, own_models, clean=True)
        received: dict[int, contracts.ClientScore | Exception] = {}
        if own_models is not None:
            seen = [client for client in call.clients if client not in self._federation.unseen]
            received = self._scores(call, seen, None, clean=False)
        for target, scores in ((results.own, own), (results.clean, clean), (results.received, received)):
            for client, score in scores.items():
                if isinstance(score, contracts.ClientScore):
                    target[client] = score
                else:
                    results.own.pop(client, None)
                    results.failures[client] = f"{type(score).__name__} in evaluation: {score}"
        if call.session.metric is not None:
            updates.add_statistics(results, self._federation.unseen)
        results.seconds = time.perf_counter() - started
        return results

    def query(self, call: calls.HostCall) -> calls.QueryResults:
        """Compute one aggregate over all local rows of each client, as far as the client releases it."""
        started = time.perf_counter()
        results = calls.QueryResults()
        name = str(call.config.get(FUNCTION_KEY, ""))
        for client in call.clients:
            try:
                arrays = self._answer(client, name, call)
            except WithheldError as withheld:
                results.failures[client] = str(withheld)
            except Exception as error:  # as in train
                results.failures[client] = f"{type(error).__name__} in query {name!r}: {error}"
            else:
                results.clients.append(client)
                results.num_examples.append(len(self._client(client).own))
                results.arrays.append(arrays)
        results.seconds = time.perf_counter() - started
        return results

    def serve(self, call: calls.HostCall) -> calls.ServeResults:
        """Run server-side work; as in `train`, a failure is reported in the answer."""
        started = time.perf_counter()
        assert call.work is not None
        results = calls.ServeResults()
        try:
            work: calls.ServerWork = call.work.opened() if isinstance(call.work, OwnValue) else call.work
            for arrays in call.inputs:
                generator = stream(call.config[SEED_KEY], "server", call.config[ROUND_KEY])
                context = updates.ServerModel.of(self._federation, self._model, generator)
                results.outputs.append(dict(work.run(context, arrays)))
        except Exception as error:
            results.failure = f"{type(error).__name__} in the server's work: {error}"
        results.seconds = time.perf_counter() - started
        return results

    def _answer(self, client: int, name: str, call: calls.HostCall) -> Arrays:
        """Return the part of a client's answer to a query that it releases."""
        function, release = self._queries.get(name), self._federation.release
        if self._federation.task is not None:
            raise WithheldError("holds no rows to query")
        if function is None:
            raise WithheldError(f"the query must be one of {sorted(self._queries)}, got {name!r}")
        data = self._client(client).own
        release.check_answers(len(data))
        if (client, name) in self._released:
            config, released = self._released[client, name]
            if config != call.config:
                raise WithheldError("has already answered this query with noise under other settings")
            return released
        outputs = partial(self._trainers["auto"].outputs, data)
        inputs = QueryInputs(
            self._described(client),
            self._federation.num_classes,
            call.arrays,
            call.config,
            outputs,
            release.min_release,
            self._federation.client_groups(client),
            self._cross_products,
            data,
        )
        arrays = release.answer(partial(function, inputs))
        if release.privacy is not None:  # noise that is drawn anew each time could be averaged away
            self._released[client, name] = call.config, arrays
        return arrays

    def _scores(
        self, call: calls.HostCall, clients: Sequence[int], own_models: contracts.ClientAlgorithm | None, clean: bool
    ) -> dict[int, contracts.ClientScore | Exception]:
        """Score `call.vector`, or each client's model that an algorithm derives from it, on some clients' rows."""
        scores: dict[int, contracts.ClientScore | Exception] = {}
        parts: dict[int, Samples] = {}
        for client in clients:
            try:
                parts[client] = self._unless_abstaining(self._part(client, call, call.session.evaluate_on, clean))
            except Exception as error:  # as in train
                scores[client] = error
        trainer, received, seed = self._trainers[call.session.backend], _tensor(call.vector), int(call.config[SEED_KEY])
        metric = call.session.metric
        if own_models is None:
            return {**scores, **trainer.scores(received, parts, seed, metric)}
        if own_models.tunes:
            request = replace(_tuning_request(call, own_models), num_classes=self._federation.num_classes)
            tuned, parts = self._tuned_scores(call, request, parts)
            scores |= tuned
        algorithm = own_models

        def scored(group: Mapping[int, Samples]) -> dict[int, contracts.ClientScore | Exception]:
            states = [call.states.get(client) or {} for client in group]
            try:
                models = algorithm.scored(contracts.Clients(received, self._model.layout, states, call.config))
                return trainer.scores(models, group, seed, metric)
            except Exception as error:  # user code may raise anything; who shares its group depends on the host
                if len(group) == 1:
                    return dict.fromkeys(group, error)
            return {client: score for each in group for client, score in scored({each: group[each]}).items()}

        block_size = min(MOST_CLIENTS, max(1, MODELS_BYTES_TOGETHER // received.nbytes))
        for first in range(0, len(parts), block_size):
            scores |= scored({client: parts[client] for client in [*parts][first : first + block_size]})
        return scores

    @torch.random.fork_rng(devices=[])
    def _tuned_scores(
        self, call: calls.HostCall, request: contracts.TrainRequest, parts: Mapping[int, Samples]
    ) -> tuple[dict[int, contracts.ClientScore | Exception], dict[int, Samples]]:
        """Score clients with their tuned models; return the scores, and the rows of clients that can't train."""
        works: list[RowsWork] = []
        scores: dict[int, contracts.ClientScore | Exception] = {}
        for client in parts:
            data = self._part(client, call, "train", clean=False)
            if len(data) and self._federation.release.participates(len(data)):
                generator = stream(request.seed, "tuning", client)
                works.append(RowsWork(client, generator, call.states.get(client) or {}, data))
        for block in self._trainer(call, request).train(request, works):
            trainer = self._trainers[call.session.backend]
            scores |= updates.tuned_scores(trainer, block, parts, request.seed, call.session.metric)
        return scores, {client: part for client, part in parts.items() if client not in scores}

    def _work(self, client: int, call: calls.HostCall, durations: Mapping[int, float]) -> RowsWork:
        seed, server_round = call.config[SEED_KEY], call.config[ROUND_KEY]
        federation = self._federation
        if client in federation.unseen:
            raise AbsentError("the client joins after the training")
        deadline = call.session.deadline_seconds
        check_takes_part(federation.dropout, durations.get(client, 0.0), deadline, seed, server_round, client)
        data = self._training_rows(client, call)
        if federation.task is None and not federation.release.participates(len(data)):
            raise AbsentError("the client abstains, as it has fewer training rows than federation.min_release")
        generator = stream(seed, "batches", server_round, client)
        assigned = None if call.watched is None else call.watched.assigned.get(client)
        epochs = 1 if assigned is None else assigned.epochs
        algorithm = call.session.algorithm
        validates = algorithm is not None and algorithm.validates
        validation = self._unless_abstaining(self._part(client, call, "validation", clean=False)) if validates else None
        state = call.states.get(client) or {}
        return RowsWork(client, generator, state, data, epochs=epochs, validation=validation)

    def _training_rows(self, client: int, call: calls.HostCall) -> Samples:
        """Return the training part of a client's split, or the part of all its rows that the message requests."""
        part = RowPart.from_config(call.config)
        if part is None:
            return self._part(client, call, "train", clean=False)
        own = self._client(client).own
        positions = part.positions(len(own), client, self._federation.client_groups(client))
        if len(positions) < part.num_rows and self._federation.release.participates(part.num_rows):
            raise AbsentError("the client holds too few rows for the requested part of its rows")
        return own.part(positions, self._target_scale(call))

    def _described(self, client: int) -> Samples:
        """Return a client's rows with the features that detectors compare."""
        own = self._client(client).own
        if self._embedding is None:
            return own
        if client not in self._embedded:
            self._embedded[client] = self._embedding.of(own)
        return self._embedded[client]

    def _unless_abstaining(self, part: Samples) -> Samples:
        """Return rows on which a client is scored; none if they are so few that it abstains."""
        participates = self._federation.release.participates(len(part))
        return part if participates else part.part(np.empty(0, np.int64))

    def _part(self, client: int, call: calls.HostCall, part: str, clean: bool) -> Samples:
        """Return the rows of one part of a client's split; observed and uncorrupted data share the positions."""
        data = self._client(client)
        view = data.clean if clean else data.own
        split = self._splits(_split_key(call))(client)
        return view.part(getattr(split, part), self._target_scale(call))

    def _splits_of(self, key: SplitKey) -> Callable[[int], ClientSplit]:
        """Return a cached function that returns the split of each client's rows."""

        @lru_cache(CLIENTS_KEPT)
        def split(client: int) -> ClientSplit:
            own = self._client(client).own
            return self._federation.split_rows(client, own.labels[own.rows], *key)

        return split

    def _target_scale(self, call: calls.HostCall) -> TargetScale | None:
        """Return the standardisation of a regression target; the same on every host, as each can access all rows."""
        key = _split_key(call)
        if key not in self._scales:
            self._scales[key] = self._federation.target_scale(*key)
        return self._scales[key]


def _split_key(call: calls.HostCall) -> SplitKey:
    """Return the values that determine how clients split their rows."""
    return int(call.config[SEED_KEY]), call.session.test_fraction, call.session.validation_fraction


def _trainers(model: FlatModel, federation: Federation, device: HostDevice) -> dict[str, Trainer]:
    """Return the training backends by the name of a session's `backend`."""
    if federation.task is not None:
        return dict.fromkeys(("auto", "loop"), TaskTrainer(model, federation.task))
    if device.in_lanes:
        from fedscout.engine.training.gpu import device_trainers  # torch.func, which a core does without

        return device_trainers(federation, device)
    return {"auto": fastest_trainer(model), "loop": LoopTrainer(model)}


def _train_request(call: calls.HostCall) -> contracts.TrainRequest:
    """Return the train request of a call."""
    config = call.config
    return contracts.TrainRequest(
        received=_tensor(call.vector),
        training=LocalTraining.from_config(config),
        algorithm=contracts.algorithm_if_configured(call.session.algorithm, config),
        config=config,
        integers={name: torch.from_numpy(np.array(array)) for name, array in call.arrays.items()},
        auxiliary={name: _tensor(vector) for name, vector in call.auxiliary.items()},
        initial_loss=bool(config[INITIAL_LOSS_KEY]),
        seed=int(config[SEED_KEY]),
        server_round=int(config[ROUND_KEY]),
        table=call.session.client_table,
    )


def _tuning_request(call: calls.HostCall, algorithm: contracts.ClientAlgorithm) -> contracts.TrainRequest:
    """Return the request of training before scoring; it is the same for every message that carries the scoring."""
    return contracts.TrainRequest(
        received=_tensor(call.vector),
        training=call.session.training,
        algorithm=updates.Tuning(algorithm),
        config=call.config,
        seed=int(call.config[SEED_KEY]),
        server_round=0,
        table=call.session.client_table,
    )


def _tensor(vector: FloatArray | None) -> Tensor:
    """Return a tensor with a copy of the values, because arrays of a call may be read-only."""
    return torch.from_numpy(np.array(vector, dtype=np.float32))
