"""Wine Quality: the published files, and every way in which a copy of them can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.files import FOLDER_VARIABLE
from fedscout.experiments.data.loaders.tabular import MEASUREMENTS
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

HEADER = ";".join(f'"{name}"' for name in (*MEASUREMENTS, "quality"))
NUM_COLUMNS = 12


def row(quality: object = 5, alcohol: object = 9.4, delimiter: str = ";") -> str:
    return delimiter.join([*(f"{index}.5" for index in range(10)), str(alcohol), str(quality)])


GOOD = "\n".join([HEADER, row(5, 9.0), row(5, 10), row(6, 11), row(6, 12), ""])


def write(folder: Path, content: str | bytes, color: str = "red") -> Path:
    data = content.encode() if isinstance(content, str) else content
    return image_files.write(folder / "wine" / f"winequality-{color}.csv", data)


def test_well_formed_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    dataset = load_dataset("wine_quality_red", folder=tmp_path)

    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.class_names == ("5", "6")
    assert dataset.feature_names == MEASUREMENTS
    # 9, 10, 11, 12 have mean 10.5 and variance 1.25; the other columns are constant here.
    np.testing.assert_allclose(dataset.features[:, 10], np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25), rtol=1e-6)
    assert not dataset.features[:, :10].any()
    assert dataset.facts["num_constant_columns"] == 10
    assert dataset.client_ids is None


@pytest.mark.parametrize(
    "content",
    [
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD.rstrip("\n"),
        GOOD.replace('"', ""),
        GOOD.replace(";", " ; "),
        GOOD.replace("\n", "\n\n"),
    ],
    ids=["windows", "byte order mark", "no last newline", "no quotes", "spaces", "blank lines"],
)
def test_harmless_variants_read_the_same(tmp_path: Path, content: str) -> None:
    write(tmp_path, GOOD)
    expected = load_dataset("wine_quality_red", folder=tmp_path)
    write(tmp_path, content)
    dataset = load_dataset("wine_quality_red", folder=tmp_path)

    np.testing.assert_array_equal(dataset.features, expected.features)
    np.testing.assert_array_equal(dataset.labels, expected.labels)
    assert dataset.class_names == expected.class_names
    assert dataset.feature_names == expected.feature_names


FILE = "winequality-red.csv"
COLUMNS, NAMES, EVERY = f"the columns of {FILE}", f"the column names of {FILE}", f"every column of {FILE}"
LINES = f"every line of {FILE}"
ALCOHOL, QUALITY, ACIDITY = (
    f"column '{name}' of data set 'wine_quality_red'" for name in ("alcohol", "quality", "fixed acidity")
)
MALFORMED: dict[str, tuple[str | bytes, str, str]] = {
    "empty": ("", FILE, "empty"),
    "blank": ("\n\n", FILE, "empty"),
    "header alone": (HEADER + "\n", FILE, "none"),
    "comma for semicolon": (GOOD.replace(";", ","), COLUMNS, "comma"),
    "tab for semicolon": (GOOD.replace(";", "\t"), COLUMNS, "tab"),
    "one column": ("quality\n5\n6\n", COLUMNS, "one column"),
    "no header": ("\n".join([row(5, 1), row(5, 2), row(6, 3), row(6, 4)]), FILE, "fixed acidity"),
    "label missing": (GOOD.replace("quality", "mark"), FILE, "columns quality,"),
    "feature missing": (GOOD.replace("alcohol", "ethanol"), FILE, "columns alcohol,"),
    "column twice": (GOOD.replace("pH", "density"), NAMES, "'density'"),
    "column without name": (GOOD.replace('"pH"', '""'), EVERY, "column 9 "),
    "delimiter at line ends": (GOOD.replace("\n", ";\n"), EVERY, "column 13 "),
    "long line": (GOOD + row(6) + ";7\n", LINES, "line 6 has 13 fields"),
    "all lines long": (GOOD.replace(";5\n", ";5;1\n").replace(";6\n", ";6;1\n"), LINES, "line 2 has 13 fields"),
    "short line": (GOOD + "1;2;3\n", LINES, "line 6 has 3 fields, the header 12"),
    "open quote": (GOOD + '"7;1;2\n', LINES, "line 6 "),
    "word for number": (GOOD.replace(";10;", ";ten;"), ALCOHOL, "'ten' in row 2"),
    "comma decimals": (GOOD.replace(";9.0;", ";9,0;"), ALCOHOL, "'9,0' in row 1"),
    "nan": (GOOD.replace(";11;", ";NaN;"), ALCOHOL, "'NaN' in row 3"),
    "absent number": (GOOD.replace(";11;", ";;"), ALCOHOL, "'nothing' in row 3"),
    "infinity": (GOOD.replace(";12;", ";inf;"), ALCOHOL, "'inf' in row 4"),
    "overflow": (GOOD.replace(";12;", ";1e999;"), ALCOHOL, "'1e999' in row 4"),
    "repeated header": (GOOD + HEADER + "\n", ACIDITY, "'fixed acidity' in row 5"),
    "absent label": (GOOD + row(""), QUALITY, "'nothing' in row 5"),
    "nan label": (GOOD + row("nan"), QUALITY, "'nan' in row 5"),
    "one class": (GOOD.replace(";6\n", ";5\n"), QUALITY, "got 1: 5"),
    "a class per row": ("\n".join([HEADER, row(3), row(4), row(5), row(6)]), QUALITY, "(4), got 4"),
    "one row": ("\n".join([HEADER, row(3)]), QUALITY, "got 1: 3"),
    "latin-1": (GOOD.replace("pH", "p\u00c4").encode("latin-1"), FILE, "UTF-8"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", FILE, "image"),
}


@pytest.mark.parametrize(("content", "key", "names"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_file_is_one_clear_error(tmp_path: Path, content: str | bytes, key: str, names: str) -> None:
    write(tmp_path, content)
    with refused(DataError, key=key, names=names):
        load_dataset("wine_quality_red", folder=tmp_path)


def test_many_faulty_columns_are_summed_up(tmp_path: Path) -> None:
    bad = ";".join(["x"] * 11 + ["5"])
    write(tmp_path, GOOD + bad + "\n")
    with pytest.raises(DataError) as caught:
        load_dataset("wine_quality_red", folder=tmp_path)
    assert len(caught.value.faults) == 6
    assert "6 more" in caught.value.faults[-1]


def test_missing_files_are_all_named_with_publisher_and_place(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset("wine_quality", folder=tmp_path)
    red, white = caught.value.faults
    for fault, color in ((red, "red"), (white, "white")):
        name = f"wine/winequality-{color}.csv"
        for named in (str(tmp_path / name), f"${FOLDER_VARIABLE}/{name}", "UCI", "https://archive.ics.uci.edu/"):
            assert named in fault


@pytest.mark.parametrize("value", [None, ""])
def test_no_folder_at_all(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(FOLDER_VARIABLE, value)
    assert_refused("wine_quality", key="federation.folder")


def test_environment_names_the_folder_and_the_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert load_dataset("wine_quality_red").num_rows == 4
    assert_refused("wine_quality_red", folder=tmp_path / "elsewhere", key="winequality-red.csv")


@pytest.mark.parametrize("is_folder", [True, False], ids=["a folder", "packed under the plain name"])
def test_something_else_in_the_place_of_the_file(tmp_path: Path, is_folder: bool) -> None:
    if is_folder:
        (tmp_path / "wine" / FILE).mkdir(parents=True)
    else:
        write(tmp_path, gzip.compress(GOOD.encode()))
    assert_refused("wine_quality_red", folder=tmp_path, key=FILE)


def both_colors(folder: Path) -> None:
    write(folder, GOOD)
    write(folder, GOOD.replace(";6\n", ";7\n"), "white")


def test_color_as_natural_client(tmp_path: Path) -> None:
    both_colors(tmp_path)
    dataset = load_dataset("wine_quality", client_column="color", folder=tmp_path)
    assert clients_of(dataset) == ["red"] * 4 + ["white"] * 4
    assert dataset.class_names == ("5", "6", "7")
    assert "color" not in dataset.feature_names


def test_color_as_label_makes_quality_a_feature_unless_it_names_clients(tmp_path: Path) -> None:
    both_colors(tmp_path)
    dataset = load_dataset("wine_quality", label="color", folder=tmp_path)
    assert dataset.class_names == ("red", "white")
    assert dataset.feature_names == (*MEASUREMENTS, "quality")
    dataset = load_dataset("wine_quality", label="color", client_column="quality", folder=tmp_path)
    assert dataset.feature_names == MEASUREMENTS


@pytest.mark.parametrize(
    ("label", "client", "key", "names"),
    [
        ("grape", None, "federation.label", "got 'grape'; its columns are: fixed acidity,"),
        (None, "cellar", "federation.client_column", "got 'cellar'; its columns are: fixed acidity,"),
        ("color", "color", "federation.label", "'color'"),
    ],
)
def test_unusable_columns(tmp_path: Path, label: str | None, client: str | None, key: str, names: str) -> None:
    both_colors(tmp_path)
    assert_refused("wine_quality", label=label, client_column=client, folder=tmp_path, key=key, names=names)


@pytest.mark.data
def test_published_files(data_folder: Path) -> None:
    red = load_dataset("wine_quality_red", folder=data_folder)
    white = load_dataset("wine_quality_white", folder=data_folder)
    both = load_dataset("wine_quality", client_column="color", folder=data_folder)

    assert (red.num_rows, white.num_rows, both.num_rows) == (1599, 4898, 6497)
    assert red.facts["num_duplicate_rows"] + white.facts["num_duplicate_rows"] == 1177
    assert both.class_names == ("3", "4", "5", "6", "7", "8", "9")
    assert both.features.shape[1] == 11
    # winequality.names lists these marks for red wines.
    assert np.bincount(red.labels).tolist() == [10, 53, 681, 638, 199, 18]
