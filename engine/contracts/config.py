"""Configuration of local training, which train messages carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import TrialError
from fedscout.engine.text import details, fault_of

ADDED_TERMS = ("pseudo_label_weight", "reverse_weight")
"""Weights of the terms added to the loss; 0 disables a term."""


LocalEpochs = Annotated[int, Field(ge=1, le=1000)]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
LearningRate = Annotated[float, Field(gt=0, le=100)]


class LocalTraining(BaseModel):
    """Configuration of a client's training in one round.

    It is part of the message's configuration, so a strategy may change it per round or per client, and a real Flower
    client reads the same keys.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    local_epochs: LocalEpochs = Field(
        default=1, description="number of passes over the client's training data per round"
    )
    batch_size: BatchSize = Field(default=32, description="rows per step; all if larger than the data")
    learning_rate: LearningRate = Field(default=0.2, description="learning rate of the clients")
    optimizer: Literal["sgd", "adam", "rmsprop", "adadelta"] = Field(
        default="sgd", description="optimizer of the clients; its state is reset every round"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of SGD; other optimizers ignore it")
    weight_decay: float = Field(
        default=0.0, ge=0, le=10, description="L2 penalty: weight_decay * weights is added to the gradient"
    )
    pseudo_label_weight: float = Field(
        default=0.0, ge=0, le=1000, description="α: added to the loss, times the cross-entropy of the received model"
    )
    reverse_weight: float = Field(
        default=0.0, ge=0, le=1000, description="β: added to the loss, times 4 (1 − the label's probability)"
    )

    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="precision of the layers; with bfloat16 weights, loss and sums stay float32"
    )

    def without_added_terms(self) -> Self:
        """Return the configuration with the plain loss."""
        return self.model_copy(update=dict.fromkeys(ADDED_TERMS, 0.0)) if self.is_weighed else self

    @property
    def is_weighed(self) -> bool:
        """Whether any term is added to the loss; see `fedscout.engine.models.layout`."""
        return self.pseudo_label_weight > 0 or self.reverse_weight > 0

    @property
    def is_narrow(self) -> bool:
        """Whether layers compute in lower precision than that of the weights."""
        return self.precision != "float32"

    def num_steps(self, num_rows: IntArray) -> IntArray:
        """Return the number of optimiser steps of clients; a last batch of one row is merged into the previous batch.

        Args:
            num_rows: Training rows of each client, shape `(clients,)`.
        """
        batches = -(-num_rows // self.batch_size)
        joined = (self.batch_size > 1) & (batches > 1) & (num_rows % self.batch_size == 1)
        return np.asarray(self.local_epochs * (batches - joined))

    def to_config(self) -> dict[str, int | float | str]:
        """Return the entries of a train message's configuration."""
        return {name.replace("_", "-"): getattr(self, name) for name in LocalTraining.model_fields}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the entries written by `to_config`; other keys are ignored, missing ones take their defaults.

        A message's learning rate may be 0, at the end of a schedule; a study's configuration may not.

        Raises:
            TrialError: If a value is out of its range.
        """
        values = {name: config[key] for name in LocalTraining.model_fields if (key := name.replace("_", "-")) in config}
        rate = values.get("learning_rate")
        is_zero = isinstance(rate, int | float) and not isinstance(rate, bool) and rate == 0
        if is_zero:
            del values["learning_rate"]
        try:
            training = cls(**values)
        except ValidationError as error:
            faults = [fault_of(str(detail["loc"][0]).replace("_", "-"), detail) for detail in details(error)]
            raise TrialError(f"invalid settings in a train message: {', '.join(faults)}") from error
        return training.model_copy(update={"learning_rate": 0.0}) if is_zero else training
