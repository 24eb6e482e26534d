"""What the engine asks of a strategy specification. The engine knows no strategy; it knows this contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy


@dataclass(frozen=True)
class Cohort:
    """The facts of a federation on which a strategy's construction and ranges depend.

    Attributes:
        num_clients: Clients in the federation.
        num_sampled: Clients that train in a round, in `[1, num_clients]`.
        client_learning_rate: The clients' step size.
        client_optimizer: Their optimiser.
        client_momentum: Its momentum.
        layers: Classes of the model's layers that hold parameters; None where they are not known.
        num_rounds: Rounds of a full training; None where it is not known.
        server_rows: Rows that the server holds; None where there are some, of data that are not read yet.
        server_labels: Whether it has their labels.
        classifies: Whether the model tells classes, and no quantity.
        chosen: Whether a selection policy says who trains, in the strategy's place.
        own_settings: Whether clients take rates, batches and epochs from a table, and tell nothing of their data.
        has_clock: Whether clients' rounds take simulated time; None where it is not known.
    """

    num_clients: int
    num_sampled: int
    client_learning_rate: float
    client_optimizer: str = "sgd"
    client_momentum: float = 0.0
    layers: frozenset[str] | None = None
    num_rounds: int | None = None
    server_rows: int | None = 0
    server_labels: bool = False
    classifies: bool = True
    chosen: bool = False
    own_settings: bool = False
    has_clock: bool | None = None


@dataclass(frozen=True)
class EngineNeeds:
    """What a strategy needs from the engine.

    Attributes:
        arrays: `"flat"`: one float32 vector under the key `"flat"`; `"named"`: one array per tensor of the model.
        replies: `"merged"`: one reply a round that holds the exact weighted mean; `"individual"`: one per client.
        weighted_by: The metric that weighs a merged mean: `"num-examples"`, `"num-clients"` for the uniform mean, or a
            sum of the client algorithm's, which must lie in [0, rows of the client].
        initial_loss: Whether train replies need `train_loss`, the loss of the received model on the training data.
        durations: Whether train replies need `simulated-seconds`, what the client's round took on the simulated clock;
            the strategy then says in its metrics what the round took.
        validation_share: Share of the training rows that clients keep for validation, unless the session has some
            already, in [0, 1).
        sees_evaluation: Whether the strategy configures and aggregates evaluation itself, besides the trial's own.
        queries: What the strategy asks of clients' data beside training, by the names of the queries.
    """

    arrays: Literal["flat", "named"] = "flat"
    replies: Literal["merged", "individual"] = "individual"
    weighted_by: str = "num-examples"
    initial_loss: bool = False
    durations: bool = False
    validation_share: float = 0.0
    sees_evaluation: bool = False
    queries: tuple[str, ...] = ()


class TrialStrategy(Protocol):
    """A validated, picklable choice of a strategy and its parameters."""

    @property
    def kind(self) -> str:
        """The name under which the strategy is chosen, such as `"fedavg"`."""
        ...

    @property
    def label(self) -> str:
        """The name in the log: the kind, unless several strategies share one."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters as JSON-able values."""
        ...

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of a user's own code that it is."""
        ...

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide."""
        ...

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return what its clients do; None is plain local training."""
        ...

    def build(self, cohort: Cohort) -> Strategy:
        """Construct the Flower strategy.

        Raises:
            StrategyError: If the parameters do not fit the cohort.
        """
        ...

    def notes_after(self, cohort: Cohort, num_models: int) -> Sequence[str]:
        """Return what is worth knowing of a trial whose rounds gave so many models, each a sentence."""
        ...


@runtime_checkable
class TellsNotes(Protocol):
    """A strategy under way that has something to tell at the end of its trial."""

    def trial_notes(self) -> Sequence[str]:
        """Return what is worth knowing of the rounds that were, each a sentence."""
        ...
