"""MNIST, Fashion-MNIST and EMNIST: images of 28 × 28 pixels and their labels, in pairs of IDX files.

`mnist`: 60,000 and 10,000 digits. Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied to
document recognition", Proceedings of the IEEE 86(11), 1998.

`fashion_mnist`: 60,000 and 10,000 pieces of clothing of ten kinds, in files named as those of MNIST. H. Xiao, K. Rasul
and R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", arXiv:1708.07747,
2017.

`emnist`: handwritten digits and letters, in six ways of putting them together. G. Cohen, S. Afshar, J. Tapson and
A. van Schaik, "EMNIST: an extension of MNIST to handwritten letters", International Joint Conference on Neural
Networks, 2017; table II lists the ways. The files store each image by columns; it is transposed here, so that
characters stand upright. In the way `letters` labels count from 1 and a class holds capital and small letters; in
`balanced` and `bymerge` fifteen small letters that look like their capitals share their class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.column_choice import choose_label, choose_parts
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.idx_file import read_idx
from fedscout.experiments.federations.datasets.images.pixels import PixelArray, image_dataset
from fedscout.experiments.federations.datasets.publication import Layout, Publication, locate_layout
from fedscout.experiments.federations.datasets.read_limits import ReadLimits

MNIST = Publication(
    "LeCun, Cortes and Burges, The MNIST database of handwritten digits, 1998", "http://yann.lecun.com/exdb/mnist/"
)
FASHION_MNIST = Publication(
    "Xiao, Rasul and Vollgraf, Fashion-MNIST, 2017", "https://github.com/zalandoresearch/fashion-mnist"
)
EMNIST = Publication("Cohen et al., EMNIST, 2017", "https://www.nist.gov/itl/products-and-services/emnist-dataset")
NAMES_OF_PARTS = {"train": "train", "test": "t10k"}
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
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


def load_mnist(request: DatasetRequest) -> Dataset:
    """Load the digits; the label is `digit`."""
    return _mnist_like(request, MNIST, "digit", digits)


def load_fashion_mnist(request: DatasetRequest) -> Dataset:
    """Load the clothes; the label is `article`."""
    return _mnist_like(request, FASHION_MNIST, "article", CLOTHES)


def load_emnist(request: DatasetRequest) -> Dataset:
    """Load one way of putting characters together; the label is `character`.

    The name `emnist` means `emnist_balanced`; `emnist_letters` and so on name the others.
    """
    choose_label(request, ("character",), client=None)
    way = request.name.removeprefix("emnist").removeprefix("_") or USUAL
    stems = [(f" in {folder}", f"{folder}/emnist-{way}-{{part}}-{{kind}}-idx") for folder in ("emnist", "emnist/gzip")]
    parts = choose_parts(request)
    images, labels = _read_parts(request, stems, parts, EMNIST, len(CLASSES[way]), FIRST_LABELS.get(way, 0))
    upright = images.transpose(0, 2, 1)[:, None]
    return image_dataset(request.name, upright, labels, CLASSES[way], "character", str(EMNIST))


def _mnist_like(request: DatasetRequest, publication: Publication, label: str, class_names: Sequence[str]) -> Dataset:
    choose_label(request, (label,), client=None)
    stems = [
        (variant, f"{request.name}/{{part}}-{{kind}}{separator}idx")
        for variant, separator in (("", "-"), (" with a dot in their names", "."))
    ]
    parts = tuple(NAMES_OF_PARTS[part] for part in choose_parts(request))
    images, labels = _read_parts(request, stems, parts, publication, len(class_names))
    return image_dataset(request.name, images[:, None], labels, class_names, label, str(publication))


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
        request: The user's choices.
        stems: What a layout is called and how its files are named up to `idx`, in which `{part}` and `{kind}` stand for
            the part, and for images or labels.
        parts: The parts wanted, as they are called in the files' names.
        publication: Named when files are missing.
        num_classes: Number of classes.
        first_label: The label in the files of the first class.

    Raises:
        DataError: If files are missing, malformed, do not fit each other, or hold a label that is no class.
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
    _, paths = locate_layout(request.name, layouts, publication, request.folder)
    pairs = [
        _read_pair(images, labels, num_classes, first_label, request.limits)
        for images, labels in zip(paths[::2], paths[1::2], strict=True)
    ]
    if len({images.shape[1:] for images, _ in pairs}) > 1:
        shapes = " and ".join(str(images.shape[1:]) for images, _ in pairs)
        raise DataError(Fault(f"the images of data set {request.name!r}", "be of one size", shapes))
    if len(pairs) == 1:
        return pairs[0]
    return np.concatenate([images for images, _ in pairs]), np.concatenate([labels for _, labels in pairs])


def _read_pair(
    images_path: Path, labels_path: Path, num_classes: int, first_label: int, limits: ReadLimits
) -> tuple[PixelArray, PixelArray]:
    images, labels = read_idx(images_path, 3, limits), read_idx(labels_path, 1, limits)
    if len(images) != len(labels):
        raise DataError(
            Fault(labels_path, f"hold one label for each of the {len(images)} images of {images_path}", len(labels))
        )
    wrong = np.flatnonzero((labels < first_label) | (labels >= first_label + num_classes))
    if len(wrong):
        raise DataError(
            Fault(
                f"the labels of {labels_path}",
                f"be between {first_label} and {first_label + num_classes - 1}",
                f"{labels[wrong[0]]} in row {wrong[0] + 1}",
            )
        )
    return images, labels - np.uint8(first_label)
