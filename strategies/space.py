"""The search space of a federation: which strategies can be chosen there, and from which ranges their parameters.

A strategy is drawn first, uniformly, then its parameters, uniformly or log-uniformly each. A twin is the same in this
cohort as another strategy that is tried, such as Bulyan without malicious clients as FedAvg: no searcher draws it as
long as there is anything else. A range may depend on the
clients sampled per round and on the parameters chosen before it, so values are always chosen in order: `compose` is the
one place that walks them, whoever chooses.

Where ranges are given for the clients' own parameters, they join those of every strategy, after its own. A client
parameter at the study's own value is the same as one that is not set, so it has the same digest.

Which parameters have a column in a log, and of which type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.text import alternatives
from fedscout.strategies.methods.custom import CustomSpec
from fedscout.strategies.pairs import kind_of
from fedscout.strategies.specification import (
    SELECTION,
    ChoiceRange,
    IntegerRange,
    Range,
    RangeWidth,
    StrategySpec,
    Value,
)
from fedscout.strategies.table import BUILT_IN, BUILT_IN_KINDS, NAMES, name_faults, named_classes, strategy_class

TWIN_DRAWS = 20
"""After which a strategy is taken to be the same as another one whatever its parameters."""

Choose = Callable[[str, Range], Value]
"""Given a parameter's name and its range, the value that it shall have."""


@dataclass(frozen=True)
class ParameterRow:
    """One searched parameter, for people.

    Attributes:
        name: As Flower calls it.
        meaning: Its symbol in the paper and what it does.
        range: The range in this space.
        default: What it is if nobody sets it; None if it has no default.
    """

    name: str
    meaning: str
    range: str
    default: Value | None


@dataclass(frozen=True)
class StrategyRow:
    """One strategy, for people.

    Attributes:
        name: Its kind, or the import path of a user's own.
        summary: What it does, in a line.
        paper: Where it was published.
        parameters: What is searched of it.
        unavailable: Why it is not in the space; None if it is.
    """

    name: str
    summary: str
    paper: str
    parameters: tuple[ParameterRow, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True)
class SearchSpace:
    """Strategies and ranges for one cohort; made by `space_of`.

    Attributes:
        cohort: The clients.
        width: Which ranges are used.
        members: One specification per strategy: a template, whose searched parameters are replaced.
        absent: Kinds that are impossible in this cohort, with the reason.
        client_ranges: Of the clients' parameters that are searched, by their names in a specification.
        given: What clients are told where a specification says nothing, likewise; what is not known is left out.
    """

    cohort: Cohort
    width: RangeWidth
    members: Mapping[str, StrategySpec]
    absent: Mapping[str, str] = field(default_factory=dict)
    client_ranges: Mapping[str, Range] = field(default_factory=dict)
    given: Mapping[str, Value] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the strategies that can be chosen; of a user's own, its import path."""
        return tuple(self.members)

    def parameters_of(self, kind: str, chosen: Mapping[str, Value] | None = None) -> Mapping[str, Range]:
        """Return the concrete range of every searched parameter, in the order in which they are to be chosen.

        Args:
            kind: One of `kinds`.
            chosen: Values that later ranges may depend on; without them each range is at its widest.
        """
        member = self.members[kind]
        given = dict(chosen or {})
        own = {name: member.search_range(name, self.cohort, given, self.width) for name in member.search_names()}
        return {**own, **self.client_ranges}

    def compose(self, kind: str, choose: Choose) -> StrategySpec:
        """Return the specification of a strategy whose parameters are chosen one after the other."""
        return self.recompose(self.members[kind], choose)

    def recompose(self, template: StrategySpec, choose: Choose) -> StrategySpec:
        """As `compose`, keeping what is not searched of `template`, whose strategy must be in the space."""
        chosen: dict[str, Value] = {}
        member = self.members[template.label]
        for name in member.search_names():
            chosen[name] = choose(name, member.search_range(name, self.cohort, chosen, self.width))
        for name, parameter_range in self.client_ranges.items():
            chosen[name] = choose(name, parameter_range)
        return template.with_values(chosen)

    def random(self, generator: np.random.Generator) -> StrategySpec:
        """Draw a specification: the strategy first, then its parameters; a twin only if the space holds little else."""
        for place in generator.permutation(len(self.kinds)):
            for _ in range(TWIN_DRAWS):
                spec = self.compose(self.kinds[place], lambda _, parameter_range: parameter_range.draw(generator))
                if not self.is_twin(spec):
                    return spec
        return spec

    def is_twin(self, spec: StrategySpec) -> bool:
        """Return whether a specification is the same in this cohort as one of another strategy of the space, or FedAvg.

        FedAvg is the reference of every search. What equals a strategy that nothing else draws is no twin.
        """
        simplest = spec.simplest(self.cohort).kind
        return simplest != spec.kind and (simplest in self.members or simplest == "fedavg")

    def contains(self, spec: StrategySpec) -> bool:
        """Return whether a specification could have been drawn, rounding apart."""
        member = self.members.get(spec.label)
        if member is None:  # and if it is a user's own, it is not imported to be looked into
            return False
        values = spec.search_values()
        if set(values) != {*member.search_names(), *self.client_ranges} or member.with_values(values) != spec:
            return False
        return all(self.parameters_of(spec.label, values)[name].contains(value) for name, value in values.items())

    def nearest(self, spec: StrategySpec) -> StrategySpec | None:
        """Return the configuration of this space that is nearest to one from elsewhere, strategy and all.

        Each value is moved into its range. What is not set is as the study gives it, or at the middle of its range;
        what is not searched here is as in the space's own member.

        Returns:
            None if the strategy can't be chosen here.
        """
        if spec.label not in self.members:
            return None
        known = {**self.given, **spec.search_values()}
        return self.compose(spec.label, lambda name, found: _moved_into(found, known.get(name)))

    def default(self, kind: str) -> StrategySpec:
        """Return a strategy at its documented defaults, which are moved into their ranges."""
        spec = self.nearest(self.members[kind])
        assert spec is not None
        return spec

    def digest(self, spec: StrategySpec) -> str:
        """Return the digest of a specification in this cohort, the same for equivalents."""
        values = spec.client_values()
        unset = {name: None for name, value in values.items() if self.given.get(name) == value}
        return (spec.model_copy(update=unset) if unset else spec).digest(self.cohort)

    def describe(self) -> list[StrategyRow]:
        """Return one row per strategy, those that are impossible here last."""
        rows = [self._row(name, member) for name, member in self.members.items()]
        for kind, reason in self.absent.items():
            spec_class = strategy_class(kind)
            rows.append(StrategyRow(kind, summary_of(spec_class), spec_class.paper, unavailable=reason))
        return rows

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of exactly this space: the searched parameters of each strategy, all required."""
        return {"oneOf": [self._schema(name, member) for name, member in self.members.items()]}

    def _row(self, name: str, member: StrategySpec) -> StrategyRow:
        defaults = {**self.given, **member.search_values()}
        parameters = tuple(
            ParameterRow(parameter, _meaning(member, parameter), found.text(), defaults.get(parameter))
            for parameter, found in self.parameters_of(name).items()
        )
        return StrategyRow(name, summary_of(type(member)), member.paper, parameters)

    def _schema(self, name: str, member: StrategySpec) -> dict[str, Any]:
        searched = {
            parameter: {**found.json_schema(), "description": _meaning(member, parameter)}
            for parameter, found in self.parameters_of(name).items()
        }
        properties = member.document_schema(searched)
        return {
            "type": "object",
            "title": name,
            "description": summary_of(type(member)),
            "additionalProperties": False,
            "properties": properties,
            "required": [*properties],
        }


def space_of(
    cohort: Cohort,
    kinds: Sequence[str] | None = None,
    ranges: RangeWidth = "default",
    customs: Sequence[CustomSpec] = (),
    client_ranges: Mapping[str, Range] | None = None,
    given: Mapping[str, Value] | None = None,
) -> SearchSpace:
    """Return the search space of a cohort.

    Args:
        cohort: The clients.
        kinds: Strategies to choose from, pairs included, and `"all"` for those that are possible here; None for all
            built-in ones that are possible here.
        ranges: `"default"`, or `"wide"` for the broader ranges of published searches.
        customs: A user's own strategies, each with its ranges.
        client_ranges: Of the clients' parameters that are searched, by their names in a specification.
        given: What clients are told where a specification says nothing, likewise; at least the cohort's step size.

    Raises:
        StrategyError: If a kind is unknown or impossible in this cohort, if a user's strategy can't be used, or if
            nothing is left to choose from; carries every fault.
    """
    faults: list[str] = []
    if ranges not in get_args(RangeWidth):
        faults.append(Fault("ranges", f"be one of {', '.join(get_args(RangeWidth))}", repr(ranges)))
    faults += name_faults(kinds or ())
    asked = {kind_of(each): each for each in named_classes(BUILT_IN_KINDS if kinds is None else kinds)}
    absent = {kind: reason for kind, each in asked.items() if (reason := each.unavailable(cohort))}
    faults += [reason for kind, reason in absent.items() if kind in (kinds or ())]
    for custom in customs:
        faults += custom.class_faults(cohort)
        faults += [
            Fault(name, f"be searched as an argument of {custom.path} or as a parameter of the clients", "both")
            for name in custom.ranges
            if name in (client_ranges or {})
        ]
    paths = [custom.path for custom in customs]
    faults += [
        Fault("a user's strategy", "be listed once", f"{path} twice")
        for path in sorted({*paths})
        if paths.count(path) > 1
    ]
    members: dict[str, StrategySpec] = {
        kind: each.model_validate({"kind": kind}) for kind, each in asked.items() if kind not in absent
    }
    members |= {custom.label: custom for custom in customs}
    if not members and not faults:
        faults.append(Fault("a space", "hold at least one strategy", "none", f"allowed are {NAMES}"))
    if faults:
        raise StrategyError(faults)
    return SearchSpace(
        cohort=cohort,
        width=ranges,
        members=members,
        absent=absent,
        client_ranges=client_ranges or {},
        given={"client_learning_rate": cohort.client_learning_rate, **(given or {})},
    )


def _moved_into(parameter_range: Range, value: Value | None) -> Value:
    """Return the value of a range that is nearest to another; its middle, or its first choice, where there is none."""
    if isinstance(parameter_range, ChoiceRange):
        return value if value is not None and parameter_range.contains(value) else parameter_range.choices[0]
    if not isinstance(value, int | float):
        return parameter_range.from_unit(0.5)
    if isinstance(parameter_range, IntegerRange):
        return parameter_range.clamp(round(value))
    return parameter_range.clamp(float(value))


def summary_of(spec_class: type[StrategySpec]) -> str:
    """Return what a strategy does, in a line."""
    return (spec_class.__doc__ or "").strip().splitlines()[0]


def _meaning(member: StrategySpec, name: str) -> str:
    declared = type(member).model_fields.get(name)
    return (declared.description or "") if declared else ""


ColumnType = Literal["int", "float", "str"]


def parameter_columns(named: Collection[str] = ()) -> Mapping[str, ColumnType]:
    """Return the type of every parameter that gets a column in a log, sorted by name, so that all its files agree.

    These are the parameters of the built-in strategies, and of those that a study names among the others: so a log has
    the columns that it had before there were others, unless its study is about them. A name means one type in all
    strategies. Who trains has a column of its own.

    Args:
        named: Kinds that a study names, of whatever sort; `"custom"` and unknown ones have no columns.
    """
    columns: dict[str, ColumnType] = {}
    for spec_class in (*BUILT_IN, *named_classes(named)):
        for name, declared in spec_class.model_fields.items():
            if name not in ("kind", SELECTION):
                column = _column_type(declared.annotation)
                assert columns.setdefault(name, column) == column, f"{name} has two types"
    return dict(sorted(columns.items()))


def _column_type(annotation: Any) -> ColumnType:
    """Return the type of a column: of numbers where all values are; else of text, in which what is no text is JSON."""
    kinds = {*alternatives([annotation])} - {type(None)}
    if kinds == {int}:
        return "int"
    return "float" if kinds == {float} else "str"
