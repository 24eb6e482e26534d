"""Glaucoma or healthy, and grades of retinopathy: one folder per hospital, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.experiments.data.loaders.pictures import RETINAL, RETINAL_GRADES
from tests.experiments.data.image_files import picture
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset


def test_diagnoses_by_hospital(tmp_path: Path) -> None:
    for number, name in enumerate(("clinic/Healthy/a.png", "clinic/glaucoma/b.png", "clinic/suspect/c.png")):
        picture(tmp_path / "retinal" / name, (51 * number, 0, 0))
    picture(tmp_path / "retinal/practice/pictures/d.png", (255, 0, 0))
    (tmp_path / "retinal/practice/labels.csv").write_text("image,label\npictures/d.png,1\n")
    dataset = load_dataset("retinal", folder=tmp_path, image_size=4)
    assert dataset.class_names == ("healthy", "glaucoma")
    assert dataset.labels.tolist() == [0, 1, 1]
    assert clients_of(dataset) == ["clinic", "clinic", "practice"]
    assert (dataset.features[:, 0, 0, 0] * 255).round().tolist() == [0, 51, 255]
    assert (dataset.facts["num_suspects_left_out"], dataset.facts["label"]) == (1, "diagnosis")
    assert dataset.source == str(RETINAL)


@pytest.mark.parametrize(
    ("kinds", "key", "names"),
    [
        (("healthy", "2"), "the label of a.png", "got '2'"),
        (("suspect",), "data set 'retinal'", "suspected"),
        (("glaucoma",), "data set 'retinal'", "got 1: glaucoma"),
    ],
)
def test_what_a_label_must_say(tmp_path: Path, kinds: tuple[str, ...], key: str, names: str) -> None:
    for kind in kinds:
        picture(tmp_path / "retinal/clinic" / kind / "a.png")
    assert_refused("retinal", folder=tmp_path, key=key, names=names)


def test_grades_by_hospital(tmp_path: Path) -> None:
    for number, name in enumerate(("aptos/0/a.png", "aptos/4/b.png", "messidor/0/c.jpg", "idrid/images/d.jpg")):
        picture(tmp_path / "retinal_grades" / name, (51 * number, 0, 0))
    (tmp_path / "retinal_grades/idrid/labels.csv").write_text("image,label\nimages/d.jpg,2\n")
    dataset = load_dataset("retinal_grades", folder=tmp_path, image_size=4)
    assert (dataset.features.shape, dataset.kind) == ((4, 3, 4, 4), "image")
    assert dataset.class_names == ("0", "2", "4")
    assert dataset.labels.tolist() == [0, 2, 1, 0]
    assert clients_of(dataset) == ["aptos", "aptos", "idrid", "messidor"]
    assert dataset.source == str(RETINAL_GRADES)


@pytest.mark.parametrize("name", ["retinal", "retinal_grades"])
def test_without_hospitals(tmp_path: Path, name: str) -> None:
    picture(tmp_path / name / "0/a.png")
    picture(tmp_path / name / "1/b.png")
    assert_refused(name, folder=tmp_path, key=f"data set {name!r}")
