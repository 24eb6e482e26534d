"""Grades of retinopathy: one folder per hospital, or nothing."""

from __future__ import annotations

from pathlib import Path

from fedscout.experiments.data.loaders.pictures import RETINAL_GRADES
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset


def picture(path: Path, brightness: int = 0) -> None:
    image_files.picture(path, (brightness, 0, 0), size=8)


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


def test_what_is_missing_is_named_with_its_publishers(tmp_path: Path) -> None:
    assert_refused("retinal_grades", folder=tmp_path, key="retinal_grades")
