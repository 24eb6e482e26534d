"""The table of trials on which recommenders are replayed: its grid of configurations, and its Parquet file.

| column | meaning |
| --- | --- |
| `federation` | its name |
| `about` | what is known of the federation, as JSON (`TabledFederation`), in its first row |
| `specification` | strategy and clients' settings, as JSON |
| `seed` | of split, initial model and batches |
| `failed` | whether the trial failed |
| `round_accuracy` | after each round it finished, in hundredths of a percent, weighted over clients |

As in the tabular mode of FedHPO-Bench (Wang et al., ICML 2023, arXiv:2206.03966) a searcher that asks for a trial is
told what is written there, so that a new one is judged in minutes, and by others too.

The grid lies over the joint space of strategies and clients' settings. Of every default strategy it has a few values
that the literature and the documented defaults take, each at three client rates and two numbers of local epochs;
FedAvg, of which the tuned reference is made, at six rates; and small batches for FedAvg and for the two strategies that
rules propose most. What does not exist in a federation is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from fedscout.engine.errors import Fault, LogError
from fedscout.engine.trials.trial_record import Trial, late_mean
from fedscout.strategies import SearchSpace, StrategySpec, Value, parse_strategy

FORMAT = b"fedscout trial table 1"
Half = Literal["development", "held out"]
"""Whoever sets a rule, a default or a prior after a look at a held-out data set moves it to the others."""
PUBLISHED = Path(__file__).parent / "choice" / "trials.parquet"
"""The project's own table."""
UNITS = 10_000
"""Of accuracy, in 1."""
SCHEMA = pa.schema(
    [
        ("federation", pa.dictionary(pa.int16(), pa.string())),
        ("about", pa.string()),
        ("specification", pa.dictionary(pa.int16(), pa.string())),
        ("seed", pa.int32()),
        ("failed", pa.bool_()),
        ("round_accuracy", pa.list_(pa.int16())),
    ]
)


SPACE = (
    "search.client_ranges.learning_rate={low: 0.02, high: 1.0, log: true}",
    "search.client_ranges.local_epochs={low: 1, high: 3}",
    "search.client_ranges.batch_size={low: 8, high: 32, log: true}",
)
"""The clients' part of the joint space; strategies and their parameters are the default ones."""

RATES = (0.02, 0.1, 0.5)
FEDAVG_RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
EPOCHS = (1, 3)
BATCHES = (32, 8)
"""The first is the study's own, at which the whole grid is."""

_ADAPTIVE = {"tau": 1e-3, "beta_1": 0.9, "beta_2": 0.99}
SERVER_POINTS: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "fedavg": ({},),
    "fedprox": ({"proximal_mu": 0.1}, {"proximal_mu": 1.0}),
    "fedavgm": tuple({"server_learning_rate": 1.0, "server_momentum": momentum} for momentum in (0.5, 0.7, 0.9)),
    "fedadam": tuple({"eta": eta, **_ADAPTIVE} for eta in (0.03, 0.1, 0.3)),
    "fedyogi": ({"eta": 0.1, **_ADAPTIVE},),
    "fedadagrad": ({"eta": 0.1, "tau": 1e-3},),
    "fedmedian": ({},),
    "fedtrimmedavg": ({"beta": 0.2}, {"beta": 0.35}),
    "krum": ({"num_malicious_nodes": 1},),
    "multikrum": ({"num_malicious_nodes": 1},),
    "bulyan": ({"num_malicious_nodes": 1},),
    "qfedavg": ({"q": 1.0},),
}
SMALL_BATCHES = ("fedavg", "fedavgm", "fedadam")


def joint_grid(space: SearchSpace) -> list[StrategySpec]:
    """Return the configurations that exist in a federation's space, equivalents once."""
    found: dict[str, StrategySpec] = {}
    for spec in grid_points(space):
        found.setdefault(space.digest(spec), spec)
    return list(found.values())


def grid_points(space: SearchSpace) -> Iterator[StrategySpec]:
    """Yield every point of the grid, a value out of its range moved to the nearest in it; several may be equivalent."""
    for kind in space.kinds:
        for point in SERVER_POINTS[kind]:
            for settings in _client_settings(kind):
                spec = space.nearest(space.members[kind].with_values({**point, **settings}))
                assert spec is not None, "its kind is in the space"
                yield spec


def fedavg_rates(space: SearchSpace, grid: Sequence[StrategySpec]) -> list[StrategySpec]:
    """Return FedAvg at every client rate of the grid, all else as the study has it: of which the tuned reference is."""
    own = {name: space.given[name] for name in ("client_local_epochs", "client_batch_size")}
    return [spec for spec in grid if spec.kind == "fedavg" and own.items() <= {**own, **spec.client_values()}.items()]


def _client_settings(kind: str) -> Iterator[Mapping[str, Value]]:
    own, *smaller = BATCHES
    rates = FEDAVG_RATES if kind == "fedavg" else RATES
    for epochs in EPOCHS:
        for rate in rates:
            yield {"client_learning_rate": rate, "client_local_epochs": epochs, "client_batch_size": own}
    for batch in smaller if kind in SMALL_BATCHES else ():
        for rate in RATES:
            yield {"client_learning_rate": rate, "client_local_epochs": EPOCHS[0], "client_batch_size": batch}


class TabledFederation(BaseModel, frozen=True):
    """What is known of a federation of the table without its rows.

    Attributes:
        name: Of the federation.
        half: Whether rules and defaults may be set on it, or it is held out.
        arguments: As for `fedscout run`.
        num_clients: That take part.
        guessing: Accuracy of always guessing the most frequent class.
        data_digest: Of its rows and who holds which.
        reports: How the clients' data differ as detected on each seed, as JSON.
    """

    name: str
    half: Half
    arguments: tuple[str, ...]
    num_clients: int
    guessing: float
    data_digest: str
    reports: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class TabledTrial:
    """One row: what was trained, on which seed, and the accuracy after each round."""

    spec: StrategySpec
    seed: int
    failed: bool
    round_accuracy: tuple[float, ...]

    @classmethod
    def of(cls, trial: Trial) -> TabledTrial:
        """Return what of a trial is kept."""
        return cls(trial.spec, trial.seed, trial.status == "failed", trial.round_accuracy)

    def score(self, guessing: float) -> float:
        """Return the mean of the last five rounds; that of guessing where the trial failed."""
        return guessing if self.failed else late_mean(self.round_accuracy)


@dataclass(frozen=True)
class FederationTrials:
    """All trials of one federation.

    Attributes:
        about: The federation.
        trials: By specification and seed, every specification on every seed.
    """

    about: TabledFederation
    trials: Mapping[tuple[StrategySpec, int], TabledTrial]

    @cached_property
    def specs(self) -> tuple[StrategySpec, ...]:
        """The configurations, in the order of the file."""
        return tuple(dict.fromkeys(spec for spec, _ in self.trials))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(sorted({seed for _, seed in self.trials}))

    @cached_property
    def scores(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """The fitness of each configuration on each seed, shape `(specs, seeds)`; guessing where a trial failed."""
        guessing = self.about.guessing
        return np.array([[self.trials[spec, seed].score(guessing) for seed in self.seeds] for spec in self.specs])


def write_table(path: Path, federations: Iterable[FederationTrials]) -> None:
    """Write a table; accuracies are rounded to its unit."""
    rows = [row for federation in federations for row in _rows_of(federation)]
    table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({b"format": FORMAT}))
    pq.write_table(table, path, compression="zstd", compression_level=19)


def _rows_of(federation: FederationTrials) -> Iterator[dict[str, Any]]:
    for place, trial in enumerate(federation.trials.values()):
        yield {
            "federation": federation.about.name,
            "about": None if place else federation.about.model_dump_json(),
            "specification": json.dumps({"kind": trial.spec.kind, **trial.spec.parameters()}),
            "seed": trial.seed,
            "failed": trial.failed,
            "round_accuracy": [None if isnan(each) else round(UNITS * each) for each in trial.round_accuracy],
        }


def trial_counts(path: Path) -> dict[str, int]:
    """Return how many trials a table has of each federation, by its name."""
    names = pq.read_table(path, columns=["federation"]).column("federation").to_pylist()
    return dict(Counter(names))


def read_table(path: Path) -> list[FederationTrials]:
    """Read a table.

    Raises:
        LogError: If it is not one.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"a table of trials must be a Parquet file that can be read, got {path}: {error}") from error
    if (table.schema.metadata or {}).get(b"format") != FORMAT:
        raise LogError(Fault("a table of trials", "be one that `fedscout bench table` has written", path))
    abouts: dict[str, TabledFederation] = {}
    trials: dict[str, dict[tuple[StrategySpec, int], TabledTrial]] = {}
    parsed = cache(lambda document: parse_strategy(json.loads(document)))
    for row in table.to_pylist():
        name: str = row["federation"]
        if row["about"] is not None:
            abouts[name] = TabledFederation.model_validate_json(row["about"])
        accuracy = tuple(nan if each is None else each / UNITS for each in row["round_accuracy"])
        trial = TabledTrial(parsed(row["specification"]), row["seed"], row["failed"], accuracy)
        trials.setdefault(name, {})[trial.spec, trial.seed] = trial
    return [FederationTrials(abouts[name], found) for name, found in trials.items()]
