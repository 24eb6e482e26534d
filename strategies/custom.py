"""Classes of a user, named by import path: strategies, which join a search without changes here, and policies.

```yaml
kind: custom
path: my_package.my_module:MyStrategy     # a flwr.serverapp.strategy.Strategy, or a StrategySpec
values: {window: 3}                       # arguments of its constructor
ranges:                                   # those that a search draws
  strength: {low: 0.001, high: 1, log: true}
  depth: {low: 1, high: 5, integer: true}
  mode: {choices: [mean, median]}
```

A user's `StrategySpec` is as complete as a built-in one: it defines its parameters with ranges, its engine
features, its client algorithm and its server. `ranges` replaces its ranges.

A Flower strategy by default gets the features that every Flower strategy supports: named arrays, one reply
per client and its own evaluation round; `arrays`, `replies`, `initial_loss` and `sees_evaluation` override
this. The arguments for the number of training clients (`fraction_train`, `min_train_nodes`, …) are passed if
its constructor accepts them, by name or through `**kwargs`; otherwise it samples by its own rules. Its
clients follow the messages of Flower's own strategies and mods (`fedscout.engine.messages.contents`). The
class is imported when it is checked against a cohort or built, never when a document is parsed.

**Arguments.** JSON values are validated and converted by pydantic against the annotations of the user's constructor: a
list becomes a tuple or a set, a value the member of an enum. An annotation that pydantic does not know accepts any
value. YAML reads `007`, `1.10` and `yes` as a number or a boolean and loses their spelling, so text must be quoted
(`strategy.values.mode='"007"'` in a shell).
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import pydantic
from flwr.serverapp.strategy import Strategy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.text import details, fault_of, shown
from fedscout.engine.user_code import code_digests
from fedscout.strategies import specification
from fedscout.strategies.methods.averaging import ProximalTerm
from fedscout.strategies.specification import Range, StrategySpec, Value, node_counts


def accepted(constructor: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], bool]:
    """Return the named arguments of a constructor, and whether it accepts any others."""
    parameters = inspect.signature(constructor).parameters
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return by_name, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def name_faults(path: str, constructor: Callable[..., Any], given: Set[str], added: Set[str]) -> list[str]:
    """Return the faults of argument names: names that a constructor does not accept, and missing required ones.

    Args:
        path: Import path of the class, for error messages.
        constructor: A class or callable.
        given: Names of the user's arguments.
        added: Names of arguments that are passed automatically.
    """
    named, takes_any = accepted(constructor)
    allowed = ", ".join(sorted(named.keys() - added)) or "none"
    unknown = [name for name in sorted(given) if name not in named and not takes_any]
    required = [name for name, parameter in named.items() if parameter.default is inspect.Parameter.empty]
    return [
        *(Fault(name, hint=f"it takes {allowed}", problem=f"is no argument of {path}") for name in unknown),
        *(
            Fault(f"{name} of {path}", "have a value or a range: its constructor requires it")
            for name in required
            if name not in given | added
        ),
    ]


def converted(path: str, constructor: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments converted by the annotations of a constructor.

    Args:
        path: Import path of the class, for error messages.
        constructor: A class or callable.
        values: Values by parameter name.

    Raises:
        StrategyError: If a value can't be converted; contains all faults.
    """
    target = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]  # as called
    try:
        annotations = typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name under TYPE_CHECKING, or whatever evaluating a user's text raises
        annotations = {}
    arguments: dict[str, Any] = {}
    faults = []
    for name, value in values.items():
        try:
            arguments[name] = pydantic.TypeAdapter(annotations.get(name, Any)).validate_python(value)
        except pydantic.PydanticUserError:  # it does not know such a type
            arguments[name] = value
        except ValidationError as error:
            faults.append(fault_of(f"{name} of {path}", details(error)[0]))
    if faults:
        raise StrategyError(faults)
    return arguments


def constructed(
    path: str, constructor: Callable[..., Any], arguments: Mapping[str, Any], given_arguments: Mapping[str, Any]
) -> Any:
    """Return the instance that a user's constructor creates.

    Args:
        path: Import path of the class, for error messages.
        constructor: The class.
        arguments: All arguments, converted.
        given_arguments: Those that the user gave.

    Raises:
        StrategyError: If the constructor raises anything.
    """
    try:
        return constructor(**arguments)
    except StrategyError:
        raise
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything
        raise StrategyError.of(path, f"accept {dict(given_arguments)}", f"{type(error).__name__}: {error}") from error


def _well_formed(path: str) -> str:
    module, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f"an import path must have the form package.module:Class, got {path!r}")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"must not name a module of Python's standard library, got {path!r}")
    return path


ImportPath = Annotated[str, pydantic.AfterValidator(_well_formed)]
"""A path of that form, outside Python's library."""


class UserClass(BaseModel):
    """What specifications of a user's class, a strategy's or a policy's, have in common."""

    path: Annotated[ImportPath, Field(description="module:Class")]
    values: Annotated[Mapping[str, pydantic.JsonValue], Field(description="arguments of its constructor")] = {}

    @property
    def label(self) -> str:
        """The import path, since several classes share the kind."""
        return self.path

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the class's module and of the user modules that it imports."""
        return code_digests(self.path)


def imported(path: str) -> Any:
    """Return the attribute at an import path; None if the module does not define it.

    Raises:
        StrategyError: If the module can't be imported.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise StrategyError.of(
            path, "be importable from the Python path", f"{type(error).__name__}: {error}"
        ) from error
    return getattr(module, name, None)


def imported_class(path: str, bases: Mapping[str, type]) -> type[Any]:
    """Return the class at an import path.

    Args:
        path: `package.module:Class`.
        bases: Allowed base classes, by their import names.

    Raises:
        StrategyError: If the module can't be imported, there is no such class, or it has abstract methods.
    """
    attribute = imported(path)
    if not (isinstance(attribute, type) and issubclass(attribute, tuple(bases.values()))):
        description = "nothing of that name" if attribute is None else repr(attribute)
        raise StrategyError.of(path, f"be a subclass of {' or of '.join(bases)}", description)
    if missing := sorted(getattr(attribute, "__abstractmethods__", ())):
        raise StrategyError.of(path, f"define every abstract method, but lacks {', '.join(missing)}")
    return attribute


def specified(path: str, spec_class: type[StrategySpec], values: Mapping[str, Any]) -> StrategySpec:
    """Return a user's specification with values.

    Args:
        path: Import path of the class, for error messages.
        spec_class: The class.
        values: Values of its parameters, possibly with client parameters.

    Raises:
        StrategyError: If the values are invalid; one sentence per fault.
    """
    try:
        return spec_class.model_validate(values)
    except ValidationError as error:
        raise StrategyError(specification.parameter_faults(error, spec_class, path)) from error


class Interval(BaseModel):
    """A declared numeric range."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value, included")
    log: bool = Field(default=False, description="sample in log space")
    integer: bool = Field(default=False, description="sample integers")

    def to_range(self) -> Range:
        """Return the range for the search."""
        if self.integer:
            if not (self.low.is_integer() and self.high.is_integer()):
                raise StrategyError.of("an integer range", "have integer ends", f"[{self.low}, {self.high}]")
            return specification.IntegerRange(int(self.low), int(self.high), self.log)
        return specification.RealRange(self.low, self.high, self.log)


def _scalar(choice: Any) -> Any:
    if not isinstance(choice, Value):
        raise ValueError(f"must be a number, text or a truth value, got {shown(choice)}")
    return choice


class Choices(BaseModel):
    """A declared set of values."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    choices: tuple[Annotated[Value, pydantic.BeforeValidator(_scalar)], ...] = Field(description="the values, distinct")

    def to_range(self) -> Range:
        """Return the range for the search."""
        return specification.ChoiceRange(self.choices)


def _tag(value: Any) -> str:
    has_choices = "choices" in value if isinstance(value, Mapping) else isinstance(value, Choices)
    return "choices" if has_choices else "interval"


def _valid_range(declared: Interval | Choices) -> Interval | Choices:
    try:
        declared.to_range()
    except StrategyError as error:
        raise ValueError(str(error)) from error
    return declared


Declared = Annotated[
    Annotated[Interval, pydantic.Tag("interval")] | Annotated[Choices, pydantic.Tag("choices")],
    pydantic.Discriminator(_tag),
    pydantic.AfterValidator(_valid_range),
]


class CustomSpec(UserClass, StrategySpec):
    """A user-defined strategy, by import path."""

    paper: ClassVar[str] = "the user's own"
    unpaired: ClassVar[str] = "its server rule and its clients are not known separately"

    kind: Literal["custom"] = "custom"
    ranges: Annotated[Mapping[str, Declared], Field(description="search ranges of the arguments")] = {}
    arrays: Annotated[Literal["flat", "named"], Field(description="one vector, or an array per tensor")] = "named"
    replies: Annotated[Literal["merged", "individual"], Field(description="one mean, or one per client")] = "individual"
    initial_loss: Annotated[bool, Field(description="whether replies carry the loss before training")] = False
    sees_evaluation: Annotated[
        bool, Field(description="whether the strategy's own evaluation also runs; false saves one evaluation per round")
    ] = True

    def needs(self) -> EngineNeeds:
        """Return the declared engine features."""
        if (spec := self._specification()) is not None:
            return spec.needs()
        return EngineNeeds(
            arrays=self.arrays,
            replies=self.replies,
            initial_loss=self.initial_loss,
            sees_evaluation=self.sees_evaluation,
        )

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm of a specification; by default FedProx's, if a message requests it."""
        spec = self._specification()
        return (None if spec is None else spec.client_algorithm()) or ProximalTerm()

    def search_names(self) -> tuple[str, ...]:
        """Return the names with a range: those declared here, or a specification's own."""
        spec = None if self.ranges else self._specification()
        return tuple(self.ranges) if spec is None else spec.search_names()

    def search_values(self) -> Mapping[str, Value]:
        """Return the current values of the searched arguments that are set."""
        spec = self._specification()
        values_by_name = self.values if spec is None else spec.parameters()
        searched = {name: cast(Value, values_by_name[name]) for name in self.search_names() if name in values_by_name}
        return {**searched, **self.client_values()}

    def search_range(self, name: str, cohort: Cohort, chosen: Mapping[str, Value]) -> Range:
        """Return the declared range of an argument."""
        spec = None if name in self.ranges else self._specification()
        return self.ranges[name].to_range() if spec is None else spec.search_range(name, cohort, chosen)

    def with_values(self, values: Mapping[str, Value]) -> Self:
        """Return the specification with other arguments or client parameters."""
        searched = self.search_names()
        client_values = {
            name: values[name] for name in values if name in specification.SHARED_PARAMETERS and name not in searched
        }
        own_values = {name: value for name, value in values.items() if name not in client_values}
        return self.model_copy(update={"values": {**self.values, **own_values}, **client_values})

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: the class can't be imported or does not accept the arguments."""
        if faults := self.class_faults(cohort):
            return self._unset() + faults
        spec = self._specification()
        return self._unset() if spec is None else spec.faults(cohort)

    def _unset(self) -> list[str]:
        """Return the faults of arguments with a range but no value; a specification has defaults."""
        spec_class = self._specification_class()
        valued = {*self.values, *(() if spec_class is None else spec_class.model_fields)}
        unset = [name for name in self.ranges if name not in valued]
        return [Fault(f"{name} of {self.path}", "have a value to be built") for name in unset]

    def class_faults(self, cohort: Cohort) -> list[str]:
        """Return the faults of the class and of the argument names, independent of searched values."""
        try:
            strategy_class = self._imported()
            if issubclass(strategy_class, StrategySpec):
                if reason := strategy_class.unavailable(cohort):
                    return [reason]
                specified(self.path, strategy_class, self.values)
                return []
        except StrategyError as error:
            return list(error.faults)
        faults: list[str] = []
        if cohort.chosen and strategy_class.start is not Strategy.start:
            faults.append(Fault(self.path, problem="overrides `start`, so no selection policy can choose its clients"))
        faults += name_faults(self.path, strategy_class, {*self.values, *self.ranges}, {*node_counts(cohort)})
        declared = [(name, entry) for name, entry in self.ranges.items() if isinstance(entry, Choices)]
        for values in (self.values, *({name: choice} for name, entry in declared for choice in entry.choices)):
            try:
                converted(self.path, strategy_class, values)
            except StrategyError as error:
                faults += error.faults
        return faults

    def notes(self, cohort: Cohort) -> list[str]:
        """Return a warning if the class does not accept the number of clients to sample."""
        if self.faults(cohort):
            return []
        if (spec := self._specification()) is not None:
            return spec.notes(cohort)
        if set(self._arguments(cohort)) >= {*node_counts(cohort)}:
            return []
        return [
            f"the constructor of {self.path} does not take fraction_train and min_*_nodes: it samples by its own rule"
        ]

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return a specification's notes on a trial."""
        spec = self._specification()
        return [] if spec is None else spec.notes_after(cohort, num_models)

    def _specification_class(self) -> type[StrategySpec] | None:
        """Return the class if it is a specification; None for a Flower strategy or a failed import."""
        try:
            imported = self._imported()
        except StrategyError:
            return None
        return imported if issubclass(imported, StrategySpec) else None

    def _specification(self) -> StrategySpec | None:
        """Return the user's specification with the values; None if the class is a Flower strategy."""
        spec_class = self._specification_class()
        return None if spec_class is None else specified(self.path, spec_class, {**self.values, **self.client_values()})

    def _imported(self) -> type[Strategy | StrategySpec]:
        bases = {"flwr.serverapp.strategy.Strategy": Strategy, "fedscout.strategies.StrategySpec": StrategySpec}
        return imported_class(self.path, bases)

    def _arguments(self, cohort: Cohort) -> dict[str, Any]:
        named, takes_any = accepted(self._imported())
        counts = {name: count for name, count in node_counts(cohort).items() if takes_any or name in named}
        return {**counts, **self.values}

    def _construct(self, cohort: Cohort) -> Strategy:
        if (spec := self._specification()) is not None:
            return spec.build(cohort)
        strategy_class = cast(type[Strategy], self._imported())
        given = converted(self.path, strategy_class, self._arguments(cohort))
        return cast(Strategy, constructed(self.path, strategy_class, given, self.values))

    def _identity(self) -> Mapping[str, Any]:
        """Return the fields that determine the model, without the declared ranges."""
        return {name: value for name, value in super()._identity().items() if name != "ranges"}
