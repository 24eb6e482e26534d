"""What a scenario is said to have changed is what it changed."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.devices import Device
from fedscout.engine.data.federation import Federation
from fedscout.experiments.description import ClientChange, describe_federation
from fedscout.experiments.scenarios.features import FeatureNoise, GaussianUpdate, ScaledUpdate
from fedscout.experiments.scenarios.labels import ShiftLabels
from tests.experiments.description.federations import by_counts, federation_of


class FirstColumnToZero:
    """A transform that is no dataclass."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        changed = features.copy()
        changed[:, 0] = 0
        return changed, labels


def changes_of(source: Federation) -> tuple[ClientChange, ...]:
    return describe_federation(source, DetectionConfig(), seed=0).changes


def test_without_a_scenario_nothing_is_changed() -> None:
    assert changes_of(by_counts([[10, 10], [20, 5]])) == ()


def test_changes_are_told_client_by_client() -> None:
    transforms = {2: (FeatureNoise(2.0, 0.5), ShiftLabels()), 1: (ShiftLabels(),), 0: ()}
    source = by_counts([[10, 10], [20, 5], [500, 500]], transforms=transforms, facts={"feature_unit": 2.0})
    second, third = changes_of(source)
    assert (second.client, second.num_rows, second.num_labels_changed) == (1, 25, 25)
    assert (second.share_numbers_changed, second.feature_shift, second.feature_deviation) == (0, 0, 0)
    assert second.steps == ("ShiftLabels()",)
    assert (third.client, third.num_labels_changed, third.share_numbers_changed) == (2, 1000, 1)
    assert third.steps == ("FeatureNoise(mean=2.0, deviation=0.5)", "ShiftLabels()")
    # 3,000 numbers: the mean of the noise is 2/2 up to 0.25/sqrt(3000), its deviation 0.5/2 up to 0.25/sqrt(6000)
    assert third.feature_shift == pytest.approx(1.0, abs=5 * 0.25 / np.sqrt(3000))
    assert third.feature_deviation == pytest.approx(0.25, abs=5 * 0.25 / np.sqrt(6000))


def test_only_numbers_that_differ_count_as_changed() -> None:
    features = np.ones((20, 4))
    (change,) = changes_of(
        federation_of(np.arange(20) % 2, [range(10), range(10, 20)], 2, features, {1: (FirstColumnToZero(),)})
    )
    assert change.share_numbers_changed == 0.25
    assert change.feature_shift == -0.25
    assert change.steps == ("FirstColumnToZero",)


def test_clients_that_miss_rounds_or_take_long_are_named() -> None:
    first, second = changes_of(
        by_counts([[10, 10], [20, 5]], dropout={1: 0.3}, devices={0: Device(shift_seconds=1.0, mean_seconds=2.5)})
    )
    assert (first.client, first.latency_shift, first.latency_mean, first.dropout) == (0, 1.0, 2.5, 0.0)
    assert (second.client, second.latency_shift, second.latency_mean, second.dropout) == (1, None, None, 0.3)


def test_attackers_are_named_with_what_they_send() -> None:
    attacks = {1: (ScaledUpdate(-1.0), GaussianUpdate(0.5))}
    (change,) = changes_of(by_counts([[10, 10], [20, 5]], attacks=attacks))
    assert (change.client, change.steps, change.num_labels_changed) == (1, (), 0)
    assert change.attacks == ("ScaledUpdate(factor=-1.0)", "GaussianUpdate(deviation=0.5)")


def test_an_empty_client_that_a_scenario_names_has_nothing_to_change() -> None:
    (change,) = changes_of(by_counts([[10, 10], [20, 5], [0, 0]], transforms={2: (ShiftLabels(),)}))
    assert (change.num_rows, change.num_labels_changed) == (0, 0)
