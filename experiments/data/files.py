"""Where a data set's files come from, where on this machine they are looked for, and in which layout they lie there.

How much of a file is read: a small packed file can hold more than any machine has room for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscout.engine.errors import DataError, Fault

FOLDER_VARIABLE = "FEDSCOUT_DATA"
START_VARIABLE = "FEDSCOUT_START"
NUM_NAMES_SHOWN = 2


@dataclass(frozen=True)
class Publication:
    """Who published a data set.

    Attributes:
        citation: Authors, title, publisher, year.
        address: Where the publisher offers it.
        derivation: How the files that are read come from what is published; empty if they are the published ones.
    """

    citation: str
    address: str
    derivation: str = ""

    def __str__(self) -> str:
        return f"{self.citation}, {self.address}"

    @property
    def origin(self) -> str:
        """Where to get the files, as a sentence's end."""
        text = f"{self.citation} is published at {self.address}"
        return f"{text}; {self.derivation}" if self.derivation else text


@dataclass(frozen=True)
class Layout:
    """One way in which a data set's files are offered.

    Attributes:
        name: What this way is called, for messages.
        files: The files relative to the data folder; `*` in a name stands for any text, and for several files.
        packed: Whether `.gz` may follow a file's name.
    """

    name: str
    files: tuple[str, ...]
    packed: bool = False

    def find(self, root: Path) -> list[list[Path]]:
        """Return for each file the paths in a data folder, in alphabetical order; none if it is not there."""
        return [self._find(root, file) for file in self.files]

    def _find(self, root: Path, file: str) -> list[Path]:
        if "*" in file:
            return sorted(path for path in root.glob(file) if path.is_file())
        candidates = (root / (file + suffix) for suffix in (("", ".gz") if self.packed else ("",)))
        return [path for path in candidates if path.is_file()][:1]


def data_root(dataset: str, folder: Path | None, wanted: str, publication: Publication) -> Path:
    """Return the data folder.

    Args:
        dataset: The data set's name, for messages.
        folder: The folder given; None for the one that the environment variable `FEDSCOUT_DATA` names.
        wanted: The files needed, for messages.
        publication: Named if no folder is known.

    Raises:
        DataError: If no folder is known.
    """
    root = folder or os.environ.get(FOLDER_VARIABLE)
    if not root:
        raise DataError(
            Fault(
                "federation.folder",
                f"name the folder that data set {dataset!r} is read from",
                "nothing",
                f"put {wanted} in place and set {FOLDER_VARIABLE} or federation.folder to that folder; "
                f"{publication.origin}",
            )
        )
    return Path(root).expanduser()


def locate(dataset: str, names: tuple[str, ...], publication: Publication, folder: Path | None) -> list[Path]:
    """Return the paths of a data set's files.

    Args:
        dataset: The data set's name, for messages.
        names: The files, relative to the data folder.
        publication: Named when a file is missing.
        folder: The data folder; None for the one that the environment variable `FEDSCOUT_DATA` names.

    Raises:
        DataError: If no folder is known, or a file is missing; all missing files are named.
    """
    root = data_root(dataset, folder, ", ".join(f"${FOLDER_VARIABLE}/{name}" for name in names), publication)
    paths = [root / name for name in names]
    faults = [
        Fault(
            path,
            problem=f"is missing: data set {dataset!r} is read from it",
            hint=f"put it at ${FOLDER_VARIABLE}/{name}; {publication.origin}",
        )
        for name, path in zip(names, paths, strict=True)
        if not path.is_file()
    ]
    if faults:
        raise DataError(faults)
    return paths


def locate_layout(
    dataset: str, layouts: Sequence[Layout], publication: Publication, folder: Path | None
) -> tuple[Layout, list[Path]]:
    """Return the first layout all of whose files are there, and their paths.

    Args:
        dataset: The data set's name, for messages.
        layouts: In order of preference.
        publication: Named when files are missing.
        folder: The data folder; None for the one that the environment variable `FEDSCOUT_DATA` names.

    Raises:
        DataError: If no folder is known, or no layout is complete; where one is in part there, its missing files are
            named.
    """
    wanted = " or ".join(_summary(layout) for layout in layouts)
    root = data_root(dataset, folder, wanted, publication)
    partial = ""
    for layout in layouts:
        found = layout.find(root)
        if all(found):
            return layout, [path for paths in found for path in paths]
        if any(found) and not partial:
            missing = [file for file, paths in zip(layout.files, found, strict=True) if not paths]
            partial = f"; of the {layout.name}, {', '.join(missing)} is what is missing"
    raise DataError(
        Fault(root, f"hold {wanted} for data set {dataset!r}", f"none of them completely{partial}", publication.origin)
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


class TooLargeError(DataError):
    """A file that holds more than is read of one."""


class EndlessQueryError(DataError):
    """A query whose rows do not come in time, or that takes too much memory."""


@dataclass(frozen=True)
class ReadLimits:
    """The largest data file that is read.

    Attributes:
        max_bytes: Its size, unpacked (`federation.max_file_bytes`).
        max_rows: Rows of a table (`federation.max_file_rows`).
    """

    max_bytes: int = MAX_FILE_BYTES
    max_rows: int = MAX_FILE_ROWS

    def check_bytes(self, path: Path | str, num_bytes: int) -> None:
        """Refuse a file of more bytes, or one of which so many have been unpacked already.

        Raises:
            DataError: If it is too large; the text names the key that raises the limit.
        """
        if num_bytes > self.max_bytes:
            raise TooLargeError(
                Fault(path, f"hold at most federation.max_file_bytes={self.max_bytes} bytes when unpacked", "more")
            )

    def check_rows(self, path: Path | str, num_rows: int) -> None:
        """Refuse a table of more rows, or one of which so many have been read already.

        Raises:
            DataError: If it has too many; the text names the key that raises the limit.
        """
        if num_rows > self.max_rows:
            raise TooLargeError(Fault(path, f"hold at most federation.max_file_rows={self.max_rows} rows", "more"))

    def check_file(self, path: Path) -> None:
        """Refuse what is no regular file, as reading a pipe or a device may never end, and a file that is too large.

        Raises:
            DataError: In both cases, or if nothing can be learnt of the file.
        """
        try:
            if not path.is_file():
                raise DataError(Fault(path, "be a file, but it is a pipe, a device or a folder"))
            self.check_bytes(path, path.stat().st_size)
        except OSError as error:
            raise DataError(Fault(path, problem=f"can't be read: {error.strerror}")) from None


USUAL_LIMITS = ReadLimits()
NO_LIMITS = ReadLimits(sys.maxsize, sys.maxsize)
