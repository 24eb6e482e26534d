"""How published collections of retinas say which eyes have glaucoma, and in which hospital they were photographed.

A collection is a folder, read in the layout in which it is published:

- SMDG-19 (R. Kiefer et al., "Standardized Multi-Channel Dataset for Glaucoma", 2023,
  https://www.kaggle.com/datasets/deathtrooper/multichannel-glaucoma-benchmark-dataset; the table also at
  https://github.com/TheBeastCoding/standardized-multichannel-dataset-glaucoma): nineteen collections in one. Of
  `metadata - standardized.csv` column `names` holds a collection's name and a number, `types` 0 for healthy, 1 for
  glaucoma and -1 for suspected; the picture is `full-fundus/NAME.png`, in the archive in a second such folder.
- ORIGA-light (Z. Zhang et al., EMBC 2010): `OrigaList.csv` with `Filename` and `Glaucoma`, pictures in `Images`.
- G1020 (M. N. Bajwa et al., IJCNN 2020): `G1020.csv` with `imageID` and `binaryLabels`, pictures in `Images`. Both as
  at https://www.kaggle.com/datasets/arnavjain1/glaucoma-datasets.
- REFUGE (J. I. Orlando et al., Medical Image Analysis 59, 2020, https://refuge.grand-challenge.org): the training part,
  `Training400`, with the folders `Glaucoma` and `Non-Glaucoma`. Labels of the other parts are Excel sheets, and not
  read.
- RIM-ONE DL (F. J. Fumero Batista et al., Image Analysis & Stereology 39(3), 2020,
  https://github.com/miag-ull/rim-one-dl): `partitioned_by_hospital`, whose `training_set` and `test_set` are of
  different hospitals, with the folders `glaucoma` and `normal`. `partitioned_randomly` holds the same pictures again
  and is passed over.
- Any other folder of class folders, or with a `labels.csv` (`image_listing.py`), whose classes are called as here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.images.image_listing import Picture, list_pictures
from fedscout.experiments.federations.datasets.read_limits import ReadLimits
from fedscout.experiments.federations.datasets.tables.table_file import read_csv, require_columns

HEALTHY, GLAUCOMA, SUSPECT = "healthy", "glaucoma", "suspect"
MEANINGS = {
    **dict.fromkeys(("healthy", "normal", "non-glaucoma", "0"), HEALTHY),
    **dict.fromkeys(("glaucoma", "1"), GLAUCOMA),
    **dict.fromkeys(("suspect", "glaucoma suspect", "-1"), SUSPECT),
}
PARTS = ("train", "training", "val", "validation", "test", "online", "offline")
"""Words of SMDG-19's names that tell a part of a collection."""

CLASS_FOLDERS = ("Training400", "*/Training400", "partitioned_by_hospital/*", "*/partitioned_by_hospital/*")
HOSPITAL_FOLDERS = "partitioned_by_hospital"


@dataclass(frozen=True)
class PictureTable:
    """A file that lists a collection's pictures.

    Attributes:
        file: Its name.
        picture: The column of their names.
        label: The column of their labels.
        folders: Where they may lie.
        suffix: What their names lack.
        holds_collections: Whether a name tells of which collection the picture is.
    """

    file: str
    picture: str
    label: str
    folders: tuple[str, ...]
    suffix: str = ""
    holds_collections: bool = False


TABLES = (
    PictureTable(
        "metadata - standardized.csv",
        "names",
        "types",
        ("full-fundus/full-fundus", "full-fundus"),
        suffix=".png",
        holds_collections=True,
    ),
    PictureTable("OrigaList.csv", "Filename", "Glaucoma", ("Images",)),
    PictureTable("G1020.csv", "imageID", "binaryLabels", ("Images",)),
)


def collection_pictures(folder: Path, limits: ReadLimits) -> list[Picture]:
    """Return the pictures of one collection, each labelled `healthy`, `glaucoma` or `suspect`, with its hospital.

    Args:
        folder: The collection's, by whose name a hospital is called.
        limits: How much of a table is read.

    Raises:
        DataError: If the folder has none of the layouts, a picture is missing, or a label says something else.
    """
    for table in TABLES:
        if (folder / table.file).is_file():
            return list(_listed(folder, table, limits))
    roots = sorted(path for pattern in CLASS_FOLDERS for path in folder.glob(pattern) if path.is_dir())
    if not roots:
        return [_named(picture, folder.name) for picture in _one_hospital(folder, limits)]
    return [_named(picture, _hospital(folder, root)) for root in roots for picture in _one_hospital(root, limits)]


def _hospital(folder: Path, root: Path) -> str:
    return f"{folder.name}/{root.name}" if root.parent.name == HOSPITAL_FOLDERS else folder.name


def _one_hospital(folder: Path, limits: ReadLimits) -> list[Picture]:
    pictures = list_pictures(folder, limits=limits)
    if pictures[0].client is not None:
        raise DataError(Fault(folder, "hold class folders, a labels.csv or a published layout", "folders of them"))
    return pictures


def _named(picture: Picture, hospital: str) -> Picture:
    meaning = MEANINGS.get(picture.label.lower())
    if meaning is None:
        raise DataError(
            Fault(
                f"the label of {picture.path}",
                f"be {GLAUCOMA} (1), {HEALTHY} (normal, non-glaucoma, 0) or {SUSPECT} (-1)",
                repr(picture.label),
            )
        )
    return replace(picture, label=meaning, client=hospital)


def _listed(folder: Path, table: PictureTable, limits: ReadLimits) -> Iterator[Picture]:
    path = folder / table.file
    rows = read_csv(path, delimiter=",", limits=limits)
    require_columns(path, rows, (table.picture, table.label))
    missing = []
    for name, label in zip(rows[table.picture].to_pylist(), rows[table.label].to_pylist(), strict=True):
        file = f"{name}{table.suffix}"
        picture = next((found for place in table.folders if (found := folder / place / file).is_file()), None)
        if picture is None:
            missing.append(file)
            continue
        yield _named(Picture(picture, label or ""), _collection(path, name) if table.holds_collections else folder.name)
    if missing:
        raise DataError(
            Fault(
                f"the pictures that {path} names",
                (f"lie in {folder / table.folders[-1]}, but {len(missing)} do not: {listed(missing, most=3)}"),
            )
        )


def _collection(path: Path, name: str) -> str:
    """Return the collection of `OIA-ODIR-TEST-ONLINE-12`, which is `OIA-ODIR`."""
    *words, number = name.split("-")
    while words and words[-1].lower() in PARTS:
        words.pop()
    if not words or not number.isdecimal():
        raise DataError(
            Fault(f"the names of {path}", "be a collection's and a number, such as REFUGE1-TRAIN-7", repr(name))
        )
    return "-".join(words)
