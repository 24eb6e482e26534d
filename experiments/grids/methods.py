"""Methods of an experiment's rows: what a cell measures on each seed.

| kind | value of a seed |
| --- | --- |
| `train` | the score of the configured strategy, trained on that fresh seed |
| `search` | the score, on a fresh seed, of the best (or worst) configuration of a search on a search seed |
| `choose` | likewise of the choice of a recommender of `fedscout bench choice`, or of a searcher of the user's own |
| `best_of_kind` | the best fitness of one kind of strategy among a search's trials |
| `given` | computed by a function, or by the experiment's `measured_by`, from the row's arguments |
| `detect` | a number of the heterogeneity report, with that `federation.seed` |

Fresh seeds are the same for all cells, so differences are taken seed by seed. Trials are logged by federation, and none
is trained twice (`federation_runner`). A failed trial scores at chance, the share of the majority class.

With `rates`, a training's client learning rate is the one with the best score on two tuning seeds. `score: best_round`
is the best of all rounds, on uncorrupted test rows. With `seconds_to`, the value is, in place of the score, the
simulated time until the mean of five successive rounds reaches that accuracy; a seed that never reaches it has no
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from fedscout.engine.errors import ConfigurationError


class _Kind(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: dict[str, Any] = Field(default={}, description="settings that override those of the column")


class Train(_Kind):
    """One training per seed."""

    kind: Literal["train"] = "train"
    rates: tuple[float, ...] = Field(default=(), description="candidate client learning rates; the best is used")
    score: Literal["final", "best_round"] = "final"
    seconds_to: float | None = Field(
        default=None, description="target accuracy; the value is the simulated time until it is reached"
    )


class Search(_Kind):
    """One search per seed, whose result is trained on a fresh seed."""

    kind: Literal["search"]
    take: Literal["best", "worst"] = "best"
    asks_model: bool = Field(default=False, description="whether a language model proposes")


class Choose(_Kind):
    """One choice per seed, trained on a fresh seed."""

    kind: Literal["choose"]
    by: str = Field(description="a recommender, or import path `module:class` of a searcher")


class BestOfKind(_Kind):
    """The best trial of one kind of strategy in a search, FedAvg included."""

    kind: Literal["best_of_kind"]
    strategy: str


class Detect(_Kind):
    """A number of a heterogeneity report."""

    kind: Literal["detect"]
    value: str = Field(
        description="value of the report: `metrics.label_hellinger`, or an import path `module:function`"
    )


class Given(_Kind):
    """A cell's numbers, computed from arguments."""

    kind: Literal["given"]
    function: str | None = Field(
        default=None,
        description="import path of a function of a cell, its settings, its context and the arguments; "
        "None if a class measures all cells",
    )
    arguments: dict[str, Any] = {}


def _kind_of(value: Any) -> str:
    return str(value.get("kind", "train") if isinstance(value, Mapping) else getattr(value, "kind", ""))


Method = Annotated[
    Annotated[Train, Tag("train")]
    | Annotated[Search, Tag("search")]
    | Annotated[Choose, Tag("choose")]
    | Annotated[BestOfKind, Tag("best_of_kind")]
    | Annotated[Detect, Tag("detect")]
    | Annotated[Given, Tag("given")],
    Discriminator(_kind_of),
]


class Function(BaseModel):
    """A class that measures all cells: constructed from the arguments, it has `measure(experiment, context)`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str = Field(description="import path, `module:name`")
    arguments: dict[str, Any] = {}


def imported(path: str) -> Any:
    """Return the object at an import path `module:name`.

    Raises:
        ConfigurationError: If there is none.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError.of("an import path", "name a function as module:name", f"{path!r}: {error}") from error
