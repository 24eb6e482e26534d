"""One's own pictures: a folder of them, by class, or by client and class.

`image_listing.py` tells the layouts. All pictures become squares of `federation.image_size` pixels with values in
`[0, 1]`: one channel if every picture is stored in grey, else three. With folders of clients, or a column of clients in
`labels.csv`, `federation.partition.kind=natural` gives each client its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.image_file import is_grey, read_pixels
from fedscout.experiments.federations.datasets.images.image_listing import (
    CLASS_FOLDER,
    Picture,
    every_picture,
    list_pictures,
)
from fedscout.experiments.federations.datasets.images.pixels import PixelArray, image_dataset, unit_pixels

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
    name: str,
    pictures: list[Picture],
    source: str,
    request: DatasetRequest,
    classes: Sequence[str] | None = None,
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
        raise DataError(f"{len(broken)} of {len(pictures)} pictures can't be used: {faults[0]}; nor can {others}")
    if faults:
        raise DataError(faults)
    return values


def _in_order(names: Iterable[str]) -> list[str]:
    """Return classes in numeric order if all are whole numbers, else in alphabetical order."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if all(name.isdecimal() for name in ordered) else ordered
