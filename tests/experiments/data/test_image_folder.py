"""One's own pictures: layouts, sizes and colours, and the dozen ways in which a folder can be wrong."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.images import load_image_folder
from tests.experiments.data.image_files import picture
from tests.experiments.data.loading import assert_refused, clients_of

RED = (255, 0, 0)


def load(folder: Path, size: int = 4, label: str | None = None, client_column: str | None = None) -> Dataset:
    return load_image_folder(
        DatasetRequest(dataset=str(folder), label=label, client_column=client_column, image_size=size)
    )


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

    by_site = load(tmp_path, label="site")
    assert by_site.class_names == ("x", "y")
    natural = load(tmp_path, client_column="site")
    assert clients_of(natural) == ["x", "x", "y", "y"]


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
