"""What a strategy must declare: its name, its parameters with their ranges, what it needs and how Flower builds it.

A specification is a frozen pydantic model. What a field *accepts* (what Flower and the mathematics can work with) is
its pydantic constraint; what a search *draws* is the `SearchRange` beside it, narrower and log-scaled where that helps.
Both stand on the field and nowhere else: validation, JSON schema, search space, help and the columns of the trial log
are read from there.

Some ranges depend on the clients sampled per round, such as the number of clients that Krum may distrust. They are
functions of the `Cohort`, and for them range and validity are the same thing.

**Clients.** Every specification has four parameters beside its own: three named `client_…`, what it tells its clients
of their local training, and `selection`, the policy by which it chooses them. One that is not set is the study's, so
FedAvg, the reference, trains as the study says. A search draws them only where the study gives ranges for them; then
they join the parameters of every strategy, after its own.

**Equivalents.** Two specifications are equivalent in a cohort if they give the same global model from any replies in
exact arithmetic, every sampled client answering. FedAvgM with server rate 1 and no momentum is FedAvg; among four
clients every trimmed mean with a share below 1/4 is the uniform mean. Equivalents may differ in float32 rounding
(another order of summation) and in what they do when clients fail. A search that evaluated both would spend a trial on
nothing, so `canonical` and `digest` are those of the simplest equivalent. Equivalents tell their clients the same.

Ranges from which a search draws the values of a parameter.

A range maps its values to the unit interval and back, in log space where it is log-scaled, so a searcher can draw,
move and clamp a value without knowing what kind of range it is in.

Values of real ranges are rounded, then clamped: log-scaled ones to four significant digits, linear ones to four
decimals. A linear range narrower than 0.01 keeps as many further decimals as give it at least a hundred steps, since
four decimals would collapse it.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy


Value: TypeAlias = int | float | str | bool
"""What a parameter may be."""

LINEAR_DECIMALS = 4
LOG_SIGNIFICANT_DIGITS = 4


Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class _NumberRange(Generic[Number]):
    """What ranges of numbers have in common: their ends, and the unit interval, which may be in log space.

    Attributes:
        low: Smallest value.
        high: Largest value, included.
        log: Whether values are drawn and moved in log space.

    Raises:
        StrategyError: If the ends are not finite, not in order, or not positive in log space.
    """

    low: Number
    high: Number
    log: bool = False

    json_type: ClassVar[str]
    value_types: ClassVar[Any]

    def __post_init__(self) -> None:
        faults = []
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            faults.append(Fault("a range", "have finite ends", f"[{self.low}, {self.high}]"))
        elif self.low > self.high:
            faults.append(Fault("a range", "not end below its start", f"[{self.low}, {self.high}]"))
        if self.log and self.low <= 0:
            faults.append(Fault("a log-scaled range", "start above 0", self.low))
        if faults:
            raise StrategyError(faults)

    def to_unit(self, value: Any) -> float:
        """Return the place of `value`, clamped, in `[0, 1]`."""
        clamped: float = min(max(float(value), self.low), self.high)
        if self.low == self.high:
            return 0.0
        if self.log:
            return math.log(clamped / self.low) / math.log(self.high / self.low)
        return (clamped - self.low) / (self.high - self.low)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is a number of the range's kind within it."""
        is_number = isinstance(value, self.value_types) and not isinstance(value, bool)
        return is_number and bool(self.low <= value <= self.high)

    def clamp(self, value: Number) -> Number:
        """Return the member of the range next to `value`."""
        return min(max(value, self.low), self.high)

    def json_schema(self) -> dict[str, Any]:
        """Return the range as JSON schema."""
        schema: dict[str, Any] = {"type": self.json_type, "minimum": self.low, "maximum": self.high}
        return schema | ({"x-scale": "log"} if self.log else {})

    def _at(self, place: float) -> float:
        """Return what is at `place`, clamped to `[0, 1]`, without rounding."""
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
        """Number of values if there is but one, else None: not countable."""
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
        """Return the range for people, such as `[0.01, 1] (log)`."""
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
        """Return the range for people, such as `0 … 7`."""
        return f"{self.low} … {self.high}" + (" (log)" if self.log else "")


@dataclass(frozen=True)
class ChoiceRange:
    """One of several values without an order.

    Attributes:
        choices: The values, distinct.

    Raises:
        StrategyError: If there is no choice, or one is given twice.
    """

    choices: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise StrategyError(Fault("a range of choices", "hold at least one", "none"))
        if len({(type(choice), choice) for choice in self.choices}) < len(self.choices):
            raise StrategyError(Fault("the choices of a range", "be distinct", list(self.choices)))

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
        """Return the choices for people, such as `a | b`."""
        return " | ".join(str(choice) for choice in self.choices)

    def json_schema(self) -> dict[str, Any]:
        """Return the choices as JSON schema."""
        return {"enum": list(self.choices)}


Range: TypeAlias = RealRange | IntegerRange | ChoiceRange


RangeWidth = Literal["default", "wide"]
"""`"default"`: ranges within which the strategy is known to work; `"wide"`: as broad as published searches used."""

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
    """Marks a field as a parameter of the search.

    Attributes:
        default: The range, or the rule that gives it. A rule's range is also the set of valid values in a cohort. The
            values chosen so far that it gets may lack fields; it then gives the widest range.
        wide: The wider, published-style range; None where there is but one.
    """

    default: Range | RangeRule
    wide: Range | None = None

    def concrete(self, cohort: Cohort, chosen: Mapping[str, Value], width: RangeWidth = "default") -> Range:
        """Return the range in a cohort."""
        if callable(self.default):
            return self.default(cohort, chosen)
        return self.wide if width == "wide" and self.wide is not None else self.default

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core_schema))
        if not callable(self.default):
            schema["x-searched"] = self.default.json_schema()
        return schema


class NodeCounts(TypedDict):
    """The arguments that every Flower strategy takes to sample its clients."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int


def node_counts(cohort: Cohort) -> NodeCounts:
    """Return the arguments with which Flower trains exactly `num_sampled` clients and evaluates all.

    Flower samples `max(int(nodes * fraction), min_nodes)` and waits for ever for nodes that are missing. The fraction
    alone could round down to one too few (`int(49 * (1 / 49)) == 0`); the minimum mends that, and the fraction never
    rounds up to one too many.
    """
    return NodeCounts(
        fraction_train=cohort.num_sampled / cohort.num_clients,
        fraction_evaluate=1.0,
        min_train_nodes=cohort.num_sampled,
        min_evaluate_nodes=cohort.num_clients,
        min_available_nodes=cohort.num_clients,
    )


def clients_text(num_clients: int) -> str:
    """Return `"1 client a round"` or `"n clients a round"`."""
    return f"{num_clients} client{'' if num_clients == 1 else 's'} a round"


def missing_layers(cohort: Cohort, kind: str, what: str, *layers: str) -> str | None:
    """Return that a cohort's model has none of the layers that a strategy needs; None if it has, or is not known.

    Args:
        cohort: Of which the model is.
        kind: Of the strategy.
        what: It needs a model with.
        layers: Names of classes, any of which will do.
    """
    if cohort.layers is None or cohort.layers & {*layers}:
        return None
    return Fault(kind, f"have a model with {what}", f"layers {', '.join(sorted(cohort.layers)) or 'none'}")


def without_classes(cohort: Cohort, kind: str) -> str | None:
    """Return that a strategy needs classes where a cohort predicts a quantity; None where it has classes."""
    return None if cohort.classifies else Fault(kind, "have classes", "a federation that predicts a quantity")


class StrategySpec(BaseModel, ABC):
    """A strategy and its parameters: a validated, picklable value that satisfies `TrialStrategy`.

    Attributes:
        kind: The name of the strategy; a literal in each subclass, by which a document is told apart.
        paper: Where the strategy was published.
        bound: Parameters of Flower's class that are not free here, and what binds them.
        reads_layers: Whether it depends on the model's layers, which then must be in the cohort.
        unpaired: Why it is no half of a pair, where its methods do not tell; empty otherwise.
        grouped: Whether groups of clients may have global models of their own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    paper: ClassVar[str] = ""
    bound: ClassVar[Mapping[str, str]] = {}
    reads_layers: ClassVar[bool] = False
    unpaired: ClassVar[str] = ""
    grouped: ClassVar[bool] = False

    client_learning_rate: Annotated[
        float | None, Field(gt=0, le=100, description="η_l, the clients' step size; nothing means the study's")
    ] = None
    client_local_epochs: Annotated[
        int | None, Field(ge=1, le=1000, description="passes over a client's data; nothing means the study's")
    ] = None
    client_batch_size: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="rows of a client's step; nothing means the study's")
    ] = None
    selection: Annotated[
        str | None, Field(description="who trains, a kind of selection policy; nothing means the study's")
    ] = None
    kind: str

    @property
    def label(self) -> str:
        """The name in a search space: the kind, unless several strategies share one."""
        return self.kind

    def parameters(self) -> Mapping[str, Any]:
        """Return everything but the kind as JSON-able values; with the kind they make the same specification.

        What clients are told comes last, and only what is set.
        """
        return {**self.model_dump(mode="json", exclude={"kind", *SHARED_PARAMETERS}), **self.client_values()}

    @abstractmethod
    def needs(self) -> EngineNeeds:
        """Return what the engine must provide."""

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of a user's own code that it is; nothing for this program's."""
        return {}

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return what its clients do; None is plain local training."""
        return None

    def build(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy.

        Raises:
            StrategyError: If the parameters do not fit the cohort; carries every fault.
        """
        if faults := self.faults(cohort):
            raise StrategyError(faults)
        return self._construct(cohort)

    @abstractmethod
    def _construct(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy; the parameters fit."""

    # Which clients train, and what they are told.

    def client_values(self) -> Mapping[str, Value]:
        """Return what is set of that."""
        values = {name: getattr(self, name) for name in SHARED_PARAMETERS}
        return {name: value for name, value in values.items() if value is not None}

    def local_training(self, given: LocalTraining) -> LocalTraining:
        """Return the study's local training with what is set here."""
        values = self.client_values()
        changes = {own_name: values[name] for name, own_name in CLIENT_PARAMETERS.items() if name in values}
        return given.model_copy(update=changes) if changes else given

    # What is searched.

    def search_names(self) -> tuple[str, ...]:
        """Return the names of its own searched parameters, in the order in which their ranges may depend on each other.

        A space may search the clients' parameters as well.
        """
        return tuple(searched_fields(type(self)))

    def search_values(self) -> Mapping[str, Value]:
        """Return the present values of the searched parameters, and of those of the clients that are set."""
        return {**{name: getattr(self, name) for name in self.search_names()}, **self.client_values()}

    def search_range(
        self, name: str, cohort: Cohort, chosen: Mapping[str, Value], width: RangeWidth = "default"
    ) -> Range:
        """Return the range of one searched parameter.

        Args:
            name: One of `search_names()`.
            cohort: The clients; the strategy must be available there.
            chosen: Values of the parameters before it; without them the widest range is given.
            width: Which of the two ranges.
        """
        return searched_fields(type(self))[name].concrete(cohort, chosen, width)

    def with_values(self, values: Mapping[str, Value]) -> Self:
        """Return the specification with other values of searched parameters, validated."""
        return type(self).model_validate({**self.model_dump(), **values})

    def document_schema(self, searched: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of each entry of the documents in which only searched parameters differ from it.

        Args:
            searched: The schemas of the searched parameters, the clients' included.
        """
        return {"kind": {"const": self.kind}, **searched}

    # Whether it fits.

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why no parameters could make the strategy work in a cohort; None if some can."""
        del cohort
        return None

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the strategy can't be built in a cohort, each fault a sentence; empty if it can."""
        if reason := self.unavailable(cohort):
            return [reason]
        faults: list[str] = []
        chosen: dict[str, Value] = {}
        for name, searched in searched_fields(type(self)).items():
            value = getattr(self, name)
            if callable(searched.default) and not (allowed := searched.concrete(cohort, chosen)).contains(value):
                given = "".join(f" and {other}={chosen[other]}" for other in chosen)
                where = f"with {clients_text(cohort.num_sampled)}{given}"
                faults.append(Fault(f"{name} of {self.kind}", f"be in {allowed.text()} {where}", value))
            else:
                chosen[name] = value
        return faults

    def notes(self, cohort: Cohort) -> list[str]:
        """Return what is allowed but worth knowing, each a sentence."""
        simplest = self.simplest(cohort)
        if simplest.kind == self.kind:
            return []
        return [f"{self} is the same as {simplest} with {clients_text(cohort.num_sampled)}"]

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return what is worth knowing of a trial whose rounds gave so many models, each a sentence."""
        del cohort, num_models
        return []

    # Equivalents.

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification that gives the same model in a cohort that it fits, or itself.

        It speaks of the server alone; what clients are told may be left out.
        """
        del cohort
        return self

    def simplest(self, cohort: Cohort) -> StrategySpec:
        """Return the simplest equivalent; the specification itself if it has none or does not fit the cohort."""
        spec: StrategySpec = self
        while (simpler := self._with_same_clients(spec.equivalent(cohort))) != spec and not spec.faults(cohort):
            spec = simpler
        return spec

    def _with_same_clients(self, spec: StrategySpec) -> StrategySpec:
        values = self.client_values()
        return spec if spec.client_values() == values else spec.model_copy(update=dict(values))

    def canonical(self, cohort: Cohort) -> str:
        """Return the canonical JSON of the simplest equivalent: one text for all that are the same here."""
        return json.dumps(self.simplest(cohort)._identity(), sort_keys=True, separators=(",", ":"))

    def digest(self, cohort: Cohort) -> str:
        """Return the SHA-256 of `canonical`, in hexadecimal."""
        return hashlib.sha256(self.canonical(cohort).encode()).hexdigest()

    def _identity(self) -> Mapping[str, Any]:
        """Return what decides the model; numbers without a negative zero, which is another text for the same value."""
        fields = {"kind": self.kind, **self.parameters()}
        return {name: value + 0.0 if isinstance(value, float) else value for name, value in fields.items()}

    def __str__(self) -> str:
        shown = ", ".join(self._text(name, value) for name, value in self.parameters().items() if self._shows(name))
        return f"{self.label}({shown})" if shown else self.label

    def _text(self, name: str, value: Any) -> str:
        """Return a parameter and its value, as `parameters()` has it, for people."""
        return f"{name}={value}"

    def _shows(self, name: str) -> bool:
        """Return whether people need to see a parameter: it is searched, or not at its default."""
        return name in self.search_names() or getattr(self, name) != type(self).model_fields[name].default


def given_values(training: LocalTraining) -> Mapping[str, Value]:
    """Return what clients are told where a specification says nothing, by the names of a specification."""
    return {name: getattr(training, own_name) for name, own_name in CLIENT_PARAMETERS.items()}


def searched_fields(spec_class: type[StrategySpec]) -> dict[str, SearchRange]:
    """Return the searched fields of a specification, in the order of their declaration."""
    return {
        name: entry
        for name, field in spec_class.model_fields.items()
        for entry in field.metadata
        if isinstance(entry, SearchRange)
    }
