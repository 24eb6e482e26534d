"""What cells mean, what becomes of columns that nobody prepared, and what is refused rather than guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedscout
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.data import own
from fedscout.experiments.data.columns import (
    Column,
    NumberFormat,
    date_order,
    missing_codes,
    number_format,
    parts_of_time,
    typed_columns,
)
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.own_columns import SUSPECTED, goodman_kruskal_lambda, parts_of_sum, suspicion
from fedscout.experiments.data.table_files import plain_cells, read_csv, read_frame
from fedscout.experiments.data.tables import encoded_rows
from fedscout.experiments.description import dependence_notes
from fedscout.experiments.federation import build_federation
from tests.experiments.data.awkward_tables import patients, saved, tweets
from tests.experiments.data.loading import assert_refused, load_dataset, told
from tests.kits.refusals import refused

NAN = float("nan")


def typed(cells: list[object], categories: tuple[str, ...] = ()) -> Column:
    (column,) = typed_columns("t.csv", pa.table({"x": plain_cells(pa.array(cells))}), ["x"], categories)
    return column


def meaning(column: Column) -> list[float | str | None]:
    """Return what each cell means: a number or a category, None where it is missing."""
    values = column.cells if column.categories is None else [column.categories[code] for code in column.cells]
    return [None if is_missing else value for is_missing, value in zip(column.missing, values, strict=True)]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2.5", "+3", "1e3", ".5"], [1, -2.5, 3, 1000, 0.5]),
        (["1", "", "NA", "nan", "?", "null", "N/A", "None", "2"], [1, *[None] * 7, 2]),
        (["true", "False", "TRUE", ""], [1, 0, 1, None]),
        ([1, 2, 3], [1, 2, 3]),
        ([1.5, NAN], [1.5, None]),
        (["1e150", "-1e150"], [1e150, -1e150]),
        (["b", "", "NA", "a", "b"], ["b", None, None, "a", "b"]),
        (["7", "x", "y"], ["7", "x", "y"]),  # most are names
        (["true", "maybe"], ["true", "maybe"]),
    ],
)
def test_what_cells_mean(cells: list[object], expected: list[Any]) -> None:
    column = typed(cells)
    assert meaning(column) == expected
    assert column.categories is None or list(column.categories) == sorted({*expected} - {None})


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["6.0", "3", "", "6"], ["6.0", "3", None, "6"]),  # a text is its own name
        (["007", "7"], ["007", "7"]),
        ([6.0, 3.0, NAN], ["6", "3", None]),  # of a type in which gaps make whole numbers fractions
        ([6.5, 3.0], ["6.5", "3.0"]),
        ([2**63 - 1, 7], ["9223372036854775807", "7"]),
    ],
)
def test_numbers_declared_categories(cells: list[object], names: list[str | None]) -> None:
    assert meaning(typed(cells, categories=("x",))) == names


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["", "NA", "?"], "none in 3 rows"),
        (["1", "2", "x"], "'x' in 1 of 3 cells"),
        (["9,4", "1,5"], "'9,4' in 2 of 2 cells"),
        (["1", "1e999", "-inf"], "'1e999' in 2 of 3 cells"),
        ([1.0, float("inf")], "'inf' in 1 of 2 cells"),
        (["1e151", "2"], "'1e151'"),
        (["", "31.01.2024", "1.2.24"], "dates, got '31.01.2024' in 2 of 3 cells"),
        (["2024-01-31 10:00", "2024-01-31T10:00:00Z"], "dates"),
        (["10:30", "11:45:10"], "dates"),
        ([pd.Timestamp("2024-01-31"), pd.Timestamp("2024-02-01")], "dates"),
    ],
)
def test_what_is_neither_is_refused_with_the_way_out(cells: list[object], named: str) -> None:
    with pytest.raises(DataError) as caught:
        typed(cells)
    for part in ("column 'x' of data set 't.csv'", named, "federation.drop_columns=[x]"):
        assert part in str(caught.value)


def test_of_many_faulty_columns_some_are_named_and_the_others_counted() -> None:
    table = pa.table({f"x{index}": ["1", "2", "x"] for index in range(8)})
    with pytest.raises(DataError) as caught:
        typed_columns("t.csv", table, table.column_names)
    assert len(caught.value.faults) == 6


# A column that tells the label is suspected, one that is independent of it is not.


ROWS = np.arange(400)


def labels(shares: list[float]) -> np.ndarray:
    return np.random.default_rng(0).choice(len(shares), len(ROWS), p=shares)


def test_the_share_is_that_of_the_mistakes_saved() -> None:
    """By hand: 30 rows of class 0 and 30 of class 1; one cell of 10 rows is mixed half and half, so no row is told."""
    classes = np.repeat([0, 1], 30)
    codes = np.repeat([0, 2, 1], [25, 10, 25])
    assert goodman_kruskal_lambda(codes, classes) == (25 + 25 - 30) / 30
    assert goodman_kruskal_lambda(classes, classes) == 1
    # a tie of 29 and 30 others votes for the other class
    assert goodman_kruskal_lambda(np.zeros(60, np.int64), classes) == -1
    assert goodman_kruskal_lambda(ROWS, labels([0.7, 0.3])) == 0  # names that all differ
    few = np.where(ROWS < 19, 1, 0)
    assert goodman_kruskal_lambda(few, few) == -np.inf  # too few rows of the other class


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.9, 0.1], [0.2] * 5])
def test_copies_are_suspected(shares: list[float]) -> None:
    classes, names = labels(shares), tuple("abcde"[: len(shares)])
    noise = np.random.default_rng(1).normal(size=len(ROWS)) * 0.01
    numbers = (classes.astype(float), classes + noise)
    copies = [Column("x", classes, names), *(Column("x", copy) for copy in numbers)]
    assert [suspicion(copy, classes, names, ROWS) for copy in copies] == ["predicts the label nearly exactly"] * 3


def test_what_orders_the_classes_and_gaps_that_tell_one_are_suspected() -> None:
    ordered, names = np.repeat([1, 0, 2], [150, 150, 100]), ("a", "b", "c")
    assert suspicion(Column("x", ROWS.astype(float)), ordered, names, ROWS)
    classes = labels([0.4, 0.3, 0.3])
    gaps = np.where(classes == 2, np.nan, np.random.default_rng(2).normal(size=len(ROWS)))
    told = suspicion(Column("x", gaps), classes, names, ROWS)
    assert told == "separates class c from the others nearly exactly"


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.95, 0.05], [0.4, 0.3, 0.2, 0.1]])
def test_independent_columns_are_far_from_suspected(shares: list[float]) -> None:
    """Of 3000 columns, none comes half as near as it takes."""
    generator = np.random.default_rng(3)
    classes = labels(shares)
    found = []
    for _ in range(1000):
        column = generator.permutation(ROWS)
        found += [goodman_kruskal_lambda(codes, classes) for codes in (column // 5, column // 40, column % 2)]
    assert max(found) < SUSPECTED / 2


# Tables with the faults of public files: identifiers, numbers as people write them, codes for missing, leaks.


RAW = Path(__file__).parents[2] / "fixtures" / "raw"
LEAKS = (f"federation.dataset={RAW / 'types_leaks.csv'}", "federation.label=label", "federation.client_column=ward")


def load(name: str, label: str = "label", **choices: Any) -> Dataset:
    return load_dataset(str(RAW / f"types_{name}.csv"), label=label, **choices)


def table_of(tmp_path: Path, columns: dict[str, Any]) -> str:
    num_rows = len(next(iter(columns.values())))
    draw = np.random.default_rng(0)
    table = pd.DataFrame({**columns, "x": draw.normal(size=num_rows).round(3), "y": draw.permutation(num_rows) % 2})
    return str(saved(table, tmp_path / "t.csv"))


@pytest.mark.parametrize("kind", ["group", "identifier"])
def test_a_copy_of_an_identifier_is_one(tmp_path: Path, kind: str) -> None:
    people = [row // 3 for row in range(60)]
    path = table_of(tmp_path, {"SUB_ID": [f"s{one}" for one in people], "who": [7 * one % 20 for one in people]})
    dataset = load_dataset(path, label="y", group_column="SUB_ID" if kind == "group" else None)
    assert (told(dataset)["SUB_ID"], told(dataset)["who"]) == (kind, "identifier")
    assert told(dataset, "key")["SUB_ID"] == f"federation.group_column{'=SUB_ID' if kind == 'identifier' else ''}"


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("id_student", [row // 2 for row in range(60)], "identifier"),
        ("subject", [row % 25 for row in range(60)], "identifier"),
        ("patient_age", [row % 25 for row in range(60)], "number"),
        ("account", [10_000_000 + 977 * row for row in range(60)], "identifier"),
        ("serial", [2**62 + 3 * row for row in range(60)], "identifier"),
        ("year", [1990 + row % 20 for row in range(60)], "number"),
        ("cycle", [row % 20 for row in range(60)], "identifier"),
        ("height", [(12, 80, 400)[row // 20] for row in range(60)], "number"),
        ("name", [("c0", "c1", "c2")[row // 20] for row in range(60)], "identifier"),
        ("city", [("p", "q", "r")[row // 20] for row in range(60)], "identifier"),
        ("colour", [("p", "q", "r")[row % 3] for row in range(60)], "category"),
    ],
)
def test_what_names_rows(tmp_path: Path, name: str, values: list[Any], kind: str) -> None:
    """Beside three clients of twenty rows; what a site has measured once is a feature, another name of it is none."""
    path = table_of(tmp_path, {name: values, "client": [f"c{row // 20}" for row in range(60)]})
    assert told(load_dataset(path, label="y", client_column="client"))[name] == kind


# Numbers as people write them: one format for the whole column.


@pytest.mark.parametrize(
    ("texts", "example", "numbers"),
    [
        (["446.864.000", "1.234", "900"], "1.234,5", [446_864_000, 1234, 900]),
        (["1,234", "987"], "1,234.5", [1234, 987]),
        (["1,234", "1,234.5"], "1,234.5", [1234, 1234.5]),
        (["1'000", "50"], "1'234.5", [1000, 50]),
        (["1 234", "12 345 678"], "1 234,5", [1234, 12_345_678]),
        (["1 234.5", "12\u00a0345"], "1 234.5", [1234.5, 12_345]),
        (["1,5", "0,750", ",5", "1e3"], "1234,5", [1.5, 0.75, 0.5, 1000]),
        (["0,123", "0,456"], "1234,5", [0.123, 0.456]),  # no thousands begin with 0
        (["$1,200", "$ 350,000", "-$1,000"], "$1,234.5", [1200, 350_000, -1000]),
        (["12 kg/m2", "3.5kg/m2", "1e3 kg/m2"], "1234.5 kg/m2", [12, 3.5, 1000]),
        (["75,5 %", "-3 %", "+1 %"], "1234,5 %", [75.5, -3, 1]),
    ],
)
def test_a_format_of_numbers(texts: list[str], example: str, numbers: list[float]) -> None:
    cells = pa.chunked_array([[*texts, None]])
    found = number_format(cells, are_numbers=False)
    assert found.described == f"a number, written as in {example}"
    np.testing.assert_array_equal(found.column("x", cells).cells, [*numbers, NAN])


@pytest.mark.parametrize("texts", ["1.5|7", "Y|N", "a|12 kg", "5 kg|6 lb", "1950-2200|1", "192.168.1.1", "2 kg|3 kg|k"])
def test_what_has_no_format_of_numbers(texts: str) -> None:
    assert number_format(pa.chunked_array([texts.split("|")]), are_numbers=False) == NumberFormat()


@pytest.mark.parametrize("unit", ["", " kg", " €"])
def test_commas_that_may_be_thousands_or_decimals_are_refused_unless_overruled(tmp_path: Path, unit: str) -> None:
    path = table_of(tmp_path, {"n": [f"{row % 9 + 1},{row + 100}{unit}" for row in range(30)]})
    assert_refused(path, label="y", names=(f"'1,100{unit}' in 30 of 30 cells", "federation.columns.n=number"))
    dataset = load_dataset(path, label="y", columns={"n": "number"})
    assert told(dataset, "became")["n"] == f"a number, written as in 1234,5{unit}"


def test_a_column_of_which_most_has_a_format_is_refused_with_the_count_and_the_keys(tmp_path: Path) -> None:
    path = table_of(tmp_path, {"weight": [*(f"{row} kg" for row in range(30)), "heavy", "5 lb"]})
    keys = ("federation.columns.weight=number", "federation.drop_columns=[weight]")
    assert_refused(path, label="y", names=("1234.5 kg", "'heavy' in 2 of 32 cells", *keys))
    lenient = load_dataset(path, label="y", columns={"weight": "number"})
    dataset = load_dataset(path, label="y", missing_values=("heavy", "5 lb"))
    assert dataset.feature_names[:2] == lenient.feature_names[:2] == ("weight", "weight missing")
    np.testing.assert_array_equal(dataset.features, lenient.features)
    encoding = dataset.encoding
    for cell in ("5 lb", "5"):  # of a client: another unit, or none
        with refused(DataError, key="column 'weight' of table 'own'"):
            encoded_rows("own", pa.table({"weight": ["5 kg", cell], "x": [1.0, 2.0]}), encoding)
    typed_rows = encoded_rows("own", pa.table({"weight": [0.0, 29.0], "x": [0.0, 0.0]}), encoding)
    np.testing.assert_array_equal(typed_rows[:, 0], dataset.features[[0, 29], 0])


# Codes for missing values.


@pytest.mark.parametrize("missing", [[-9999, "unknown"], ["-9999.0", "UNKNOWN"]])
def test_codes_for_missing_values_are_suspected_and_replaced_where_asked(missing: list[Any]) -> None:
    dataset = load("numbers", client_column="site")
    assert told(dataset, "missing_codes") == {"temperature": ("-9999",), "smoker": ("unknown",)}
    said = load_config([f"federation.missing_values={missing}"]).federation.missing_values
    clean = load("numbers", client_column="site", missing_values=said)
    assert told(clean, "missing_codes") == {}
    assert {"temperature missing", "smoker missing"} <= {*clean.feature_names}
    assert clean.facts["num_missing_cells"] == 5 + 7


@pytest.mark.parametrize(
    ("numbers", "codes"),
    [
        ([*range(18, 90), *[999] * 3], {"999": 3}),
        ([*range(18, 90), *[99_999] * 3, *[-99_999] * 4], {"-99999": 4, "99999": 3}),
        ([*range(0, 1000, 7), *[999] * 3], {}),
        ([*range(10), *[-9] * 4], {"-9": 4}),
        ([*range(-12, 12), *[-9] * 4], {}),
        ([-99.0] * 5, {}),
        ([*range(5), *[99] * 3, *[-9999] * 4], {"-9999": 4, "99": 3}),
    ],
)
def test_what_is_a_code_for_missing_numbers(numbers: list[float], codes: dict[str, int]) -> None:
    assert missing_codes(Column("x", np.array(numbers, np.float64))) == codes


@pytest.mark.parametrize("values", [[1, 2, None], [1.5, 2.5, None], ["1", "2", None], [True, False, None]])
def test_a_categorical_of_numbers_is_a_category(tmp_path: Path, values: list[Any]) -> None:
    frame = pd.DataFrame({"code": pd.Categorical(values * 20), "x": np.arange(60) / 7, "y": [*"ab"] * 30})
    frame.to_parquet(tmp_path / "t.parquet")
    dataset = load_dataset(str(tmp_path / "t.parquet"), label="y")
    assert told(dataset)["code"] == "category"
    assert read_frame(frame).schema.field("code").metadata == {b"kind": b"category"}


# Leaks.


def test_leaks_are_told_with_the_key_that_drops_them() -> None:
    dataset = load("leaks", client_column="ward")
    assert {*told(dataset, "suspicion")} == {"dsm", "reason", "aqi"}
    config = load_config(LEAKS)
    note = dependence_notes(build_federation(config.federation, config.model), 0, 0.2)[0]
    assert note.startswith("federation.drop_columns=[dsm,reason,aqi] ")
    kept = load("leaks", client_column="ward", drop_columns=("dsm", "reason", "aqi"))
    assert told(kept, "suspicion") == {}


def test_sums_that_are_the_label_but_for_noise_are_no_leak() -> None:
    draw, rows = np.random.default_rng(0), np.arange(200)
    first, second = draw.normal(size=(2, 200))
    columns = [Column("a", first), Column("b", second)]
    assert parts_of_sum(columns, first + second, rows) == ["a", "b"]
    assert parts_of_sum(columns, first + second + draw.normal(0, 0.05, 200), rows) == []
    assert parts_of_sum(columns[:1], first, rows) == []


def test_what_is_missing_by_chance_is_no_leak() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 500)
    for _ in range(100):
        codes = np.where(draw.random(500) < 0.9, -1, draw.integers(0, 3, 500))
        assert not suspicion(Column("x", codes, ("a", "b", "c")), labels, ("n", "y"), np.arange(500))
    held = np.where((labels == 1) & (draw.random(500) < 0.3), 0, -1)
    assert suspicion(Column("x", held, ("a",)), labels, ("n", "y"), np.arange(500))


# Labels, texts and categories.


@pytest.mark.parametrize("num_words", [1, 9])
def test_few_different_values_are_a_category_however_many_words_each(tmp_path: Path, num_words: int) -> None:
    """Also where each client is too small to see that they repeat."""
    draw = np.random.default_rng(0)
    said = [" ".join(f"word{number}" for number in draw.integers(0, 999, num_words)) for _ in range(20)]
    columns = {"said": draw.permutation(said * 100), "client": np.arange(2000) // 20, "y": draw.integers(0, 2, 2000)}
    path = str(saved(pd.DataFrame(columns).assign(x=draw.normal(size=2000)), tmp_path / "t.csv"))
    assert told(load_dataset(path, label="y", client_column="client"))["said"] == "category"
    seen = load_dataset(path, label="y", client_column="client", min_release=1)
    assert sum(name.startswith("said=") for name in seen.feature_names) == 20


# Kinds of columns: what is left out, what overrules it, what clients do alone.


def load_own(tmp_path: Path, table: pd.DataFrame, label: str, client: str | None = None, **choices: Any) -> Dataset:
    return load_dataset(str(saved(table, tmp_path / "t.csv")), label=label, client_column=client, **choices)


def test_tweets(tmp_path: Path) -> None:
    dataset = load_own(tmp_path, tweets(), "airline_sentiment", "airline")
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
    usual = {*load_own(tmp_path, patients(), "outcome", "hospital").feature_names}
    dataset = load_own(tmp_path, patients(), "outcome", "hospital", columns=kinds)
    gone = {name for name in usual if name.split(" ")[0] in kinds}
    assert {*dataset.feature_names} == (usual - gone) | names


def test_a_word_among_numbers_is_refused_unless_overruled(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": ["1", "2", "many", *"4567" * 5], "y": [*"abbaabbaabb"] * 2 + ["a"]})
    named = ("'many' in 1 of 23 cells", "federation.columns.x=number", "federation.columns.x=category")
    assert_refused(str(saved(table, tmp_path / "t.csv")), label="y", names=named)
    assert_refused(str(tmp_path / "t.csv"), label="x", columns={"y": "number"})  # which has none
    dataset = load_own(tmp_path, table, "y", columns={"x": "number"})
    assert told(dataset, "became")["x"] == "a number; words count as missing in 1 of 23 rows"
    assert dataset.features[2].tolist() == [0, 1]


def test_a_running_number_is_used_where_there_is_nothing_else(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": range(40), "y": ["a", "b"] * 20})
    assert load_own(tmp_path, table, "y").feature_names == ("age",)
    assert load_own(tmp_path, table.assign(x=table["age"] / 8), "y").feature_names == ("x",)


def test_alone_or_beside_dates_a_text_is_the_row_unless_they_are_asked_for(tmp_path: Path) -> None:
    table = tweets()[["tweet_id", "tweet_created", "text", "airline_sentiment"]]
    alone = load_own(tmp_path, table.drop(columns="tweet_created"), "airline_sentiment")
    assert told(alone) == {"tweet_id": "identifier", "text": "text", "airline_sentiment": "label"}
    dataset = load_own(tmp_path, table, "airline_sentiment")
    assert [(read.kind, read.facts["text_column"]) for read in (alone, dataset)] == [("tokens", "text")] * 2
    assert told(dataset, "became")["tweet_created"] == "left out: text is the only feature"
    assert told(dataset, "key")["tweet_created"] == "federation.columns.tweet_created=date"
    asked = load_own(tmp_path, table, "airline_sentiment", columns={"tweet_created": "date"})
    assert asked.kind == "table"
    assert told(asked)["text"] == "text"


def test_a_kind_is_a_key_of_the_configuration() -> None:
    for argument, columns in ((".zip=date", {"zip": "date"}), ("={zip: date, 7: drop}", {"zip": "date", "7": "drop"})):
        assert load_config([f"federation.columns{argument}"]).federation.columns == columns
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
        dataset = load_own(tmp_path, table, label, client, columns=kinds)
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


NUMBERED = np.arange(300)
LABELS = {
    "load": NUMBERED / 8,
    "rounded": NUMBERED // 2,
    "grade": NUMBERED % 3,
    "often": NUMBERED % 20,
    "seldom": NUMBERED % 70,
    "half": NUMBERED % 3 / 2,
}
TABLE = pd.DataFrame({"x": np.sin(NUMBERED), **LABELS})


def predicts_quantity(folder: Path, table: pd.DataFrame, label: str) -> bool:
    return load_dataset(str(saved(table, folder / "t.csv")), label=label).targets is not None


def test_the_label_tells_the_task(tmp_path: Path) -> None:
    """Fractions, and whole numbers of which there are 150 or 70 in 300 rows; not 20 of them, nor three fractions."""
    assert {label for label in LABELS if predicts_quantity(tmp_path, TABLE, label)} == {"load", "rounded", "seldom"}


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
