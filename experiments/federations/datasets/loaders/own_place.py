"""Where one's own data lie: a path here or in the data folder, files of clients, an address of a file or database.

What lies on the web or in a store of objects is downloaded through fsspec (https://filesystem-spec.readthedocs.io) once
by a process, and goes with it. No more than `federation.max_file_bytes` bytes come.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from glob import glob
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from fedscout.engine.errors import ConfigurationError, DataError, Fault, first_line
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.federations.datasets.read_limits import ReadLimits

ADDRESS = re.compile(r"[a-z][a-z0-9+]*://")
STORES = {
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}
"""Where files are, and the package by which fsspec reaches it."""

FILES_OF_DATABASES = ("sqlite:///", "duckdb:///")
BLOCK_BYTES = 2**20


def own_place(request: DatasetRequest) -> Path | str | list[Path]:
    """Return where the data of `federation.dataset` are: a file or folder, the files of clients, or a database.

    Args:
        request: `name` is the path, or address. A relative path starts at the working directory; a process that was
            started elsewhere on behalf of a command finds that command's in the environment variable `FEDSCOUT_START`.
            A relative path that leads nowhere from there is looked for in the data folder.

    Raises:
        ConfigurationError: If a package for an address is missing.
        DataError: If nothing lies there, or it can't be fetched.
    """
    name = request.name
    for start in FILES_OF_DATABASES:
        if name.startswith(start):
            return _existing(request, name.removeprefix(start))
    if ADDRESS.match(name):
        _refuse_password(name)
        scheme = name.partition(":")[0]
        return _fetched(name, STORES[scheme], request.limits) if scheme in STORES else name
    if request.has_file_a_client:
        return _files(request)
    return _existing(request, name)


def _refuse_password(address: str) -> None:
    """Refuse an address of a file that holds a password; that of a database is looked at where it is read.

    Raises:
        ConfigurationError: If it does.
    """
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise ConfigurationError(f"federation.dataset must be an address, got {address!r}: {error}") from None
    if parts.scheme in STORES and parts.password is not None:
        raise ConfigurationError(
            Fault(
                "federation.dataset", "hold no password, as it is logged", f"one for {parts.scheme}://{parts.hostname}"
            )
        )


def _places(request: DatasetRequest, name: str) -> list[Path]:
    given = Path(name).expanduser()
    folder = request.folder or os.environ.get(FOLDER_VARIABLE)
    places = [Path(os.environ.get(START_VARIABLE, "")) / given]
    return places + ([Path(folder).expanduser() / given] if folder and not given.is_absolute() else [])


def _existing(request: DatasetRequest, name: str) -> Path:
    places = _places(request, name)
    for place in places:
        with suppress(OSError):  # a name that no file system takes
            if place.exists():
                return place
    raise DataError(
        Fault(
            "federation.dataset",
            "be the name of a data set, or the path of an existing file or folder",
            repr(name),
            f"looked for {' and '.join(map(str, places))}{_meant(places[0])}",
        )
    )


def _meant(place: Path) -> str:
    """Return which file beside it a misspelt name may have meant, as it ends a sentence; nothing if none is like it."""
    with suppress(OSError):
        if near := get_close_matches(place.name, os.listdir(place.parent), n=1):
            return f"; did you mean {place.with_name(near[0])}?"
    return ""


def _files(request: DatasetRequest) -> list[Path]:
    places = _places(request, request.name)
    for place in places:
        if found := sorted(Path(path) for path in glob(str(place)) if Path(path).is_file()):
            return found
    raise DataError(
        Fault(
            "federation.dataset",
            "match a file a client",
            repr(request.name),
            f"looked for {' and '.join(map(str, places))}",
        )
    )


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of downloads, which goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="fedscout-")


@cache
def _fetched(address: str, package: str, limits: ReadLimits) -> Path:
    import fsspec

    name = PurePosixPath(unquote(urlsplit(address).path)).name or "table"
    place = Path(tempfile.mkdtemp(dir=_folder().name)) / name
    try:
        with fsspec.open(address, "rb") as source, place.open("wb") as target:
            num_bytes = 0
            while block := source.read(BLOCK_BYTES):
                num_bytes += len(block)
                limits.check_bytes(address, num_bytes)
                target.write(block)
    except (ImportError, ValueError) as error:
        if isinstance(error, ImportError) or "Protocol not known" in str(error):
            raise ConfigurationError(
                f"reading {address} needs {package}, which is not installed: pip install {package}"
            ) from None
        raise DataError(f"{address} can't be read: {first_line(error)}") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # what the clients of stores raise has no class in common
        raise DataError(f"{address} can't be read: {first_line(error)}") from None
    return place
