"""CIFAR-10 and CIFAR-100: 50,000 training and 10,000 test colour images of 32 × 32 pixels.

A. Krizhevsky, "Learning multiple layers of features from tiny images", technical report, University of Toronto, 2009.
CIFAR-10 has ten classes, CIFAR-100 a hundred in twenty groups; the hundred classes and the groups are numbered in
alphabetical order. The images are available in three formats. Pickled and binary batches hold the red pixels of an
image row by row, then the green and the blue ones, as described in "Dataset layout" of
https://www.cs.toronto.edu/~kriz/cifar.html. An `.npz` archive holds `x`, unsigned bytes of shape `(rows, 32, 32, 3)`,
and the labels.

Unpickling can call arbitrary code. Here a pickle can reference only four numpy objects, each replaced by a stand-in
that stores its arguments, and a call that converts text to bytes; numpy itself never receives the content. Any other
name, such as `os.system`, is rejected before it is looked up.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, choose_label, choose_parts
from fedscout.experiments.data.files import Layout, Publication, ReadLimits, locate_layout
from fedscout.experiments.data.images import PixelArray, image_dataset

SIDE = 32
CHANNELS = 3
IMAGE_BYTES = CHANNELS * SIDE * SIDE
BYTE_TYPES = {b"u1", "u1", b"|u1", "|u1"}
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

Images = tuple[PixelArray, PixelArray]


@dataclass(frozen=True)
class CifarLabel:
    """Location of a label in the files.

    Attributes:
        key: Key in a pickled batch.
        array: Array name in an archive.
        byte: Byte in a record of a binary batch, counted from 0.
        class_names: Class names in label order.
    """

    key: str
    array: str
    byte: int
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class CifarFiles:
    """File layout of one of the two data sets.

    Attributes:
        publication: Publication of the data set.
        python: Folder of pickled batches, relative to the data folder.
        binary: Folder of binary batches.
        batches: Batches of each part.
        labels: Labels, the default first; a binary batch has a byte for each before an image.
    """

    publication: Publication
    python: str
    binary: str
    batches: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, CifarLabel]


CIFAR10 = CifarFiles(
    Publication("Krizhevsky, CIFAR-10, 2009", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    python="cifar10/cifar-10-batches-py",
    binary="cifar10/cifar-10-batches-bin",
    batches={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    labels={"class": CifarLabel(key="labels", array="y", byte=0, class_names=CIFAR10_CLASSES)},
)
CIFAR100 = CifarFiles(
    Publication("Krizhevsky, CIFAR-100, 2009", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    python="cifar100/cifar-100-python",
    binary="cifar100/cifar-100-binary",
    batches={"train": ("train",), "test": ("test",)},
    labels={
        "fine_label": CifarLabel(key="fine_labels", array="y", byte=1, class_names=FINE),
        "coarse_label": CifarLabel(key="coarse_labels", array="y_coarse", byte=0, class_names=COARSE),
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
    batches = [(part, batch) for part in parts for batch in files.batches[part]]
    readers: dict[str, Callable[[Path], Images]] = {
        "python version": lambda path: _read_pickled(path, label),
        "binary version": lambda path: _read_binary(path, label, len(files.labels)),
        "npz archives": lambda path: _read_archive(path, label, request.limits),
    }
    file_names = (
        [f"{files.python}/{batch}" for _, batch in batches],
        [f"{files.binary}/{batch}.bin" for _, batch in batches],
        [f"{files.python.partition('/')[0]}/*{part}.npz" for part in parts],
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
    invalid_rows = np.flatnonzero(labels >= num_classes)
    if len(invalid_rows):
        raise DataError.of(
            f"the labels of {path}",
            f"be between 0 and {num_classes - 1}",
            f"{labels[invalid_rows[0]]} in row {invalid_rows[0] + 1}",
        )
    if not len(labels):
        raise DataError.of(path, "hold images, but it has none")
    return batch


# Pickled batches.


class _NumpyStandIn:
    """Stand-in for the numpy objects in a batch: stores its constructor arguments and its state."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        """Store the state: of an array version, shape, type, order and bytes; of a type byte order and alignment."""
        self.state = state


def _encode(text: object, encoding: object = None) -> bytes:
    """Stand in for the call by which Python 3 writes bytes into old pickle protocols."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("text in a form that the published files do not have")
    return text.encode("latin1")


ALLOWED: Mapping[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _NumpyStandIn,
    ("numpy._core.multiarray", "_reconstruct"): _NumpyStandIn,
    ("numpy", "ndarray"): _NumpyStandIn,
    ("numpy", "dtype"): _NumpyStandIn,
    ("_codecs", "encode"): _encode,
}


class _ForeignNameError(Exception):
    """A pickle references a name that no published batch needs."""


class _BatchReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise _ForeignNameError(f"{module}.{name}")
        return ALLOWED[module, name]


def _read_pickled(path: Path, label: CifarLabel) -> Images:
    try:
        with path.open("rb") as file:
            content = _BatchReader(file, encoding="bytes").load()
    except _ForeignNameError as error:
        raise DataError.of(
            path,
            f"hold only arrays, numbers and text, but this pickle asks to run {str(error)!r}: it "
            "is not the published file and was not run",
        ) from None
    except Exception as error:  # a malformed pickle may raise anything, as the module's documentation says
        raise DataError.of(path, f"be a pickled batch as published, but it can't be read: {_reason(error)}") from None
    if not isinstance(content, dict):
        raise DataError.of(path, "hold a dictionary", type(content).__name__)
    batch = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    missing = [key for key in ("data", label.key) if key not in batch]
    if missing:
        raise DataError.of(path, f"hold {' and '.join(missing)}, but it holds: {', '.join(batch) or 'nothing'}")
    pixels = _array_of_stand_in(path, batch["data"]) if isinstance(batch["data"], _NumpyStandIn) else batch["data"]
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != IMAGE_BYTES:
        raise DataError.of(f"the data of {path}", f"be rows of {IMAGE_BYTES} bytes", _described(pixels))
    labels = batch[label.key]
    if not isinstance(labels, list) or not all(type(value) is int and 0 <= value < 256 for value in labels):
        raise DataError.of(f"the labels of {path}", "be a list of whole numbers from 0 to 255")
    if len(labels) != len(pixels):
        raise DataError.of(path, f"hold one label for each of its {len(pixels)} images", len(labels))
    return pixels.reshape(-1, CHANNELS, SIDE, SIDE), np.array(labels, np.uint8)


def _array_of_stand_in(path: Path, kept: _NumpyStandIn) -> PixelArray:
    """Return the array described by a stand-in, after checking every part of the description."""
    match kept.state:
        case (_, tuple(shape), _NumpyStandIn(arguments=(code, *_)), by_columns, bytes(content)) if code in BYTE_TYPES:
            pass
        case _:
            raise DataError.of(f"the array 'data' of {path}", "hold unsigned bytes, as published")
    if not all(type(size) is int and size >= 0 for size in shape) or int(np.prod(shape, dtype=object)) != len(content):
        raise DataError.of(f"the array 'data' of {path}", f"hold as many bytes as its shape {shape}", len(content))
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


# Binary batches and archives.


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
    pixels, labels = _read_arrays(path, ("x", label.array), limits)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (SIDE, SIDE, CHANNELS):
        raise DataError.of(
            f"the array 'x' of {path}",
            f"hold unsigned bytes of shape (rows, {SIDE}, {SIDE}, {CHANNELS})",
            _described(pixels),
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        raise DataError.of(
            f"the array {label.array!r} of {path}",
            f"hold one whole number for each of the {len(pixels)} images",
            _described(labels),
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < 256:
        raise DataError.of(f"the labels of {path}", "be between 0 and 255", f"{labels.min()} to {labels.max()}")
    return pixels.transpose(0, 3, 1, 2), labels.astype(np.uint8)


def _read_arrays(path: Path, names: tuple[str, ...], limits: ReadLimits) -> list[npt.NDArray[Any]]:
    """Read arrays of an archive without unpickling."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError.of(path, "be an .npz archive", "a single array")
            missing = [name for name in names if name not in archive.files]
            if missing:
                available = ", ".join(archive.files) or "none"
                raise DataError.of(path, f"hold the arrays {', '.join(missing)}, but its arrays are: {available}")
            # No more is ever unpacked of a member than its entry says, be that true or not.
            with zipfile.ZipFile(path) as entries:
                limits.check_bytes(path, sum(entry.file_size for entry in entries.infolist()))
            return [archive[name] for name in names]
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        reason = _reason(error)
        if "pickle" in reason:
            reason = "it is not an archive of plain arrays; pickled content is not read"
        raise DataError.of(path, f"be an .npz archive of arrays, but it can't be read: {reason}") from None


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _described(value: object) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
