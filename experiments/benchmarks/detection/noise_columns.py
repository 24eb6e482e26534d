"""What columns of pure noise do to two measures of feature skew: the published one, and divergence of raw histograms.

The source of the published detector rejects the divergence of raw feature histograms, as it misleads where many
dimensions are noise. Here both measures are taken of the same federations, IID and with the published feature skew,
before and after standard normal columns are added to every row, which are alike at all clients and which no scenario
touches. The skew may be kept to the first columns of the data. Measures are:

- `divergence`: `fedscout.detectors.skew.feature_divergence`, in bits;
- `centroid_distance`: the value of `fedscout.detectors.skew.feature_skew`.

Of each, a threshold is set where no column is added: the geometric mean of the largest IID value and the smallest
skewed one. A measure is misled if that threshold no longer tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pydantic import BaseModel

from fedscout.detectors import CLIENT_QUERIES
from fedscout.detectors.conversation import hold
from fedscout.detectors.detection.feature_exchanges import measure_features
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import ClientTransform
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.seeds import stream
from fedscout.experiments.benchmarks.detection.scenario_separability import scenario_bench_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.reports.markdown_table import markdown_table

SCENARIOS: Final = ("iid", "feature_skew")
MEASURES: Final = ("divergence", "centroid_distance")


@dataclass(frozen=True)
class OnFirstColumns:
    """A transform of the first columns that leaves the others as they are."""

    transform: ClientTransform
    num_columns: int

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return changed features and labels."""
        first, rest = features[:, : self.num_columns], features[:, self.num_columns :]
        changed, labels = self.transform(first, labels, num_classes, generator)
        return np.concatenate([changed, rest], axis=1), labels


class NoiseColumns(BaseModel, frozen=True):
    """Both measures, with so many columns added.

    Attributes:
        num_noise: Columns added.
        values: By measure and scenario, one a federation.
        found: By measure, the skewed federations above the threshold that was set without added columns.
        false_alarms: By measure, the IID ones above it.
    """

    num_noise: int
    values: Mapping[str, Mapping[str, tuple[float, ...]]]
    found: Mapping[str, int]
    false_alarms: Mapping[str, int]


class NoiseComparison(BaseModel, frozen=True):
    """All numbers of added columns on one data set, the first being that by which thresholds are set."""

    dataset: str
    num_clients: int
    num_features: int
    num_skewed: int
    num_seeds: int
    rows: tuple[NoiseColumns, ...]


def compare_under_noise(
    arguments: Sequence[str],
    columns: Sequence[int],
    seeds: int,
    skewed: int | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> NoiseComparison:
    """Take both measures of federations that differ in scenario, deal and added columns.

    Args:
        arguments: `key=value`; what is left out is the published federation.
        columns: Numbers of added columns, 0 the first.
        seeds: Deals of each scenario: `federation.seed` from the configured one on.
        skewed: To how many of the data's columns the skew is kept; None for all.
        note: Told which federations are next.

    Raises:
        UserError: If a setting is wrong, or the data can't be read, or their rows are no tables.
    """
    config = scenario_bench_config(arguments, None)
    found: dict[int, dict[str, dict[str, list[float]]]] = {
        num_noise: {measure: {scenario: [] for scenario in SCENARIOS} for measure in MEASURES} for num_noise in columns
    }
    for scenario in SCENARIOS:
        for seed in range(config.federation.seed, config.federation.seed + seeds):
            note(f"{scenario}, federation.seed={seed}")
            given = config.federation.model_copy(update={"scenario": scenario, "seed": seed})
            plain = build_federation(given, config.model)
            if plain.features.ndim != 2 or plain.embedding is not None:
                raise ConfigurationError(f"federation.dataset must be a table, got {config.federation.dataset!r}")
            for num_noise in columns:
                values = _measures(with_noise_columns(plain, num_noise, skewed), config)
                for measure, value in zip(MEASURES, values, strict=True):
                    found[num_noise][measure][scenario].append(value)
    thresholds = {measure: _threshold(found[columns[0]][measure]) for measure in MEASURES}
    num_features = plain.features.shape[1]
    return NoiseComparison(
        dataset=config.federation.dataset,
        num_clients=plain.num_clients,
        num_features=num_features,
        num_skewed=min(skewed or num_features, num_features),
        num_seeds=seeds,
        rows=tuple(_row(num_noise, values, thresholds) for num_noise, values in found.items()),
    )


def with_noise_columns(federation: Federation, num_noise: int, skewed: int | None = None) -> Federation:
    """Return a federation of tables with standard normal columns that no transform touches.

    Args:
        federation: Whose first columns stay what they are.
        num_noise: Columns added.
        skewed: Of its own columns, how many a transform touches; None for all.
    """
    num_rows, num_features = federation.features.shape
    noise = stream(federation.seed, "noise-columns").standard_normal((num_rows, num_noise), dtype=np.float32)
    touched = num_features if skewed is None else min(skewed, num_features)
    transforms = {
        client: tuple(OnFirstColumns(transform, touched) for transform in own)
        for client, own in federation.transforms.items()
    }
    features = np.concatenate([federation.features, noise], axis=1)
    return replace(federation, features=features, feature_names=(), transforms=transforms)


def _measures(federation: Federation, config: StudyConfig) -> tuple[float, float]:
    clients = range(federation.num_clients)
    measured = hold(
        LocalGrid(federation, CLIENT_QUERIES), measure_features(clients, clients, config.detection, clients)
    )
    if measured.divergence is None or measured.finding.value is None:
        raise ConfigurationError(f"the federation must let features be compared: {measured.finding.sentence}")
    return measured.divergence, measured.finding.value


def _threshold(values: Mapping[str, Sequence[float]]) -> float:
    return float(np.sqrt(max(values["iid"]) * min(values["feature_skew"])))


def _row(
    num_noise: int, values: Mapping[str, Mapping[str, Sequence[float]]], thresholds: Mapping[str, float]
) -> NoiseColumns:
    above = {
        scenario: {
            measure: sum(value > thresholds[measure] for value in values[measure][scenario]) for measure in MEASURES
        }
        for scenario in SCENARIOS
    }
    return NoiseColumns.model_validate(
        {"num_noise": num_noise, "values": values, "found": above["feature_skew"], "false_alarms": above["iid"]}
    )


def table_lines(comparison: NoiseComparison) -> list[str]:
    """Return the comparison as a Markdown table."""
    skewed = "all" if comparison.num_skewed == comparison.num_features else f"the first {comparison.num_skewed}"
    title = (
        f"{comparison.dataset}, {comparison.num_clients} clients, {comparison.num_seeds} deals of each scenario, "
        f"feature skew in {skewed} of {comparison.num_features} columns; means, smallest to largest in brackets"
    )
    headings = ["noise columns"]
    for name in ("divergence, bits", "centroid distance"):
        headings += [f"{name}: IID", "feature skew", "ratio", "found", "false alarms"]
    return [title, "", *markdown_table(headings, (_cells(row, comparison.num_seeds) for row in comparison.rows))]


def _cells(row: NoiseColumns, seeds: int) -> list[str]:
    cells = [str(row.num_noise)]
    for measure in MEASURES:
        alike, skewed = (row.values[measure][scenario] for scenario in SCENARIOS)
        cells += [_span(alike), _span(skewed), f"{np.mean(skewed) / np.mean(alike):.1f}"]
        cells += [f"{row.found[measure]}/{seeds}", f"{row.false_alarms[measure]}/{seeds}"]
    return cells


def _span(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
