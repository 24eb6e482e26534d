"""Settings of a trial (`TrialSettings`) and its record (`Trial`), which defines the columns of the log.

Each logged field of `Trial` is a column of the same name and type. Measures are maps: `rounds` holds the values of each
measure by round, `clients` by client, `seconds` the seconds of each phase. Fields that are neither numbers, text, lists
nor maps of numbers are stored as JSON. `flat` returns a stored row with a column for each measure, such as
`round_accuracy` and `client_accuracy`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from fedscout.engine.arrays import FloatArray
from fedscout.engine.messages.calls import SelectionChoice, Session, TrialStrategy


@dataclass(frozen=True)
class TrialSettings:
    """Everything that determines a trial's result, given the federation, and the trial's identity.

    Attributes:
        strategy: The strategy to evaluate.
        num_rounds: Rounds to train from the start, >= 1.
        num_sampled: Clients that train in a round.
        selection: The client selection policy; None leaves the selection to the strategy. Validation rows that it or
            the strategy needs are cut from the training rows, unless the session sets a fraction.
        full_rounds: Rounds of the full training of which a shorter one is the beginning; None means `num_rounds`.
        session: Settings of all messages of the trial. The strategy's needs and client algorithm are added on
            construction; without a round limit of its own, no part of a round may take longer than the whole trial.
        timeout_seconds: Seconds after which the trial fails; None means no limit.
        keep_model: Whether the trial carries its final model: the global one, also where clients use others.
        config_hash: Hash of everything else that determines results.
        phase: `baseline`, `search`, `tuned-baseline`, `confirmation` or `train`.
        generation: The searcher's generation, from 1; 0 outside the search.
        is_full: Whether this is a full training. A shorter one keeps its final state as a checkpoint, from which a
            longer one of the same settings resumes. That only saves time: a trial without a checkpoint starts at
            round 1 and ends with the same bits.
        key: The identity of the trial, a SHA-256 in hexadecimal; covers the code of a user's own strategy.
        checkpoint: Name of its checkpoint: the key of the full training of which a shorter one is the beginning.
    """

    strategy: TrialStrategy
    num_rounds: int
    num_sampled: int
    session: Session = field(default_factory=Session)
    timeout_seconds: float | None = None
    keep_model: bool = False
    config_hash: str = ""
    phase: str = ""
    generation: int = 0
    is_full: bool = True
    full_rounds: int | None = None
    selection: SelectionChoice | None = None
    key: str = field(init=False)
    checkpoint: str = field(init=False)

    def __post_init__(self) -> None:
        needs = self.strategy.needs()
        share = max(needs.validation_share, 0.0 if self.selection is None else self.selection.validation_share)
        session = replace(
            self.session,
            needs=needs,
            algorithm=self.strategy.client_algorithm(),
            round_timeout_seconds=self.session.round_timeout_seconds or self.timeout_seconds,
            validation_fraction=self.session.validation_fraction or share,
        )
        identity: dict[str, Any] = {
            "config": self.config_hash,
            "phase": self.phase,
            "strategy": {"kind": self.strategy.kind, **self.strategy.parameters()},
            "seed": session.seed,
            "learning_rate": session.training.learning_rate,
        }
        if session.client_table is not None:
            identity["client_table"] = session.client_table.digest()
        code = dict(self.strategy.code())
        if self.selection is not None:
            identity["selection"] = {"kind": self.selection.kind, **self.selection.parameters()}
            code |= self.selection.code()
        if code:
            identity["code"] = code
        checkpoint = _digest(identity)
        key = checkpoint if self.is_full else _digest({**identity, "num_rounds": self.num_rounds})
        for name, value in (("session", session), ("key", key), ("checkpoint", checkpoint)):
            object.__setattr__(self, name, value)  # frozen for everybody else

    def on_seed(self, seed: int) -> TrialSettings:
        """Return the same settings with another seed."""
        return replace(self, session=replace(self.session, seed=seed))


def _digest(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


FITNESS_ROUNDS = 5
PHASES = ("configure", "train", "aggregate", "evaluate", "checkpoint", "hosts", "simulated")
"""Parts of a trial whose seconds are counted separately."""

SCORES_WHERE_KNOWN = (
    *("metric", "global_accuracy", "global_metric", "new_client_accuracy", "new_client_metric", "worst_clients"),
)
"""Optional measures of each round, in addition to accuracy on the clients' data."""

MEASURES = {"rounds": "round_", "clients": "client_"}
"""Prefix of the columns of `flat` for the measures of each map."""
_ALWAYS_MEASURED = {
    "rounds": ("accuracy", "clean_accuracy", "loss", "clean_loss", "train_loss"),
    "clients": ("id", "num_examples", "accuracy", "clean_accuracy"),
}
_WHOLE_NUMBERS = ("id", "num_examples", "rounds")
"""Measures of clients, as whole numbers."""

_SUMMARY = (
    *("trial", "phase", "generation", "strategy", "parameters", "learning_rate", "seed"),
    *("num_rounds", "status", "error", "fitness", "own_fitness", "clean_fitness"),
)
_OPTIONAL_SUMMARY = (
    *("selection", "repetition_fitness", "metric", "global_accuracy", "new_client_accuracy", "bytes_down", "bytes_up"),
)
Measures = Mapping[str, tuple[float, ...]]
_NOT_LOGGED = {"logged": False}
_EPOCH_START = datetime.fromtimestamp(0, UTC)
_ARROW_TYPES: Mapping[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    datetime: pa.timestamp("us", tz="UTC"),
    float | None: pa.float64(),
    tuple[float, ...] | None: pa.list_(pa.float64()),
    Mapping[str, float]: pa.map_(pa.string(), pa.float64()),
    Measures: pa.map_(pa.string(), pa.list_(pa.float64())),
}
"""All other fields are text."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The record of one trial: settings and results. Field meanings as the columns of `docs/log.md`.

    Measures of rounds (`rounds`), each with a value per finished round, in the order of the rounds:

    - `accuracy` of the model, weighted over clients, in `[0, 1]`, `loss`, the mean cross-entropy, `metric`, over the
      pooled rows of all clients, where one is measured; each also as `clean_…`, on uncorrupted data. NaN where the
      model's outputs are not numbers.
    - `global_accuracy`, `global_metric`: of the global model itself, where clients use others.
    - `new_client_accuracy`, `new_client_metric`: of the model that a client which never trained would use, over the
      clients that never train, if there are any.
    - `worst_clients`, `clean_worst_clients`: mean score of the worst tenth of the clients, if requested.
    - `train_loss`: the clients' mean loss in training.
    - `seconds`: duration on the simulated clock, if there is one.

    Measures of clients (`clients`), each with a value per client that was scored in the last round, whose number is
    `id`: `num_examples`, `accuracy`, `clean_accuracy`, `metric` and `clean_metric` (NaN without rows), and with a
    selection policy `rounds`, in which the client trained.

    Attributes:
        spec: The strategy; None if the record was read from the log.
        asked_rounds: Requested rounds; None for a full training.
        vector: The final global model, shape `(params,)`, if requested; excludes personal parameters of clients. All
            models of a trial with several, in the order of its notes, shape `(models, params)`.
        trial: Number in the study, from 0, in the order in which trials are requested.
        key: Identity of the trial under the study's configuration.
        phase: `baseline`, `search`, `tuned-baseline`, `confirmation` or `train`.
        generation: The searcher's generation; 0 outside a search.
        error: The reason of a failure.
        fitness: On the data view and the part of the rows that the study is configured for; larger is better, 0 if
            failed.
        own_fitness: Mean score of the last five rounds on the clients' observed data, or the value of the study's
            objective, if it is another function of the rounds; 0 if failed.
        clean_fitness: The same on uncorrupted data.
        num_rounds: Finished rounds.
        metric: The metric that is measured in addition to accuracy, and is the score; None where accuracy is the score.
        repetition_fitness: The fitness of each training, for a trial of several trainings; None for one training.
        selection: The client selection policy; None where the strategy samples clients itself.
        bytes_down: Bytes of train messages to all clients of a round, mean over the rounds; None if unknown.
        bytes_up: Bytes of the replies, likewise.
        dropped_clients: Failure reasons of clients in training, by round and client, such as `"3:7"`.
        skipped_rounds: Why the strategy returned no model, by round.
        notes: Hints for the strategy's author, each a sentence.
        seconds: By phase; `total` is the trial's wall time, `hosts` the hosts' compute time, `simulated` the time of
            the simulated clock.
        rounds, clients: Measures by name, without those that were not taken.
    """

    spec: Any = field(default=None, kw_only=False, metadata=_NOT_LOGGED)
    asked_rounds: int | None = field(default=None, metadata=_NOT_LOGGED)
    vector: FloatArray | None = field(default=None, compare=False, metadata=_NOT_LOGGED)
    study: str = ""
    trial: int = 0
    key: str = ""
    phase: str = ""
    generation: int = 0
    searcher: str = ""
    strategy: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    learning_rate: float = 0.0
    status: Literal["completed", "failed"] = "completed"
    error: str | None = None
    fitness: float = 0.0
    own_fitness: float = 0.0
    clean_fitness: float = 0.0
    num_rounds: int = field(init=False)
    bytes_down: float | None = None
    bytes_up: float | None = None
    dropped_clients: Mapping[str, str] = field(default_factory=dict)
    skipped_rounds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    metric: str | None = None
    selection: str | None = None
    repetition_fitness: tuple[float, ...] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    finished_at: datetime = _EPOCH_START
    versions: Mapping[str, str] = field(default_factory=dict)
    config_hash: str = ""
    rounds: Measures = field(default_factory=dict)
    clients: Measures = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, always in _ALWAYS_MEASURED.items():
            object.__setattr__(self, name, {**dict.fromkeys(always, ()), **getattr(self, name)})
        object.__setattr__(self, "num_rounds", len(self.rounds["accuracy"]))

    @classmethod
    def of(cls, settings: TrialSettings, **outcome: Any) -> Trial:
        """Return the record of a trial with these settings; its fitness follows from the rounds.

        Args:
            settings: Settings of the trial.
            outcome: The other fields.
        """
        trial = cls(
            settings.strategy,
            asked_rounds=None if settings.is_full else settings.num_rounds,
            key=settings.key,
            phase=settings.phase,
            generation=settings.generation,
            strategy=settings.strategy.label,
            parameters=settings.strategy.parameters(),
            seed=settings.session.seed,
            learning_rate=settings.session.training.learning_rate,
            selection=None if settings.selection is None else settings.selection.label,
            metric=None if settings.session.metric is None else settings.session.metric.name,
            config_hash=settings.config_hash,
            finished_at=datetime.now(UTC),
            **outcome,
        )
        if trial.status == "failed" or not trial.num_rounds:
            return trial
        observed, clean = (late_mean(trial.scores(kind) or ()) for kind in ("", "clean_"))
        return replace(trial, fitness=observed, own_fitness=observed, clean_fitness=clean)

    @property
    def is_full(self) -> bool:
        """Whether it is a full training, whose fitness can be compared with those of others."""
        return self.asked_rounds is None

    @property
    def num_trainings(self) -> int:
        """The number of trainings of the configuration."""
        return len(self.repetition_fitness or (self.fitness,))

    def scores(self, kind: Literal["", "clean_", "global_", "new_client_"] = "") -> tuple[float, ...] | None:
        """Return the score of each round: the metric if there is one, else accuracy; None if not measured."""
        measure = "accuracy" if self.metric is None else "metric"
        return self.rounds.get(f"{kind}{measure}")

    @property
    def score(self) -> float | None:
        """The mean score over the last five rounds on the clients' observed data; None if it failed."""
        return self._late_mean(self.scores())

    @property
    def global_accuracy(self) -> float | None:
        """The mean score over the last five rounds; None if no client has another model, or on failure."""
        return self._late_mean(self.scores("global_"))

    @property
    def new_client_accuracy(self) -> float | None:
        """The mean score over the last five rounds; None without unseen clients, or on failure."""
        return self._late_mean(self.scores("new_client_"))

    def _late_mean(self, scores: tuple[float, ...] | None) -> float | None:
        mean = late_mean(scores) if scores and self.status == "completed" else math.nan
        return None if math.isnan(mean) else mean

    def summary(self) -> Mapping[str, Any]:
        """Return the fields for a result file; none of them depends on the machine's speed."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        present = {name: value for name in _OPTIONAL_SUMMARY if (value := getattr(self, name)) is not None}
        return {**{name: getattr(self, name) for name in _SUMMARY}, **present, **notes}

    def row(self) -> dict[str, Any]:
        """Return the trial as a row of the log."""
        row: dict[str, Any] = {}
        for name, kind in _columns().items():
            value = getattr(self, name)
            if _is_json(kind):  # skipped rounds are in their order
                row[name] = json.dumps(value, sort_keys=name != "skipped_rounds")
            else:
                row[name] = list(value.items()) if isinstance(value, Mapping) else value
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Trial:
        """Return the trial of a row that `row` made.

        Raises:
            Exception: Of any type, if the row is invalid.
        """
        values: dict[str, Any] = {}
        for name, kind in _columns().items():
            value: Any = row.get(name)
            if value is None and _is_json(kind):
                continue
            if _is_json(kind):
                value = json.loads(value)
                if not isinstance(value, list if kind == tuple[str, ...] else dict):
                    raise ValueError(f"its {name} have the wrong type")
            elif kind == Measures:
                value = {key: tuple(_typed(key, numbers)) for key, numbers in value}
            values[name] = tuple(value) if isinstance(value, list) else value
        values["seconds"] = {**dict.fromkeys(("total", *PHASES), 0.0), **dict(row["seconds"])}
        del values["num_rounds"]
        trial = cls(**values)
        consistent = {"completed": math.isfinite(trial.fitness), "failed": trial.fitness == 0}
        if not consistent.get(trial.status):
            raise ValueError(f"a trial can't have status {trial.status!r} and fitness {trial.fitness}")
        return trial


def _typed(measure: str, values: Sequence[float]) -> Sequence[float]:
    """Return the values of a measure of clients, which the log stores as floats, as numbers of its own type."""
    return [int(value) for value in values] if measure in _WHOLE_NUMBERS else values


def stored_column(name: str) -> str:
    """Return the column that holds a column of `flat`."""
    prefixes = {"client": "clients", "seconds_": "seconds", **{prefix: column for column, prefix in MEASURES.items()}}
    return next((column for prefix, column in prefixes.items() if name.startswith(prefix)), name)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored row, or a part of one, with a column for each measure and phase; absent ones are left out."""
    columns = {name: value for name, value in row.items() if name not in (*MEASURES, "seconds")}
    for column, prefix in MEASURES.items():
        for key, values in row.get(column) or ():
            name = "client" if (column, key) == ("clients", "id") else f"{prefix}{key}"
            columns[name] = _typed(key, values)
    seconds = row.get("seconds") or ()
    return columns | {"seconds" if phase == "total" else f"seconds_{phase}": spent for phase, spent in seconds}


def late_mean(scores: Sequence[float]) -> float:
    """Return the mean of the non-NaN scores of the last five rounds; NaN if there are none."""
    valid = [score for score in scores[-FITNESS_ROUNDS:] if not math.isnan(score)]
    return float(np.mean(valid)) if valid else math.nan


@cache
def _columns() -> Mapping[str, Any]:
    """Return the types of the logged fields, by name, in column order."""
    kinds = get_type_hints(Trial)
    return {item.name: kinds[item.name] for item in fields(Trial) if not item.metadata}


def _is_json(kind: type) -> bool:
    return kind == tuple[str, ...] or (get_origin(kind) is Mapping and kind not in _ARROW_TYPES)


SCHEMA = pa.schema([(name, _ARROW_TYPES.get(kind, pa.string())) for name, kind in _columns().items()])
"""Columns of the log."""

JSON_COLUMNS = tuple(name for name, kind in _columns().items() if _is_json(kind))
