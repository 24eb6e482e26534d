"""CIFAR, the family of MNIST, the retina by hospital, and one's own pictures: whole and damaged files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.loaders.pictures import RETINAL
from tests.experiments.data.image_files import idx_bytes, picture, random_images, write, write_idx
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

ROWS = random_images(10, 3072)
LABELS = list(range(10))


def write_binary(folder: Path) -> None:
    for number in range(1, 6):
        records = np.column_stack([np.array(LABELS, np.uint8), ROWS ^ number]).tobytes()
        write(folder / f"cifar10/cifar-10-batches-bin/data_batch_{number}.bin", records)


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
MALFORMED_ARCHIVES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no labels": ({"x": X}, ARCHIVE, ".npz"),
    "objects": ({"x": X, "y": np.array([Trap(os.mkdir, "ran")] * 10)}, ARCHIVE, ".npz"),
    "planes first": ({"x": X.transpose(0, 3, 1, 2), "y": LABELS}, ARCHIVE, "(10, 3, 32, 32)"),
    "fractions": ({"x": X / 255, "y": LABELS}, ARCHIVE, "float64"),
    "a label short": ({"x": X, "y": LABELS[:9]}, ARCHIVE, "(9,)"),
    "labels of text": ({"x": X, "y": list("abcdefghij")}, ARCHIVE, "<U1"),
    "label out of range": ({"x": X, "y": [*LABELS[:9], 11]}, OWN_LABELS, "11 in row 10"),
    "negative label": ({"x": X, "y": [*LABELS[:9], -1]}, OWN_LABELS, "-1 in row 10"),
    "no row": ({"x": X[:0], "y": np.empty(0, int)}, ARCHIVE, "(0, 32, 32, 3)"),
}


@pytest.mark.parametrize(("arrays", "key", "names"), MALFORMED_ARCHIVES.values(), ids=MALFORMED_ARCHIVES)
def test_malformed_archives(tmp_path: Path, arrays: dict[str, Any], key: str, names: str) -> None:
    write_npz(tmp_path / "cifar10" / ARCHIVE, **arrays)
    assert_refused("cifar10", folder=tmp_path, key=key, names=names)
    assert not Path("ran").exists()


def test_a_damaged_archive(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "cifar10" / ARCHIVE, x=X, y=np.array(LABELS))
    content = path.read_bytes()
    for damaged in (content[:-200], content[:9000] + bytes(400) + content[9400:], pickle.dumps([1])):
        path.write_bytes(damaged)
        assert_refused("cifar10", folder=tmp_path, key=ARCHIVE)


def test_a_binary_batch_that_is_cut_or_missing_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path)
    batch = tmp_path / "cifar10/cifar-10-batches-bin/data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[1:])
    assert_refused("cifar10", folder=tmp_path, key="data_batch_3.bin", given="30729 bytes")
    batch.unlink()
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
    "absurd size": (b"\0\0\x08\x03" + b"\xff" * 12, GOOD_LABELS, NAME, "got 16 bytes"),
    "a label short": (GOOD_IMAGES, idx_bytes(TEN[:19].astype(np.uint8)), IDX_LABELS, "got 19"),
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


# One's own pictures: layouts, sizes and colours, and the ways in which a folder can be wrong.


def load(folder: Path, size: int = 4, **choices: str) -> Dataset:
    return load_dataset(str(folder), image_size=size, **choices)


def grey(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        picture(folder / name, 51 * number)
    return folder


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes, two grey pictures each."""
    return grey(tmp_path / "pets", "cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """Two clients; the second has one class only."""
    names = ("north/ill/1.png", "north/well/1.png", "south/well/1.png", "south/well/2.png")
    return grey(tmp_path / "clinics", *names)


# Layouts.


def test_folders_are_classes(pets: Path) -> None:
    dataset = load(pets)
    assert (dataset.name, dataset.kind, dataset.class_names) == ("pets", "image", ("cat", "dog"))
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.client_ids is None
    assert dataset.features.shape == (4, 1, 4, 4)
    np.testing.assert_allclose(dataset.features[:, 0, 2, 2], [0, 0.2, 0.4, 0.6], rtol=1e-6)
    # Each pixel is 0, .2, .4 and .6 in the four pictures: variance .05.
    assert dataset.feature_unit == pytest.approx(np.sqrt(0.05))
    assert dataset.facts["num_duplicate_rows"] == 0


def test_outer_folders_are_natural_clients(clinics: Path) -> None:
    dataset = load(clinics)
    assert dataset.class_names == ("ill", "well")
    assert dataset.labels.tolist() == [0, 1, 1, 1]
    assert clients_of(dataset) == ["north", "north", "south", "south"]


def test_a_file_of_labels(tmp_path: Path) -> None:
    for number in range(4):
        picture(tmp_path / "scans" / f"{number}.png", 51 * number)
    lines = ["image,label,site,age", *(f"scans/{n}.png,{'ab'[n % 2]},{'xy'[n // 2]},40" for n in (3, 1, 0, 2))]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    dataset = load(tmp_path)
    assert (dataset.class_names, dataset.labels.tolist()) == (("a", "b"), [0, 1, 0, 1])
    assert dataset.client_ids is None
    np.testing.assert_allclose(dataset.features[:, 0, 0, 0], [0, 0.2, 0.4, 0.6], rtol=1e-6)

    assert load(tmp_path, label="site").class_names == ("x", "y")
    assert clients_of(load(tmp_path, client_column="site")) == ["x", "x", "y", "y"]


def test_what_a_system_or_an_author_leaves_is_passed_over(pets: Path) -> None:
    for name in (".DS_Store", "cat/._1.png", "cat/Thumbs.db", "README.md", "LICENSE", "__MACOSX/cat/x.txt"):
        (pets / name).parent.mkdir(parents=True, exist_ok=True)
        (pets / name).write_text("nothing to see")
    assert load(pets).num_rows == 4


# Pixels.


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "bmp", "gif", "tif", "webp", "pgm"])
def test_formats(pets: Path, suffix: str) -> None:
    picture(pets / "dog" / f"3.{suffix}", 204)
    np.testing.assert_allclose(load(pets).features[4].mean(), 0.8, atol=0.01)  # some formats are lossy


def test_a_smaller_picture_holds_the_means_of_the_areas(pets: Path) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 8
    Image.fromarray(pixels).save(pets / "dog" / "3.png")
    expected = pixels.reshape(2, 2, 2, 2).mean(axis=(1, 3)) / 255
    np.testing.assert_allclose(load(pets, size=2).features[4, 0], expected, atol=0.5 / 255)


def test_a_picture_is_turned_as_the_camera_says(pets: Path) -> None:
    pixels = np.repeat(np.array([[0, 255]], dtype=np.uint8), 2, axis=0)  # dark on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: dark at the top
    Image.fromarray(pixels).save(pets / "dog" / "3.png", exif=exif)
    np.testing.assert_array_equal(load(pets, size=2).features[4, 0], [[0, 0], [1, 1]])


# Mistakes.


def arrange(folder: Path, *names: str) -> None:
    """Make pictures, texts, files of labels, folders, and links to themselves or to the whole folder."""
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        match path.suffix:
            case ".png":
                picture(path)
            case ".csv" | ".txt":
                path.write_text("image,label\n1.png,a\n")
            case _ if path.name in ("again", "self"):
                path.symlink_to(path if path.name == "self" else folder)
            case _:
                path.mkdir()


@pytest.mark.parametrize(
    ("files", "key", "names"),
    [
        ([], "federation.dataset", "{folder}"),
        ([""], "f", "folder/class/picture"),
        (["cat/1.png"], "data set 'f'", "got 1: cat"),
        (["cat/1.png", "bird"], "f", "bird"),
        (["cat.png", "dog.png"], "f", "cat.png"),
        (["cat/1.png", "north/cat/1.png"], "f", "{folder}/cat/1.png and {folder}/north/cat/1.png"),
        (["a/b/c/1.png"], "pictures", "{folder}/a/b/c"),
        (["good/1.txt", "bad/1.txt"], "bad", "got '1.txt'; use federation.dataset='{folder}/bad/*.csv' for tables"),
        (["cat/1.png", "cat/again"], "again", "{folder}"),
        (["cat/1.png", "self"], "f", "'self'"),
        (["north/1.png", "north/labels.csv", "2.png"], "f", "labels.csv, got '2.png'"),
        (["north/1.png", "north/labels.csv", "south/2004/a/1.png"], "south", "{folder}/south/2004"),
    ],
)
def test_a_folder_that_is_no_data_set(tmp_path: Path, files: list[str], key: str, names: str) -> None:
    arrange(tmp_path / "f", *files)
    assert_refused(f"{tmp_path}/f", key=key, names=names.format(folder=tmp_path / "f"))


def test_a_link_to_another_disk_is_followed(pets: Path, tmp_path: Path) -> None:
    picture(tmp_path / "elsewhere" / "1.png", 255)
    (pets / "bird").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert load(pets).class_names == ("bird", "cat", "dog")


def noise() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def bomb(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"not a picture", "PNG"),
        (b"", "PNG"),
        (noise()[:200] + bytes(60) + noise()[260:], "damaged"),
        (bomb(60_000), "bomb"),
        (bomb(10_000), "bomb"),  # of which Pillow only warns
        (noise()[:2000], "damaged"),
    ],
    ids=["text", "empty", "corrupt", "bomb", "smaller bomb", "truncated"],
)
def test_what_is_called_a_picture_and_is_none(pets: Path, content: bytes, names: str) -> None:
    (pets / "dog" / "3.png").write_bytes(content)
    assert_refused(str(pets), key="3.png", names=(str(pets / "dog"), names))


def test_several_pictures_in_one(pets: Path) -> None:
    frames = [Image.new("L", (4, 4), colour) for colour in (0, 100, 200)]
    frames[0].save(pets / "dog" / "3.gif", save_all=True, append_images=frames[1:])
    assert_refused(str(pets), key="3.gif", given=3)


def test_many_damaged_pictures_are_one_line_with_their_number_and_the_first(pets: Path) -> None:
    for number in range(8):
        (pets / "dog" / f"bad{number}.png").write_text("no")
    assert_refused(str(pets), key="8 of 12 pictures", names=str(pets / "dog" / "bad0.png"))


def test_a_pipe_among_pictures_is_refused_and_not_waited_for(pets: Path) -> None:
    os.mkfifo(pets / "dog" / "3.png")
    assert_refused(str(pets), key="3.png", names="pipe")


@pytest.mark.parametrize(
    ("folder", "choice", "value"),
    [("pets", "label", "grade"), ("pets", "client_column", "site"), ("clinics", "client_column", "site")],
)
def test_choices_not_offered_by_folders(request: pytest.FixtureRequest, folder: str, choice: str, value: str) -> None:
    path = request.getfixturevalue(folder)
    assert_refused(str(path), key=f"federation.{choice}", given=repr(value), names=str(path), **{choice: value})


@pytest.mark.parametrize(
    ("lines", "key", "names"),
    [
        (["file,label", "1.png,a"], "labels.csv", "columns image, but its columns are: file, label"),
        (["image,grade", "1.png,a"], "labels.csv", "columns label,"),
        *(
            (["image,label", "1.png,a", f"{name},{kind}"], "labels.csv", f"got {name!r}, {kind or None!r} in row 2")
            for name, kind in (("1.png", "b"), ("2.png", ""), ("3.png", "b"), ("../2.png", "b"), ("/etc/2.png", "b"))
        ),
        (["image;label", "1.png;a"], "the columns of labels.csv", "','"),
        (["image,label"], "labels.csv", "none"),
        (["image,label", "1.png,a", "2.png,a"], None, "got 1: a"),
    ],
)
def test_malformed_file_of_labels(tmp_path: Path, lines: list[str], key: str | None, names: str) -> None:
    for name in ("1.png", "2.png"):
        picture(tmp_path / name)
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert_refused(str(tmp_path), key=key, names=names)
