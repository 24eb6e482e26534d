"""Sources, locations and layouts of data set files, and limits on their size.

Sizes are limited when unpacked, because a small compressed file can expand beyond any machine's memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscout.engine.errors import DataError

FOLDER_VARIABLE = "FEDSCOUT_DATA"
START_VARIABLE = "FEDSCOUT_START"
NUM_NAMES_SHOWN = 2


@dataclass(frozen=True)
class Publication:
    """Publication of a data set.

    Attributes:
        citation: Authors, title, publisher, year.
        address: URL of the publisher.
        derivation: How to derive the files from the published ones; empty if they are the published ones.
    """

    citation: str
    address: str
    derivation: str = ""

    def __str__(self) -> str:
        return f"{self.citation}, {self.address}"

    @property
    def origin(self) -> str:
        """Where to get the files, as the end of a sentence."""
        text = f"{self.citation} is published at {self.address}"
        return f"{text}; {self.derivation}" if self.derivation else text


@dataclass(frozen=True)
class Layout:
    """One file layout in which a data set is distributed.

    Attributes:
        name: Name of the layout, for messages.
        files: Files relative to the data folder; `*` in a name matches any text, and several files.
        packed: Whether a file name may end in `.gz`.
    """

    name: str
    files: tuple[str, ...]
    packed: bool = False

    def find(self, root: Path) -> list[list[Path]]:
        """Return the paths of each file in a data folder, in alphabetical order; empty if it is missing."""
        return [self._find(root, file) for file in self.files]

    def _find(self, root: Path, file: str) -> list[Path]:
        if "*" in file:
            return sorted(path for path in root.glob(file) if path.is_file())
        candidates = (root / (file + suffix) for suffix in (("", ".gz") if self.packed else ("",)))
        return [path for path in candidates if path.is_file()][:1]


def data_root(dataset: str, folder: Path | None, wanted: str, publication: Publication) -> Path:
    """Return the data folder.

    Args:
        dataset: Name of the data set, for messages.
        folder: The configured folder; None for the one in the environment variable `FEDSCOUT_DATA`.
        wanted: Required files, for messages.
        publication: Cited if no folder is configured.

    Raises:
        DataError: If no folder is configured.
    """
    root = folder or os.environ.get(FOLDER_VARIABLE)
    if not root:
        raise DataError.of(
            "federation.folder",
            f"name the folder that data set {dataset!r} is read from",
            "nothing",
            f"put {wanted} in place and set {FOLDER_VARIABLE} or federation.folder to that folder; "
            f"{publication.origin}",
        )
    return Path(root).expanduser()


def locate(dataset: str, names: tuple[str, ...], publication: Publication, folder: Path | None) -> list[Path]:
    """Return the paths of a data set's files.

    Args:
        dataset: Name of the data set, for messages.
        names: Files relative to the data folder.
        publication: Cited if a file is missing.
        folder: The data folder; None for the one in the environment variable `FEDSCOUT_DATA`.

    Raises:
        DataError: As `locate_layout`.
    """
    return locate_layout(dataset, (Layout("files", names),), publication, folder)[1]


def locate_layout(
    dataset: str, layouts: Sequence[Layout], publication: Publication, folder: Path | None
) -> tuple[Layout, list[Path]]:
    """Return the first complete layout, and the paths of its files.

    Args:
        dataset: Name of the data set, for messages.
        layouts: Layouts in order of preference.
        publication: Cited if files are missing.
        folder: The data folder; None for the one in the environment variable `FEDSCOUT_DATA`.

    Raises:
        DataError: If no folder is configured, or no layout is complete; lists the missing files of a partially present
            one.
    """
    wanted = " or ".join(_summary(layout) for layout in layouts)
    root = data_root(dataset, folder, wanted, publication)
    partial = ""
    for layout in layouts:
        paths_by_file = layout.find(root)
        if all(paths_by_file):
            return layout, [path for paths in paths_by_file for path in paths]
        if any(paths_by_file) and not partial:
            missing = [file for file, paths in zip(layout.files, paths_by_file, strict=True) if not paths]
            partial = f"; the {layout.name} lacks {', '.join(missing)}"
    raise DataError.of(
        root, f"hold {wanted} for data set {dataset!r}", f"none of them completely{partial}", publication.origin
    )


def _summary(layout: Layout) -> str:
    shown = [f"${FOLDER_VARIABLE}/{file}" for file in layout.files[:NUM_NAMES_SHOWN]]
    if len(layout.files) > NUM_NAMES_SHOWN:
        shown += ["…", layout.files[-1].rpartition("/")[2]]
    return f"the {layout.name} ({', '.join(shown)}{', each also as .gz' if layout.packed else ''})"


MAX_FILE_BYTES = 2_000_000_000
MAX_FILE_ROWS = 10_000_000
MAX_CELL_LENGTH = 131_072
MAX_NAME_LENGTH = 1_000
MAX_COLUMNS = 20_000
MAX_QUERY_SECONDS = 15.0


@dataclass(frozen=True)
class ReadLimits:
    """Maximum size of a data file.

    Attributes:
        max_bytes: Its size, unpacked (`federation.max_file_bytes`).
        max_rows: Rows of a table (`federation.max_file_rows`).
    """

    max_bytes: int = MAX_FILE_BYTES
    max_rows: int = MAX_FILE_ROWS

    def check_bytes(self, path: Path | str, num_bytes: int) -> None:
        """Check the size of a file, or the number of bytes unpacked so far.

        Raises:
            DataError: If it is too large; the message names the key that raises the limit.
        """
        if num_bytes > self.max_bytes:
            raise DataError.of(
                path, f"hold at most federation.max_file_bytes={self.max_bytes} bytes when unpacked", "more"
            )

    def check_rows(self, path: Path | str, num_rows: int) -> None:
        """Check the number of rows of a table, or of rows read so far.

        Raises:
            DataError: If there are too many; the message names the key that raises the limit.
        """
        if num_rows > self.max_rows:
            raise DataError.of(path, f"hold at most federation.max_file_rows={self.max_rows} rows", "more")

    def check_file(self, path: Path) -> None:
        """Check that a path is a regular file, as reading a pipe or a device may never end, and not too large.

        Raises:
            DataError: If it is neither, or its metadata can't be read.
        """
        try:
            if not path.is_file():
                raise DataError.of(path, "be a file, but it is a pipe, a device or a folder")
            self.check_bytes(path, path.stat().st_size)
        except OSError as error:
            raise DataError.of(path, problem=f"can't be read: {error.strerror}") from None


USUAL_LIMITS = ReadLimits()
NO_LIMITS = ReadLimits(sys.maxsize, sys.maxsize)
