"""CIFAR-10 and CIFAR-100: 50,000 training and 10,000 test colour images of 32 × 32 pixels.

A. Krizhevsky, "Learning multiple layers of features from tiny images", technical report, University of Toronto, 2009.
CIFAR-10 has ten classes, CIFAR-100 a hundred in twenty groups; the hundred classes and the groups are numbered in
alphabetical order. Two formats are read. Batches of the binary version hold the red pixels of an image row by row, then
the green and the blue ones, as described in "Dataset layout" of https://www.cs.toronto.edu/~kriz/cifar.html. An `.npz`
archive holds `x`, unsigned bytes of shape `(rows, 32, 32, 3)`, and the labels. The publisher's pickled batches are not
read, as unpickling can run code.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, first_line
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, choose_label, choose_parts
from fedscout.experiments.data.files import Layout, Publication, ReadLimits, locate_layout
from fedscout.experiments.data.images import PixelArray, image_dataset

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar.html"
SIDE = 32
CHANNELS = 3
IMAGE_BYTES = CHANNELS * SIDE * SIDE
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FINE_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
COARSE_NAMES = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
FINE = tuple(FINE_NAMES.split())
COARSE = tuple(COARSE_NAMES.split())

Images = tuple[PixelArray, npt.NDArray[np.integer]]


@dataclass(frozen=True)
class CifarLabel:
    """Location of a label in the files.

    Attributes:
        array: Array name in an archive.
        byte: Byte in a record of a binary batch, counted from 0.
        class_names: Class names in label order.
    """

    array: str
    byte: int
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class CifarFiles:
    """File layout of one of the two data sets.

    Attributes:
        publication: Publication of the data set.
        binary: Folder of binary batches, relative to the data folder.
        batches: Batches of each part.
        labels: Labels, the default first; a binary batch has a byte for each before an image.
    """

    publication: Publication
    binary: str
    batches: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, CifarLabel]


CIFAR10 = CifarFiles(
    Publication("Krizhevsky, CIFAR-10, 2009", ADDRESS, "unpack the binary version there"),
    binary="cifar10/cifar-10-batches-bin",
    batches={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    labels={"class": CifarLabel(array="y", byte=0, class_names=CIFAR10_CLASSES)},
)
CIFAR100 = CifarFiles(
    Publication("Krizhevsky, CIFAR-100, 2009", ADDRESS, "unpack the binary version there"),
    binary="cifar100/cifar-100-binary",
    batches={"train": ("train",), "test": ("test",)},
    labels={
        "fine_label": CifarLabel(array="y", byte=1, class_names=FINE),
        "coarse_label": CifarLabel(array="y_coarse", byte=0, class_names=COARSE),
    },
)


def load_cifar10(request: DatasetRequest) -> Dataset:
    """Load CIFAR-10; the label is `class`."""
    return _load(request, CIFAR10)


def load_cifar100(request: DatasetRequest) -> Dataset:
    """Load CIFAR-100; the label is `fine_label`, or the group, `coarse_label`."""
    return _load(request, CIFAR100)


def _load(request: DatasetRequest, files: CifarFiles) -> Dataset:
    name = choose_label(request, tuple(files.labels), client=None)
    label = files.labels[name]
    parts = choose_parts(request)
    readers: dict[str, Callable[[Path], Images]] = {
        "binary version": lambda path: _read_binary(path, label, len(files.labels)),
        "npz archives": lambda path: _read_archive(path, label, request.limits),
    }
    file_names = (
        [f"{files.binary}/{batch}.bin" for part in parts for batch in files.batches[part]],
        [f"{files.binary.partition('/')[0]}/*{part}.npz" for part in parts],
    )
    layouts = [Layout(form, tuple(paths)) for form, paths in zip(readers, file_names, strict=True)]
    layout, paths = locate_layout(request.name, layouts, files.publication, request.folder)
    contents = []
    for path in paths:
        request.limits.check_file(path)
        contents.append(_checked(path, readers[layout.name](path), len(label.class_names)))
    pixels, labels = contents[0] if len(contents) == 1 else map(np.concatenate, zip(*contents, strict=True))
    return image_dataset(request.name, pixels, labels, label.class_names, name, str(files.publication))


def _checked(path: Path, batch: Images, num_classes: int) -> Images:
    _, labels = batch
    invalid_rows = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(invalid_rows):
        raise DataError.of(
            f"the labels of {path}",
            f"be between 0 and {num_classes - 1}",
            f"{labels[invalid_rows[0]]} in row {invalid_rows[0] + 1}",
        )
    if not len(labels):
        raise DataError.of(path, "hold images, but it has none")
    return batch


def _read_binary(path: Path, label: CifarLabel, label_bytes: int) -> Images:
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError.of(path, problem=f"can't be read: {error}") from None
    record = label_bytes + IMAGE_BYTES
    if len(content) % record:
        raise DataError.of(path, f"hold whole records of {record} bytes", f"{len(content)} bytes")
    records = content.reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, label.byte]


def _read_archive(path: Path, label: CifarLabel, limits: ReadLimits) -> Images:
    """Read arrays of an archive without unpickling."""
    try:
        with zipfile.ZipFile(path) as entries:
            limits.check_bytes(path, sum(entry.file_size for entry in entries.infolist()))
        with np.load(path, allow_pickle=False) as archive:
            pixels, labels = archive["x"], archive[label.array]
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        must = f"be an .npz archive of the plain arrays x and {label.array}, but it can't be read"
        raise DataError.of(path, f"{must}: {first_line(error)}") from None
    is_usual = pixels.dtype == np.uint8 and pixels.ndim == 4 and pixels.shape[1:] == (SIDE, SIDE, CHANNELS)
    if not is_usual or labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        raise DataError.of(
            path,
            f"hold in x unsigned bytes of shape (rows, {SIDE}, {SIDE}, {CHANNELS}), and in {label.array} one whole "
            "number per row",
            f"{pixels.dtype} of shape {pixels.shape}, and {labels.dtype} of shape {labels.shape}",
        )
    return pixels.transpose(0, 3, 1, 2), labels
