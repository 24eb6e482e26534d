"""The data sets that come with scikit-learn, against the counts that their publishers state."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.data.loaders.table import DATASETS
from tests.experiments.data.loading import load_dataset
from tests.kits.refusals import refused

# optdigits.names, wdbc.names and wine.names in the UCI repository list these class counts.
PUBLISHED = {
    "digits": (64, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]),
    "breast_cancer": (30, [212, 357]),
    "wine": (13, [59, 71, 48]),
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_counts_are_the_published_ones(name: str, published: tuple[int, list[int]]) -> None:
    num_features, class_counts = published
    dataset = load_dataset(name)

    assert dataset.features.shape == (sum(class_counts), num_features)
    assert np.bincount(dataset.labels).tolist() == class_counts
    assert len(dataset.feature_names) == num_features
    assert len(dataset.class_names) == len(class_counts)
    assert "UCI" in dataset.source


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_tables_are_standardised(name: str) -> None:
    features = load_dataset(name).features.astype(np.float64)
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(features.var(axis=0), 1, atol=1e-6)
    assert load_dataset(name).feature_unit == 1


def test_digits_are_those_that_scikit_learn_itself_loads() -> None:
    from sklearn.datasets import load_digits

    dataset, bunch = load_dataset("digits"), load_digits()
    np.testing.assert_array_equal(dataset.features * 16, bunch.data)
    np.testing.assert_array_equal(dataset.labels, bunch.target)
    assert list(dataset.feature_names) == bunch.feature_names
    assert list(dataset.class_names) == [str(name) for name in bunch.target_names]


def test_digits_keep_the_scale_of_pixels_and_state_their_unit() -> None:
    dataset = load_dataset("digits")
    assert (dataset.features.min(), dataset.features.max()) == (0, 1)
    # In that unit the variance of a pixel is 1 on average, as it is for standardised columns.
    variance = (dataset.features.astype(np.float64) / dataset.feature_unit).var(axis=0)
    assert variance.mean() == pytest.approx(1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_it_cannot_offer_is_refused_and_named(name: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, label="nonsense", client_column="hospital")
    found = [(fault.key, fault.given) for fault in caught.value.faults]
    assert found == [("federation.label", "'nonsense'"), ("federation.client_column", "'hospital'")]


def test_its_own_label_may_be_named() -> None:
    assert load_dataset("digits", label="digit").num_rows == load_dataset("digits").num_rows


def test_unknown_name_lists_the_known_ones() -> None:
    with refused(ConfigurationError, key="federation.dataset") as caught:
        load_dataset("imagenet")
    assert all(name in str(caught.value) for name in DATASETS)
