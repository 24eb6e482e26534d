"""Which pictures a folder holds, what each shows and whose it is.

The layout is recognised by how deep the pictures lie:

- `folder/class/picture`: the folders are the classes;
- `folder/client/class/picture`: the outer folders are natural clients, the inner ones the classes;
- `folder/labels.csv` with columns `image` and `label`: pictures anywhere below the folder, named relative to it;
- `folder/client/labels.csv`, or class folders, in each client's folder: natural clients, each in either way.

Passed over are hidden files, `Thumbs.db`, `desktop.ini` and what is named README or LICENSE. Any other file must be a
picture: what is no picture where pictures are expected is a mistake worth hearing of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.images.image_file import SUFFIXES
from fedscout.experiments.federations.datasets.read_limits import USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.table_file import read_csv, require_columns

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
        raise DataError(f"the folder {folder} can't be read: {error.strerror}") from None
    return [path for path in entries if not _ignored(path.name.lower())]


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in IGNORED or name.partition(".")[0] in IGNORED_STEMS
