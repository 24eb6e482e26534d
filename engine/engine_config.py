"""The configuration of the machinery: it changes how long a study takes, never its results."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineConfig(BaseModel):
    """Where and how trials run. Left out of a study's identity, as results do not depend on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grid: Literal["auto", "ray", "local"] = Field(
        default="auto", description="Ray actors, this process alone, or whichever is sooner by an estimate"
    )
    num_hosts: int | None = Field(default=None, ge=1, le=10_000, description="host actors; nothing means one a CPU")
    address: str | None = Field(default=None, description="of a running Ray cluster, or auto; nothing starts Ray here")
    checkpoint_every_rounds: int = Field(default=10, ge=1, description="rounds between checkpoints of a trial")
    object_store_bytes: int | None = Field(default=None, ge=80 * 2**20, description="of a Ray that is started here")

    @property
    def may_stay(self) -> bool:
        """Whether work may be done in this process if that is sooner: nothing is said of Ray."""
        return self.grid == "auto" and {self.num_hosts, self.address, self.object_store_bytes} == {None}
