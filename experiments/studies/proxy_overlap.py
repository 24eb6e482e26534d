"""Whether clients may hold rows that a table of client settings was tuned on: then what it gives is partly remembered.

A table says which rows those were: a share of a data set that the server held, by the keys that decide it. Clients of
the same data set hold none of them where the same keys give the server at least these rows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.federations.assembly.federation_config import FederationConfig
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest

SAME_ROWS = {"folder", "max_file_bytes", "max_file_rows", "min_release"}
"""Keys of a data set that change none of its rows."""


def check_proxy_rows(provenance: Mapping[str, Any], federation: FederationConfig, name: str) -> None:
    """Refuse clients that may hold rows that a table was tuned on.

    Args:
        provenance: Of the table; one that says nothing of proxy rows is taken as it is.
        federation: Of the clients.
        name: Of the table, for the message.

    Raises:
        ConfigurationError: With the keys that would do.
    """
    proxy, stored = provenance.get("proxy"), (provenance.get("config") or {}).get("federation")
    if not isinstance(proxy, Mapping) or not isinstance(stored, Mapping) or proxy.get("synthetic") is not None:
        return
    if proxy.get("dataset") != federation.dataset:
        return
    if provenance.get("dataset") != federation.dataset:
        raise ConfigurationError(
            Fault(
                "clients",
                f"hold no row that {name} was tuned on",
                f"the data set {federation.dataset} that its proxy rows are of",
            )
        )
    given = federation.model_dump(mode="json")
    keys = [key for key in DatasetRequest.model_fields if key not in SAME_ROWS]
    wanted = {key: stored[key] for key in [*keys, "server_rows", "server_dataset", "seed"] if key in stored}
    differing = [key for key, value in wanted.items() if given[key] != value]
    if differing:
        must = " ".join(f"federation.{key}={_text(wanted[key])}" for key in differing)
        got = " ".join(f"federation.{key}={_text(given[key])}" for key in differing)
        raise ConfigurationError(
            Fault(
                "clients",
                (f"hold no row that {name} was tuned on, which takes {must}, by which the server holds these rows"),
                got,
            )
        )


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
