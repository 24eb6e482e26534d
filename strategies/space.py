"""The search space of a federation: available strategies, parameter ranges and log columns.

A strategy is drawn first, uniformly, then its parameters, each uniformly or log-uniformly. A range may depend
on the number of clients sampled per round and on the parameters chosen before it, so values are always chosen
in order: `compose` is the only place that iterates over them, for any searcher.

A twin is a specification that is equivalent in this cohort to another strategy of the space, such as Bulyan
without malicious clients to FedAvg. No searcher draws a twin while other specifications are left.

Ranges for client parameters are added to every strategy, after its own. A client parameter at the study's
value is equivalent to an unset one, so both have the same digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies.custom import CustomSpec
from fedscout.strategies.specification import ChoiceRange, IntegerRange, Range, StrategySpec, Value
from fedscout.strategies.table import BUILT_IN_KINDS, NAMES, kind_of, name_faults, named_classes, strategy_class

EQUIVALENCE_DRAWS = 20
"""Number of draws after which a strategy counts as equivalent to another one for all parameters."""

Choose = Callable[[str, Range], Value]
"""Returns the value of a parameter, given its name and its range."""


@dataclass(frozen=True)
class ParameterRow:
    """One search parameter, for display.

    Attributes:
        name: Its name in Flower.
        meaning: Its symbol in the paper and its effect.
        range: The range in this space.
        default: Its default; None if it has none.
    """

    name: str
    meaning: str
    range: str
    default: Value | None


@dataclass(frozen=True)
class StrategyRow:
    """One strategy, for display.

    Attributes:
        name: Its kind, or the import path of a custom one.
        summary: One-line description.
        paper: Reference.
        parameters: Its search parameters.
        unavailable: Why it is not in the space; None if it is.
    """

    name: str
    summary: str
    paper: str
    parameters: tuple[ParameterRow, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True)
class SearchSpace:
    """Strategies and ranges for one cohort; constructed by `space_of`.

    Attributes:
        cohort: The clients.
        members: One specification per strategy, a template whose search parameters are replaced.
        absent: Kinds that are impossible in this cohort, with the reason.
        client_ranges: Ranges of the searched client parameters, by their names in a specification.
        given: The study's values of client parameters, likewise; unknown ones are left out.
    """

    cohort: Cohort
    members: Mapping[str, StrategySpec]
    absent: Mapping[str, str] = field(default_factory=dict)
    client_ranges: Mapping[str, Range] = field(default_factory=dict)
    given: Mapping[str, Value] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the available strategies; import paths for custom ones."""
        return tuple(self.members)

    def parameters_of(self, kind: str, chosen: Mapping[str, Value] | None = None) -> Mapping[str, Range]:
        """Return the concrete range of every search parameter, in the order in which they are chosen.

        Args:
            kind: One of `kinds`.
            chosen: Values that later ranges may depend on; without them each range is at its widest.
        """
        member = self.members[kind]
        values = dict(chosen or {})
        ranges = {name: member.search_range(name, self.cohort, values) for name in member.search_names()}
        return {**ranges, **self.client_ranges}

    def compose(self, kind: str, choose: Choose) -> StrategySpec:
        """Return the specification of a strategy whose parameters are chosen one after the other."""
        return self.rebuild(self.members[kind], choose)

    def rebuild(self, template: StrategySpec, choose: Choose) -> StrategySpec:
        """Return `template` with newly chosen search parameters; its strategy must be in the space."""
        chosen: dict[str, Value] = {}
        member = self.members[template.label]
        for name in member.search_names():
            chosen[name] = choose(name, member.search_range(name, self.cohort, chosen))
        for name, parameter_range in self.client_ranges.items():
            chosen[name] = choose(name, parameter_range)
        return template.with_values(chosen)

    def random(self, generator: np.random.Generator) -> StrategySpec:
        """Draw a strategy, then its parameters; a twin only if `EQUIVALENCE_DRAWS` draws of each give no other."""
        for index in generator.permutation(len(self.kinds)):
            for _ in range(EQUIVALENCE_DRAWS):
                spec = self.compose(self.kinds[index], lambda _, parameter_range: parameter_range.draw(generator))
                if not self.has_equivalent(spec):
                    return spec
        return spec

    def has_equivalent(self, spec: StrategySpec) -> bool:
        """Return whether a specification is equivalent in this cohort to another strategy of the space, or to FedAvg.

        FedAvg is the reference of every search. An equivalent of a strategy outside the space is no twin.
        """
        simplest = spec.simplest(self.cohort).kind
        return simplest != spec.kind and (simplest in self.members or simplest == "fedavg")

    def contains(self, spec: StrategySpec) -> bool:
        """Return whether a specification could have been drawn, up to rounding."""
        member = self.members.get(spec.label)
        if member is None:  # and if it is a user's own, it is not imported to be looked into
            return False
        values = spec.search_values()
        if set(values) != {*member.search_names(), *self.client_ranges} or member.with_values(values) != spec:
            return False
        return all(self.parameters_of(spec.label, values)[name].contains(value) for name, value in values.items())

    def nearest(self, spec: StrategySpec) -> StrategySpec | None:
        """Return the specification of this space that is nearest to one from another space, with the same strategy.

        Each value is clamped into its range. An unset value becomes the study's, or the middle of its range;
        parameters not searched here are those of the space's member.

        Returns:
            None if the strategy is not in the space.
        """
        if spec.label not in self.members:
            return None
        values = {**self.given, **spec.search_values()}
        return self.compose(spec.label, lambda name, found: _nearest_value(found, values.get(name)))

    def default(self, kind: str) -> StrategySpec:
        """Return a strategy at its documented defaults, clamped into their ranges."""
        spec = self.nearest(self.members[kind])
        assert spec is not None
        return spec

    def digest(self, spec: StrategySpec) -> str:
        """Return the digest of a specification in this cohort, equal for equivalents."""
        values = spec.client_values()
        unset = {name: None for name, value in values.items() if self.given.get(name) == value}
        return (spec.model_copy(update=unset) if unset else spec).digest(self.cohort)

    def describe(self) -> list[StrategyRow]:
        """Return one row per strategy, unavailable ones last."""
        rows = [self._row(name, member) for name, member in self.members.items()]
        for kind, reason in self.absent.items():
            spec_class = strategy_class(kind)
            rows.append(StrategyRow(kind, summary_of(spec_class), spec_class.paper, unavailable=reason))
        return rows

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of this space: each strategy by its name with its search parameters, all required."""
        return {"oneOf": [self._schema(name, member) for name, member in self.members.items()]}

    def _row(self, name: str, member: StrategySpec) -> StrategyRow:
        defaults = {**self.given, **member.search_values()}
        parameters = tuple(
            ParameterRow(parameter, _meaning(member, parameter), parameter_range.text(), defaults.get(parameter))
            for parameter, parameter_range in self.parameters_of(name).items()
        )
        return StrategyRow(name, summary_of(type(member)), member.paper, parameters)

    def _schema(self, name: str, member: StrategySpec) -> dict[str, Any]:
        properties: dict[str, Any] = {"kind": {"const": name}}
        for parameter, parameter_range in self.parameters_of(name).items():
            properties[parameter] = {**parameter_range.json_schema(), "description": _meaning(member, parameter)}
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
    customs: Sequence[CustomSpec] = (),
    client_ranges: Mapping[str, Range] | None = None,
    given: Mapping[str, Value] | None = None,
) -> SearchSpace:
    """Return the search space of a cohort.

    Args:
        cohort: The clients.
        kinds: Kinds to choose from, including pairs, and `"all"` for all available ones; None for all available
            built-in ones.
        customs: Custom strategies with their ranges.
        client_ranges: Ranges of the searched client parameters, by their names in a specification.
        given: The study's values of client parameters, likewise; at least the cohort's step size is known.

    Raises:
        StrategyError: If a kind is unknown or unavailable in this cohort, if a custom strategy can't be used, or
            if the space is empty; contains all faults.
    """
    faults = name_faults(kinds or ())
    classes = {kind_of(each): each for each in named_classes(BUILT_IN_KINDS if kinds is None else kinds)}
    absent = {kind: reason for kind, each in classes.items() if (reason := each.unavailable(cohort))}
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
        kind: each.model_validate({"kind": kind}) for kind, each in classes.items() if kind not in absent
    }
    members |= {custom.label: custom for custom in customs}
    if not members and not faults:
        faults.append(Fault("a space", "hold at least one strategy", "none", f"allowed are {NAMES}"))
    if faults:
        raise StrategyError(faults)
    return SearchSpace(
        cohort=cohort,
        members=members,
        absent=absent,
        client_ranges=client_ranges or {},
        given={"client_learning_rate": cohort.client_learning_rate, **(given or {})},
    )


def _nearest_value(parameter_range: Range, value: Value | None) -> Value:
    """Return the value of a range nearest to another; without one, its middle or first choice."""
    if isinstance(parameter_range, ChoiceRange):
        return value if value is not None and parameter_range.contains(value) else parameter_range.choices[0]
    if not isinstance(value, int | float):
        return parameter_range.from_unit(0.5)
    if isinstance(parameter_range, IntegerRange):
        return parameter_range.clamp(round(value))
    return parameter_range.clamp(float(value))


def summary_of(spec_class: type[StrategySpec]) -> str:
    """Return the one-line description of a strategy."""
    return (spec_class.__doc__ or "").strip().splitlines()[0]


def _meaning(member: StrategySpec, name: str) -> str:
    field_info = type(member).model_fields.get(name)
    return (field_info.description or "") if field_info else ""
