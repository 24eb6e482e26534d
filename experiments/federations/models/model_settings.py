"""What a user may set about the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

GROUP_CHANNELS = 16
"""Of group normalisation."""


NormName = Literal["none", "batch", "group"]
ActivationName = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid"]


class ModelSettings(BaseModel):
    """The model that every client trains. What is left out is the model's own choice; `docs/models.md` lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str = "auto"
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = Field(
        default=None, min_length=1, max_length=16, description="widths of the hidden layers; nothing means the model's"
    )
    norm: NormName | None = Field(
        default=None, description="batch or none of dense, group or batch of resnet18; nothing means the model's"
    )
    activation: ActivationName | None = Field(
        default=None, description="between layers, of dense nets and convolutions; nothing means relu"
    )
    embedding_size: int | None = Field(
        default=None, ge=1, le=4096, description="length of a token's vector, of text models; nothing means the model's"
    )
    dropout: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share left out in training of a dense net's hidden outputs, or a text's features; nothing means "
        "none, or textcnn's",
    )
