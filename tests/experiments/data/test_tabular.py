"""Tables by name: the published files, and the ways in which a copy of them can be wrong."""

from __future__ import annotations

import gzip
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.data.dataset import FOLDER_VARIABLE
from fedscout.experiments.data.loaders.table import DATASETS
from fedscout.experiments.data.loaders.tabular import HOSPITALS, MEASUREMENTS
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset

HEADER = ";".join(f'"{name}"' for name in (*MEASUREMENTS, "quality"))


def row(quality: object, alcohol: object = 9.4) -> str:
    return ";".join([*(f"{index}.5" for index in range(10)), str(alcohol), str(quality)])


GOOD = "\n".join([HEADER, row(5, 9.0), row(5, 10), row(6, 11), row(6, 12), ""])


def write(folder: Path, content: str | bytes, color: str = "red") -> Path:
    return image_files.write(folder / "wine" / f"winequality-{color}.csv", content)


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


FILE = "winequality-red.csv"


@pytest.mark.parametrize(
    ("content", "key", "names"),
    [
        (GOOD.replace("alcohol", "ethanol"), FILE, "columns alcohol,"),
        (GOOD.replace("\n", ";\n"), f"the column names of {FILE}", "''"),
        (GOOD.replace(";11;", ";;"), "column 'alcohol' of data set 'wine_quality_red'", "'nothing' in 1 of 4 cells"),
        (GOOD + row("nan"), "column 'quality' of data set 'wine_quality_red'", "'nan' in 1 of 5 cells"),
    ],
    ids=["a feature missing", "delimiters at line ends", "an absent number", "an absent label"],
)
def test_malformed_file_is_one_clear_error(tmp_path: Path, content: str, key: str, names: str) -> None:
    write(tmp_path, content)
    assert_refused("wine_quality_red", folder=tmp_path, key=key, names=names)


def test_environment_names_the_folder_and_the_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert load_dataset("wine_quality_red").num_rows == 4
    assert_refused("wine_quality_red", folder=tmp_path / "elsewhere", key="elsewhere")
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert_refused("wine_quality", key="federation.folder")


def test_color_may_be_client_or_label_and_quality_then_a_feature(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace(";6\n", ";7\n"), "white")
    dataset = load_dataset("wine_quality", client_column="color", folder=tmp_path)
    assert clients_of(dataset) == ["red"] * 4 + ["white"] * 4
    assert dataset.class_names == ("5", "6", "7")
    assert "color" not in dataset.feature_names
    dataset = load_dataset("wine_quality", label="color", folder=tmp_path)
    assert dataset.class_names == ("red", "white")
    assert dataset.feature_names == (*MEASUREMENTS, "quality")
    dataset = load_dataset("wine_quality", label="color", client_column="quality", folder=tmp_path)
    assert dataset.feature_names == MEASUREMENTS


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


# Heart disease by hospital: the published files, and copies of them in the ways in which they differ.


def patient(num: object, chol: object = 200, ca: object = 1, thal: object = "3.0", age: object = 50) -> str:
    return f"{age},1,4,120,{chol},0,0,150,0,1.5,2,{ca},{thal},{num}"


def write_heart(folder: Path, **hospitals: list[str]) -> Path:
    for hospital in HOSPITALS:
        rows = hospitals.get(hospital, [patient(0), patient(1)] * 4)
        image_files.write(folder / "heart" / f"processed.{hospital}.data", "\n".join([*rows, ""]))
    return folder


def test_hospitals_are_natural_clients_whether_asked_for_or_not(tmp_path: Path) -> None:
    for client_column in (None, "hospital"):
        dataset = load_dataset("heart", folder=write_heart(tmp_path), client_column=client_column)
        assert clients_of(dataset) == [hospital for hospital in HOSPITALS for _ in range(8)]


def test_disease_is_any_mark_above_zero(tmp_path: Path) -> None:
    rows = [patient(mark) for mark in (0, 1, 2, 3, 4, 0, 0, 0)]
    dataset = load_dataset("heart", folder=write_heart(tmp_path, cleveland=rows))
    assert dataset.class_names == ("absent", "present")
    assert dataset.labels[:8].tolist() == [0, 1, 1, 1, 1, 0, 0, 0]
    marks = load_dataset("heart", label="num", folder=tmp_path)
    assert marks.class_names == ("0", "1", "2", "3", "4")
    assert marks.labels[:8].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    for label in ("disease", "num"):
        names = load_dataset("heart", label=label, folder=tmp_path).feature_names
        assert not any(name.startswith(("num", "disease", "hospital")) for name in names)


def test_gaps_and_zeros_are_missing(tmp_path: Path) -> None:
    rows = [patient(0, chol=chol, ca=ca) for chol, ca in ((0, "?"), ("NaN", "NaN"), (100, 0), (300, 2))] * 5
    dataset = load_dataset("heart", folder=write_heart(tmp_path, cleveland=rows))
    chol = dataset.features[:4, dataset.feature_names.index("chol missing")]
    assert chol.tolist() == [1, 1, 0, 0]
    ca = dataset.features[:4, dataset.feature_names.index("ca missing")]
    assert ca.tolist() == [1, 1, 0, 0]  # 0 is a number here
    assert dataset.facts["num_zeros_taken_as_missing"] == 5
    # Ten values 100 and 300 in one hospital, 200 in the 24 rows of the others: deviation 100 · root of 10/34.
    np.testing.assert_allclose(
        dataset.features[:4, dataset.feature_names.index("chol")], np.array([0, 0, -1, 1]) * np.sqrt(3.4), rtol=1e-6
    )


def test_codes_are_categories_however_they_are_written(tmp_path: Path) -> None:
    rows = [patient(0, thal="3"), patient(1, thal="7.0")] * 5
    dataset = load_dataset("heart", folder=write_heart(tmp_path, va=rows))
    assert [name for name in dataset.feature_names if name.startswith("thal=")] == ["thal=3", "thal=7"]


HEART_FILE = "processed.cleveland.data"


@pytest.mark.parametrize(
    ("rows", "key", "names"),
    [
        (["1,2,3"], None, (HEART_FILE, "got 3 columns")),
        ([patient(0), patient(5)], f"column 'num', the last of {HEART_FILE},", "'5' in row 2"),
        ([patient("")], f"column 'num', the last of {HEART_FILE},", "'nothing' in row 1"),
    ],
)
def test_malformed(tmp_path: Path, rows: list[str], key: str | None, names: str | tuple[str, ...]) -> None:
    assert_refused("heart", folder=write_heart(tmp_path, cleveland=rows), key=key, names=names)


@pytest.mark.data
def test_published_files_of_heart(data_folder: Path) -> None:
    dataset = load_dataset("heart", folder=data_folder)
    # heart-disease.names gives these numbers of patients, and of those without disease.
    published = {"cleveland": (303, 164), "hungarian": (294, 188), "switzerland": (123, 8), "va": (200, 51)}
    labels = {hospital: dataset.labels[dataset.client_ids == hospital] for hospital in published}
    assert {hospital: (len(own), int((own == 0).sum())) for hospital, own in labels.items()} == published
    age = dataset.features[:, dataset.feature_names.index("age")].astype(np.float64)
    assert age.mean() == pytest.approx(0, abs=1e-6)
    assert age.var() == pytest.approx(1, abs=1e-6)


# UNSW-NB15 and NF-UNSW-NB15: nothing that tells the label is a feature, and files are read in every form.


UNSW_HEADER = "id,dur,proto,service,state,rate,attack_cat,label"
UNSW_ROWS = [
    f"{row},0.{row}1,{('tcp', 'udp')[row % 2]},-,FIN,{row * 7},{('Normal', 'DoS')[row % 2]},{row % 2}"
    for row in range(1, 21)
]
UNSW = "\n".join([UNSW_HEADER, *UNSW_ROWS, ""])
FLOW_HEADER = (
    "IPV4_SRC_ADDR,L4_SRC_PORT,IPV4_DST_ADDR,L4_DST_PORT,PROTOCOL,L7_PROTO,IN_BYTES,OUT_BYTES,IN_PKTS,OUT_PKTS,"
    "TCP_FLAGS,FLOW_DURATION_MILLISECONDS,Label,Attack"
)
FLOW_ROWS = [
    f"10.0.0.{row % 3},{row},10.0.1.1,80,{(6, 17)[row % 2]},{(7.0, 5.126)[row % 2]},{row * 10},3,{row},1,27,{row * 5},"
    f"{row % 2},{('Benign', 'Fuzzers')[row % 2]}"
    for row in range(20)
]
FLOWS = "\n".join([FLOW_HEADER, *FLOW_ROWS, ""])


def write_unsw(folder: Path, content: str, form: str = "csv") -> Path:
    (folder / "unsw_nb15").mkdir(exist_ok=True)
    path = folder / "unsw_nb15" / f"UNSW_NB15_training-set.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("UNSW_NB15_training-set.csv", content)
    else:
        path.write_bytes(gzip.compress(content.encode()) if form.endswith("gz") else content.encode())
    return folder


@pytest.mark.parametrize("form", ["csv", "csv.gz", "zip"])
def test_unsw_in_every_form(tmp_path: Path, form: str) -> None:
    dataset = load_dataset("unsw_nb15", folder=write_unsw(tmp_path, "\ufeff" + UNSW, form))
    assert dataset.class_names == ("normal", "attack")
    assert dataset.labels.tolist() == [row % 2 for row in range(1, 21)]
    assert dataset.feature_names == ("dur", "proto=tcp", "proto=udp", "service=-", "state=FIN", "rate")
    assert dataset.facts["columns_left_out"] == ("id", "attack_cat")


def test_unsw_without_a_column_is_refused(tmp_path: Path) -> None:
    folder = write_unsw(tmp_path, UNSW.replace(",proto", ",protocol"))
    assert_refused("unsw_nb15", folder=folder, key="UNSW_NB15_training-set.csv")


@pytest.mark.parametrize(
    ("label", "names"),
    [(None, ("Benign", "Fuzzers")), ("Attack", ("Benign", "Fuzzers")), ("Label", ("benign", "attack"))],
)
def test_addresses_and_ports_are_never_features(tmp_path: Path, label: str | None, names: tuple[str, ...]) -> None:
    image_files.write(tmp_path / "nf_unsw_nb15" / "NF-UNSW-NB15.csv", FLOWS)
    dataset = load_dataset("nf_unsw_nb15", label=label, folder=tmp_path)
    assert dataset.class_names == names
    assert dataset.feature_names == (
        *("PROTOCOL=17", "PROTOCOL=6", "L7_PROTO=5.126", "L7_PROTO=7.0"),
        *("IN_BYTES", "OUT_BYTES", "IN_PKTS", "OUT_PKTS", "TCP_FLAGS", "FLOW_DURATION_MILLISECONDS"),
    )


@pytest.mark.slow
@pytest.mark.data
def test_published_unsw(data_folder: Path) -> None:
    dataset = load_dataset("unsw_nb15", label="attack_cat", folder=data_folder)
    # N. Moustafa and J. Slay, Information Security Journal 25, 2016, list these counts of the set of 82,332 records.
    kinds = ("Analysis", "Backdoor", "DoS", "Exploits", "Fuzzers")
    assert dataset.class_names == (*kinds, "Generic", "Normal", "Reconnaissance", "Shellcode", "Worms")
    assert np.bincount(dataset.labels).tolist() == [677, 583, 4089, 11132, 6062, 18871, 37000, 3496, 378, 44]
    assert dataset.facts["num_duplicate_rows"] == 26387
    assert not {"id", "label"} & set(dataset.feature_names)
    columns = {name.partition("=")[0].removesuffix(" other") for name in dataset.feature_names}
    assert len(columns) == 42


# The data sets that come with scikit-learn, against the counts that their publishers state.


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
    assert (len(dataset.feature_names), len(dataset.class_names)) == (num_features, len(class_counts))


def test_digits_are_those_that_scikit_learn_itself_loads() -> None:
    from sklearn.datasets import load_digits

    dataset, bunch = load_dataset("digits"), load_digits()
    np.testing.assert_array_equal(dataset.features * 16, bunch.data)
    np.testing.assert_array_equal(dataset.labels, bunch.target)
    assert list(dataset.feature_names) == bunch.feature_names
    assert list(dataset.class_names) == [str(name) for name in bunch.target_names]


# What holds of every data set by name: missing files are named, what it does not have or read is refused.


BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")
OF_COLUMNS = ("wine_quality", "wine_quality_red", "wine_quality_white", "unsw_nb15", "nf_unsw_nb15")
"""Data sets of which any column may be the label, or name the clients: their files are read first."""
DOCUMENT = Path(__file__).parents[3] / "docs" / "datasets.md"


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in BUNDLED])
def test_missing_files_are_named_with_place_and_publisher(tmp_path: Path, name: str) -> None:
    assert_refused(name, folder=tmp_path, names=(f"${FOLDER_VARIABLE}/", str(tmp_path), "://"))


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in OF_COLUMNS])
def test_a_label_and_clients_that_it_does_not_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, label="nonsense", client_column="nowhere", folder=tmp_path)
    found = [(fault.key, fault.given) for fault in caught.value.faults]
    assert found == [("federation.label", "'nonsense'"), ("federation.client_column", "'nowhere'")]


OF_TABLES = {"missing_values": ("-1",), "drop_columns": ("x",), "text_column": "x"}
NOT_READ = {"group_column": "x", "split": "test", "query": "SELECT 1", **OF_TABLES}


@pytest.mark.parametrize("name", NOT_READ)
def test_keys_that_a_data_set_does_not_read_are_refused(tmp_path: Path, name: str) -> None:
    choice: dict[str, Any] = {name: NOT_READ[name]}
    assert_refused("digits", key=f"federation.{name}", kind=ConfigurationError, **choice)
    if name in OF_TABLES:
        assert_refused(str(tmp_path), key=f"federation.{name}", **choice)


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert_refused("imagenet", key="federation.dataset", names=tuple(DATASETS), kind=ConfigurationError)


def test_the_documents_table_of_data_sets_is_complete() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    named = [name for line in rows for name in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])]
    assert set(named) == set(DATASETS)
