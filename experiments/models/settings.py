"""What a user may set about the model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class ModelSettings(BaseModel):
    """The model that every client trains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = "auto"
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(
        default=(64, 32), min_length=1, max_length=16, description="widths of the hidden layers of a dense net"
    )
