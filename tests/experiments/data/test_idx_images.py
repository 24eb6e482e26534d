"""MNIST, Fashion-MNIST and EMNIST: files of the IDX format, whole and damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.data.files import FOLDER_VARIABLE
from fedscout.experiments.data.loaders.table import DATASETS
from tests.experiments.data.image_files import idx_bytes, random_images, write, write_idx
from tests.experiments.data.loading import assert_refused, load_dataset
from tests.kits.refusals import refused

TEN = np.arange(10).repeat(2)
IMAGES = random_images(20, 28, 28)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_pixels_and_labels_are_those_of_the_files(tmp_path: Path, name: str, packed: bool) -> None:
    write_idx(tmp_path / name, IMAGES, TEN, packed=packed)
    dataset = load_dataset(name, folder=tmp_path)

    assert (dataset.kind, dataset.features.shape, dataset.features.dtype) == ("image", (20, 1, 28, 28), np.float32)
    np.testing.assert_array_equal(np.rint(dataset.features[:, 0] * 255), IMAGES)
    assert (dataset.features.min(), dataset.features.max()) == (0, 1)
    np.testing.assert_array_equal(dataset.labels, TEN)
    assert dataset.client_ids is None


def test_the_unit_is_one_standard_deviation_of_the_image(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", IMAGES, TEN)
    dataset = load_dataset("mnist", folder=tmp_path)
    variance = (dataset.features.astype(np.float64) / dataset.feature_unit).var(axis=0)
    assert variance.mean() == pytest.approx(1)


def test_names_with_a_dot_are_read(tmp_path: Path) -> None:
    write(tmp_path / "mnist" / "train-images.idx3-ubyte", idx_bytes(IMAGES))
    write(tmp_path / "mnist" / "train-labels.idx1-ubyte", idx_bytes(TEN.astype(np.uint8)))
    assert load_dataset("mnist", folder=tmp_path).num_rows == 20


def test_a_part_is_chosen_by_split_and_the_training_part_is_usual(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", IMAGES, TEN)
    write_idx(tmp_path / "mnist", random_images(10, 28, 28, seed=1), np.arange(10), start="t10k")
    train, test, everything = (load_dataset("mnist", folder=tmp_path, split=split) for split in (None, "test", "all"))
    assert (train.num_rows, test.num_rows) == (20, 10)
    np.testing.assert_array_equal(everything.features, np.concatenate([train.features, test.features]))
    np.testing.assert_array_equal(everything.labels, np.concatenate([train.labels, test.labels]))
    assert_refused("mnist", folder=tmp_path, split="validation", key="federation.split", given="'validation'")


def test_data_in_one_part_have_no_split() -> None:
    assert_refused("wine", split="test", key="federation.split", given="'test' for 'wine'", kind=ConfigurationError)


@pytest.mark.parametrize(
    ("name", "num_classes", "first", "characters"),
    [  # table II of the paper
        ("emnist", 47, 0, "0A"),
        ("emnist_balanced", 47, 0, "0A"),
        ("emnist_bymerge", 47, 0, "0A"),
        ("emnist_byclass", 62, 0, "0A"),
        ("emnist_letters", 26, 1, "ak"),
        ("emnist_digits", 10, 0, "0"),
        ("emnist_mnist", 10, 0, "0"),
    ],
)
def test_emnist_stands_upright_and_has_the_published_classes(
    tmp_path: Path, name: str, num_classes: int, first: int, characters: str
) -> None:
    way = name.removeprefix("emnist").removeprefix("_") or "balanced"
    images = random_images(num_classes, 28, 28)
    write_idx(tmp_path / "emnist", images, np.arange(num_classes) + first, start=f"emnist-{way}-train", packed=True)
    dataset = load_dataset(name, folder=tmp_path)

    assert dataset.num_classes == num_classes
    assert dataset.class_names[::10][: len(characters)] == tuple(characters)
    assert dataset.class_names[-1] == {47: "t", 62: "z", 26: "z", 10: "9"}[num_classes]
    np.testing.assert_array_equal(np.rint(dataset.features[:, 0] * 255), images.transpose(0, 2, 1))


def test_emnist_is_found_where_its_archive_unpacks(tmp_path: Path) -> None:
    write_idx(tmp_path / "emnist" / "gzip", IMAGES, TEN, start="emnist-digits-train", packed=True)
    assert load_dataset("emnist_digits", folder=tmp_path).num_rows == 20


def test_classes_that_do_not_occur_are_left_out(tmp_path: Path) -> None:
    write_idx(tmp_path / "fashion_mnist", IMAGES[:3], np.array([9, 2, 9]))
    dataset = load_dataset("fashion_mnist", folder=tmp_path)
    assert dataset.class_names == ("pullover", "ankle boot")
    assert dataset.labels.tolist() == [1, 0, 1]


GOOD_IMAGES = idx_bytes(IMAGES)
GOOD_LABELS = idx_bytes(TEN.astype(np.uint8))
PACKED = gzip.compress(GOOD_IMAGES)
NAME, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
MALFORMED: dict[str, tuple[bytes, bytes, str, str]] = {
    "empty": (b"", GOOD_LABELS, NAME, "empty"),
    "empty labels": (GOOD_IMAGES, b"", LABELS, "empty"),
    "truncated": (GOOD_IMAGES[:-1], GOOD_LABELS, NAME, "(20, 28, 28), got 15679"),
    "too long": (GOOD_IMAGES + b"x", GOOD_LABELS, NAME, "(20, 28, 28), got more"),
    "header alone": (GOOD_IMAGES[:16], GOOD_LABELS, NAME, "(20, 28, 28), got 0"),
    "header cut": (GOOD_IMAGES[:9], GOOD_LABELS, NAME, "3 sizes"),
    "wrong magic": (b"\x01" + GOOD_IMAGES[1:], GOOD_LABELS, NAME, "00 00 08 03, got 01 00 08 03"),
    "numbers of another type": (b"\0\0\x0d\x03" + GOOD_IMAGES[4:], GOOD_LABELS, NAME, "got 00 00 0d 03"),
    "labels for images": (GOOD_LABELS, GOOD_LABELS, NAME, "got 00 00 08 01"),
    "images for labels": (GOOD_IMAGES, GOOD_IMAGES, LABELS, "got 00 00 08 03"),
    "no image": (idx_bytes(IMAGES[:0]), GOOD_LABELS, NAME, "(0, 28, 28)"),
    "absurd size": (b"\0\0\x08\x03" + b"\xff" * 12, GOOD_LABELS, NAME, "79228162458924105385300197375"),
    "a label short": (GOOD_IMAGES, idx_bytes(TEN[:19].astype(np.uint8)), LABELS, "got 19"),
    "label out of range": (
        GOOD_IMAGES,
        idx_bytes((TEN + 1).astype(np.uint8)),
        f"the labels of {LABELS}",
        "10 in row 19",
    ),
    "one class": (GOOD_IMAGES, idx_bytes(np.zeros(20, np.uint8)), "data set 'mnist'", "got 1: 0"),
    "packed and truncated": (PACKED[:-20], GOOD_LABELS, NAME, "end-of-stream"),
    "packed and damaged": (PACKED[:500] + bytes(50) + PACKED[550:], GOOD_LABELS, NAME, "can't be read"),
    "text": (b"5,3,2\n" * 100, GOOD_LABELS, NAME, "got 35 2c 33 2c"),
}


@pytest.mark.parametrize(("images", "labels", "key", "names"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_one_clear_error(
    tmp_path: Path, images: bytes, labels: bytes, key: str, names: str
) -> None:
    write(tmp_path / "mnist" / NAME, images)
    write(tmp_path / "mnist" / LABELS, labels)
    assert_refused("mnist", folder=tmp_path, key=key, names=names)


@pytest.mark.parametrize("name", [name for name in DATASETS if "mnist" in name and "leaf" not in name])
def test_missing_files_are_named_with_publisher_and_place(tmp_path: Path, name: str) -> None:
    assert_refused(name, folder=tmp_path, names=(f"${FOLDER_VARIABLE}/", NAME, "http", str(tmp_path)))


def test_what_is_missing_of_a_pair_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist" / NAME, GOOD_IMAGES)
    assert_refused("mnist", folder=tmp_path, names=f"mnist/{LABELS}")


def test_parts_of_different_sizes_do_not_go_together(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", IMAGES, TEN)
    write_idx(tmp_path / "mnist", random_images(20, 32, 32), TEN, start="t10k")
    with refused(DataError, key="the images of data set 'mnist'", given="(28, 28) and (32, 32)"):
        load_dataset("mnist", folder=tmp_path, split="all")


def test_what_it_cannot_offer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", label="writer", client_column="writer", folder=tmp_path)
    label, client = caught.value.faults
    assert [(fault.key, fault.given) for fault in (label, client)] == [
        ("federation.label", "'writer'"),
        ("federation.client_column", "'writer'"),
    ]
    assert "'digit'" in label


@pytest.mark.data
def test_published_files_of_fashion_mnist(data_folder: Path) -> None:
    dataset = load_dataset("fashion_mnist", folder=data_folder, split="test")
    assert dataset.features.shape == (10_000, 1, 28, 28)
    assert np.bincount(dataset.labels).tolist() == [1000] * 10  # section 2 of the paper: 1,000 of each
    packed = gzip.decompress((data_folder / "fashion_mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert struct.unpack(">4I", packed[:16]) == (2051, 10_000, 28, 28)
    # 784 bytes an image: the last one's pixels, read by hand.
    last = np.frombuffer(packed[-784:], np.uint8).reshape(28, 28)
    np.testing.assert_array_equal(np.rint(dataset.features[-1, 0] * 255), last)
