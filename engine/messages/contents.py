"""Contents of the engine's messages, and their joint exchange: creates and reads messages outside of strategies.

| message    | arrays                          | configuration                                     | reply |
| ---------- | ------------------------------- | ------------------------------------------------- | ----- |
| `train`    | the global model                | seed, server-round, local training, reply         | arrays, metrics |
| `evaluate` | the global model                | seed                                              | metrics |
| `query`    | inputs of the query             | function and its scalars                          | arrays, metrics |

A client is an index in `[0, num_clients)`; its Flower node id is `FIRST_NODE_ID + index`, since Flower reserves 0 and
1.

Auxiliary vectors have any length and are sent with the model.

| direction | record `auxiliary` | reason |
| --- | --- | --- |
| down | a second `ArrayRecord` of the train message | a strategy may send any records |
| up | a `ConfigRecord`, name -> float32 bytes | the only part of a reply that no Flower strategy reads |

With further keys in the model's record, Krum and related strategies would choose another model; with a second
`ArrayRecord`, every Flower strategy rejects the reply.

Several global models fit into one record, for strategies that keep one per group of clients.

| record    | one model        | several models                                                         |
| --------- | ---------------- | ---------------------------------------------------------------------- |
| `flat`    | `(params,)`      | `(models, params)`                                                     |
| `group`   | missing          | `(clients,)`, int64: client k is scored under the model `flat[group[k]]` |

A client without a group, because its entry in `group` is -1 or missing, uses the model that most clients use. Such a
record is returned by `aggregate_train` and passed to the next `configure_train`. Clients never receive it: the strategy
sends each group its own model, as messages of one content per group.

Clients implement the client side of Flower's strategies by these configuration keys:

| configuration key | written by | client's action |
| --- | --- | --- |
| `learning-rate`, `local-epochs`, … (`LocalTraining`) | the trial | local training |
| `lr` | Flower's examples | alias of `learning-rate` |
| `proximal-mu` | `FedProx` | see `fedscout.strategies.methods.averaging` |
| `clipping_norm` | `DifferentialPrivacyClientSide…Clipping` | clips its update as Flower's own mod does |

Clients ignore everything else that a strategy sends; `unread_entries` lists it.

Messages are created without Flower's runtime. `flwr.app.Message` refuses to be created until the process has a task
identity, and no public call assigns a message its id: Flower's own grids write it into the metadata's dictionary, too.
`addressed` copies one message for many clients, since creating a Flower message checks its arguments and reads the
clock, which for a thousand clients takes longer than all other work of the driver in a round.

`exchange` sends queries and trainings without a strategy. Each sending costs a round trip to every host, regardless of
its content. Contents that do not depend on each other's answers are therefore sent together, and hosts process all of
them without waiting for the driver in between:

    queries, trainings = exchange(grid, [Query("label_counts")], [Training(vector, config)])

Replies are distinguished by the messages' group id, which a reply inherits from its message.

`ViewArray` keeps the NumPy array and serialises it only on demand. `flwr.app.Array` converts an array into bytes when
it is created and back at every `numpy()`, which for each client's reply takes longer than most strategies need to
aggregate it. Within one process the bytes are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.constant import SType
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import TrialError
from fedscout.engine.messages import keys
from fedscout.engine.models.layout import ParameterLayout


class ViewArray(Array):
    """An `Array` over a NumPy array that must not change afterwards.

    It behaves as `Array(ndarray)`: `numpy()` gives a fresh, writable array each time; comparisons, object ids and
    pickles are those of the bytes. When its bytes are first read, or a field is set, it becomes a plain `Array`.

    Args:
        ndarray: Of any shape and any type but objects.

    Raises:
        ValueError: If the array holds Python objects.
    """

    def __init__(self, ndarray: npt.NDArray[Any]) -> None:
        view = np.asarray(ndarray).view()
        if view.dtype.hasobject:
            raise ValueError("an Array must hold numbers, got an array of Python objects")
        view.flags.writeable = False
        self.__dict__.update(dtype=str(view.dtype), shape=view.shape, stype=SType.NUMPY, _view=view)

    @property
    def view(self) -> npt.NDArray[Any]:
        """The values, to be read only."""
        view: npt.NDArray[Any] = self.__dict__["_view"]
        return view

    def numpy(self) -> npt.NDArray[Any]:
        """Return a writable copy."""
        return self.view.copy(order="A")  # the order that reading the bytes would give

    def _become_plain(self) -> None:
        plain = Array(self.view)
        self.__dict__.clear()
        self.__dict__.update(plain.__dict__)
        object.__setattr__(self, "__class__", Array)  # serialised objects carry the name of their class

    def __getattr__(self, name: str) -> Any:  # called for what is not there, such as `data`
        if name != "data":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self._become_plain()
        return self.data

    def __setattr__(self, name: str, value: Any) -> None:
        self._become_plain()
        setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        fields = ("dtype", "shape", "stype", "data")
        return all(getattr(self, field) == getattr(other, field) for field in fields)

    __hash__ = None  # type: ignore[assignment]  # as Array has none

    def __reduce__(self) -> tuple[type[Array], tuple[str, tuple[int, ...], str, bytes]]:
        plain = Array(self.view)
        return Array, (plain.dtype, plain.shape, plain.stype, plain.data)


def view_record(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Return a record of arrays, which must not be modified afterwards."""
    record = ArrayRecord()  # its constructor would read the bytes of what it is given
    for name, array in arrays.items():
        record[name] = ViewArray(array)
    return record


def read_array(array: Array) -> npt.NDArray[Any]:
    """Return an array's values for reading only, without a copy if possible."""
    return array.view if isinstance(array, ViewArray) else array.numpy()


FIRST_NODE_ID = 2


def node_of(client: int) -> int:
    """Return the Flower node id of a client."""
    return FIRST_NODE_ID + client


def client_of(node_id: int) -> int:
    """Return the client of a Flower node id."""
    return node_id - FIRST_NODE_ID


def metrics_of(reply: Message) -> MetricRecord:
    """Return the metrics of a reply."""
    metrics = reply.content[keys.METRICS_KEY]
    assert isinstance(metrics, MetricRecord)
    return metrics


def flat_record(vector: npt.NDArray[np.floating]) -> ArrayRecord:
    """Return the record of one flat vector, as float32."""
    return view_record({keys.FLAT_KEY: np.array(vector, dtype=np.float32)})


def flat_vector(arrays: ArrayRecord, layout: ParameterLayout) -> FloatArray:
    """Return the flat vector of a flat or named record.

    Raises:
        ValueError: If the names or shapes do not match the layout.
    """
    if list(arrays) == [keys.FLAT_KEY]:
        vector = np.asarray(read_array(arrays[keys.FLAT_KEY]), dtype=np.float32)
        if vector.shape != (layout.size,):
            raise ValueError(f"the flat array must have shape ({layout.size},), got {vector.shape}")
        return vector
    return layout.join({name: read_array(array) for name, array in arrays.items()})


def integer_buffers(arrays: ArrayRecord, layout: ParameterLayout) -> dict[str, npt.NDArray[Any]]:
    """Return the integer buffers of a named record as a client loads them; empty for a flat record."""
    if not layout.integers or [*arrays] == [keys.FLAT_KEY]:
        return {}
    return layout.integers_of({name: read_array(array) for name, array in arrays.items()})


def train_config(
    training: LocalTraining, seed: int, server_round: int, reply: keys.ReplyMode, initial_loss: bool = False
) -> dict[str, int | float | str | bool]:
    """Return the configuration of a train message."""
    return {
        **training.to_config(),
        keys.RATE_ALIAS: training.learning_rate,
        keys.SEED_KEY: seed,
        keys.ROUND_KEY: server_round,
        keys.REPLY_KEY: reply,
        keys.INITIAL_LOSS_KEY: initial_loss,
    }


@dataclass(frozen=True)
class TrainAnswers:
    """Replies of one round of training, sorted by client.

    Attributes:
        clients: Clients that answered, shape `(answers,)`; a merged reply comes from one client on behalf of all.
        vectors: Parameters after training, float32, shape `(answers, params)`; one row if merged.
        num_examples: Training rows of each, shape `(answers,)`; the total if merged.
        refused: Reason of each client that did not answer.
    """

    clients: tuple[int, ...]
    vectors: FloatArray
    num_examples: npt.NDArray[np.int64]
    refused: Mapping[int, str]


@dataclass(frozen=True)
class QueryAnswers:
    """Replies of one query, keyed by client in ascending order.

    Attributes:
        arrays: The named aggregates of each client that answered.
        num_examples: The number of rows behind them.
        refused: Reason of each client that did not answer, such as holding fewer rows than may be released.
    """

    arrays: Mapping[int, Mapping[str, npt.NDArray[np.generic]]]
    num_examples: Mapping[int, int]
    refused: Mapping[int, str]


def put_auxiliary(content: RecordDict, auxiliary: Mapping[str, FloatArray]) -> None:
    """Add auxiliary vectors to the content of train messages; they must not be modified afterwards."""
    if auxiliary:
        content[keys.AUXILIARY_KEY] = view_record(auxiliary)


def sent_auxiliary(content: RecordDict) -> dict[str, FloatArray]:
    """Return the auxiliary vectors of a train message.

    Raises:
        ValueError: If one is not a vector, or not finite.
    """
    record = content.get(keys.AUXILIARY_KEY)
    if not isinstance(record, ArrayRecord):
        return {}
    auxiliary = {}
    for name, array in record.items():
        vector = np.asarray(read_array(array), dtype=np.float32)
        if vector.ndim != 1:
            raise ValueError(f"the auxiliary vector {name!r} must be a vector, got shape {vector.shape}")
        if not np.isfinite(vector).all():
            raise ValueError(f"the auxiliary vector {name!r} must be finite")
        auxiliary[name] = vector
    return auxiliary


def replied_auxiliary(content: RecordDict) -> dict[str, FloatArray]:
    """Return the auxiliary vectors of a train reply."""
    record = content.get(keys.AUXILIARY_KEY)
    if not isinstance(record, ConfigRecord):
        return {}
    return {name: np.frombuffer(value, np.float32) for name, value in record.items() if isinstance(value, bytes)}


def holds_several(names: Sequence[str]) -> bool:
    """Return whether the names of arrays are those of a record of several models."""
    return [*names] == [keys.FLAT_KEY, keys.GROUP_KEY]


def several_models(vectors: FloatArray, group: IntArray) -> ArrayRecord:
    """Return the record of several models; the arrays must not be modified afterwards."""
    return view_record({keys.FLAT_KEY: vectors, keys.GROUP_KEY: group})


def models_of(arrays: ArrayRecord, layout: ParameterLayout, num_clients: int) -> list[tuple[FloatArray, Sequence[int]]]:
    """Return each model as a flat vector, and the clients that use it, ascending.

    Args:
        arrays: One model of all clients, flat or named; or several models.
        layout: Layout of the model.
        num_clients: Number of clients in the federation.

    Raises:
        ValueError: If the models do not match the layout, or the groups do not match the clients.
    """
    if not holds_several([*arrays]):
        return [(flat_vector(arrays, layout), range(num_clients))]
    vectors = np.asarray(read_array(arrays[keys.FLAT_KEY]), np.float32)
    raw = np.asarray(read_array(arrays[keys.GROUP_KEY]))
    if vectors.ndim != 2 or vectors.shape[1] != layout.size:
        raise ValueError(f"flat must have shape (models, {layout.size}) beside group, got {vectors.shape}")
    if raw.ndim != 1 or raw.dtype.kind != "i" or len(raw) > num_clients:
        raise ValueError(f"group must hold an integer for each of {num_clients} clients, got {raw.dtype} {raw.shape}")
    if not ((raw >= -1) & (raw < len(vectors))).all() or not (raw >= 0).any():
        last = len(vectors) - 1
        raise ValueError(f"group must be in 0 … {last}, or -1, with {last + 1} models, got {raw.tolist()}")
    group = np.full(num_clients, np.bincount(raw[raw >= 0]).argmax())
    group[np.flatnonzero(raw >= 0)] = raw[raw >= 0]
    return [(vector, np.flatnonzero(group == index).tolist()) for index, vector in enumerate(vectors)]


def clients_text(clients: Sequence[int]) -> str:
    """Return clients, ascending, as readable text such as `"0-3, 7"`."""
    runs: list[list[int]] = []
    for client in clients:
        if runs and client == runs[-1][-1] + 1:
            runs[-1].append(client)
        else:
            runs.append([client])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


READ_BY_EVERY_CLIENT = frozenset(
    (
        *(keys.SEED_KEY, keys.ROUND_KEY, keys.REPLY_KEY, keys.INITIAL_LOSS_KEY, keys.RATE_ALIAS, keys.CLIPPING_KEY),
        *(name.replace("_", "-") for name in LocalTraining.model_fields),
    )
)


def unread_entries(content: RecordDict, algorithm: ClientAlgorithm | None) -> Iterator[str]:
    """Yield the names of entries of a train or evaluate message that no client reads."""
    keys_read = READ_BY_EVERY_CLIENT.union(() if algorithm is None else algorithm.reads)
    for name, record in content.items():
        if isinstance(record, ConfigRecord):
            yield from (key for key in record if key not in keys_read)
        elif not isinstance(record, ArrayRecord):
            yield name


def one_learning_rate(config: Mapping[str, Any], trials_rate: float) -> Any:
    """Return the learning rate of a configuration, from whichever of its two names the strategy changed.

    Its value is validated with the rest of the configuration (`LocalTraining.from_config`).

    Args:
        config: Configuration of a train message, merged over the trial's own.
        trials_rate: The trial's learning rate, the value under both names if neither was changed.

    Raises:
        TrialError: If both were changed, to different values.
    """
    changed = [config[key] for key in (keys.RATE_KEY, keys.RATE_ALIAS) if config.get(key, trials_rate) != trials_rate]
    if len(changed) > 1 and changed[0] != changed[1]:
        raise TrialError(
            f"the strategy must set {keys.RATE_KEY} and {keys.RATE_ALIAS}, both the learning rate, to one value, "
            f"got {config[keys.RATE_KEY]} and {config[keys.RATE_ALIAS]}"
        )
    return changed[0] if changed else trials_rate


SERVER_NODE_ID = 1


def claim_task_identity(run_id: int = 1) -> None:
    """Make this process the server of run `run_id`, unless Flower's runtime has set an identity."""
    with suppress(RuntimeError):
        if TaskIdentity.run_id:
            return
    TaskIdentity.task_id = run_id
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE_ID


def give_id(message: Message, message_id: str) -> None:
    """Assign a message its id, which the reply refers to."""
    message.metadata.__dict__["_message_id"] = message_id


def addressed(message: Message, node_ids: Sequence[int]) -> list[Message]:
    """Return copies of an instruction message, one per node, in order; they share its content.

    Args:
        message: A new message, addressed to any node; not sent yet.
        node_ids: Nodes that receive it.
    """
    copies = []
    for node_id in node_ids:
        metadata = Metadata.__new__(Metadata)
        metadata.__dict__.update(message.metadata.__dict__, _dst_node_id=node_id)
        copy = Message.__new__(Message)
        copy.__dict__.update(message.__dict__, _metadata=metadata)
        copies.append(copy)
    return copies


Scalars = Mapping[str, int | float | str | bool]


@dataclass(frozen=True)
class Query:
    """One aggregate, requested from some clients.

    Attributes:
        function: A name from the fixed table of client queries.
        arrays: Inputs of the function in addition to the client's data; float64 is preserved.
        config: Its scalars.
        clients: Clients that are asked; None for all.
    """

    function: str
    arrays: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    config: Scalars = field(default_factory=dict)
    clients: Sequence[int] | None = None

    def content(self) -> RecordDict:
        """Return the content of all its messages."""
        config = ConfigRecord({keys.FUNCTION_KEY: self.function, **self.config})
        return RecordDict({keys.ARRAYS_KEY: view_record(self.arrays), keys.CONFIG_KEY: config})


@dataclass(frozen=True)
class Training:
    """Local training from one flat vector, without a strategy.

    Attributes:
        vector: The global parameters, shape `(params,)`.
        config: The configuration of a train message.
        clients: Clients that train; None for all.
    """

    vector: FloatArray
    config: Scalars
    clients: Sequence[int] | None = None

    def content(self) -> RecordDict:
        """Return the content of all its messages."""
        return RecordDict({keys.ARRAYS_KEY: flat_record(self.vector), keys.CONFIG_KEY: ConfigRecord(dict(self.config))})


def exchange(
    grid: Grid, queries: Sequence[Query] = (), trainings: Sequence[Training] = ()
) -> tuple[list[QueryAnswers], list[TrainAnswers]]:
    """Send all queries and trainings at once, and wait for all replies.

    Args:
        grid: Grid of the clients.
        queries: Sent first, so that a host answers them first.
        trainings: Sent after them.

    Returns:
        The answers to each query and to each training, in the order given.
    """
    if not queries and not trainings:
        return [], []
    claim_task_identity()
    messages: list[Message] = []
    requests: list[tuple[Query | Training, str]] = [(query, MessageType.QUERY) for query in queries]
    requests += [(training, MessageType.TRAIN) for training in trainings]
    for index, (request, message_type) in enumerate(requests):
        content = request.content()
        clients = request.clients
        nodes = sorted(grid.get_node_ids()) if clients is None else [node_of(client) for client in clients]
        if nodes:
            messages += addressed(Message(content, nodes[0], message_type, group_id=str(index)), nodes)
    replies: list[list[Message]] = [[] for _ in requests]
    for reply in sorted(grid.send_and_receive(messages), key=lambda reply: reply.metadata.src_node_id):
        replies[int(reply.metadata.group_id)].append(reply)
    return (
        [_query_answers(group) for group in replies[: len(queries)]],
        [_train_answers(t, group) for t, group in zip(trainings, replies[len(queries) :], strict=True)],
    )


def send_query(
    grid: Grid,
    function: str,
    arrays: Mapping[str, npt.NDArray[np.generic]] | None = None,
    config: Scalars | None = None,
    clients: Sequence[int] | None = None,
) -> QueryAnswers:
    """Ask clients for a single aggregate; see `Query`."""
    (answers,), _ = exchange(grid, queries=[Query(function, arrays or {}, config or {}, clients)])
    return answers


def _refused(replies: Sequence[Message]) -> dict[int, str]:
    """Return the reason of each client that did not answer."""
    errors = [reply for reply in replies if reply.has_error()]
    return {client_of(reply.metadata.src_node_id): reply.error.reason or "no reason given" for reply in errors}


def _query_answers(replies: Sequence[Message]) -> QueryAnswers:
    answers, counts = {}, {}
    for reply in replies:
        if reply.has_content():
            client = client_of(reply.metadata.src_node_id)
            answers[client] = {name: read_array(array) for name, array in _arrays(reply).items()}
            counts[client] = _num_examples(reply)
    return QueryAnswers(arrays=answers, num_examples=counts, refused=_refused(replies))


def _train_answers(training: Training, replies: Sequence[Message]) -> TrainAnswers:
    answers = [reply for reply in replies if reply.has_content()]
    vectors = [read_array(_arrays(reply)[keys.FLAT_KEY]) for reply in answers]
    return TrainAnswers(
        clients=tuple(client_of(reply.metadata.src_node_id) for reply in answers),
        vectors=np.stack(vectors) if vectors else np.empty((0, len(training.vector)), np.float32),
        num_examples=np.asarray([_num_examples(reply) for reply in answers], dtype=np.int64),
        refused=_refused(replies),
    )


def _arrays(reply: Message) -> ArrayRecord:
    record = reply.content[keys.ARRAYS_KEY]  # `content.array_records` would make a dictionary of all of them each time
    assert isinstance(record, ArrayRecord)
    return record


def _num_examples(reply: Message) -> int:
    count = metrics_of(reply)[keys.NUM_EXAMPLES_KEY]
    assert isinstance(count, int)
    return count
