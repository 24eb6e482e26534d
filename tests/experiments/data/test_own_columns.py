"""What becomes of columns that nobody prepared: kinds, what is left out, what overrules it, what clients do alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedscout
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import load_config
from fedscout.experiments.data import own
from fedscout.experiments.data.columns import date_order, parts_of_time
from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.own import load_own_data
from fedscout.experiments.data.table_files import plain_cells, read_csv
from fedscout.experiments.data.tables import encoded_rows
from tests.experiments.data.awkward_tables import patients, readings, saved, tweets
from tests.experiments.data.loading import assert_refused, load_dataset, told
from tests.kits.refusals import refused

RAW = Path(__file__).parents[2] / "fixtures" / "raw"


def load(tmp_path: Path, table: pd.DataFrame, label: str, client: str | None = None, **choices: Any) -> Dataset:
    return load_dataset(str(saved(table, tmp_path / "t.csv")), label=label, client_column=client, **choices)


def test_tweets(tmp_path: Path) -> None:
    dataset = load(tmp_path, tweets(), "airline_sentiment", "airline")
    assert told(dataset) == {
        "tweet_id": "identifier",
        "airline_sentiment": "label",
        "negativereason": "category",
        "airline": "client",
        "airline_sentiment_gold": "empty",
        "name": "identifier",
        "retweet_count": "number",
        "text": "text",
        "tweet_coord": "empty",
        "tweet_created": "date",
        "user_timezone": "category",
    }
    assert told(dataset, "suspicion") == {"negativereason": "separates class negative from the others nearly exactly"}
    assert told(dataset, "key")["text"] == "federation.text_column=text"
    assert not any(name.startswith(("tweet_id", "name", "text")) for name in dataset.feature_names)


def test_readings(tmp_path: Path) -> None:
    """An index that orders the classes is left out and named; so is the hour, which stays."""
    dataset = load(tmp_path, readings(), "state", "machine")
    assert told(dataset, "became")["reading"] == "left out: a running number"
    assert told(dataset, "suspicion")["reading"] == "predicts the label nearly exactly"
    assert dataset.feature_names == ("timestamp hour", "timestamp minute", "vibration", "load")


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ({"patient_id": "number"}, {"patient_id"}),
        ({"age": "drop", "admitted": "drop"}, set()),
        ({"ward": "category"}, {"ward=general"}),
        ({"lab": "drop", "patient_id": "number"}, {"patient_id"}),
    ],
)
def test_what_is_found_out_is_overruled(tmp_path: Path, kinds: dict[str, str], names: set[str]) -> None:
    usual = {*load(tmp_path, patients(), "outcome", "hospital").feature_names}
    dataset = load(tmp_path, patients(), "outcome", "hospital", columns=kinds)
    gone = {name for name in usual if name.split(" ")[0] in kinds}
    assert {*dataset.feature_names} == (usual - gone) | names


def test_a_word_among_numbers_is_refused_unless_overruled(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": ["1", "2", "many", *"4567" * 5], "y": [*"abbaabbaabb"] * 2 + ["a"]})
    named = ("'many' in 1 of 23 cells", "federation.columns.x=number", "federation.columns.x=category")
    assert_refused(str(saved(table, tmp_path / "t.csv")), label="y", names=named)
    dataset = load(tmp_path, table, "y", columns={"x": "number"})
    assert told(dataset, "became")["x"] == "a number; words count as missing in 1 of 23 rows"
    assert dataset.features[2].tolist() == [0, 1]


def test_a_running_number_is_used_where_there_is_nothing_else(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": range(40), "y": ["a", "b"] * 20})
    assert load(tmp_path, table, "y").feature_names == ("age",)
    assert load(tmp_path, table.assign(x=table["age"] / 8), "y").feature_names == ("x",)


def test_alone_or_beside_dates_a_text_is_the_row_unless_they_are_asked_for(tmp_path: Path) -> None:
    table = tweets()[["tweet_id", "tweet_created", "text", "airline_sentiment"]]
    alone = load(tmp_path, table.drop(columns="tweet_created"), "airline_sentiment")
    assert told(alone) == {"tweet_id": "identifier", "text": "text", "airline_sentiment": "label"}
    dataset = load(tmp_path, table, "airline_sentiment")
    assert [(read.kind, read.facts["text_column"]) for read in (alone, dataset)] == [("tokens", "text")] * 2
    assert told(dataset, "became")["tweet_created"] == "left out: text is the only feature"
    assert told(dataset, "key")["tweet_created"] == "federation.columns.tweet_created=date"
    asked = load(tmp_path, table, "airline_sentiment", columns={"tweet_created": "date"})
    assert asked.kind == "table"
    assert told(asked)["text"] == "text"


def test_a_kind_is_a_key_of_the_configuration() -> None:
    assert load_config(["federation.columns={zip: category, 7: drop}"]).federation.columns == {
        "zip": "category",
        "7": "drop",
    }
    assert load_config(["federation.columns.zip=date"]).federation.columns == {"zip": "date"}
    with refused(ConfigurationError, key="federation.columns.zip"):
        load_config(["federation.columns.zip=word"])


def test_clients_alone_encode_as_the_federation_does(tmp_path: Path) -> None:
    """Dates, formatted numbers and overruled columns are read from a client's own rows, whatever the others hold."""
    visits = patients().assign(lab=lambda known: known["lab"].astype(str).where(known.index != 4, "high"))
    written = pd.read_csv(RAW / "types_numbers.csv", dtype=str)
    for table, label, client, kinds in (
        (visits, "outcome", "hospital", {"lab": "number"}),
        (written, "label", "site", {}),
    ):
        dataset = load(tmp_path, table, label, client, columns=kinds)
        for _, rows in table.groupby(client):
            own = read_csv(saved(rows, tmp_path / "own.csv"))
            np.testing.assert_array_equal(encoded_rows("own.csv", own, dataset.encoding), dataset.features[rows.index])


@pytest.mark.parametrize(
    ("cells", "order", "first"),
    [
        (["2024-02-29", ""], "year-month-day", [2024, 2, 29, 3]),
        (["2015-02-24 11:35:52 -0800"], "year-month-day", [2015, 2, 24, 1, 11, 35]),
        (["01.02.2024", "NA"], "day-month-year", [2024, 2, 1, 3]),
        (["01.02.70"], "day-month-year", [1970, 2, 1, 6]),
        (["01.02.69"], "day-month-year", [2069, 2, 1, 4]),
        (["1/2/2024", "13/2/2024"], "day-month-year", [2024, 2, 1, 3]),
        (["1-2-24 1:30 pm", "1-13-24 1:30 am"], "month-day-year", [2024, 1, 2, 1, 13, 30]),
        (["12:05 AM"], "time of day", [0, 5]),
        (["23:59:59.5"], "time of day", [23, 59]),
    ],
)
def test_dates_are_read_as_they_are_written(cells: list[str], order: str, first: list[int]) -> None:
    column = pa.chunked_array([plain_cells(pa.array(cells))])
    assert date_order(column) == order
    parts = parts_of_time(column, order)  # type: ignore[arg-type]
    assert [float(numbers[0]) for numbers in parts.values() if not np.isnan(numbers[0])] == first


@pytest.mark.parametrize("cells", [["2023-02-29"], ["31.04.2024"], ["2024-01-01", "soon"], ["1.5"], ["12 Mar 2024"]])
def test_what_is_no_date(cells: list[str]) -> None:
    assert date_order(pa.chunked_array([cells])) is None


def test_weekdays_are_those_of_the_calendar() -> None:
    days = pd.date_range("1899-12-25", periods=60_000, freq="D")
    parts = parts_of_time(pa.chunked_array([pa.array(days.strftime("%Y-%m-%d"), pa.string())]), "year-month-day")
    np.testing.assert_array_equal(parts["weekday"], days.day_of_week)
    np.testing.assert_array_equal(parts["day"], days.day)


@pytest.mark.parametrize(
    ("wrong", "kinds"), [("2024-02-30", {}), ("2024-13-01", {}), ("31.04.2024", {}), ("12 Mar 24", {"when": "date"})]
)
def test_a_date_with_a_fault_is_named(tmp_path: Path, wrong: str, kinds: dict[str, str]) -> None:
    days = [f"2024-01-{day:02}" for day in range(1, 7)] + [wrong] + ["2024-01-08"] * 23
    table = pd.DataFrame({"when": days, "y": ["a", "b"] * 15})
    assert_refused(str(saved(table, tmp_path / "t.csv")), label="y", columns=kinds, names=("'when'", "dates"))


# A label that is a quantity is predicted as one without being asked; classes stay classes.


ROWS = np.arange(300)
TABLE = pd.DataFrame(
    {
        "x": np.sin(ROWS),
        "load": ROWS / 8,
        "rounded": ROWS // 2,
        "grade": ROWS % 3,
        "often": ROWS % 20,
        "seldom": ROWS % 70,
        "half": ROWS % 3 / 2,
        "word": [f"{row / 8} kg" for row in ROWS],
    }
)


def predicts_quantity(folder: Path, table: pd.DataFrame, label: str, **keys: Any) -> bool:
    request = DatasetRequest(dataset=str(saved(table, folder / "t.csv")), label=label, **keys)
    return load_own_data(request).targets is not None


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("load", True),
        ("rounded", True),  # 150 whole numbers in 300 rows
        ("grade", False),
        ("half", False),  # three fractions
        ("often", False),  # 20 whole numbers
        ("seldom", True),  # 70 whole numbers
    ],
)
def test_the_label_tells_the_task(tmp_path: Path, label: str, found: bool) -> None:
    assert predicts_quantity(tmp_path, TABLE, label) == found


def test_whole_numbers_of_a_table_that_is_not_looked_at_whole_may_be_classes(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(20_000) / 8, "product": np.arange(20_000) % 90})
    assert not predicts_quantity(tmp_path, table, "product")
    assert predicts_quantity(tmp_path, table.assign(product=table["product"] / 8), "product")


def test_rows_given_in_python_tell_the_task_too() -> None:
    quantity = TABLE[["x", "load"]]
    for data in (quantity, datasets.Dataset.from_pandas(quantity)):
        assert "predicts load" in repr(fedscout.Federation(data, label="load", num_clients=2))
    assert "3 classes" in repr(fedscout.Federation(TABLE[["x", "grade"]], label="grade", num_clients=2))


def test_parsing_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "own_place", lambda *_: pytest.fail("opened"))
    path = saved(TABLE, tmp_path / "t.csv")
    for dataset in (path, "https://host/t.csv", "sqlite:///t.db"):
        assert load_config([f"federation.dataset={dataset}", "federation.label=load"]).federation.task is None
