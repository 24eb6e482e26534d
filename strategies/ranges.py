"""Ranges from which a search draws the values of a parameter.

A range maps its values to the unit interval and back, in log space where it is log-scaled, so a searcher can draw,
move and clamp a value without knowing what kind of range it is in.

Values of real ranges are rounded, then clamped: log-scaled ones to four significant digits, linear ones to four
decimals. A linear range narrower than 0.01 keeps as many further decimals as give it at least a hundred steps, since
four decimals would collapse it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from fedscout.engine.errors import Fault, StrategyError

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
