"""Who trains in a round: what a selection policy is shown, what it answers, and what it is told afterwards.

A round asks a policy to `choose` some of the clients that can be reached, and ends with a `RoundReport` that it may
`observe`. In between the engine sends, trains and aggregates; a policy sees no model and no message. What a report
holds beside the losses of local training costs time on the clients, so a policy says what it looks at (`Observed`), and
without one nothing is measured.

A policy's attributes are its state: a checkpoint holds them, so they must be plain values (numbers, texts, arrays,
dictionaries, lists). Its random numbers come with the call, from (seed, round). So a policy chooses the same clients on
any number of hosts, and after a kill.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.trial_strategy import Cohort

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """What a policy wants in its reports, beside what local training tells anyway.

    Attributes:
        training_losses: Of the received model on each client's training rows.
        validation_losses: On the validation rows, which the trial then cuts from the training rows.
        update_norms: How far local training moved each model.
        everybody: Whether clients that do not train measure the received model, too: they receive it, and pay for that.
    """

    training_losses: bool = False
    validation_losses: bool = False
    update_norms: bool = False
    everybody: bool = False

    @property
    def losses(self) -> bool:
        """Whether the received model is measured at all."""
        return self.training_losses or self.validation_losses


@dataclass(frozen=True)
class ClientTable:
    """The clients that can be reached in a round, one element each, ascending; arrays that can't be written to.

    Without those that could never train, whatever is drawn.

    Attributes:
        clients: Their numbers.
        num_examples: Local rows of each.
        seconds: What a round of each is expected to take on the simulated clock; 0 without one.
    """

    clients: IntArray
    num_examples: IntArray
    seconds: DoubleArray


@dataclass(frozen=True)
class Losses:
    """The received model on one part of each client's rows, means over the rows; NaN where there are none.

    With p a row's probabilities and y its label:

    Attributes:
        cross_entropy: −log p_y.
        squared: Its square.
        miss: 1 − p_y, of which the reverse cross-entropy is a multiple.
        entropy: −Σ p log p, the cross-entropy with the model's own outputs as labels.
    """

    cross_entropy: DoubleArray
    squared: DoubleArray
    miss: DoubleArray
    entropy: DoubleArray


@dataclass(frozen=True)
class RoundReport:
    """What a round told of its clients, formed before their models are merged.

    Arrays have one element for each client that answered, ascending: those that trained, and where a policy asked for
    everybody those that only measured. NaN stands for what a client did not tell.

    Attributes:
        server_round: From 1.
        clients: Who answered.
        trained: Whether each of them trained.
        num_examples: Training rows of each.
        num_steps: Optimiser steps, 0 of who did not train.
        seconds: How long each took on the simulated clock; 0 without one.
        loss: Mean loss over all rows seen in local training.
        update_norm: ‖y − x‖ over the trainable parameters, x the received model and y the one sent back.
        training: The received model on the training rows; None unless asked for.
        validation: The same on the validation rows.
        failures: Why the others that were chosen did not answer, by client.
        round_seconds: How long the round took: until the slowest answered, or the deadline.
    """

    server_round: int
    clients: IntArray
    trained: npt.NDArray[np.bool_]
    num_examples: IntArray
    num_steps: IntArray
    seconds: DoubleArray
    loss: DoubleArray
    update_norm: DoubleArray
    training: Losses | None = None
    validation: Losses | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    round_seconds: float = 0.0


@dataclass(frozen=True)
class Assignment:
    """What a policy has one chosen client do otherwise than the others.

    Attributes:
        epochs: Local epochs are so many times those of the others, at least 1.
        withheld: Share of the model's tensors, in [0, 1), that the client does not send: they are as it received them.
            Which ones is drawn from (seed, round, client).

    Raises:
        ValueError: If one of them is out of its range.
    """

    epochs: int = 1
    withheld: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, Integral) or self.epochs < 1:
            raise ValueError(f"epochs of an Assignment must be a whole number, at least 1, got {self.epochs!r}")
        if not 0 <= self.withheld < 1:
            raise ValueError(f"withheld of an Assignment must be in [0, 1), got {self.withheld!r}")


class SelectionPolicy(ABC):
    """Chooses who trains; made anew for each trial."""

    observes: Observed = Observed()

    @abstractmethod
    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> Sequence[int] | IntArray:
        """Return who trains in a round: `num_chosen` different clients of the table, in any order.

        Args:
            server_round: From 1.
            table: Who can be reached, at least `num_chosen` clients.
            num_chosen: M, how many are asked for. Only a policy that says so in its docstring returns another number.
            generator: Of this round.
        """

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return what some of the chosen clients do otherwise; nobody does, unless a policy says so."""
        del table, chosen
        return {}

    def observe(self, report: RoundReport) -> None:
        """Take in what a round told; called after every round."""
        del report


class SelectionChoice(Protocol):
    """A validated, picklable choice of a policy and its parameters."""

    @property
    def kind(self) -> str:
        """The name under which the policy is chosen, such as `"oort"`."""
        ...

    @property
    def label(self) -> str:
        """The name in the log: the kind, unless several policies share one."""
        ...

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which the policy has validation losses measured; 0 if it needs none."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters as JSON-able values."""
        ...

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of a user's own code that it is."""
        ...

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy.

        Args:
            cohort: Its `num_clients` counts those that never train, too: clients' numbers are below it.

        Raises:
            StrategyError: If the parameters do not fit the cohort; carries every fault.
        """
        ...
