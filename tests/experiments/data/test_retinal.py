"""Glaucoma or healthy, by hospital: each collection is written here as its publisher describes it, and read as that."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.loaders.pictures import RETINAL, RETINAL_GRADES
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset

# The header of SMDG-19's `metadata - standardized.csv`, as published.
SMDG_HEADER = (
    "names,types,type_expanded,isColor,original_name,patient_id,fundus,fundus_od_seg,fundus_oc_seg,bv_seg,artery_seg,"
    "vein_seg,oct,oct_oc_seg,oct_od_seg,sex,gender,age,eye,sbp,dbp,hr,iop,vcdr,Unnamed: 24,notchI_present,"
    "notchS_present,notchN_present,notchT_present,expert1_grade,expert2_grade,expert3_grade,expert4_grade,"
    "expert5_grade,cdr_avg,cdr_expert1,cdr_expert2,cdr_expert3,cdr_expert4,refractive_dioptre_1,refractive_dioptre_2,"
    "refractive_astigmatism,phakic_or_pseudophakic,iop_perkins,iop_pneumatic,pachymetry,axial_length,"
    "visual_field_mean_defect"
)
SMDG = {  # by name: types
    "OIA-ODIR-TRAIN-1": 0,
    "OIA-ODIR-TEST-OFFLINE-57": -1,
    "OIA-ODIR-TEST-OFFLINE-63": 1,
    "JSIEC-1000-3": 1,
    "REFUGE1-VAL-2": 0,
    "DRISHTI-GS1-train-9": 1,
    "PAPILA-473": -1,
    "PAPILA-488": 0,
    "CRFO-v4-12": 1,
}


def picture(path: Path, brightness: int = 0) -> None:
    image_files.picture(path, (brightness, 0, 0), size=8)


def write_table(path: Path, columns: list[str], rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def write_smdg(folder: Path, types: Mapping[str, object] = SMDG, pictures: str = "full-fundus/full-fundus") -> Path:
    rows: list[dict[str, object]] = []
    for number, (name, kind) in enumerate(types.items()):
        rows.append({"names": name, "types": kind, "isColor": 1, "fundus": f"/full-fundus/{name}.png"})
        picture(folder / pictures / f"{name}.png", number)
        picture(folder / "optic-disc/optic-disc" / f"{name}.png")  # not to be read
    write_table(folder / "metadata - standardized.csv", SMDG_HEADER.split(","), rows)
    return folder


def load(tmp_path: Path, **choices: object) -> Dataset:
    return load_dataset("retinal", folder=tmp_path, image_size=4, **choices)


def diagnoses(dataset: Dataset) -> list[tuple[str, str]]:
    names = [dataset.class_names[label] for label in dataset.labels]
    return list(zip(clients_of(dataset), names, strict=True))


@pytest.mark.parametrize("pictures", ["full-fundus/full-fundus", "full-fundus"])
def test_smdg(tmp_path: Path, pictures: str) -> None:
    write_smdg(tmp_path / "retinal/SMDG-19", pictures=pictures)
    dataset = load(tmp_path)
    assert dataset.class_names == ("healthy", "glaucoma")
    assert diagnoses(dataset) == [
        ("OIA-ODIR", "healthy"),
        ("OIA-ODIR", "glaucoma"),
        ("JSIEC-1000", "glaucoma"),
        ("REFUGE1", "healthy"),
        ("DRISHTI-GS1", "glaucoma"),
        ("PAPILA", "healthy"),
        ("CRFO-v4", "glaucoma"),
    ]
    assert (dataset.features[:, 0, 0, 0] * 255).round().tolist() == [0, 2, 3, 4, 5, 7, 8]
    assert dataset.facts["num_suspects_left_out"] == 2
    assert dataset.facts["label"] == "diagnosis"
    assert dataset.source == str(RETINAL)


def test_origa_and_g1020(tmp_path: Path) -> None:
    write_table(
        tmp_path / "retinal/ORIGA/OrigaList.csv",
        ["Eye", "Filename", "ExpCDR", "Set", "Glaucoma"],
        [
            {"Eye": "OD", "Filename": "001.jpg", "ExpCDR": 0.7097, "Set": "A", "Glaucoma": 0},
            {"Eye": "OS", "Filename": "002.jpg", "ExpCDR": 0.6953, "Set": "B", "Glaucoma": 1},
        ],
    )
    write_table(
        tmp_path / "retinal/G1020/G1020.csv",
        ["imageID", "binaryLabels"],
        [{"imageID": "image_0.jpg", "binaryLabels": 1}, {"imageID": "image_1.jpg", "binaryLabels": 0}],
    )
    for name in ("ORIGA/Images/001", "ORIGA/Images/002", "G1020/Images/image_0", "G1020/Images/image_1"):
        picture(tmp_path / f"retinal/{name}.jpg")
    (tmp_path / "retinal/G1020/Images/image_0.json").write_text("{}")  # outlines, beside each picture
    assert diagnoses(load(tmp_path)) == [
        ("G1020", "glaucoma"),
        ("G1020", "healthy"),
        ("ORIGA", "healthy"),
        ("ORIGA", "glaucoma"),
    ]


@pytest.mark.parametrize("above", ["", "REFUGE-Training400/"])
def test_refuge(tmp_path: Path, above: str) -> None:
    folder = tmp_path / "retinal/REFUGE" / above
    picture(folder / "Training400/Glaucoma/g0001.jpg")
    picture(folder / "Training400/Non-Glaucoma/n0001.jpg")
    picture(folder / "Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0001.bmp")
    assert diagnoses(load(tmp_path)) == [("REFUGE", "glaucoma"), ("REFUGE", "healthy")]


def test_rim_one_dl_is_of_two_hospitals(tmp_path: Path) -> None:
    folder = tmp_path / "retinal/RIM-ONE/RIM-ONE_DL_images"
    for part in ("partitioned_by_hospital", "partitioned_randomly"):
        picture(folder / part / "training_set/glaucoma/r2_Im365.png")
        picture(folder / part / "training_set/normal/r2_Im001.png")
        picture(folder / part / "test_set/normal/r3_N-1.png")
    (folder / "LICENSE.txt").write_text("terms")
    assert sorted(diagnoses(load(tmp_path))) == [
        ("RIM-ONE/test_set", "healthy"),
        ("RIM-ONE/training_set", "glaucoma"),
        ("RIM-ONE/training_set", "healthy"),
    ]


def test_collections_side_by_side_are_natural_clients(tmp_path: Path) -> None:
    write_smdg(tmp_path / "retinal/SMDG-19")
    picture(tmp_path / "retinal/clinic/Healthy/a.png")
    picture(tmp_path / "retinal/clinic/glaucoma/b.png")
    picture(tmp_path / "retinal/practice/pictures/c.png")
    (tmp_path / "retinal/practice/labels.csv").write_text("image,label\npictures/c.png,1\n")
    config = FederationConfig(
        dataset="retinal", folder=tmp_path, image_size=8, partition=PartitionConfig(kind="natural"), min_release=1
    )
    federation = build_federation(config, ModelConfig(kind="linear"))
    names = federation.facts["client_names"]
    assert set(names) == {"OIA-ODIR", "JSIEC-1000", "REFUGE1", "DRISHTI-GS1", "PAPILA", "CRFO-v4", "clinic", "practice"}
    assert federation.partition.sizes[names.index("clinic")] == 2


@pytest.mark.parametrize(
    ("types", "key", "names"),
    [
        ({"BEH-1": 0, "BEH-2": 2}, "the label of BEH-2.png", "got '2'"),
        ({"BEH-1": 0, "BEH-2": ""}, "the label of BEH-2.png", "got ''"),
        ({"BEH-1": 0, "7": 1}, "the names of metadata - standardized.csv", "got '7'"),
        ({"BEH-1": 0, "BEH-x": 1}, "the names of metadata - standardized.csv", "got 'BEH-x'"),
        ({"BEH-1": -1}, "data set 'retinal'", "suspected"),
        ({"BEH-1": 1, "BEH-2": 1}, "data set 'retinal'", "got 1: glaucoma"),
    ],
)
def test_what_a_table_must_say(tmp_path: Path, types: dict[str, object], key: str, names: str) -> None:
    write_smdg(tmp_path / "retinal/SMDG-19", types)
    assert_refused("retinal", folder=tmp_path, key=key, names=names)


def test_missing_pictures_are_counted(tmp_path: Path) -> None:
    folder, missing = write_smdg(tmp_path / "retinal/SMDG-19"), ("JSIEC-1000-3", "PAPILA-488")
    for name in missing:
        (folder / f"full-fundus/full-fundus/{name}.png").unlink()
    key = "the pictures that metadata - standardized.csv names"
    assert_refused("retinal", folder=tmp_path, key=key, names=missing)


def test_what_the_folder_must_hold(tmp_path: Path) -> None:
    picture(tmp_path / "retinal/clinics/one/healthy/a.png")
    assert_refused("retinal", folder=tmp_path, key="clinics")


# Grades of retinopathy: one folder per hospital, or nothing.


def test_hospitals_are_the_natural_clients(tmp_path: Path) -> None:
    for number, name in enumerate(("aptos/0/a.png", "aptos/4/b.png", "messidor/0/c.jpg")):
        picture(tmp_path / "retinal_grades" / name, 51 * number)
    picture(tmp_path / "retinal_grades/idrid/images/d.jpg")
    (tmp_path / "retinal_grades/idrid/labels.csv").write_text("image,label\nimages/d.jpg,2\n")
    dataset = load_dataset("retinal_grades", folder=tmp_path, image_size=4)
    assert (dataset.name, dataset.features.shape, dataset.kind) == ("retinal_grades", (4, 3, 4, 4), "image")
    assert dataset.class_names == ("0", "2", "4")
    assert dataset.labels.tolist() == [0, 2, 1, 0]
    assert clients_of(dataset) == ["aptos", "aptos", "idrid", "messidor"]
    assert dataset.source == str(RETINAL_GRADES)


def test_without_hospitals(tmp_path: Path) -> None:
    picture(tmp_path / "retinal_grades/0/a.png")
    picture(tmp_path / "retinal_grades/1/b.png")
    assert_refused("retinal_grades", folder=tmp_path, key="data set 'retinal_grades'")
