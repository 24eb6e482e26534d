"""Image data sets: CIFAR, the MNIST family and retinal photographs.

`cifar10`, `cifar100`: 50,000 training and 10,000 test colour images of 32 × 32 pixels. A. Krizhevsky, "Learning
multiple layers of features from tiny images", technical report, University of Toronto, 2009. CIFAR-10 has ten classes,
CIFAR-100 a hundred in twenty groups; the hundred classes and the groups are numbered in alphabetical order. Two formats
are read. Batches of the binary version hold the red pixels of an image row by row, then the green and the blue ones, as
described in "Dataset layout" of https://www.cs.toronto.edu/~kriz/cifar.html. An `.npz` archive holds `x`, unsigned
bytes of shape `(rows, 32, 32, 3)`, and the labels. The publisher's pickled batches are not read, as unpickling can run
code.

`mnist`: 60,000 training and 10,000 test digits of 28 × 28 pixels. Y. LeCun, L. Bottou, Y. Bengio and P. Haffner,
"Gradient-based learning applied to document recognition", Proceedings of the IEEE 86(11), 1998.

`fashion_mnist`: 60,000 and 10,000 pieces of clothing of ten kinds, with the file names of MNIST. H. Xiao, K. Rasul and
R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", arXiv:1708.07747,
2017.

`emnist`: handwritten digits and letters, in six variants. G. Cohen, S. Afshar, J. Tapson and A. van Schaik, "EMNIST: an
extension of MNIST to handwritten letters", International Joint Conference on Neural Networks, 2017; table II lists the
variants. The files store each image by columns; it is transposed here, so that characters are upright. In the variant
`letters` labels count from 1 and a class holds capital and small letters; in `balanced` and `bymerge` fifteen small
letters that look like their capitals share their class.

These are stored in IDX files, plain or compressed. Y. LeCun, C. Cortes and C. Burges, "The MNIST database of
handwritten digits", whose page defines the format: two zero bytes, the type (8: unsigned byte), the number of axes,
each axis as a big-endian 32-bit number, then the values.

`retinal`: fundus photographs of several hospitals that differ in camera, patients and graders, glaucoma or healthy.
This federation is not published as one file, so the user creates a folder per hospital, `retinal/<hospital>/`, with
class folders or a `labels.csv` (`images.py`). The natural clients are the hospitals. Images of eyes with suspected
glaucoma are left out, and counted in the record.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import (
    FOLDER_VARIABLE,
    Dataset,
    DatasetRequest,
    Layout,
    PixelArray,
    Publication,
    ReadLimits,
    reading,
)
from fedscout.experiments.data.images import image_dataset, list_pictures, pictures_dataset
from fedscout.experiments.data.table_formats import ROWS, read_arrays

CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
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
class CifarFiles:
    """File layout of one of the two data sets.

    Attributes:
        publication: Publication of the data set.
        binary: Folder of binary batches, relative to the data folder.
        batches: Batches of each part.
        labels: Class names of each label, the default first, in label order.
        arrays: Array of each label in an archive; binary batches hold a byte for each before an image, the last first.
    """

    publication: Publication
    binary: str
    batches: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, tuple[str, ...]]
    arrays: tuple[str, ...]


CIFAR10 = CifarFiles(
    Publication("Krizhevsky, CIFAR-10, 2009", CIFAR_PAGE, "unpack the binary version there"),
    binary="cifar10/cifar-10-batches-bin",
    batches={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    labels={"class": CIFAR10_CLASSES},
    arrays=("y",),
)
CIFAR100 = CifarFiles(
    Publication("Krizhevsky, CIFAR-100, 2009", CIFAR_PAGE, "unpack the binary version there"),
    binary="cifar100/cifar-100-binary",
    batches={"train": ("train",), "test": ("test",)},
    labels={"fine_label": FINE, "coarse_label": COARSE},
    arrays=("y", "y_coarse"),
)
CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def load_cifar(request: DatasetRequest) -> Dataset:
    """Load CIFAR-10, with the label `class`, or CIFAR-100, with `fine_label` or the group, `coarse_label`."""
    files = CIFAR[request.dataset]
    label = request.choose_label(tuple(files.labels))
    place = [*files.labels].index(label)
    parts, folder = request.choose_parts(), files.binary.partition("/")[0]
    layouts = (
        Layout("binary version", tuple(f"{files.binary}/{name}.bin" for part in parts for name in files.batches[part])),
        Layout("npz archives", tuple(f"{folder}/*{part}.npz" for part in parts)),
    )
    layout, paths = files.publication.locate(request, *layouts)
    contents = []
    for path in paths:
        if layout == layouts[0]:
            pixels, labels = _read_binary(path, request.limits, len(files.labels), len(files.labels) - 1 - place)
        else:
            pixels, labels = _read_archive(path, request.limits, files.arrays[place])
        _check_labels(path, labels, 0, len(files.labels[label]))
        contents.append((pixels, labels))
    pixels, labels = contents[0] if len(contents) == 1 else map(np.concatenate, zip(*contents, strict=True))
    return image_dataset(request.dataset, pixels, labels, files.labels[label], label, str(files.publication))


def _check_labels(path: Path, labels: npt.NDArray[np.integer], first: int, num_classes: int) -> None:
    invalid_rows = np.flatnonzero((labels < first) | (labels >= first + num_classes))
    if len(invalid_rows):
        must = f"be between {first} and {first + num_classes - 1}"
        given = f"{labels[invalid_rows[0]]} in row {invalid_rows[0] + 1}"
        raise DataError.of(f"the labels of {path}", must, given)


def _read_binary(path: Path, limits: ReadLimits, num_labels: int, place: int) -> Images:
    """Return the images of a batch, and the labels that stand at a place before each."""
    limits.check_file(path)
    with reading(path, OSError):
        content = np.fromfile(path, np.uint8)
    record = num_labels + IMAGE_BYTES
    if not len(content) or len(content) % record:
        raise DataError.of(path, f"hold whole records of {record} bytes", f"{len(content)} bytes")
    records = content.reshape(-1, record)
    return records[:, num_labels:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, place]


def _read_archive(path: Path, limits: ReadLimits, label: str) -> Images:
    arrays = read_arrays(path, limits, label)
    pixels, labels = arrays[ROWS], arrays[label]
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (SIDE, SIDE, CHANNELS) or labels.dtype.kind not in "iu":
        raise DataError.of(
            path,
            f"hold in {ROWS} unsigned bytes of shape (rows, {SIDE}, {SIDE}, {CHANNELS}), and whole numbers in {label}",
            f"{pixels.dtype} of shape {pixels.shape}, and {labels.dtype}",
        )
    return pixels.transpose(0, 3, 1, 2), labels


UNSIGNED_BYTE = 8
GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path, num_axes: int, limits: ReadLimits) -> PixelArray:
    """Read an IDX file of unsigned bytes.

    Args:
        path: An existing file, gzip-compressed or not, as detected from its content.
        num_axes: Expected number of axes: 1 for labels, 3 for images.
        limits: Maximum size.

    Raises:
        DataError: If it is not such a file, is too large, or holds fewer or more bytes than its header states.
    """
    head = 4 + 4 * num_axes
    with reading(path, OSError, EOFError, zlib.error):
        with path.open("rb") as plain:
            opened = gzip.open if plain.read(len(GZIP_MAGIC)) == GZIP_MAGIC else open
        with opened(path, "rb") as file:
            content = file.read(head + limits.max_bytes + 1)
    limits.check_bytes(path, len(content) - head)
    shape = tuple(map(int, np.frombuffer(content[4:head], ">u4"))) if len(content) > head else ()
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]) or prod(shape) != len(content) - head:
        raise DataError.of(
            path,
            f"be an IDX file of unsigned bytes with {num_axes} axes, as many as its header says",
            f"{len(content)} bytes that begin with {content[:4].hex(' ')}, of shape {shape}",
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


HANDWRITTEN_DIGITS = Publication(
    "LeCun, Cortes and Burges, The MNIST database of handwritten digits, 1998", "http://yann.lecun.com/exdb/mnist/"
)
CLOTHING = Publication(
    "Xiao, Rasul and Vollgraf, Fashion-MNIST, 2017", "https://github.com/zalandoresearch/fashion-mnist"
)
EMNIST = Publication("Cohen et al., EMNIST, 2017", "https://www.nist.gov/itl/products-and-services/emnist-dataset")
NAMES_OF_PARTS = {"train": "train", "test": "t10k"}
FASHION_NAMES = """
    T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"""
MNIST: Mapping[str, tuple[str, Sequence[str], Publication]] = {
    "mnist": ("digit", digits, HANDWRITTEN_DIGITS),
    "fashion_mnist": ("article", FASHION_NAMES.strip().split(", "), CLOTHING),
}
MERGED = digits + ascii_uppercase + "abdefghnqrt"
CLASSES = {
    "balanced": MERGED,
    "bymerge": MERGED,
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "letters": ascii_lowercase,
    "digits": digits,
    "mnist": digits,
}
FIRST_LABELS = {"letters": 1}
USUAL = "balanced"


def load_emnist(request: DatasetRequest) -> Dataset:
    """Load one variant of EMNIST; the label is `character`.

    The name `emnist` means `emnist_balanced`; `emnist_letters` and so on name the others.
    """
    request.choose_label(("character",))
    variant = request.dataset.removeprefix("emnist").removeprefix("_") or USUAL
    stems = [
        (f" in {folder}", f"{folder}/emnist-{variant}-{{part}}-{{kind}}-idx") for folder in ("emnist", "emnist/gzip")
    ]
    parts = request.choose_parts()
    images, labels = _read_parts(request, stems, parts, EMNIST, len(CLASSES[variant]), FIRST_LABELS.get(variant, 0))
    upright = images.transpose(0, 2, 1)[:, None]
    return image_dataset(request.dataset, upright, labels, CLASSES[variant], "character", str(EMNIST))


def load_mnist(request: DatasetRequest) -> Dataset:
    """Load MNIST or a data set with files of the same names."""
    label, class_names, publication = MNIST[request.dataset]
    request.choose_label((label,))
    stems = [
        (variant, f"{request.dataset}/{{part}}-{{kind}}{separator}idx")
        for variant, separator in (("", "-"), (" with a dot in their names", "."))
    ]
    parts = tuple(NAMES_OF_PARTS[part] for part in request.choose_parts())
    images, labels = _read_parts(request, stems, parts, publication, len(class_names))
    return image_dataset(request.dataset, images[:, None], labels, class_names, label, str(publication))


def _read_parts(
    request: DatasetRequest,
    stems: Sequence[tuple[str, str]],
    parts: tuple[str, ...],
    publication: Publication,
    num_classes: int,
    first_label: int = 0,
) -> tuple[PixelArray, PixelArray]:
    """Return images, shape `(num_rows, height, width)`, and labels, shape `(num_rows,)`, counted from 0.

    Args:
        request: User settings.
        stems: Name of each layout, and its file names up to `idx`, with placeholders `{part}` for the part and `{kind}`
            for images or labels.
        parts: Parts to read, as named in the file names.
        publication: Cited if files are missing.
        num_classes: Number of classes.
        first_label: Label of the first class in the files.

    Raises:
        DataError: If files are missing, malformed, inconsistent, or hold a label that is not a class.
    """
    kinds = (("images", 3), ("labels", 1))
    layouts = [
        Layout(
            f"IDX files{variant}",
            tuple(f"{stem.format(part=part, kind=kind)}{axes}-ubyte" for part in parts for kind, axes in kinds),
            packed=True,
        )
        for variant, stem in stems
    ]
    _, paths = publication.locate(request, *layouts)
    pairs = [
        _read_pair(images, labels, num_classes, first_label, request.limits)
        for images, labels in zip(paths[::2], paths[1::2], strict=True)
    ]
    if len({images.shape[1:] for images, _ in pairs}) > 1:
        shapes = " and ".join(str(images.shape[1:]) for images, _ in pairs)
        raise DataError.of(f"the images of data set {request.dataset!r}", "be of one size", shapes)
    if len(pairs) == 1:
        return pairs[0]
    return np.concatenate([images for images, _ in pairs]), np.concatenate([labels for _, labels in pairs])


def _read_pair(
    images_path: Path, labels_path: Path, num_classes: int, first_label: int, limits: ReadLimits
) -> tuple[PixelArray, PixelArray]:
    images, labels = read_idx(images_path, 3, limits), read_idx(labels_path, 1, limits)
    if len(images) != len(labels):
        raise DataError.of(
            labels_path, f"hold one label for each of the {len(images)} images of {images_path}", len(labels)
        )
    _check_labels(labels_path, labels, first_label, num_classes)
    return images, labels - np.uint8(first_label)


HEALTHY, GLAUCOMA, SUSPECT = "healthy", "glaucoma", "suspect"
MEANINGS = {
    **dict.fromkeys(("healthy", "normal", "non-glaucoma", "0"), HEALTHY),
    **dict.fromkeys(("glaucoma", "1"), GLAUCOMA),
    **dict.fromkeys(("suspect", "glaucoma suspect", "-1"), SUSPECT),
}
RETINAL = Publication(
    "SMDG-19, Kiefer et al., 2023; REFUGE, Orlando et al., Medical Image Analysis 59, 2020; RIM-ONE DL, Fumero Batista "
    "et al., Image Analysis & Stereology 39(3), 2020, and others",
    "https://www.kaggle.com/datasets/deathtrooper/multichannel-glaucoma-benchmark-dataset, "
    "https://refuge.grand-challenge.org, https://github.com/miag-ull/rim-one-dl",
    derivation="put each hospital's images into its own folder, by class or with a labels.csv (image,label)",
)
LABEL = "diagnosis"
HOSPITAL = "hospital"


def load_retinal(request: DatasetRequest) -> Dataset:
    """Load the hospitals' images; the label is `diagnosis`, the natural client the `hospital`."""
    request.choose_label((LABEL,), client=HOSPITAL)
    hospital = f"${FOLDER_VARIABLE}/retinal/<hospital>"
    expected_path = f"{hospital}/<class>/<image> or {hospital}/labels.csv"
    folder = RETINAL.folder(request, expected_path) / "retinal"
    if not folder.is_dir():
        raise DataError.of(folder, f"hold {expected_path} of data set 'retinal'", "no folder", RETINAL.origin)
    pictures = list_pictures(folder, request.limits)
    if pictures[0].client is None:
        raise DataError.of("data set 'retinal'", f"have one folder per hospital, {expected_path}")
    meanings = [MEANINGS.get(picture.label.lower()) for picture in pictures]
    if None in meanings:
        picture = pictures[meanings.index(None)]
        must = f"be {GLAUCOMA} (1), {HEALTHY} (normal, non-glaucoma, 0) or {SUSPECT} (-1)"
        raise DataError.of(f"the label of {picture.path}", must, repr(picture.label))
    diagnosed = [
        replace(picture, label=meaning)
        for picture, meaning in zip(pictures, meanings, strict=True)
        if meaning is not None and meaning != SUSPECT
    ]
    if not diagnosed:
        raise DataError.of("data set 'retinal'", f"hold eyes with {GLAUCOMA} and healthy ones, but all are suspected")
    label_request = request.model_copy(update={"label": LABEL})
    dataset = pictures_dataset("retinal", diagnosed, str(RETINAL), label_request, classes=(HEALTHY, GLAUCOMA))
    return replace(dataset, facts={**dataset.facts, "num_suspects_left_out": len(pictures) - len(diagnosed)})
