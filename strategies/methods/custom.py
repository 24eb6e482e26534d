"""A user's own strategy, named by import path: it joins a search without a change to this program.

```yaml
kind: custom
path: my_package.my_module:MyStrategy     # a flwr.serverapp.strategy.Strategy, or a StrategySpec
values: {window: 3}                       # arguments of its constructor
ranges:                                   # those that a search draws
  strength: {low: 0.001, high: 1, log: true}
  depth: {low: 1, high: 5, integer: true}
  mode: {choices: [mean, median]}
```

A `StrategySpec` says everything itself, its ranges included; those given here come in their place
(`custom.py`). A Flower strategy by default gets what every Flower strategy can work with: named arrays, one
reply per client and a round of evaluation of its own; `arrays`, `replies`, `initial_loss` and `sees_evaluation` say
otherwise. The arguments that decide how many clients train (`fraction_train`, `min_train_nodes`, …) are passed if its
constructor takes them, by name or through `**kwargs`; otherwise it samples by its own rules. Its clients do what
Flower's own strategies and mods ask of theirs (`fedscout.engine.messages.contents`). The class is imported when it
is checked against a cohort or built, never when a document is parsed.

A user's own specification: a `StrategySpec` outside this program, as complete as one of its own.

It says its parameters with their ranges, what it needs, what its clients do and how its server is built, so it reaches
all that the built-in strategies reach. `kind: custom` names it by import path (`custom.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.text import details, fault_of, shown
from fedscout.engine.user_code import code_digests
from fedscout.strategies.arguments import (
    Argument,
    ImportPath,
    accepted,
    constructed,
    converted,
    imported_class,
    name_faults,
)
from fedscout.strategies.methods.averaging import ProximalTerm
from fedscout.strategies.specification import (
    SHARED_PARAMETERS,
    ChoiceRange,
    IntegerRange,
    Range,
    RangeWidth,
    RealRange,
    StrategySpec,
    Value,
    node_counts,
)

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy


def specified(path: str, spec_class: type[StrategySpec], values: Mapping[str, Any]) -> StrategySpec:
    """Return a user's specification with these values.

    Args:
        path: Of the class, for the text of faults.
        spec_class: The class.
        values: Of its parameters; what clients are told may be among them.

    Raises:
        StrategyError: If they are not valid, each fault a sentence.
    """
    try:
        return spec_class.model_validate(values)
    except ValidationError as error:
        raise StrategyError([_sentence(path, spec_class, detail) for detail in details(error)]) from error


def _sentence(path: str, spec_class: type[StrategySpec], detail: ErrorDetails) -> str:
    where = ".".join(map(str, detail["loc"]))
    if detail["type"] != "extra_forbidden":
        return fault_of(f"{where} of {path}", detail)
    allowed = [name for name in spec_class.model_fields if name not in ("kind", *SHARED_PARAMETERS)]
    return f"{where} is no parameter of {path}; it takes {', '.join(allowed) or 'none'}"


def class_faults(path: str, spec_class: type[StrategySpec], values: Mapping[str, Any], cohort: Cohort) -> list[str]:
    """Return why no values could make it work in a cohort, or what is wrong with those that are given."""
    if reason := spec_class.unavailable(cohort):
        return [reason]
    try:
        specified(path, spec_class, values)
    except StrategyError as error:
        return [*error.faults]
    return []


class Interval(BaseModel):
    """A declared range of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value, included")
    log: bool = Field(default=False, description="draw in log space")
    integer: bool = Field(default=False, description="draw whole numbers")

    def to_range(self) -> Range:
        """Return the range that a search works with."""
        if self.integer:
            if not (self.low.is_integer() and self.high.is_integer()):
                raise StrategyError(Fault("an integer range", "have whole ends", f"[{self.low}, {self.high}]"))
            return IntegerRange(int(self.low), int(self.high), self.log)
        return RealRange(self.low, self.high, self.log)


def _single(choice: Any) -> Any:
    if not isinstance(choice, Value):
        raise ValueError(f"must be a number, text or a truth value, got {shown(choice)}")
    return choice


class Choices(BaseModel):
    """A declared set of values."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    choices: tuple[Annotated[Value, BeforeValidator(_single)], ...] = Field(description="the values, distinct")

    def to_range(self) -> Range:
        """Return the range that a search works with."""
        return ChoiceRange(self.choices)


def _tag(value: Any) -> str:
    has_choices = "choices" in value if isinstance(value, Mapping) else isinstance(value, Choices)
    return "choices" if has_choices else "interval"


def _workable(declared: Interval | Choices) -> Interval | Choices:
    try:
        declared.to_range()
    except StrategyError as error:
        raise ValueError(str(error)) from error
    return declared


Declared = Annotated[
    Annotated[Interval, Tag("interval")] | Annotated[Choices, Tag("choices")],
    Discriminator(_tag),
    AfterValidator(_workable),
]


class CustomSpec(StrategySpec):
    """A user's own strategy, by import path."""

    paper: ClassVar[str] = "the user's own"
    unpaired: ClassVar[str] = "nothing is known of its halves"

    kind: Literal["custom"] = "custom"
    path: Annotated[ImportPath, Field(description="module:Class of a Flower strategy")]
    values: Annotated[Mapping[str, Argument], Field(description="arguments of its constructor")] = {}
    ranges: Annotated[Mapping[str, Declared], Field(description="what a search draws of them")] = {}
    arrays: Annotated[Literal["flat", "named"], Field(description="one vector, or an array per tensor")] = "named"
    replies: Annotated[Literal["merged", "individual"], Field(description="one mean, or one per client")] = "individual"
    initial_loss: Annotated[bool, Field(description="whether replies carry the loss before training")] = False
    sees_evaluation: Annotated[
        bool, Field(description="whether its own evaluation runs besides the trial's; false saves one a round")
    ] = True

    @property
    def label(self) -> str:
        """The import path, since several strategies are of this kind."""
        return self.path

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide, as declared."""
        if (own := self._specification()) is not None:
            return own.needs()
        return EngineNeeds(
            arrays=self.arrays,
            replies=self.replies,
            initial_loss=self.initial_loss,
            sees_evaluation=self.sees_evaluation,
        )

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return what a specification declares; where nothing is, FedProx's client, if a message asks for it."""
        own = self._specification()
        return (None if own is None else own.client_algorithm()) or ProximalTerm()

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the class's module and of the user's own modules that it imports."""
        return code_digests(self.path)

    def search_names(self) -> tuple[str, ...]:
        """Return the names that have a range: those given here, or a specification's own."""
        own = None if self.ranges else self._specification()
        return tuple(self.ranges) if own is None else own.search_names()

    def search_values(self) -> Mapping[str, Value]:
        """Return the present values of the searched arguments; those without one are left out."""
        own = self._specification()
        known = self.values if own is None else own.parameters()
        searched = {name: cast(Value, known[name]) for name in self.search_names() if name in known}
        return {**searched, **self.client_values()}

    def search_range(
        self, name: str, cohort: Cohort, chosen: Mapping[str, Value], width: RangeWidth = "default"
    ) -> Range:
        """Return the declared range of one argument."""
        own = None if name in self.ranges else self._specification()
        return self.ranges[name].to_range() if own is None else own.search_range(name, cohort, chosen, width)

    def with_values(self, values: Mapping[str, Value]) -> Self:
        """Return the specification with other arguments, or other parameters of the clients."""
        searched = self.search_names()
        of_clients = {name: values[name] for name in values if name in SHARED_PARAMETERS and name not in searched}
        own = {name: value for name, value in values.items() if name not in of_clients}
        return self.model_copy(update={"values": {**self.values, **own}, **of_clients})

    def document_schema(self, searched: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of each entry; the arguments stand under `values`."""
        own = {name: schema for name, schema in searched.items() if name in self.search_names()}
        arguments = {**{name: {"const": value} for name, value in self.values.items() if name not in own}, **own}
        values = {"type": "object", "properties": arguments, "required": [*arguments], "additionalProperties": False}
        fixed = {name: {"const": value} for name, value in self.parameters().items() if name not in ("path", "values")}
        of_clients = {name: schema for name, schema in searched.items() if name not in own}
        return {"kind": {"const": self.kind}, "path": {"const": self.path}, "values": values, **fixed, **of_clients}

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the strategy can't be built: it can't be imported, or does not take the arguments."""
        if faults := self.class_faults(cohort):
            return self._unset() + faults
        own = self._specification()
        return self._unset() if own is None else own.faults(cohort)

    def _unset(self) -> list[str]:
        """Return what has a range and no value, each a fault; a specification has defaults."""
        known = self.values.keys() | ({} if (own := self._found_specification()) is None else own.model_fields)
        return [f"{name} of {self.path} must have a value to be built" for name in self.ranges if name not in known]

    def class_faults(self, cohort: Cohort) -> list[str]:
        """Return what is wrong with the class or with the names of the arguments, whatever their values."""
        try:
            strategy_class = self._imported()
        except StrategyError as error:
            return list(error.faults)
        if issubclass(strategy_class, StrategySpec):
            return class_faults(self.path, strategy_class, self.values, cohort)
        faults = [] if not cohort.chosen else _own_start(self.path, strategy_class)
        faults += name_faults(self.path, strategy_class, {*self.values, *self.ranges}, {*node_counts(cohort)})
        declared = [(name, found) for name, found in self.ranges.items() if isinstance(found, Choices)]
        for given in (self.values, *({name: choice} for name, found in declared for choice in found.choices)):
            try:
                converted(self.path, strategy_class, given)
            except StrategyError as error:
                faults += error.faults
        return faults

    def notes(self, cohort: Cohort) -> list[str]:
        """Return what is worth knowing: a class that can't be told how many clients to sample."""
        if self.faults(cohort):
            return []
        if (own := self._specification()) is not None:
            return own.notes(cohort)
        if set(self._arguments(cohort)) >= {*node_counts(cohort)}:
            return []
        return [f"the constructor of {self.path} does not take fraction_train and min_*_nodes: it samples by its own"]

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return what a specification says of a trial."""
        own = self._specification()
        return [] if own is None else own.notes_after(cohort, num_models)

    def _found_specification(self) -> type[StrategySpec] | None:
        """Return the class if it is a specification; None of a Flower strategy, and if it can't be imported."""
        try:
            found = self._imported()
        except StrategyError:
            return None
        return found if issubclass(found, StrategySpec) else None

    def _specification(self) -> StrategySpec | None:
        """Return the user's specification with the values; None where the class is a Flower strategy."""
        spec_class = self._found_specification()
        return None if spec_class is None else specified(self.path, spec_class, {**self.values, **self.client_values()})

    def _imported(self) -> type[Strategy | StrategySpec]:
        from flwr.serverapp.strategy import Strategy

        bases = {"flwr.serverapp.strategy.Strategy": Strategy, "fedscout.strategies.StrategySpec": StrategySpec}
        return imported_class(self.path, bases)

    def _arguments(self, cohort: Cohort) -> dict[str, Any]:
        named, takes_any = accepted(self._imported())
        counts = {name: count for name, count in node_counts(cohort).items() if takes_any or name in named}
        return {**counts, **self.values}

    def _construct(self, cohort: Cohort) -> Strategy:
        if (own := self._specification()) is not None:
            return own.build(cohort)
        strategy_class = cast("type[Strategy]", self._imported())
        arguments = converted(self.path, strategy_class, self._arguments(cohort))
        return cast("Strategy", constructed(self.path, strategy_class, arguments, self.values))

    def _identity(self) -> Mapping[str, Any]:
        """Return what decides the model: the declared ranges do not."""
        return {name: value for name, value in super()._identity().items() if name != "ranges"}


def _own_start(path: str, strategy_class: type[Strategy]) -> list[str]:
    """Return that no policy can choose the clients of a strategy that drives its rounds itself."""
    from flwr.serverapp.strategy import Strategy

    if strategy_class.start is Strategy.start:
        return []
    return [f"{path} brings its own start, so no selection policy can choose its clients"]
