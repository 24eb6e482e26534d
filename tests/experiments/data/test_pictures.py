"""CIFAR in both forms, the family of MNIST, pictures of the retina by hospital: whole and damaged files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.loaders.pictures import RETINAL
from tests.experiments.data.image_files import idx_bytes, picture, random_images, write, write_idx
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

ROWS = random_images(10, 3072)
LABELS = list(range(10))


def write_binary(folder: Path, number_of_bytes: int = 0) -> None:
    for number in range(1, 6):
        records = np.column_stack([np.array(LABELS, np.uint8), ROWS ^ number]).tobytes()
        write(folder / f"cifar10/cifar-10-batches-bin/data_batch_{number}.bin", records[number_of_bytes:])


def write_npz(path: Path, **arrays: Any) -> Path:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return write(path, stream.getvalue())


def expected_pixels() -> np.ndarray:
    """All batches as the data's page lays them out: 1,024 red values row by row, then green, then blue."""
    return np.concatenate([(ROWS ^ number).reshape(-1, 3, 32, 32) for number in range(1, 6)])


def test_both_forms_of_cifar10(tmp_path: Path) -> None:
    write_binary(tmp_path / "binary")
    x = expected_pixels().transpose(0, 2, 3, 1)
    write_npz(tmp_path / "npz/cifar10/a_train.npz", x=x[:20], y=np.array(LABELS * 2))
    write_npz(tmp_path / "npz/cifar10/b_train.npz", x=x[20:], y=np.array(LABELS * 3, np.uint8))
    for form in ("binary", "npz"):
        dataset = load_dataset("cifar10", folder=tmp_path / form)
        assert (dataset.kind, dataset.features.shape) == ("image", (50, 3, 32, 32))
        np.testing.assert_array_equal(np.rint(dataset.features * 255), expected_pixels())
        assert dataset.labels.tolist() == LABELS * 5
        assert dataset.class_names == (
            *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        )


def test_cifar100_has_two_labels(tmp_path: Path) -> None:
    records = np.column_stack([np.uint8([4, 19, 14, 8]), np.uint8([0, 99, 2, 3]), ROWS[:4]])
    write(tmp_path / "cifar100/cifar-100-binary/train.bin", records.tobytes())
    dataset = load_dataset("cifar100", folder=tmp_path)
    assert dataset.class_names == ("apple", "baby", "bear", "worm")
    assert dataset.labels.tolist() == [0, 3, 1, 2]
    groups = load_dataset("cifar100", label="coarse_label", folder=tmp_path)
    assert groups.class_names == ("fruit_and_vegetables", "large_carnivores", "people", "vehicles_2")
    np.testing.assert_array_equal(groups.features, dataset.features)


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.reduced


X = expected_pixels()[:10].transpose(0, 2, 3, 1)
ARCHIVE = "cifar10_train.npz"
OWN_LABELS = f"the labels of {ARCHIVE}"
MALFORMED_ARCHIVES: dict[str, tuple[dict[str, Any] | bytes, str, str]] = {
    "a pickle": (pickle.dumps([1]), ARCHIVE, ".npz"),
    "no labels": ({"x": X}, ARCHIVE, ".npz"),
    "objects": ({"x": X, "y": np.array([Trap(os.mkdir, "ran")] * 10)}, ARCHIVE, ".npz"),
    "planes first": ({"x": X.transpose(0, 3, 1, 2), "y": LABELS}, ARCHIVE, "got uint8 of shape (10, 3, 32, 32)"),
    "fractions": ({"x": X / 255, "y": LABELS}, ARCHIVE, "got float64"),
    "a label short": ({"x": X, "y": LABELS[:9]}, ARCHIVE, "int64 of shape (9,)"),
    "labels of text": ({"x": X, "y": list("abcdefghij")}, ARCHIVE, "<U1"),
    "label out of range": ({"x": X, "y": [*LABELS[:9], 11]}, OWN_LABELS, "9, got 11 in row 10"),
    "negative label": ({"x": X, "y": [*LABELS[:9], -1]}, OWN_LABELS, "9, got -1 in row 10"),
    "no row": ({"x": X[:0], "y": np.empty(0, int)}, ARCHIVE, "(0, 32, 32, 3)"),
}


@pytest.mark.parametrize(("content", "key", "names"), MALFORMED_ARCHIVES.values(), ids=MALFORMED_ARCHIVES)
def test_malformed_archives(tmp_path: Path, content: dict[str, Any] | bytes, key: str, names: str) -> None:
    path = tmp_path / "cifar10" / ARCHIVE
    if isinstance(content, bytes):
        write(path, content)
    else:
        write_npz(path, **content)
    assert_refused("cifar10", folder=tmp_path, key=key, names=names)
    assert not Path("ran").exists()


def test_a_damaged_archive(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "cifar10" / ARCHIVE, x=X, y=np.array(LABELS))
    content = path.read_bytes()
    for damaged in (content[:-200], content[:9000] + bytes(400) + content[9400:]):
        path.write_bytes(damaged)
        assert_refused("cifar10", folder=tmp_path, key=ARCHIVE)


def test_a_binary_batch_that_is_cut(tmp_path: Path) -> None:
    write_binary(tmp_path, number_of_bytes=1)
    assert_refused("cifar10", folder=tmp_path, key="data_batch_1.bin", given="30729 bytes")


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path)
    (tmp_path / "cifar10/cifar-10-batches-bin/data_batch_3.bin").unlink()
    assert_refused("cifar10", folder=tmp_path, names="cifar10/cifar-10-batches-bin/data_batch_3.bin")


# MNIST, Fashion-MNIST and EMNIST: files of the IDX format, whole and damaged.


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


def test_a_part_is_chosen_by_split_and_the_training_part_is_usual(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", IMAGES, TEN)
    write_idx(tmp_path / "mnist", random_images(10, 28, 28, seed=1), np.arange(10), start="t10k")
    train, test, everything = (load_dataset("mnist", folder=tmp_path, split=split) for split in (None, "test", "all"))
    assert (train.num_rows, test.num_rows) == (20, 10)
    np.testing.assert_array_equal(everything.features, np.concatenate([train.features, test.features]))
    np.testing.assert_array_equal(everything.labels, np.concatenate([train.labels, test.labels]))
    assert_refused("mnist", folder=tmp_path, split="validation", key="federation.split", given="'validation'")


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
def test_emnist_is_upright(tmp_path: Path, name: str, num_classes: int, first: int, characters: str) -> None:
    way = name.removeprefix("emnist").removeprefix("_") or "balanced"
    images = random_images(num_classes, 28, 28)
    write_idx(tmp_path / "emnist", images, np.arange(num_classes) + first, start=f"emnist-{way}-train", packed=True)
    dataset = load_dataset(name, folder=tmp_path)

    assert dataset.num_classes == num_classes
    assert dataset.class_names[::10][: len(characters)] == tuple(characters)
    assert dataset.class_names[-1] == {47: "t", 62: "z", 26: "z", 10: "9"}[num_classes]
    np.testing.assert_array_equal(np.rint(dataset.features[:, 0] * 255), images.transpose(0, 2, 1))


GOOD_IMAGES = idx_bytes(IMAGES)
GOOD_LABELS = idx_bytes(TEN.astype(np.uint8))
PACKED = gzip.compress(GOOD_IMAGES)
NAME, IDX_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
MALFORMED: dict[str, tuple[bytes, bytes, str, str]] = {
    "truncated": (GOOD_IMAGES[:-1], GOOD_LABELS, NAME, "got 15695 bytes"),
    "header cut": (GOOD_IMAGES[:9], GOOD_LABELS, NAME, "got 9 bytes"),
    "wrong magic": (b"\x01" + GOOD_IMAGES[1:], GOOD_LABELS, NAME, "01 00 08 03"),
    "images for labels": (GOOD_IMAGES, GOOD_IMAGES, IDX_LABELS, "00 00 08 03"),
    "no image": (idx_bytes(IMAGES[:0]), GOOD_LABELS, NAME, "got 16 bytes"),
    "absurd size": (b"\0\0\x08\x03" + b"\xff" * 12, GOOD_LABELS, NAME, "got 16 bytes"),
    "a label short": (GOOD_IMAGES, idx_bytes(TEN[:19].astype(np.uint8)), IDX_LABELS, "got 19"),
    "label out of range": (
        GOOD_IMAGES,
        idx_bytes((TEN + 1).astype(np.uint8)),
        f"the labels of {IDX_LABELS}",
        "10 in row 19",
    ),
    "one class": (GOOD_IMAGES, idx_bytes(np.zeros(20, np.uint8)), "data set 'mnist'", "got 1: 0"),
    "packed and truncated": (PACKED[:-20], GOOD_LABELS, NAME, "end-of-stream"),
}


@pytest.mark.parametrize(("images", "labels", "key", "names"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files(tmp_path: Path, images: bytes, labels: bytes, key: str, names: str) -> None:
    write(tmp_path / "mnist" / NAME, images)
    write(tmp_path / "mnist" / IDX_LABELS, labels)
    assert_refused("mnist", folder=tmp_path, key=key, names=names)


def test_parts_of_different_sizes_do_not_go_together(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", IMAGES, TEN)
    write_idx(tmp_path / "mnist", random_images(20, 32, 32), TEN, start="t10k")
    with refused(DataError, key="the images of data set 'mnist'", given="(28, 28) and (32, 32)"):
        load_dataset("mnist", folder=tmp_path, split="all")


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


# Glaucoma or healthy, and grades of retinopathy: one folder per hospital, or nothing.


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


def test_without_hospitals(tmp_path: Path) -> None:
    picture(tmp_path / "retinal/0/a.png")
    picture(tmp_path / "retinal/1/b.png")
    assert_refused("retinal", folder=tmp_path, key="data set 'retinal'")
