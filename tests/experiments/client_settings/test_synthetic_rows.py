"""Synthetic rows: they have the moments that clients told, of the classes that they told of, and are nobody's rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscout.detectors.feature_skew import ClassMoments
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.experiments.client_settings.proxies import draw_rows, proxy_data, row_digests, synthetic_rows
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.search.settings_table_file import read_settings_table
from tests.experiments.client_settings.test_tune_table import tune
from tests.kits.refusals import refused

WINE = ("federation.dataset=wine", "federation.num_clients=3", "engine.grid=local")


def built(*settings: str) -> tuple[Federation, StudyConfig]:
    config = load_config([*WINE, *settings])
    return build_federation(config.federation, config.model), config


def test_rows_have_the_means_and_the_covariance_they_are_drawn_by() -> None:
    means = np.array([[0.0, 0.0], [7.0, 7.0], [10.0, -5.0]])
    counts = np.array([4, 0, 6])  # nobody told of the second class
    classes = ClassMoments(counts, means * counts[:, None], np.zeros((3, 2)))
    within = np.array([[2.0, 0.9], [0.9, 1.0]])
    rows, labels = draw_rows(classes, within, 40_001, np.random.default_rng(0))
    assert [*np.bincount(labels)] == [20_001, 0, 20_000]
    for label in (0, 2):
        own = rows[labels == label]
        error = 5 * np.sqrt(np.diag(within) / len(own))  # five standard errors of a mean
        assert (np.abs(own.mean(axis=0) - means[label]) < error).all()
        assert np.cov(own.T) == pytest.approx(within, abs=5 * np.sqrt(2 / len(own)) * 2)


def test_clients_are_asked_for_sums_and_no_row_of_theirs_comes_back() -> None:
    federation, config = built()
    server = synthetic_rows(federation, config, 300)
    assert server.labels is not None
    own = {*row_digests(federation.features, federation.labels)}
    assert own.isdisjoint(row_digests(server.features, server.labels))
    for label in range(3):
        theirs = federation.features[federation.labels == label].mean(axis=0)
        assert np.abs(server.features[server.labels == label].mean(axis=0) - theirs).max() < 0.6


def test_clients_that_tell_nothing_end_it_in_a_line() -> None:
    federation, config = built("federation.min_release=70")
    with refused(DataError, key="--synthetic"):
        synthetic_rows(federation, config, 300)


@pytest.mark.slow
def test_a_table_of_synthetic_rows_says_so_and_can_be_refined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = (*WINE, "training.num_rounds=2")
    grid = ("--heterogeneity", "0", "--quantity", "12", "search.budget=2", "search.kind=random")
    assert tune(*small, *grid, "--synthetic", "200", "--out", "coarse.parquet") == 0
    assert read_settings_table(tmp_path / "coarse.parquet")[1]["proxy"]["synthetic"] == 200
    assert tune("--refine", "coarse.parquet", "engine.grid=local", "--out", "fine.parquet") == 0
    assert len(read_settings_table(tmp_path / "fine.parquet")[0].cells) > 1


def test_synthetic_rows_are_proxy_rows_like_others() -> None:
    federation, config = built()
    server = synthetic_rows(federation, config, 90)
    proxy = proxy_data(replace(federation, server=server), 0, of_another=False)
    assert (len(proxy.labels), proxy.num_left_out, proxy.num_scored) == (90, 0, 21)
