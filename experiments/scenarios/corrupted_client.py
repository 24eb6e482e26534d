"""Corrupted client: rows dealt IID; one client, the third, has noise (mean 1, deviation 0.5) and all labels wrong.

Noise is in units of the standardised feature.
"""

from __future__ import annotations

from experiments.scenarios.contract import ScenarioPlan, ScenarioRequest, corrupt_one_client
from experiments.scenarios.feature_noise import FeatureNoise
from experiments.scenarios.label_flip import ShiftLabels

NOISE_MEAN = 1.0
NOISE_DEVIATION = 0.5


def corrupted_client(request: ScenarioRequest) -> ScenarioPlan:
    """Deal all rows IID, add noise to one client's features and shift all its labels.

    Raises:
        ConfigurationError: If rows are tokens, which noise would make meaningless.
    """
    request.require_measurements("corrupted_client")
    noise = FeatureNoise(NOISE_MEAN * request.feature_unit, NOISE_DEVIATION * request.feature_unit)
    return corrupt_one_client(request, noise, ShiftLabels())
