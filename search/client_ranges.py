"""The configuration of the clients' parameters in a search: from which ranges each is drawn.

Without a range, a parameter is the study's own for every strategy. With one it joins the parameters of every strategy,
FedAvg's too; the FedAvg that is the reference keeps the study's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.errors import Fault
from fedscout.engine.fault_text import details, fault_of

if TYPE_CHECKING:
    from fedscout.strategies import Range


class RealInterval(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Ends of a range of real numbers."""

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value, included")
    log: bool = Field(default=False, description="draw in log space")


class IntegerInterval(BaseModel, frozen=True, extra="forbid"):
    """Ends of a range of whole numbers."""

    low: int = Field(description="smallest value")
    high: int = Field(description="largest value, included")
    log: bool = Field(default=False, description="draw in log space")


class ClientRanges(BaseModel, frozen=True, extra="forbid"):
    """What a search draws of the clients' parameters, named as in the study's local training."""

    learning_rate: RealInterval | None = Field(
        default=None, description="range of the clients' step size in a search, {low, high, log}; nothing keeps it"
    )
    local_epochs: IntegerInterval | None = Field(
        default=None, description="range of a client's passes over its data; nothing keeps them"
    )
    batch_size: IntegerInterval | None = Field(
        default=None, description="range of a client's rows a step; nothing keeps them"
    )

    @model_validator(mode="after")
    def _trainable(self) -> Self:
        faults: list[str] = []
        for name in ClientRanges.model_fields:
            interval = getattr(self, name)
            if interval is not None:
                faults += _interval_faults(name, interval)
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def ranges(self) -> Mapping[str, Range]:
        """Return the ranges by the names that the parameters have in a specification."""
        from fedscout.strategies.ranges import IntegerRange, RealRange
        from fedscout.strategies.specification import CLIENT_PARAMETERS

        found: dict[str, Range] = {}
        for name, own_name in CLIENT_PARAMETERS.items():
            interval = getattr(self, own_name)
            if isinstance(interval, RealInterval):
                found[name] = RealRange(interval.low, interval.high, interval.log)
            elif isinstance(interval, IntegerInterval):
                found[name] = IntegerRange(interval.low, interval.high, interval.log)
        return found


def _interval_faults(name: str, interval: RealInterval | IntegerInterval) -> list[str]:
    faults: list[str] = []
    if interval.low > interval.high:
        faults.append(Fault(name, "not end below its start", f"[{interval.low}, {interval.high}]"))
    for end, value in (("low", interval.low), ("high", interval.high)):
        try:
            LocalTraining.model_validate({name: value})
        except ValidationError as error:
            faults.append(fault_of(f"{end} of {name}", details(error)[0]))
    return faults
