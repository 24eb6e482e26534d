"""How much of a file is read: a small packed file can hold more than any machine has room for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from fedscout.engine.errors import DataError, Fault

MAX_FILE_BYTES = 2_000_000_000
MAX_FILE_ROWS = 10_000_000
MAX_CELL_LENGTH = 131_072
MAX_LINE_BYTES = 2**26
MAX_NAME_LENGTH = 1_000
MAX_COLUMNS = 20_000
MAX_QUERY_SECONDS = 15.0
CELL_BYTES = 4


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
                f"{path} must hold at most federation.max_file_bytes={self.max_bytes} bytes when unpacked, "
                "but it holds more"
            )

    def check_rows(self, path: Path | str, num_rows: int) -> None:
        """Refuse a table of more rows, or one of which so many have been read already.

        Raises:
            DataError: If it has too many; the text names the key that raises the limit.
        """
        if num_rows > self.max_rows:
            raise TooLargeError(
                f"{path} must hold at most federation.max_file_rows={self.max_rows} rows, but it holds more"
            )

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
            raise DataError(f"{path} can't be read: {error.strerror}") from None


USUAL_LIMITS = ReadLimits()
NO_LIMITS = ReadLimits(sys.maxsize, sys.maxsize)
