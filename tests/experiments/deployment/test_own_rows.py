"""A client's rows become what the agreement says, or are refused in one line that stays with the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from PIL import Image

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.deployment.client import Agreement, client_federation
from tests.kits.refusals import refused

AGE = "column 'age' of table 'DataFrame'"
COLUMNS = {"age": [30, 41, 52, 63] * 10, "ward": ["north", "south"] * 20, "outcome": ["ill", "well"] * 20}


@pytest.fixture(scope="module")
def agreement(tmp_path_factory: pytest.TempPathFactory) -> Agreement:
    """Of a table with a column of numbers, one of categories and two classes."""
    path = tmp_path_factory.mktemp("study") / "table.csv"
    pd.DataFrame(COLUMNS).to_csv(path, index=False)
    settings = [f"federation.dataset={path}", "federation.label=outcome", "federation.num_clients=2"]
    return Agreement.of_study(load_config(settings, None))


def rows(agreement: Agreement, given: Any, number: int = 0, **node: Any) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Return the features and labels of a client."""
    context = Context(1, 7, node, RecordDict(), {})
    federation = client_federation(agreement, number, context, None if given is None else lambda _: given)
    assert federation.partition.sizes.tolist() == [0] * number + [len(federation.labels)]
    return federation.features, federation.labels.tolist()


def test_a_number_is_standardised_by_the_study_and_a_category_has_its_place(agreement: Agreement) -> None:
    frame = pd.DataFrame({"ward": ["south", "west"], "age": [46.5, np.nan], "outcome": ["well", "ill"]})
    features, labels = rows(agreement, frame, number=2)
    deviation = np.std(COLUMNS["age"])
    assert agreement.feature_names == ("age", "ward=north", "ward=south")
    np.testing.assert_allclose(features, [[(46.5 - 46.5) / deviation, 0, 1], [0, 0, 0]], atol=1e-7)
    assert labels == [1, 0]


def test_a_client_of_one_class_and_an_empty_column_takes_part(agreement: Agreement) -> None:
    features, labels = rows(agreement, pd.DataFrame({"age": [np.nan, np.nan], "ward": ["north"] * 2, "outcome": "ill"}))
    assert features.tolist() == [[0, 1, 0]] * 2
    assert labels == [0, 0]


@pytest.mark.parametrize(
    ("given", "key", "names"),
    [
        (pd.DataFrame({"age": [1], "outcome": ["ill"]}), "table 'DataFrame'", "ward"),
        (
            pd.DataFrame({"age": ["old"], "ward": ["north"], "outcome": ["ill"]}),
            "column 'age' of table 'DataFrame'",
            "",
        ),
        (pd.DataFrame({"age": [1], "ward": ["north"], "outcome": ["dead"]}), "a client's rows", "got dead"),
        (pd.DataFrame({"age": [1], "ward": ["north"]}), "label", "got 'outcome'"),
        ((np.zeros((3, 4)), np.zeros(3)), "an array of rows", "(rows, 3)"),
        ((np.full((1, 3), np.nan), ["ill"]), "an array of rows", "finite"),
        ((np.zeros((0, 3)), []), "a client", "got none"),
    ],
)
def test_rows_that_are_not_as_agreed_are_refused(agreement: Agreement, given: Any, key: str, names: str) -> None:
    with refused(DataError, key=key, names=names):
        rows(agreement, given)


def test_a_file_of_the_node_configuration_is_read_and_its_label_may_have_another_name(
    agreement: Agreement, tmp_path: Path
) -> None:
    frame = pd.DataFrame(COLUMNS).rename(columns={"outcome": "result"})
    frame.to_parquet(tmp_path / "mine.parquet")
    _, labels = rows(agreement, None, data=str(tmp_path / "mine.parquet"), label="result")
    assert labels == [0, 1] * 20


def test_arrays_are_taken_as_they_are(agreement: Agreement) -> None:
    features, labels = rows(agreement, (np.eye(3), ["well", "ill", "ill"]))
    assert features.tolist() == np.eye(3).tolist()
    assert labels == [1, 0, 0]


@pytest.mark.parametrize(("node", "key"), [({}, "a client"), ({"partition-id": 99}, "partition-id")])
def test_a_node_without_rows_is_told_what_to_give(agreement: Agreement, node: dict[str, Any], key: str) -> None:
    with refused(DataError, key=key, given=node.get("partition-id", node), names="partition-id"):
        rows(agreement, None, **node)


def test_pictures_of_one_class_are_read_at_the_agreed_size(tmp_path: Path) -> None:
    for folder, value in (("all/cat", 0), ("all/dog", 255), ("mine/dog", 255)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((9, 9), value, np.uint8)).save(tmp_path / folder / f"{number}.png")
    settings = [f"federation.dataset={tmp_path / 'all'}", "federation.image_size=8", "federation.num_clients=1"]
    agreement = Agreement.of_study(load_config([*settings, "federation.partition.kind=iid"], None))
    features, labels = rows(agreement, None, data=str(tmp_path / "mine"))
    assert features.shape == (3, 1, 8, 8)
    assert features.min() == 1.0
    assert labels == [1, 1, 1]


def test_a_quantity_or_players_can_have_no_agreement() -> None:
    for dataset in ("diabetes", "cartpole"):
        with refused(ConfigurationError, key="a real federation"):
            Agreement.of_study(load_config([f"federation.dataset={dataset}"], None))


def test_an_agreement_that_is_none_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"kind": "table"}')
    for name in ("none.json", "bad.json"):
        with refused(ConfigurationError, key=name):
            Agreement.read(tmp_path / name)


def test_an_agreement_holds_no_row(agreement: Agreement) -> None:
    """Of the column of numbers it tells moments, and none of its values."""
    assert agreement.encoding is not None
    assert agreement.encoding["columns"]["age"] == {"count": 40, "mean": 46.5, "squares": 40 * np.var(COLUMNS["age"])}
    assert agreement.encoding["columns"]["ward"]["counts"] == {"north": 20, "south": 20}
