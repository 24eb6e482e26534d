"""Two measures of feature skew with columns of pure noise added: the published centroids, and raw histograms.

The source of the published detector rejects the divergence of raw feature histograms, as it misleads where many
dimensions are noise. Both measures are taken of the same federations, IID and with the published feature skew, before
and after standard normal columns are added to every row, which are alike at all clients and which no scenario touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedscout.detectors import CLIENT_QUERIES
from fedscout.detectors.conversation import hold
from fedscout.detectors.detection.feature_exchanges import measure_features
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import ClientTransform
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.seeds import stream
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.assembly.build_federation import build_federation

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


def measures_under_noise(
    config: StudyConfig, columns: Sequence[int], seeds: int, note: Callable[[str], None] = lambda _: None
) -> dict[int, dict[str, dict[str, list[float]]]]:
    """Return both measures by number of added columns, measure and scenario, one value a deal.

    Args:
        config: Of the federation, a table; scenario and seed are set here.
        columns: Numbers of added columns.
        seeds: Deals of each scenario: `federation.seed` from the configured one on.
        note: Told which federation is next.

    Raises:
        UserError: If the data can't be read.
    """
    found: dict[int, dict[str, dict[str, list[float]]]] = {
        num_noise: {measure: {scenario: [] for scenario in SCENARIOS} for measure in MEASURES} for num_noise in columns
    }
    for scenario in SCENARIOS:
        for seed in range(config.federation.seed, config.federation.seed + seeds):
            note(f"{scenario}, federation.seed={seed}")
            given = config.federation.model_copy(update={"scenario": scenario, "seed": seed})
            plain = build_federation(given, config.model)
            for num_noise in columns:
                values = _measures(with_noise_columns(plain, num_noise), config)
                for measure, value in zip(MEASURES, values, strict=True):
                    found[num_noise][measure][scenario].append(value)
    return found


def with_noise_columns(federation: Federation, num_noise: int) -> Federation:
    """Return a federation of tables with so many standard normal columns, which no transform touches."""
    num_rows, num_features = federation.features.shape
    noise = stream(federation.seed, "noise-columns").standard_normal((num_rows, num_noise), dtype=np.float32)
    transforms = {
        client: tuple(OnFirstColumns(transform, num_features) for transform in own)
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
        raise ConfigurationError(Fault("the federation", f"let features be compared: {measured.finding.sentence}"))
    return measured.divergence, measured.finding.value
