"""`federation.server_dataset`: rows of another data set at the server, which must look like the clients'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation, data_digest
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.workflow import cohort_of
from tests.kits.refusals import refused


def table(rows: int, classes: tuple[str, ...], shift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Two columns of numbers and a label, each class as often."""
    generator = np.random.default_rng(seed)
    labels = np.resize(np.array(classes), rows)
    pulse, age = generator.normal(shift, 3.0, rows), generator.normal(5.0 * shift, 1.0, rows)
    return pd.DataFrame({"pulse": pulse, "age": age, "state": labels})


GOOD = table(60, ("well", "ill"))


def built(
    folder: Path, server: pd.DataFrame | None, clients: pd.DataFrame | None = None, **settings: Any
) -> Federation:
    clients = table(200, ("ill", "odd", "well")) if clients is None else clients
    clients.to_csv(folder / "clients.csv", index=False)
    given: dict[str, Any] = {"dataset": str(folder / "clients.csv"), "label": "state", "num_clients": 4, **settings}
    if server is not None:
        server.to_csv(folder / "server.csv", index=False)
        given["server_dataset"] = str(folder / "server.csv")
    return build_federation(FederationConfig(**given), ModelConfig())


def test_all_rows_are_the_servers_and_the_clients_keep_theirs(tmp_path: Path) -> None:
    alone, served = built(tmp_path, None), built(tmp_path, table(60, ("well", "ill"), seed=1))
    np.testing.assert_array_equal(alone.features, served.features)
    np.testing.assert_array_equal(alone.partition.rows, served.partition.rows)
    assert alone.server is None
    assert served.server is not None
    assert (served.server.num_rows, served.server.labels) == (60, None)
    told = {name: served.facts[name] for name in served.facts.keys() - alone.facts.keys()}
    source = {"server_dataset": "server.csv", "server_source": str(tmp_path / "server.csv")}
    assert told == {"num_server_rows": 60, "server_labels": False, **source}


def test_labels_are_matched_by_name_and_the_scale_is_the_servers_own(tmp_path: Path) -> None:
    """Its classes are numbered anew without `odd`: ill, well = 0, 1 there are 0, 2 here."""
    rows = table(60, ("well", "ill"), shift=100.0, seed=1)
    server = built(tmp_path, rows, server_labels=True).server
    assert server is not None
    np.testing.assert_array_equal(server.labels, np.where(rows["state"] == "well", 2, 0))
    columns = rows[["pulse", "age"]].to_numpy()
    np.testing.assert_allclose(server.features, (columns - columns.mean(0)) / columns.std(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("asked", "number"), [(10, 10), (0.5, 30), (60, 60)])
def test_some_of_its_rows(tmp_path: Path, asked: float, number: int) -> None:
    federation = built(tmp_path, GOOD, server_rows=asked, server_labels=True)
    assert federation.server is not None
    assert federation.server.labels is not None
    assert np.bincount(federation.server.labels).tolist() == [number // 2, 0, number // 2]


def test_the_digests_hold_it(tmp_path: Path) -> None:
    one, other = (data_digest(built(tmp_path, table(60, ("well", "ill"), seed=seed))) for seed in (1, 2))
    assert one != other
    assert load_config(["federation.server_dataset=wine"]).identity()["federation"]["server_labels"] is False


@pytest.mark.parametrize(("given", "known"), [([], None), (["federation.server_rows=7"], 7)])
def test_strategies_are_told_before_the_data_are_read(given: list[str], known: int | None) -> None:
    assert cohort_of(load_config(["federation.server_dataset=wine", *given]), 5).server_rows == known


@pytest.mark.parametrize(
    ("rows", "settings", "key", "given"),
    [
        (GOOD.rename(columns={"age": "years"}), {}, "dataset", "'years' of 'server.csv' in place of 'age'"),
        (GOOD.drop(columns="age"), {}, "dataset", "table of 1 numbers of 'server.csv'"),
        (table(60, ("well", "dead")), {"server_labels": True}, "dataset", "dead of 'server.csv'"),
        (GOOD, {"server_rows": 61}, "rows", 61),
    ],
)
def test_rows_unlike_the_clients_are_refused(
    tmp_path: Path, rows: pd.DataFrame, settings: dict[str, Any], key: str, given: object
) -> None:
    with refused(DataError, key=f"federation.server_{key}", given=given) as caught:
        built(tmp_path, rows, **settings)
    assert len(caught.value.faults) == 1


def test_rows_that_make_no_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^federation.server_dataset=.*server.csv .*'state'"):
        built(tmp_path, table(60, ("well",)))


def test_classes_do_not_matter_where_labels_are_stripped(tmp_path: Path) -> None:
    server = built(tmp_path, table(60, ("well", "dead"))).server
    assert server is not None
    assert server.num_rows == 60


@pytest.mark.parametrize("given", ["digits", "cartpole", "given"])
def test_what_is_no_other_data_set_is_refused(given: str) -> None:
    with refused(ConfigurationError, key="federation.server_dataset"):
        load_config([f"federation.server_dataset={given}"])


def test_players_have_no_use_for_rows() -> None:
    with refused(ConfigurationError, key="federation.dataset", names="federation.server_dataset=wine"):
        build_federation(FederationConfig(dataset="cartpole", server_dataset="wine"), ModelConfig())


def test_tokens_are_refused(tmp_path: Path) -> None:
    texts = pd.DataFrame({"text": ["some words here", "other words there"] * 20, "state": ["ill", "well"] * 20})
    with refused(DataError, key="federation.server_dataset"):
        built(tmp_path, texts, clients=texts, text_column="text")
