"""Image files and folders as data sets of pixels.

Pillow reads the files. An image is rotated according to its EXIF orientation, composited over black where it is
transparent, and resized to a square without preserving its aspect ratio: each new pixel is the mean of the area that it
covers (Pillow's box filter), so that shrinking loses nothing and enlarging repeats pixels. All images become squares of
`federation.image_size` pixels: one channel if every image is stored in greyscale, else three.

The layout of an image folder is recognised by the depth of the images:

- `folder/class/picture`: the folders are the classes;
- `folder/client/class/picture`: the outer folders are natural clients, the inner ones the classes;
- `folder/labels.csv` with columns `image` and `label`: images anywhere below the folder, named relative to it;
- `folder/client/labels.csv`, or class folders, in each client's folder: natural clients, each in either layout.

With client folders, or a client column in `labels.csv`, `federation.partition.kind=natural` assigns each client its own
images. Hidden files, `Thumbs.db`, `desktop.ini` and files named README or LICENSE are ignored. Any other file must be
an image; one that is not is reported as an error.

Pixels (0 to 255) are divided by 255, the usual scale of images, and not standardised individually. A scenario's noise
is given in units of one standard deviation of the whole image: the root of the mean variance of a pixel. Rows are
processed in blocks, so that memory holds the bytes and a single copy in float32.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError
from fedscout.experiments.data.columns import in_order
from fedscout.experiments.data.dataset import (
    LARGEST_PIXEL,
    Dataset,
    DatasetRequest,
    PixelArray,
    ReadLimits,
    blocks,
    present_classes,
    reading,
    unit_pixels,
    usual_facts,
)
from fedscout.experiments.data.table_files import read_csv


def image_dataset(
    name: str,
    pixels: PixelArray | FloatArray,
    labels: npt.NDArray[np.integer],
    class_names: Sequence[str],
    label: str,
    source: str,
    facts: Mapping[str, Any] | None = None,
    client_ids: npt.NDArray[np.str_] | None = None,
) -> Dataset:
    """Return the data set of images; classes without an image are dropped.

    Args:
        name: Name of the data set.
        pixels: Bytes, or float32 in `[0, 1]`, shape `(num_rows, channels, height, width)`; may be a view of any layout.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name per class.
        label: Name of the label.
        source: Citation.
        facts: Additional facts to record.
        client_ids: Natural client of each image, or None.

    Raises:
        DataError: If there are fewer than two classes.
    """
    numbers, names = present_classes(name, labels, class_names)
    unit = LARGEST_PIXEL if pixels.dtype == np.uint8 else 1
    return Dataset(
        name=name,
        features=unit_pixels(pixels) if pixels.dtype == np.uint8 else pixels.astype(np.float32, copy=False),
        labels=numbers,
        class_names=names,
        feature_names=(),
        source=source,
        feature_unit=value_deviation(pixels) / unit or 1.0,
        client_ids=client_ids,
        facts={**usual_facts(label, pixels, numbers), **(facts or {})},
        kind="image",
    )


def value_deviation(values: npt.NDArray[np.uint8] | FloatArray) -> float:
    """Return the square root of the mean, over pixels, of their variance over images.

    Args:
        values: Shape `(num_rows, channels, height, width)`. Sums of bytes are exact.
    """
    sum_type = np.int64 if values.dtype == np.uint8 else np.float64
    total = np.zeros(values.shape[1:], sum_type)
    squares = np.zeros(values.shape[1:], sum_type)
    for rows in blocks(len(values)):
        block = values[rows].astype(sum_type)
        total += block.sum(axis=0)
        squares += np.square(block).sum(axis=0)
    variance = squares / len(values) - (total / len(values)) ** 2
    return float(np.sqrt(max(0.0, float(variance.mean()))))


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
LARGEST_16_BIT = 65_535


def read_pixels(path: Path, size: int, mode: str | None = None) -> PixelArray:
    """Return the pixels of an image as a square, shape `(size, size)` if it is grey, else `(size, size, 3)`.

    Args:
        path: An existing file.
        size: Width and height of the result.
        mode: `L` for brightness only, `RGB` for three channels; None for what the file stores.

    Raises:
        DataError: If it is not an image, damaged, or unsupported.
    """
    with _opened(path) as picture:
        plain = plain_picture(path, picture)
        return np.asarray(plain.convert(mode or plain.mode).resize((size, size), Image.Resampling.BOX), dtype=np.uint8)


def stacked(pictures: Sequence[PixelArray]) -> PixelArray:
    """Return images of one size, shape `(num_rows, channels, height, width)`: one channel if all are grey, else three.

    Args:
        pictures: Each of shape `(height, width)` if it is grey, else `(height, width, 3)`.
    """
    if all(picture.ndim == 2 for picture in pictures):
        return np.stack(pictures)[:, None]
    pixels = np.empty((len(pictures), *pictures[0].shape[:2], 3), np.uint8)
    for row, picture in zip(pixels, pictures, strict=True):
        row[:] = picture if picture.ndim == 3 else picture[..., None]
    return pixels.transpose(0, 3, 1, 2)


def plain_picture(source: Path | str, picture: Image.Image) -> Image.Image:
    """Return an opened image upright and over black, in Pillow's mode L if stored in greyscale, else in RGB.

    Args:
        source: Source of the image, for messages.
        picture: Image of any mode.

    Raises:
        DataError: If it is unsupported.
    """
    if picture.mode not in (*GREY_MODES, *COLOUR_MODES):
        must = "have 8 bits per channel, or 16 if it is grey, as other formats have no known scale"
        raise DataError.of(source, must, f"Pillow's mode {picture.mode!r}")
    num_frames = getattr(picture, "n_frames", 1)
    if num_frames != 1:
        raise DataError.of(source, "hold a single picture", num_frames)
    mode = "L" if picture.mode in GREY_MODES else "RGB"
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I;16"):  # Pillow's own conversion would clip all values above 255
        values = np.asarray(upright).astype(np.float64) * (255 / LARGEST_16_BIT)
        upright = Image.fromarray(np.rint(values).astype(np.uint8))
    if upright.has_transparency_data:
        black = Image.new("RGBA", upright.size, (0, 0, 0, 255))
        upright = Image.alpha_composite(black, upright.convert("RGBA"))
    return upright.convert(mode)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image; any error while opening or using it is reported as a fault of this file."""
    try:
        with warnings.catch_warnings():
            # A picture so large that it may be meant to exhaust the memory is but warned of.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # of odd metadata, which do not matter here
            with Image.open(path, formats=FORMATS) as picture:
                yield picture
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError.of(
            path,
            f"hold at most {Image.MAX_IMAGE_PIXELS} pixels, but its header declares more: a "
            "decompression bomb, or a picture that must be resized first",
        ) from None
    except UnidentifiedImageError:
        raise DataError.of(path, f"be a picture ({', '.join(FORMATS)}), but its content is not one") from None
    except MemoryError:
        raise DataError.of(path, problem="can't be read: it does not fit into memory") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise DataError.of(path, problem=f"is damaged or can't be read: {reason}") from None


LABELS_FILE = "labels.csv"
IMAGE_COLUMN = "image"
MOST_FOLDERS = 2
IGNORED = ("thumbs.db", "desktop.ini", "__macosx")
IGNORED_STEMS = ("readme", "license", "licence")
LAYOUTS = "folder/class/picture or folder/client/class/picture"
CLASS_FOLDER = "class"
CLIENT_FOLDER = "client"
LABEL_COLUMN = "label"


@dataclass(frozen=True)
class Picture:
    """One image file.

    Attributes:
        path: Path of the file.
        label: Class name.
        client: Natural client, or None.
    """

    path: Path
    label: str
    client: str | None = None


def list_pictures(
    folder: Path, limits: ReadLimits, label: str | None = None, client_column: str | None = None
) -> list[Picture]:
    """Return a folder's images, ordered by their relative paths.

    Args:
        folder: An existing folder.
        limits: Maximum size of a `labels.csv`.
        label: Label column of a `labels.csv`, None for `label`; for folders without one, None or `class`.
        client_column: Client column in the `labels.csv` of the folder itself; for client folders, None or `client`.

    Raises:
        DataError: If the folder can't be read, has no supported layout or a mix of them, or has no such label or
            client.
    """
    if (folder / LABELS_FILE).is_file():
        return _read_labels(folder, label or LABEL_COLUMN, client_column, limits)
    entries = _entries(folder)
    if any((path / LABELS_FILE).is_file() for path in entries):
        pictures = _from_clients(folder, entries, label, limits)
    else:
        pictures = _from_folders(folder)
        _require(folder, "label", label, CLASS_FOLDER)
    _require(folder, "client_column", client_column, None if pictures[0].client is None else CLIENT_FOLDER)
    return pictures


def _require(folder: Path, key: str, given: str | None, allowed: str | None) -> None:
    if given not in {None, allowed}:
        expected = f"left out or be {allowed!r}" if allowed else "left out"
        raise DataError.of(
            f"federation.{key}",
            f"be {expected}, as the folders of {folder} define it and there is no {LABELS_FILE}",
            repr(given),
        )


def _from_folders(folder: Path) -> list[Picture]:
    pictures = _walk(folder, (), (folder.resolve(),))
    if not pictures:
        raise DataError.of(folder, f"hold pictures ({', '.join(SUFFIXES)}) as {LAYOUTS}, but it holds none")
    depths = {len(parts): path for parts, path in reversed(pictures)}
    filled_folders = {parts[0] for parts, _ in pictures if parts}
    empty = [path for path in _entries(folder) if path.is_dir() and path.name not in filled_folders]
    if len(depths) > 1 or 0 in depths or empty:
        odd = f"no picture in {empty[0]}" if empty else " and ".join(str(depths[depth]) for depth in sorted(depths))
        raise DataError.of(folder, f"hold pictures as {LAYOUTS}, or a {LABELS_FILE}, in all of its folders alike", odd)
    return [Picture(path, parts[-1], parts[0] if len(parts) > 1 else None) for parts, path in pictures]


def _from_clients(folder: Path, entries: list[Path], label: str | None, limits: ReadLimits) -> list[Picture]:
    """Return the images of natural clients, each with a label file or class folders."""
    pictures: list[Picture] = []
    for client in entries:
        if not client.is_dir():
            raise DataError.of(folder, f"hold only folders of clients, as some have a {LABELS_FILE}", repr(client.name))
        own = list_pictures(client, limits, label if (client / LABELS_FILE).is_file() else None)
        if own[0].client is not None:
            must = f"hold class folders or a {LABELS_FILE}, as the clients beside it do, but {own[0].path} lies deeper"
            raise DataError.of(client, must)
        pictures += [replace(picture, client=client.name) for picture in own]
    return pictures


def _read_labels(folder: Path, label: str, client_column: str | None, limits: ReadLimits) -> list[Picture]:
    """Return the images listed in a label file, relative to its folder, ordered by path.

    Raises:
        DataError: If the file is malformed, lists an image twice, outside the folder or missing, or lacks a label or
            client.
    """
    path = folder / LABELS_FILE
    columns = (IMAGE_COLUMN, label, *(() if client_column is None else (client_column,)))
    rows = read_csv(path, delimiter=",", limits=limits, required=columns)
    pictures: dict[str, Picture] = {}
    for number, cells in enumerate(zip(*(rows[key].to_pylist() for key in columns), strict=True), start=1):
        image, name, *client = cells
        is_below = image is not None and not Path(image).is_absolute() and ".." not in Path(image).parts
        if None in cells or image in pictures or not is_below or not (folder / image).is_file():
            must = "name in every row a picture that exists below its own folder, once, with a value in each column"
            raise DataError.of(path, must, f"{', '.join(map(repr, cells))} in row {number}")
        pictures[image] = Picture(folder / image, name, *client)
    return sorted(pictures.values(), key=lambda picture: picture.path.as_posix())


def _walk(folder: Path, parts: tuple[str, ...], above: tuple[Path, ...]) -> list[tuple[tuple[str, ...], Path]]:
    """Return each image below a folder with the names of its parent folders."""
    pictures = []
    for path in _entries(folder):
        if path.is_dir():
            resolved = path.resolve()
            if resolved in above:
                raise DataError.of(path, f"not link back to {resolved}, a folder above it")
            if len(parts) == MOST_FOLDERS:
                raise DataError.of("pictures", f"be laid out as {LAYOUTS}, but {path} is a folder one level deeper")
            pictures += _walk(path, (*parts, path.name), (*above, resolved))
        elif path.suffix.lower() in SUFFIXES:
            if not path.is_file():  # a pipe would be waited for
                raise DataError.of(path, "be a picture file, but it is a pipe, a device or a broken link")
            pictures.append((parts, path))
        else:
            raise DataError.of(
                folder,
                f"hold only pictures ({', '.join(SUFFIXES)}) or folders of them",
                repr(path.name),
                f"use federation.dataset='{folder}/*.csv' for tables, which can have a column of texts",
            )
    return pictures


def _entries(folder: Path) -> list[Path]:
    with reading(f"the folder {folder}", OSError):
        return sorted(
            (path for path in folder.iterdir() if not _ignored(path.name.lower())), key=lambda path: path.name
        )


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in IGNORED or name.partition(".")[0] in IGNORED_STEMS


def load_image_folder(request: DatasetRequest) -> Dataset:
    """Load the folder given by `request.dataset`.

    `federation.label` and `federation.client_column` are columns of a `labels.csv`. If folders define the class and the
    client, they may be omitted, or be `class` and `client`.

    Raises:
        DataError: If the folder is missing, has no supported layout, or holds unusable files, of which several are
            listed.
    """
    folder = Path(request.dataset).expanduser()
    if not folder.is_dir():
        raise DataError.of("federation.dataset", "name a folder that exists", repr(request.dataset))
    pictures = list_pictures(folder, request.limits, request.label, request.client_column)
    return pictures_dataset(folder.name or request.dataset, pictures, f"own pictures in {folder}", request)


def pictures_dataset(
    name: str, pictures: list[Picture], source: str, request: DatasetRequest, classes: Sequence[str] | None = None
) -> Dataset:
    """Read images into a data set.

    Args:
        name: Name of the data set.
        pictures: At least one; either all have a natural client, or none.
        source: Citation.
        request: Provides the image size and the name of the label.
        classes: All possible classes, in order; None for those that occur.

    Raises:
        DataError: If a file is not a valid image, or there are fewer than two classes.
    """
    pixels = _pixels([picture.path for picture in pictures], request.image_size)
    class_names = classes or in_order({picture.label for picture in pictures})
    label_index = {label: index for index, label in enumerate(class_names)}
    clients = [picture.client for picture in pictures if picture.client is not None]
    return image_dataset(
        name,
        pixels,
        np.array([label_index[picture.label] for picture in pictures], dtype=np.int64),
        class_names,
        label=request.label or CLASS_FOLDER,
        source=source,
        facts={"image_size": request.image_size, "num_channels": pixels.shape[1]},
        client_ids=np.array(clients, dtype=np.str_) if clients else None,
    )


def client_pictures(folder: Path, request: DatasetRequest, grey: bool) -> tuple[FloatArray, list[str]]:
    """Return one client's images as rows, shape `(num_rows, channels, size, size)`, and the class of each.

    Args:
        folder: An image folder without client folders; a single class is allowed.
        request: Provides the image size and the name of the label.
        grey: Whether rows have one channel.

    Raises:
        DataError: If the folder has no supported layout, or a file is not a valid image.
    """
    pictures = list_pictures(folder, request.limits, request.label)
    pixels = _pixels([picture.path for picture in pictures], request.image_size, "L" if grey else "RGB")
    return unit_pixels(pixels), [picture.label for picture in pictures]


def pictures_alone(folder: Path, request: DatasetRequest, grey: bool) -> tuple[FloatArray, list[str]]:
    """Return all images in a folder as rows, regardless of class, and their relative paths.

    Args:
        folder: Images, in subfolders or not.
        request: Provides the image size.
        grey: Whether rows have one channel.

    Raises:
        DataError: If there is none, or a file is not a valid image.
    """
    paths = [path for _, path in _walk(folder, (), (folder.resolve(),))]
    if not paths:
        raise DataError.of(folder, f"hold pictures ({', '.join(SUFFIXES)}), but it holds none")
    pixels = _pixels(paths, request.image_size, "L" if grey else "RGB")
    return unit_pixels(pixels), [str(path.relative_to(folder)) for path in paths]


def _pixels(paths: list[Path], size: int, mode: str | None = None) -> PixelArray:
    """Read every image; failures are summarised by their number and the first one."""
    pictures: list[PixelArray] = []
    faults: list[str] = []
    for path in paths:
        try:
            pictures.append(read_pixels(path, size, mode))
        except DataError as error:
            faults += error.faults
    if len(faults) > 1:
        raise DataError.of(f"{len(faults)} of {len(paths)} pictures", problem=f"can't be used, such as: {faults[0]}")
    if faults:
        raise DataError(faults)
    return stacked(pictures)
