"""What a user may set about how rows are dealt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class PartitionSettings(BaseModel):
    """How rows are dealt to clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str | None = None
    alpha: float = Field(default=0.1, gt=0, le=1e6, description="of dirichlet: small is strong label skew")
    min_size: int = Field(default=5, ge=1, description="of dirichlet: fewest rows of a client")
