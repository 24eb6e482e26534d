"""The parameters of local training, as a train message carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import TrialError
from fedscout.engine.text import details, fault_of

ADDED_TERMS = ("pseudo_label_weight", "reverse_weight")
"""Weights of what is added to the loss, 0 where nothing is."""


class LocalTraining(BaseModel):
    """How a client trains in one round.

    They travel in the message's configuration, so a strategy may change them per round or per client, and a real
    Flower client reads the same keys.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    local_epochs: int = Field(default=1, ge=1, le=1000, description="passes over the client's training data")
    batch_size: int = Field(default=32, ge=1, le=1_000_000, description="rows a step; larger than the data means all")
    learning_rate: float = Field(default=0.2, gt=0, le=100, description="the client's step size")
    optimizer: Literal["sgd", "adam", "rmsprop", "adadelta"] = Field(
        default="sgd", description="fresh in every round, as clients are stateless"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of SGD; ignored by the others")
    weight_decay: float = Field(default=0.0, ge=0, le=10, description="added to the gradient as weight_decay * weights")
    pseudo_label_weight: float = Field(
        default=0.0, ge=0, le=1000, description="α: added to the loss, times the cross-entropy of the received model"
    )
    reverse_weight: float = Field(
        default=0.0, ge=0, le=1000, description="β: added to the loss, times 4 (1 − the label's probability)"
    )

    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of a step's layers; bfloat16, with weights, loss and sums in float32, where processors have it",
    )

    def without_added_terms(self) -> Self:
        """Return the same with the plain loss."""
        return self.model_copy(update=dict.fromkeys(ADDED_TERMS, 0.0)) if self.is_weighed else self

    @property
    def is_weighed(self) -> bool:
        """Whether anything is added to the loss; see `fedscout.engine.models.layout`."""
        return self.pseudo_label_weight > 0 or self.reverse_weight > 0

    @property
    def is_narrow(self) -> bool:
        """Whether layers compute in fewer bits than weights have."""
        return self.precision != "float32"

    def num_steps(self, num_rows: IntArray) -> IntArray:
        """Return the optimiser steps of clients on so many training rows; a last batch of one row joins the one before.

        Args:
            num_rows: Shape `(clients,)`.
        """
        batches = -(-num_rows // self.batch_size)
        joined = (self.batch_size > 1) & (batches > 1) & (num_rows % self.batch_size == 1)
        return np.asarray(self.local_epochs * (batches - joined))

    def to_config(self) -> dict[str, int | float | str]:
        """Return the entries of a train message's configuration."""
        return {name.replace("_", "-"): getattr(self, name) for name in LocalTraining.model_fields}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read what `to_config` wrote; other keys are left alone, missing ones take their default.

        A message's step size may be 0, at the end of a schedule: no study is configured so, but its strategies may.

        Raises:
            TrialError: If a value is out of its range.
        """
        known = {name: config[key] for name in LocalTraining.model_fields if (key := name.replace("_", "-")) in config}
        rate = known.get("learning_rate")
        rests = isinstance(rate, int | float) and not isinstance(rate, bool) and rate == 0
        if rests:
            del known["learning_rate"]
        try:
            read = cls(**known)
        except ValidationError as error:
            faults = [fault_of(str(one["loc"][0]).replace("_", "-"), one) for one in details(error)]
            raise TrialError(f"what a train message asks of clients: {', '.join(faults)}") from error
        return read.model_copy(update={"learning_rate": 0.0}) if rests else read
