"""Image files and folders as arrays of pixels.

One picture file: is it grey or coloured, and its pixels at a wanted size. Read by Pillow.

A picture is turned as its EXIF orientation says, laid over black where it is transparent, and resized to a square
without regard to its proportions: each new pixel is the mean of the area that it covers (Pillow's box filter), so that
shrinking loses nothing and enlarging repeats pixels.

One's own pictures: a folder of them, by class, or by client and class.

`images.py` tells the layouts. All pictures become squares of `federation.image_size` pixels with values in
`[0, 1]`: one channel if every picture is stored in grey, else three. With folders of clients, or a column of clients in
`labels.csv`, `federation.partition.kind=natural` gives each client its own.

Which pictures a folder holds, what each shows and whose it is.

The layout is recognised by how deep the pictures lie:

- `folder/class/picture`: the folders are the classes;
- `folder/client/class/picture`: the outer folders are natural clients, the inner ones the classes;
- `folder/labels.csv` with columns `image` and `label`: pictures anywhere below the folder, named relative to it;
- `folder/client/labels.csv`, or class folders, in each client's folder: natural clients, each in either way.

Passed over are hidden files, `Thumbs.db`, `desktop.ini` and what is named README or LICENSE. Any other file must be a
picture: what is no picture where pictures are expected is a mistake worth hearing of.

From bytes of pixels to a data set of images.

Pixels (0 to 255) are divided by 255, the usual scale of images, and not standardised one by one. A scenario's noise is
given in units of one standard deviation of the whole image: the root of the mean variance of a pixel. Work goes by
blocks of rows, so that beside the bytes there is one copy in float32 and no more.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import listed
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, TextArray, present_classes, usual_facts
from fedscout.experiments.data.files import USUAL_LIMITS, ReadLimits
from fedscout.experiments.data.table_files import read_csv, require_columns

if TYPE_CHECKING:
    from PIL import Image


LARGEST_PIXEL = 255
BLOCK_ROWS = 1024

PixelArray = npt.NDArray[np.uint8]


def image_dataset(
    name: str,
    pixels: PixelArray,
    labels: npt.NDArray[np.integer],
    class_names: Sequence[str],
    label: str,
    source: str,
    facts: Mapping[str, Any] | None = None,
    client_ids: TextArray | None = None,
) -> Dataset:
    """Return the data set of some images; a class without an image is left out.

    Args:
        name: The data set's name.
        pixels: Shape `(num_rows, channels, height, width)`; may be a view of any layout.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name a class.
        label: What is predicted.
        source: Citation.
        facts: Further facts for the record.
        client_ids: The natural client of each image, or None.

    Raises:
        DataError: If there are fewer than two classes.
    """
    numbers, names = present_classes(name, labels, class_names)
    return Dataset(
        name=name,
        features=unit_pixels(pixels),
        labels=numbers,
        class_names=names,
        feature_names=(),
        source=source,
        feature_unit=value_deviation(pixels) / LARGEST_PIXEL or 1.0,
        client_ids=client_ids,
        facts={**usual_facts(label, pixels, numbers), **(facts or {})},
        kind="image",
    )


def unit_pixels(pixels: PixelArray) -> FloatArray:
    """Return pixels in `[0, 1]`, float32, of the same shape."""
    features = np.empty(pixels.shape, np.float32)
    for start in range(0, len(pixels), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        np.divide(pixels[block], np.float32(LARGEST_PIXEL), out=features[block])
    return features


def value_deviation(values: npt.NDArray[np.uint8] | FloatArray) -> float:
    """Return the root of the mean over pixels of their variance over images.

    Args:
        values: Shape `(num_rows, channels, height, width)`. For bytes the sums are exact.
    """
    wide = np.int64 if values.dtype == np.uint8 else np.float64
    total = np.zeros(values.shape[1:], wide)
    squares = np.zeros(values.shape[1:], wide)
    for start in range(0, len(values), BLOCK_ROWS):
        block = values[start : start + BLOCK_ROWS].astype(wide)
        total += block.sum(axis=0)
        squares += np.square(block).sum(axis=0)
    variance = squares / len(values) - (total / len(values)) ** 2
    return float(np.sqrt(max(0.0, float(variance.mean()))))


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
LARGEST_16_BIT = 65_535


def is_grey(path: Path) -> bool:
    """Whether a picture's format stores one brightness a pixel; colours that happen to be grey do not count.

    Args:
        path: An existing file, of which the head alone is read.

    Raises:
        DataError: If it is no picture, or one that can't be used.
    """
    with _opened(path) as picture:
        return picture.mode in GREY_MODES


def read_pixels(path: Path, size: int, grey: bool) -> PixelArray:
    """Return a picture's pixels, shape `(channels, size, size)`, with one channel if grey and three if not.

    Args:
        path: An existing file.
        size: Width and height wanted.
        grey: Whether to return brightness alone; only for a picture that is grey.

    Raises:
        DataError: If it is no picture, is damaged, or can't be used.
    """
    from PIL import Image

    with _opened(path) as picture:
        small = plain_picture(path, picture).convert("L" if grey else "RGB").resize((size, size), Image.Resampling.BOX)
        pixels: PixelArray = np.asarray(small, dtype=np.uint8).reshape(size, size, -1)
    return np.moveaxis(pixels, -1, 0)


def plain_picture(source: Path | str, picture: Image.Image) -> Image.Image:
    """Return an opened picture upright and over black, in Pillow's mode L if it is stored in grey, else in RGB.

    Args:
        source: Where it is from, for messages.
        picture: Of any mode.

    Raises:
        DataError: If it can't be used.
    """
    from PIL import ImageOps

    _require_usable(source, picture)
    mode = "L" if picture.mode in GREY_MODES else "RGB"
    return _on_black(_eight_bits(ImageOps.exif_transpose(picture))).convert(mode)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; whatever goes wrong with it, there or later, is told as a fault of this file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # A picture so large that it may be meant to exhaust the memory is but warned of.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # of odd metadata, which do not matter here
            with Image.open(path, formats=FORMATS) as picture:
                _require_usable(path, picture)
                yield picture
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(
            Fault(
                path,
                (
                    f"hold at most {Image.MAX_IMAGE_PIXELS} pixels, but its head announces more: a "
                    "decompression bomb, or a picture to be made smaller first"
                ),
            )
        ) from None
    except UnidentifiedImageError:
        raise DataError(Fault(path, f"be a picture ({', '.join(FORMATS)}), but its content is none")) from None
    except MemoryError:
        raise DataError(Fault(path, problem="can't be read: it does not fit into memory")) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise DataError(Fault(path, problem=f"is damaged or can't be read: {reason}")) from None


def _require_usable(path: Path | str, picture: Image.Image) -> None:
    if picture.mode not in (*GREY_MODES, *COLOUR_MODES):
        raise DataError(
            Fault(
                path,
                "hold pixels of 8 bits a channel, or grey ones of 16, as others have no known scale",
                f"Pillow's mode {picture.mode!r}",
            )
        )
    num_frames = getattr(picture, "n_frames", 1)
    if num_frames != 1:
        raise DataError(Fault(path, "hold one picture", num_frames))


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Return 16-bit grey in 8 bits; Pillow's own conversion would cut off all above 255."""
    from PIL import Image

    if not picture.mode.startswith("I;16"):
        return picture
    values = np.asarray(picture).astype(np.float64) * (255 / LARGEST_16_BIT)
    return Image.fromarray(np.rint(values).astype(np.uint8))


def _on_black(picture: Image.Image) -> Image.Image:
    from PIL import Image

    if not picture.has_transparency_data:
        return picture
    grey = picture.mode in GREY_MODES
    opaque = picture.convert("RGBA")
    black = Image.new("RGBA", opaque.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, opaque).convert("L" if grey else "RGB")


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
    """One picture file.

    Attributes:
        path: Where it is.
        label: Its class.
        client: Its natural client, or None.
    """

    path: Path
    label: str
    client: str | None = None


def list_pictures(
    folder: Path, label: str | None = None, client_column: str | None = None, limits: ReadLimits = USUAL_LIMITS
) -> list[Picture]:
    """Return a folder's pictures, in the order of their paths below it.

    Args:
        folder: An existing folder.
        label: The column of labels in a `labels.csv`, None for `label`; with folders alone, None or `class`.
        client_column: The column of natural clients in the `labels.csv` of the folder itself; with folders of clients,
            None or `client`.
        limits: How much of a `labels.csv` is read.

    Raises:
        DataError: If the folder can't be read, has none of the layouts, mixes them, or has no such label or client.
    """
    if (folder / LABELS_FILE).is_file():
        return _read_labels(folder, label or LABEL_COLUMN, client_column, limits)
    with_labels = {path for path in _entries(folder) if (path / LABELS_FILE).is_file()}
    if with_labels:
        pictures = _from_clients(folder, with_labels, label or LABEL_COLUMN, limits)
    else:
        pictures = _from_folders(folder)
        _require(folder, "label", label, CLASS_FOLDER)
    _require(folder, "client_column", client_column, None if pictures[0].client is None else CLIENT_FOLDER)
    return pictures


def every_picture(folder: Path) -> list[Path]:
    """Return the paths of all pictures in a folder and those below it, in order.

    Raises:
        DataError: If there is none.
    """
    found = [path for _, path in _walk(folder, (), (folder.resolve(),))]
    if not found:
        raise DataError(Fault(folder, f"hold pictures ({', '.join(SUFFIXES)}), but there is none"))
    return found


def _require(folder: Path, key: str, given: str | None, allowed: str | None) -> None:
    if given not in {None, allowed}:
        must = f"left out or be {allowed!r}" if allowed else "left out"
        raise DataError(
            Fault(
                f"federation.{key}",
                f"be {must}, as the folders of {folder} tell it and no {LABELS_FILE} does",
                repr(given),
            )
        )


def _from_folders(folder: Path) -> list[Picture]:
    found = _walk(folder, (), (folder.resolve(),))
    if not found:
        raise DataError(Fault(folder, f"hold pictures ({', '.join(SUFFIXES)}) as {LAYOUTS}, but there is none"))
    depths = {len(parts): path for parts, path in reversed(found)}
    if 0 in depths:
        raise DataError(
            Fault(
                "a picture's class",
                (
                    f"be told by its folder, {LAYOUTS}, or by {folder / LABELS_FILE}, but "
                    f"{depths[0].name!r} lies in {folder} itself"
                ),
            )
        )
    if len(depths) > 1:
        raise DataError(
            Fault(
                f"all pictures of {folder}",
                f"lie equally deep, {LAYOUTS}, but there are both {depths[1]} and {depths[2]}",
            )
        )
    filled = {parts[0] for parts, _ in found}
    empty = [path for path in _entries(folder) if path.name not in filled]
    if empty:
        raise DataError(Fault(f"every folder of {folder}", f"hold a picture, but {empty[0].name!r} holds none"))
    return [Picture(path, parts[-1], parts[0] if len(parts) > 1 else None) for parts, path in found]


def _from_clients(folder: Path, with_labels: set[Path], label: str, limits: ReadLimits) -> list[Picture]:
    """Return the pictures of natural clients, of which some have a file of labels and the others class folders."""
    pictures: list[Picture] = []
    for client in _entries(folder):
        if not client.is_dir():
            raise DataError(
                Fault(folder, f"hold folders of clients alone, as some have a {LABELS_FILE}", repr(client.name))
            )
        if client in with_labels:
            pictures += [replace(picture, client=client.name) for picture in _read_labels(client, label, None, limits)]
            continue
        own = _from_folders(client)
        if own[0].client is not None:
            raise DataError(
                Fault(
                    client,
                    (
                        f"hold class folders or a {LABELS_FILE}, as the clients beside it do, but "
                        f"{own[0].path} lies one folder deeper"
                    ),
                )
            )
        pictures += [replace(picture, client=client.name) for picture in own]
    return pictures


def _read_labels(folder: Path, label: str, client_column: str | None, limits: ReadLimits) -> list[Picture]:
    """Return the pictures that a file of labels names relative to its folder, in the order of the names.

    Raises:
        DataError: If the file is malformed, names a picture twice, one outside the folder or one that is missing, or
            leaves a label or client open.
    """
    path = folder / LABELS_FILE
    rows = read_csv(path, delimiter=",", limits=limits)
    wanted = (IMAGE_COLUMN, label, *(() if client_column is None else (client_column,)))
    require_columns(path, rows, wanted)
    for column in wanted:
        cells = rows[column].to_pylist()
        if None in cells:
            raise DataError(
                Fault(
                    f"column {column!r} of {path}", "be filled in every row", f"nothing in row {cells.index(None) + 1}"
                )
            )
    pictures: dict[str, Picture] = {}
    for number, (image, name, *client) in enumerate(zip(*(rows[key].to_pylist() for key in wanted), strict=True), 1):
        if image in pictures:
            raise DataError(Fault(path, "name each picture once", f"{image!r} again in row {number}"))
        if Path(image).is_absolute() or ".." in Path(image).parts:
            raise DataError(Fault(path, "name pictures below its own folder", f"{image!r} in row {number}"))
        if not (folder / image).is_file():
            raise DataError(Fault(path, "name pictures that exist", f"{image!r} in row {number}"))
        pictures[image] = Picture(folder / image, name, *client)
    return sorted(pictures.values(), key=lambda picture: picture.path.as_posix())


def _walk(folder: Path, parts: tuple[str, ...], above: tuple[Path, ...]) -> list[tuple[tuple[str, ...], Path]]:
    """Return each picture below a folder with the names of the folders that lead to it."""
    found = []
    for path in _entries(folder):
        if path.is_dir():
            resolved = path.resolve()
            if resolved in above:
                raise DataError(Fault(path, f"not lead back to {resolved}, a folder above it"))
            if len(parts) == MOST_FOLDERS:
                raise DataError(Fault("pictures", f"lie as {LAYOUTS}, but {path} is a folder one level deeper"))
            found += _walk(path, (*parts, path.name), (*above, resolved))
        elif path.suffix.lower() in SUFFIXES:
            if not path.is_file():  # a pipe would be waited for
                raise DataError(Fault(path, "be a picture file, but it is a pipe, a device or a link to nothing"))
            found.append((parts, path))
        else:
            raise DataError(
                Fault(
                    folder,
                    f"hold pictures ({', '.join(SUFFIXES)}) or folders of them alone",
                    repr(path.name),
                    f"tables are given as federation.dataset='{folder}/*.csv', texts in a column of one",
                )
            )
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise DataError(Fault(f"the folder {folder}", problem=f"can't be read: {error.strerror}")) from None
    return [path for path in entries if not _ignored(path.name.lower())]


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in IGNORED or name.partition(".")[0] in IGNORED_STEMS


NUM_NAMES_SHOWN = 4

Value = TypeVar("Value")


def load_image_folder(request: DatasetRequest) -> Dataset:
    """Load the folder that `request.name` names.

    `federation.label` and `federation.client_column` name columns of a `labels.csv`. Where folders tell the class and
    the client, they may be left out, or be `class` and `client`.

    Raises:
        DataError: If the folder is missing, has no known layout, or holds a file that is no sound picture; of these,
            several are named.
    """
    folder = Path(request.name).expanduser()
    if not folder.is_dir():
        raise DataError(Fault("federation.dataset", "name a folder that exists", repr(request.name)))
    pictures = list_pictures(folder, request.label, request.client_column, request.limits)
    return pictures_dataset(folder.name or request.name, pictures, f"own pictures in {folder}", request)


def pictures_dataset(
    name: str, pictures: list[Picture], source: str, request: DatasetRequest, classes: Sequence[str] | None = None
) -> Dataset:
    """Read pictures into a data set.

    Args:
        name: The data set's name.
        pictures: At least one; either each has a natural client, or none has.
        source: Citation.
        request: Gives the size, and how the label is called.
        classes: All that there may be, in order; None for those that occur.

    Raises:
        DataError: If a file is no sound picture, or there are fewer than two classes.
    """
    grey = all(_each(pictures, lambda picture: is_grey(picture.path)))
    pixels = _pixels(pictures, request.image_size, grey)
    class_names = classes or _in_order({picture.label for picture in pictures})
    number = {label: index for index, label in enumerate(class_names)}
    clients = [picture.client for picture in pictures if picture.client is not None]
    return image_dataset(
        name,
        pixels,
        np.array([number[picture.label] for picture in pictures], dtype=np.int64),
        class_names,
        label=request.label or CLASS_FOLDER,
        source=source,
        facts={"image_size": request.image_size, "num_channels": pixels.shape[1]},
        client_ids=np.array(clients, dtype=np.str_) if clients else None,
    )


def client_pictures(folder: Path, request: DatasetRequest, grey: bool) -> tuple[FloatArray, list[str]]:
    """Return the pictures of one client as rows, shape `(num_rows, channels, size, size)`, and the class of each.

    Args:
        folder: As `federation.dataset` names one, but without folders of clients; of one class too.
        request: Gives the size, and how the label is called.
        grey: Whether rows are of one channel.

    Raises:
        DataError: If the folder has no known layout, or a file is no sound picture.
    """
    pictures = list_pictures(folder, request.label, None, request.limits)
    return unit_pixels(_pixels(pictures, request.image_size, grey)), [picture.label for picture in pictures]


def pictures_alone(folder: Path, request: DatasetRequest, grey: bool) -> tuple[FloatArray, list[str]]:
    """Return all pictures in a folder as rows, whatever their classes, and their paths below it.

    Args:
        folder: Of pictures, in folders or not.
        request: Gives the size.
        grey: Whether rows are of one channel.

    Raises:
        DataError: If there is none, or a file is no sound picture.
    """
    paths = every_picture(folder)
    pixels = _pixels([Picture(path, "") for path in paths], request.image_size, grey)
    return unit_pixels(pixels), [str(path.relative_to(folder)) for path in paths]


def _pixels(pictures: list[Picture], size: int, grey: bool) -> PixelArray:
    return np.stack(_each(pictures, lambda picture: read_pixels(picture.path, size, grey)), dtype=np.uint8)


def _each(pictures: list[Picture], read: Callable[[Picture], Value]) -> list[Value]:
    """Read something of every picture; how many can't be read, the first's reason and some names make one line."""
    values: list[Value] = []
    faults: list[str] = []
    broken: list[str] = []
    for picture in pictures:
        try:
            values.append(read(picture))
        except DataError as error:
            faults += error.faults
            broken.append(picture.path.name)
    if len(broken) > 1:
        others = listed(broken[1:], most=NUM_NAMES_SHOWN)
        raise DataError(
            Fault(f"{len(broken)} of {len(pictures)} pictures", problem=f"can't be used: {faults[0]}; nor can {others}")
        )
    if faults:
        raise DataError(faults)
    return values


def _in_order(names: Iterable[str]) -> list[str]:
    """Return classes in numeric order if all are whole numbers, else in alphabetical order."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if all(name.isdecimal() for name in ordered) else ordered
