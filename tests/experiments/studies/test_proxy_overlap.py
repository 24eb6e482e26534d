"""Clients that could hold a row that a table was tuned on are refused, others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.client_settings import check_proxy_rows
from tests.kits.refusals import refused


def tuned_on(**federation: Any) -> dict[str, Any]:
    """Return the provenance of a table tuned on a federation's server rows."""
    config = FederationConfig(**federation, server_labels=True)
    proxy = {"dataset": config.server_dataset or config.dataset, "synthetic": None}
    return {"dataset": config.dataset, "proxy": proxy, "config": {"federation": config.model_dump(mode="json")}}


TABLE = tuned_on(dataset="wine", server_rows=0.3, seed=4)


def test_the_same_keys_keep_the_proxy_rows_from_the_clients() -> None:
    check_proxy_rows(TABLE, FederationConfig(dataset="wine", server_rows=0.3, seed=4, num_clients=3), "hrt.parquet")
    own = build_federation(FederationConfig(dataset="wine", server_rows=0.3, seed=4), ModelConfig()).server
    again = build_federation(FederationConfig(dataset="wine", server_rows=0.3, seed=4, num_clients=3), ModelConfig())
    assert own is not None
    assert again.server is not None
    assert np.array_equal(own.features, again.server.features)


@pytest.mark.parametrize("given", [{"seed": 4}, {"server_rows": 0.3}, {"server_rows": 0.3, "seed": 4, "max_rows": 100}])
def test_other_keys_are_refused_with_those_that_would_do(given: dict[str, Any]) -> None:
    with refused(ConfigurationError, key="clients"):
        check_proxy_rows(TABLE, FederationConfig(dataset="wine", **given), "hrt.parquet")


def test_clients_of_the_proxy_data_set_are_refused_and_others_are_not() -> None:
    table = tuned_on(dataset="wine", server_dataset="breast_cancer")
    with refused(ConfigurationError, key="clients"):
        check_proxy_rows(table, FederationConfig(dataset="breast_cancer"), "hrt.parquet")
    check_proxy_rows(table, FederationConfig(dataset="wine"), "hrt.parquet")
    check_proxy_rows(TABLE, FederationConfig(dataset="digits"), "hrt.parquet")
    check_proxy_rows({**TABLE, "proxy": {**TABLE["proxy"], "synthetic": 50}}, FederationConfig(dataset="wine"), "t")
    check_proxy_rows({"dataset": "wine"}, FederationConfig(dataset="wine"), "made by hand")
