"""Base class of strategy specifications, and the ranges of their searched parameters.

A specification is a frozen pydantic model with the name of a strategy, its parameters, the engine features
that it needs and the construction of its Flower strategy. A field's pydantic constraint defines the valid
values (what Flower and the mathematics support); its `SearchRange` defines the values that a search draws,
usually narrower and log-scaled where useful. Validation, JSON schema, search space, help and the columns of
the trial log are all derived from the fields.

Ranges that depend on the number of clients sampled per round, such as Krum's number of malicious clients, are
functions of the `Cohort`; for them the range is also the set of valid values.

**Client parameters.** In addition to its own parameters every specification has three `client_…` parameters
for local training and `selection`, the client selection policy. An unset one takes the study's value, so
FedAvg, the reference, trains with the study's settings. A search draws them only if the study gives ranges
for them; they then follow the own parameters of every strategy.

**Equivalents.** Two specifications are equivalent in a cohort if they give the same global model for any
replies in exact arithmetic when all sampled clients reply. FedAvgM with server rate 1 and no momentum is
FedAvg; with four clients every trimmed mean with a share below 1/4 is the uniform mean. Equivalents may
differ in float32 rounding (order of summation) and in their handling of client failures. They have the same
client parameters. `canonical` and `digest` are those of the simplest equivalent, so that a search does not
evaluate the same strategy twice.

**Ranges.** A range maps its values to the unit interval and back, in log space if it is log-scaled, so that
searchers draw, move and clamp values independently of the type of the range. Values of real ranges are
rounded, then clamped: log-scaled ones to four significant digits, linear ones to four decimals. A linear
range narrower than 0.01 keeps enough further decimals for at least a hundred steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.text import details, fault_of, shown

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy


Value: TypeAlias = int | float | str | bool
"""What a parameter may be."""

LINEAR_DECIMALS = 4
LOG_SIGNIFICANT_DIGITS = 4


Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class _NumberRange(Generic[Number]):
    """Base class of numeric ranges: bounds, and the mapping to the unit interval, optionally in log space.

    Attributes:
        low: Smallest value.
        high: Largest value, included.
        log: Whether values are drawn and moved in log space.

    Raises:
        StrategyError: If the bounds are not finite, not in order, or not positive in log space.
    """

    low: Number
    high: Number
    log: bool = False

    json_type: ClassVar[str]
    value_types: ClassVar[Any]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise StrategyError.of("a range", "have finite ends in order", f"[{self.low}, {self.high}]")
        if self.log and self.low <= 0:
            raise StrategyError.of("a log-scaled range", "start above 0", self.low)

    def to_unit(self, value: Any) -> float:
        """Return the position of `value`, clamped, in `[0, 1]`."""
        clamped: float = min(max(float(value), self.low), self.high)
        if self.low == self.high:
            return 0.0
        if self.log:
            return math.log(clamped / self.low) / math.log(self.high / self.low)
        return (clamped - self.low) / (self.high - self.low)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is a number of the range's type and lies within the range."""
        is_number = isinstance(value, self.value_types) and not isinstance(value, bool)
        return is_number and bool(self.low <= value <= self.high)

    def clamp(self, value: Number) -> Number:
        """Return the value of the range nearest to `value`."""
        return min(max(value, self.low), self.high)

    def json_schema(self) -> dict[str, Any]:
        """Return the range as JSON schema."""
        schema: dict[str, Any] = {"type": self.json_type, "minimum": self.low, "maximum": self.high}
        return schema | ({"x-scale": "log"} if self.log else {})

    def _at(self, place: float) -> float:
        """Return the unrounded value at `place`, clamped to `[0, 1]`."""
        place = min(max(place, 0.0), 1.0)
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)


@dataclass(frozen=True)
class RealRange(_NumberRange[float]):
    """Real numbers in `[low, high]`."""

    json_type: ClassVar[str] = "number"
    value_types: ClassVar[Any] = int | float

    @property
    def num_values(self) -> int | None:
        """Number of values: 1 for a degenerate range, otherwise None."""
        return 1 if self.low == self.high else None

    def from_unit(self, place: float) -> float:
        """Return the value at `place`, clamped to `[0, 1]`: rounded, then clamped."""
        value = self._at(place)
        if self.log:
            rounded = float(f"{value:.{LOG_SIGNIFICANT_DIGITS}g}")
        else:
            width = self.high - self.low
            needed = 2 - math.floor(math.log10(width)) if width > 0 else LINEAR_DECIMALS
            rounded = round(value, max(LINEAR_DECIMALS, needed))
        return min(max(rounded, float(self.low)), float(self.high))

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a value, uniformly or log-uniformly."""
        return self.from_unit(float(generator.random()))

    def text(self) -> str:
        """Return the range as text, such as `[0.01, 1] (log)`."""
        return f"[{self.low:g}, {self.high:g}]" + (" (log)" if self.log else "")


@dataclass(frozen=True)
class IntegerRange(_NumberRange[int]):
    """Integers in `[low, high]`."""

    json_type: ClassVar[str] = "integer"
    value_types: ClassVar[Any] = int

    @property
    def num_values(self) -> int:
        """Number of values."""
        return self.high - self.low + 1

    def from_unit(self, place: float) -> int:
        """Return the integer nearest to `place`, clamped to `[0, 1]`."""
        return self.clamp(round(self._at(place)))

    def draw(self, generator: np.random.Generator) -> int:
        """Draw an integer, uniformly or log-uniformly."""
        if self.log:
            return self.from_unit(float(generator.random()))
        return int(generator.integers(self.low, self.high, endpoint=True))

    def text(self) -> str:
        """Return the range as text, such as `0 … 7`."""
        return f"{self.low} … {self.high}" + (" (log)" if self.log else "")


@dataclass(frozen=True)
class ChoiceRange:
    """A set of unordered values.

    Attributes:
        choices: The values, distinct.

    Raises:
        StrategyError: If there is no choice, or a duplicate.
    """

    choices: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.choices) == len({(type(choice), choice) for choice in self.choices}):
            raise StrategyError.of("the choices of a range", "be at least one, each once", list(self.choices))

    @property
    def num_values(self) -> int:
        """Number of values."""
        return len(self.choices)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is one of the choices, of the same type."""
        return any(type(value) is type(choice) and value == choice for choice in self.choices)

    def draw(self, generator: np.random.Generator) -> Value:
        """Draw a choice, uniformly."""
        return self.choices[int(generator.integers(len(self.choices)))]

    def text(self) -> str:
        """Return the choices as text, such as `a | b`."""
        return " | ".join(str(choice) for choice in self.choices)

    def json_schema(self) -> dict[str, Any]:
        """Return the choices as JSON schema."""
        return {"enum": list(self.choices)}


Range: TypeAlias = RealRange | IntegerRange | ChoiceRange


CLIENT_PARAMETERS: Mapping[str, str] = {
    "client_learning_rate": "learning_rate",
    "client_local_epochs": "local_epochs",
    "client_batch_size": "batch_size",
}
"""Name in a specification, and in `LocalTraining`."""

SELECTION = "selection"
"""Name of the parameter that says who trains."""

SHARED_PARAMETERS = (*CLIENT_PARAMETERS, SELECTION)
"""What every specification may say of its clients, beside its own parameters."""

RangeRule = Callable[[Cohort, Mapping[str, Value]], Range]
"""A range that depends on the cohort and on the values chosen for the fields above it."""


@dataclass(frozen=True)
class SearchRange:
    """Marks a field as a search parameter.

    Attributes:
        default: The range, or a function that returns it. The range that a function returns is also the set of
            valid values in a cohort. The chosen values passed to it may lack fields; it then returns the widest
            range.
    """

    default: Range | RangeRule

    def concrete(self, cohort: Cohort, chosen: Mapping[str, Value]) -> Range:
        """Return the range for a cohort."""
        return self.default(cohort, chosen) if callable(self.default) else self.default


def parameter(default: Any, description: str, searched: Range | RangeRule | None = None, **constraints: Any) -> Any:
    """Return the pydantic field of a parameter.

    Args:
        default: Its default.
        description: Its symbol in the paper and its effect.
        searched: The range that a search draws from, as in `SearchRange`; None if it is not searched.
        constraints: pydantic's, which define the valid values.
    """
    field = Field(default, description=description, **constraints)
    if searched is not None:
        field.metadata.append(SearchRange(searched))
    return field


def node_counts(cohort: Cohort) -> dict[str, Any]:
    """Return the arguments with which every Flower strategy trains exactly `num_sampled` clients and evaluates all.

    Flower samples `max(int(nodes * fraction), min_nodes)` and waits indefinitely for missing nodes. The fraction
    alone can round down to one client too few (`int(49 * (1 / 49)) == 0`), which the minimum corrects; it never
    rounds up to one too many.
    """
    return {
        "fraction_train": cohort.num_sampled / cohort.num_clients,
        "fraction_evaluate": 1.0,
        "min_train_nodes": cohort.num_sampled,
        "min_evaluate_nodes": cohort.num_clients,
        "min_available_nodes": cohort.num_clients,
    }


def clients_text(num_clients: int) -> str:
    """Return `"1 client a round"` or `"n clients a round"`."""
    return f"{num_clients} client{'' if num_clients == 1 else 's'} a round"


BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")


def _lacks_layer(*kinds: str) -> Callable[[Cohort], object]:
    return lambda cohort: (
        cohort.layers is not None
        and not cohort.layers & {*kinds}
        and f"layers {', '.join(sorted(cohort.layers)) or 'none'}"
    )


REQUIREMENTS: Mapping[str, tuple[str, Callable[[Cohort], object]]] = {
    "classes": ("be used for classification", lambda cohort: not cohort.classifies and "a task without classes"),
    "linear layer": ("have a model with a linear layer", _lacks_layer("Linear")),
    "batch normalisation": ("have a model with batch normalisation", _lacks_layer(*BATCH_NORMS)),
    "server rows": (
        "have rows that the server holds (federation.server_rows, such as 200 or 0.1)",
        lambda cohort: cohort.server_rows == 0 and "none",
    ),
    "server labels": (
        "have the labels of the server's rows (federation.server_labels=true)",
        lambda cohort: not cohort.server_labels and "rows without labels",
    ),
    "SGD": (
        "have clients with SGD (training.optimizer=sgd)",
        lambda cohort: cohort.client_optimizer != "sgd" and f"optimizer {cohort.client_optimizer}",
    ),
    "no momentum": (
        "have clients with plain SGD (training.momentum=0)",
        lambda cohort: cohort.client_momentum and f"momentum {cohort.client_momentum:g}",
    ),
    "clock": (
        "have a simulated clock (federation.scenario with devices or latency, such as "
        "{kind: latency, clients: all, mean_seconds: 10})",
        lambda cohort: cohort.has_clock is False and "none",
    ),
    "no selection": (
        "be without a selection policy, as it selects its clients itself",
        lambda cohort: cohort.chosen and "a selection policy",
    ),
    "the study's settings": (
        "be the only one that chooses clients' rates and epochs",
        lambda cohort: cohort.own_settings and "client_settings.kind=table",
    ),
    "all clients": (
        "have every client in every round (training.fraction_train=1)",
        lambda cohort: (
            not cohort.chosen
            and cohort.num_sampled < cohort.num_clients
            and f"{clients_text(cohort.num_sampled)} of {cohort.num_clients}"
        ),
    ),
    "dp-accounting": (
        "have dp-accounting, which computes (ε, δ): pip install 'fedscout[privacy]'",
        lambda _: importlib.util.find_spec("dp_accounting") is None and "none",
    ),
    "2 clients": ("have at least 2 clients a round", lambda cohort: cohort.num_sampled < 2 and cohort.num_sampled),
    "3 clients": ("have at least 3 clients a round", lambda cohort: cohort.num_sampled < 3 and cohort.num_sampled),
}
"""What a strategy may require of a federation: the condition, and what a cohort has instead, if it does not meet it."""

LAYERS = frozenset({"linear layer", "batch normalisation"})
"""Requirements of the model's layers, which a cohort need not know."""


class StrategySpec(BaseModel, ABC):
    """A strategy and its parameters: a validated, picklable value that satisfies `TrialStrategy`.

    Attributes:
        kind: Name of the strategy; a literal in each subclass that discriminates documents.
        paper: Reference of the strategy.
        bound: Parameters of Flower's class that can't be set here, and what determines them.
        requires: Names in `REQUIREMENTS`, in the order in which they are checked.
        unpaired: Reason why it can't be combined in a pair, if its methods do not imply it; empty otherwise.
        grouped: Whether groups of clients may have separate global models.
        algorithm: Class of the client algorithm, a dataclass whose fields are named as in the specification; None for
            plain local training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    paper: ClassVar[str] = ""
    bound: ClassVar[Mapping[str, str]] = {}
    requires: ClassVar[tuple[str, ...]] = ()
    unpaired: ClassVar[str] = ""
    grouped: ClassVar[bool] = False
    algorithm: ClassVar[type[ClientAlgorithm] | None] = None

    client_learning_rate: float | None = parameter(
        None, "η_l, learning rate of the clients; the study's by default", gt=0, le=100
    )
    client_local_epochs: int | None = parameter(None, "local epochs; the study's by default", ge=1, le=1000)
    client_batch_size: int | None = parameter(
        None, "batch size of the clients; the study's by default", ge=1, le=1_000_000
    )
    selection: str | None = parameter(None, "kind of the client selection policy; the study's by default")
    kind: str

    @property
    def label(self) -> str:
        """Name in a search space: the kind, unless several strategies share it."""
        return self.kind

    def parameters(self) -> Mapping[str, Any]:
        """Return all fields but the kind as JSON-able values; together with the kind they reproduce the specification.

        Client parameters come last, and only those that are set.
        """
        return {**self.model_dump(mode="json", exclude={"kind", *SHARED_PARAMETERS}), **self.client_values()}

    def needs(self) -> EngineNeeds:
        """Return the engine features that the strategy needs: by default one reply per client, of one vector."""
        return EngineNeeds()

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each user code file of the strategy; empty for built-in strategies."""
        return {}

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm; None for plain local training."""
        if self.algorithm is None:
            return None
        return self.algorithm(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self.algorithm)})

    def build(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy.

        Raises:
            StrategyError: If the parameters do not fit the cohort; contains all faults.
        """
        if faults := self.faults(cohort):
            raise StrategyError(faults)
        return self._construct(cohort)

    @abstractmethod
    def _construct(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy from valid parameters."""

    # Which clients train, and the settings that they receive.

    def client_values(self) -> Mapping[str, Value]:
        """Return the client parameters that are set."""
        values = {name: getattr(self, name) for name in SHARED_PARAMETERS}
        return {name: value for name, value in values.items() if value is not None}

    def local_training(self, given: LocalTraining) -> LocalTraining:
        """Return the study's local training, overridden by the client parameters that are set."""
        values = self.client_values()
        changes = {training_name: values[name] for name, training_name in CLIENT_PARAMETERS.items() if name in values}
        return given.model_copy(update=changes) if changes else given

    # What is searched.

    def search_names(self) -> tuple[str, ...]:
        """Return the names of the strategy's own search parameters, in an order that respects dependent ranges.

        A space may search client parameters as well.
        """
        return tuple(searched_fields(type(self)))

    def search_values(self) -> Mapping[str, Value]:
        """Return the current values of the search parameters and of the client parameters that are set."""
        return {**{name: getattr(self, name) for name in self.search_names()}, **self.client_values()}

    def search_range(self, name: str, cohort: Cohort, chosen: Mapping[str, Value]) -> Range:
        """Return the range of a search parameter.

        Args:
            name: One of `search_names()`.
            cohort: The clients; the strategy must be available for them.
            chosen: Values of the preceding parameters; without them the widest range is returned.
        """
        return searched_fields(type(self))[name].concrete(cohort, chosen)

    def with_values(self, values: Mapping[str, Value]) -> Self:
        """Return a validated copy with other values of search parameters."""
        return type(self).model_validate({**self.model_dump(), **values})

    # Whether it fits.

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return the reason why the strategy works with no parameters in a cohort; None if it can work."""
        for must, lacking in (REQUIREMENTS[name] for name in cls.requires):
            if given := lacking(cohort):
                return Fault(cls.model_fields["kind"].default, must, given)
        return None

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults that prevent building the strategy for a cohort, as sentences; empty if none."""
        if reason := self.unavailable(cohort):
            return [reason]
        faults: list[str] = []
        chosen: dict[str, Value] = {}
        for name, searched in searched_fields(type(self)).items():
            value = getattr(self, name)
            if callable(searched.default) and not (allowed := searched.concrete(cohort, chosen)).contains(value):
                conditions = "".join(f" and {other}={chosen[other]}" for other in chosen)
                where = f"with {clients_text(cohort.num_sampled)}{conditions}"
                faults.append(Fault(f"{name} of {self.kind}", f"be in {allowed.text()} {where}", value))
            else:
                chosen[name] = value
        return faults

    def notes(self, cohort: Cohort) -> list[str]:
        """Return warnings about a valid strategy, as sentences."""
        simplest = self.simplest(cohort)
        if simplest.kind == self.kind:
            return []
        return [f"{self} is the same as {simplest} with {clients_text(cohort.num_sampled)}"]

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return notes on a trial whose rounds produced `num_models` models, as sentences."""
        return []

    # Equivalents.

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification that gives the same model in a valid cohort, or the specification itself.

        Only the server side matters; client parameters may be omitted.
        """
        return self

    def simplest(self, cohort: Cohort) -> StrategySpec:
        """Return the simplest equivalent; the specification itself if it has none or is invalid for the cohort."""
        spec: StrategySpec = self
        clients = dict(self.client_values())
        while (simpler := spec.equivalent(cohort).model_copy(update=clients)) != spec and not spec.faults(cohort):
            spec = simpler
        return spec

    def canonical(self, cohort: Cohort) -> str:
        """Return the canonical JSON of the simplest equivalent, the same text for all equivalents."""
        return json.dumps(self.simplest(cohort)._identity(), sort_keys=True, separators=(",", ":"))

    def digest(self, cohort: Cohort) -> str:
        """Return the SHA-256 of `canonical`, in hexadecimal."""
        return hashlib.sha256(self.canonical(cohort).encode()).hexdigest()

    def _identity(self) -> Mapping[str, Any]:
        """Return the fields that determine the model; negative zeros become 0, which has one text form."""
        fields = {"kind": self.kind, **self.parameters()}
        return {name: value + 0.0 if isinstance(value, float) else value for name, value in fields.items()}

    def __str__(self) -> str:
        fields, searched = type(self).model_fields, self.search_names()
        values = {
            name: own if isinstance(own := getattr(self, name), StrategySpec) else value
            for name, value in self.parameters().items()
            if name in searched or getattr(self, name) != fields[name].default
        }
        return (
            f"{self.label}({', '.join(f'{name}={value}' for name, value in values.items())})" if values else self.label
        )


def given_values(training: LocalTraining) -> Mapping[str, Value]:
    """Return the study's values of the client parameters, by their names in a specification."""
    return {name: getattr(training, training_name) for name, training_name in CLIENT_PARAMETERS.items()}


def parameter_faults(error: ValidationError, spec_class: type[BaseModel], of: str) -> list[Fault]:
    """Return the faults of a document, each with its condition, its value and what is allowed.

    Args:
        error: Of its validation.
        spec_class: The specification of a strategy or a selection policy.
        of: Name of the strategy or the policy.
    """
    return [_fault(detail, spec_class, of) for detail in details(error)]


def _fault(detail: ErrorDetails, spec_class: type[BaseModel], of: str) -> Fault:
    path = [str(part) for part in detail["loc"] if part not in ("interval", "choices")]
    if not path:  # parameters that do not go together
        return fault_of(of, detail)
    if detail["type"] == "extra_forbidden" and len(path) == 1:
        (name,), bound = path, getattr(spec_class, "bound", {})
        if name in bound:
            return Fault(f"{name} of {of}", None, shown(detail["input"]), f"it is {bound[name]}", "can't be set")
        own = [field for field in spec_class.model_fields if field not in ("kind", *SHARED_PARAMETERS)]
        shared = [field for field in SHARED_PARAMETERS if field in spec_class.model_fields]
        hint = f"its parameters are {', '.join(own + shared) or 'none'}"
        return Fault(name, None, shown(detail["input"]), hint, f"is no parameter of {of}")
    searched = searched_fields(spec_class).get(path[0])
    drawn = "" if searched is None or callable(searched.default) else searched.default.text()
    return fault_of(f"{'.'.join(path)} of {of}", detail, drawn and f"; a search draws it from {drawn}")


def searched_fields(spec_class: type[BaseModel]) -> dict[str, SearchRange]:
    """Return the search ranges of a specification's fields, in order of declaration."""
    return {
        name: entry
        for name, field in spec_class.model_fields.items()
        for entry in field.metadata
        if isinstance(entry, SearchRange)
    }
