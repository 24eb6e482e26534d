"""The configuration of a race: what it may cost, and how fast it drops configurations."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RacingConfig(BaseModel):
    """The race."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainings: float = Field(
        default=2.5, ge=1, le=10_000, description="of racing: budget in full trainings, in place of search.budget"
    )
    reduction_factor: int = Field(
        default=4, ge=2, le=100, description="of racing: one of so many goes on, for so many times the rounds"
    )
    min_rounds: int = Field(
        default=2, ge=1, le=1_000_000, description="of racing: fewest rounds before anybody drops out"
    )
    brackets: int = Field(
        default=1, ge=1, le=20, description="of racing: races that share the budget, each with one rung less"
    )
