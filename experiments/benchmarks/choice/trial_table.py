"""The table of trials on which choosers are replayed: one Parquet file, a row a trial.

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
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from fedscout.engine.errors import Fault, LogError
from fedscout.engine.trials.trial_record import Trial, late_mean
from fedscout.experiments.benchmarks.choice.joint_battery import Half
from fedscout.strategies import StrategySpec, parse_strategy

FORMAT = b"fedscout trial table 1"
PUBLISHED = Path(__file__).with_name("trials.parquet")
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
