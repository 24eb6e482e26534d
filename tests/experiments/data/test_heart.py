"""Heart disease by hospital: the published files, and copies of them in the ways in which they differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.loaders.tabular import HOSPITALS
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused


def patient(num: object, chol: object = 200, ca: object = 1, thal: object = "3.0", age: object = 50) -> str:
    return f"{age},1,4,120,{chol},0,0,150,0,1.5,2,{ca},{thal},{num}"


def write(folder: Path, **hospitals: list[str]) -> Path:
    (folder / "heart").mkdir(exist_ok=True)
    for hospital in HOSPITALS:
        rows = hospitals.get(hospital, [patient(0), patient(1)] * 4)
        (folder / "heart" / f"processed.{hospital}.data").write_text("\n".join([*rows, ""]))
    return folder


def test_hospitals_are_natural_clients_whether_asked_for_or_not(tmp_path: Path) -> None:
    for client_column in (None, "hospital"):
        dataset = load_dataset("heart", folder=write(tmp_path), client_column=client_column)
        assert clients_of(dataset) == [hospital for hospital in HOSPITALS for _ in range(8)]


def test_disease_is_any_mark_above_zero(tmp_path: Path) -> None:
    rows = [patient(mark) for mark in (0, 1, 2, 3, 4, 0, 0, 0)]
    dataset = load_dataset("heart", folder=write(tmp_path, cleveland=rows))
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
    dataset = load_dataset("heart", folder=write(tmp_path, cleveland=rows))
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
    dataset = load_dataset("heart", folder=write(tmp_path, va=rows))
    assert [name for name in dataset.feature_names if name.startswith("thal=")] == ["thal=3", "thal=7"]


def test_columns_may_be_left_out(tmp_path: Path) -> None:
    dataset = load_dataset("heart", folder=write(tmp_path), drop_columns=("ca", "thal"))
    assert not any(name == "ca" or name.startswith(("ca ", "thal ", "thal=")) for name in dataset.feature_names)


FILE = "processed.cleveland.data"


@pytest.mark.parametrize(
    ("rows", "key", "names"),
    [
        ([], FILE, "empty"),
        (["1,2,3"], None, (FILE, "got 3 columns")),
        ([patient(0), "1,2,3"], f"every line of {FILE}", "line 2 has 3 fields"),
        ([patient(0), patient(5)], f"column 'num', the last of {FILE},", "'5' in row 2"),
        ([patient("?")], f"column 'num', the last of {FILE},", "'?' in row 1"),
        ([patient("")], f"column 'num', the last of {FILE},", "'nothing' in row 1"),
        ([patient(0, age="old")] * 5, None, ("column 'age' of data set 'heart'", "'old' in row 1")),
        ([patient(0).replace(",", ";")], None, (FILE, "got 1 columns")),
    ],
)
def test_malformed(tmp_path: Path, rows: list[str], key: str | None, names: str | tuple[str, ...]) -> None:
    assert_refused("heart", folder=write(tmp_path, cleveland=rows), key=key, names=names)


def test_missing_files_and_other_columns(tmp_path: Path) -> None:
    with refused(DataError, key=FILE) as caught:
        load_dataset("heart", folder=tmp_path)
    assert len(caught.value.faults) == 4
    with refused(DataError, key="federation.label"):
        load_dataset("heart", folder=tmp_path, label="age", client_column="sex")


@pytest.mark.data
def test_published_files(data_folder: Path) -> None:
    dataset = load_dataset("heart", folder=data_folder)
    assert dataset.client_ids is not None
    # heart-disease.names gives these numbers of patients, and of those without disease.
    for hospital, (patients, healthy) in {
        "cleveland": (303, 164),
        "hungarian": (294, 188),
        "switzerland": (123, 8),
        "va": (200, 51),
    }.items():
        labels = dataset.labels[dataset.client_ids == hospital]
        assert (len(labels), int((labels == 0).sum())) == (patients, healthy)
    age = dataset.features[:, dataset.feature_names.index("age")].astype(np.float64)
    assert age.mean() == pytest.approx(0, abs=1e-6)
    assert age.var() == pytest.approx(1, abs=1e-6)
