"""Bearing degradation from raw vibration: a run-to-failure test's snapshots, 61 features of each channel.

J. Lee, H. Qiu, G. Yu, J. Lin and Rexnord Technical Services, IMS, University of Cincinnati, "Bearing Data Set", NASA
Prognostics Data Repository, 2007. Four bearings on one shaft ran until one failed, three times. Test 1 has two
accelerometers a bearing (channels B1x, B1y, B2x … B4y), tests 2 and 3 have one (B1 to B4).

One snapshot, one second of vibration, is one row: a text file named by the time at which it was taken, such as
`2004.02.12.10.32.39`, which holds 20,480 lines, one value in g per channel, separated by tabs. Snapshots are read one
at a time, and nothing is kept on disk. There is no label in the files:
rows from `federation.degraded_from` on (counted from 0, in the order of time) are degraded, class 1 of the label
`state`. For test 2 that is 530 unless given, as for the data set `bearing`, and the two snapshots that were taken after
the rig had been shut down are dropped. For tests 1 and 3 there is no usual row, so it has to be given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.bearings.bearing import (
    FIRST_DEGRADED,
    LABEL,
    NUM_SNAPSHOTS,
    SERIES,
    TIME,
    with_states,
)
from fedscout.experiments.federations.datasets.bearings.bearing_features import FEATURES, vibration_features
from fedscout.experiments.federations.datasets.bearings.bearing_geometry import ZA_2115
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import FOLDER_VARIABLE, Publication, data_root
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles
from fedscout.experiments.federations.datasets.tables.complete_table import dataset_from_table

if TYPE_CHECKING:
    import pandas as pd

IMS = Publication(
    "Lee et al., IMS Bearing Data Set, NASA Prognostics Data Repository, 2007",
    "https://www.nasa.gov/intelligent-systems-division/discovery-and-systems-health/pcoe/pcoe-data-set-repository/",
    derivation="unpack the archive and the archives in it",
)
CLASS_NAMES = ("healthy", "degraded")
SAMPLING_HERTZ = 20_000
NUM_SAMPLES = 20_480
SNAPSHOT_NAME = re.compile(r"\d{4}(\.\d{2}){5}", re.ASCII)


@dataclass(frozen=True)
class RunToFailure:
    """One of the three tests.

    Attributes:
        number: As the publisher counts.
        folders: Where its snapshots may lie in the data folder; the first that exists is read.
        channels: One name per column of a snapshot.
        num_snapshots: How many the default label rests on, or None.
        first_degraded: The row from which on snapshots are degraded unless the user says otherwise, or None.
        after_shutdown: Snapshots of a rig at rest, which are dropped.
    """

    number: int
    folders: tuple[str, ...]
    channels: tuple[str, ...]
    num_snapshots: int | None = None
    first_degraded: int | None = None
    after_shutdown: tuple[str, ...] = ()


ONE_EACH = ("B1", "B2", "B3", "B4")
TEST_1 = RunToFailure(1, ("bearing/1st_test",), tuple(f"{bearing}{axis}" for bearing in ONE_EACH for axis in "xy"))
TEST_2 = RunToFailure(
    2,
    ("bearing/2nd_test",),
    ONE_EACH,
    num_snapshots=NUM_SNAPSHOTS,
    first_degraded=FIRST_DEGRADED,
    after_shutdown=("2004.02.19.06.12.39", "2004.02.19.06.22.39"),
)
TEST_3 = RunToFailure(3, ("bearing/3rd_test/4th_test/txt", "bearing/4th_test/txt", "bearing/3rd_test"), ONE_EACH)


def load_bearing_raw_1(request: DatasetRequest) -> Dataset:
    """Load test 1, 488 features; the label is `state`: 0 is healthy, 1 is degraded."""
    return _load("bearing_raw_1", TEST_1, request)


def load_bearing_raw(request: DatasetRequest) -> Dataset:
    """Load test 2, 244 features; the label is `state`: 0 is healthy, 1 is degraded."""
    return _load("bearing_raw", TEST_2, request)


def load_bearing_raw_3(request: DatasetRequest) -> Dataset:
    """Load test 3, 244 features; the label is `state`: 0 is healthy, 1 is degraded."""
    return _load("bearing_raw_3", TEST_3, request)


def extract_features(snapshots: list[Path], channels: tuple[str, ...]) -> pd.DataFrame:
    """Return one row of features a snapshot, read one after the other, and the column `file` with its name.

    Args:
        snapshots: In the order of time.
        channels: One name per column of a snapshot, put before the features' names.

    Raises:
        DataError: If a snapshot is malformed.
    """
    import pandas as pd

    features = np.empty((len(snapshots), len(channels) * len(FEATURES)))
    for row, path in enumerate(snapshots):
        features[row] = vibration_features(read_snapshot(path, len(channels)), SAMPLING_HERTZ, ZA_2115).ravel()
    table = pd.DataFrame(features, columns=[f"{channel}_{name}" for channel in channels for name in FEATURES])
    table.insert(0, TIME, [path.name for path in snapshots])
    return table


def _load(name: str, run: RunToFailure, request: DatasetRequest) -> Dataset:
    import pyarrow as pa

    request.require_fixed_columns(name, LABEL)
    folder = _folder(name, run, request.folder)
    found = list_snapshots(folder)
    first_degraded = _first_degraded(name, run, request, folder, len(found))
    snapshots = [path for path in found if path.name not in run.after_shutdown]
    if not 1 <= first_degraded < len(snapshots):
        raise DataError(
            Fault(
                "federation.degraded_from",
                (
                    f"be between 1 and {len(snapshots) - 1}, as {folder} holds {len(snapshots)} "
                    "snapshots of a running rig and both classes need one"
                ),
                first_degraded,
            )
        )
    table = extract_features(snapshots, run.channels)
    dataset = dataset_from_table(
        name,
        with_states(pa.Table.from_pandas(table), first_degraded),
        ColumnRoles(label=LABEL, never_features=(TIME,)),
        source=str(IMS),
        facts={"num_dropped_rows": len(found) - len(snapshots), "degraded_from": first_degraded},
    )
    return replace(dataset, class_names=CLASS_NAMES, series=SERIES)


def _folder(name: str, run: RunToFailure, given: Path | None) -> Path:
    wanted = " or ".join(f"${FOLDER_VARIABLE}/{folder}/" for folder in run.folders)
    root = data_root(name, given, f"the snapshots of test {run.number} ({wanted})", IMS)
    found = [path for folder in run.folders if (path := root / folder).is_dir()]
    if not found:
        raise DataError(
            f"data set {name!r} needs the snapshots of test {run.number} as {wanted}, but {root} has no such folder; "
            f"{IMS.origin}"
        )
    return found[0]


def _first_degraded(name: str, run: RunToFailure, request: DatasetRequest, folder: Path, num_found: int) -> int:
    if request.degraded_from is not None:
        return request.degraded_from
    if run.first_degraded is None:
        raise DataError(
            f"data set {name!r} needs federation.degraded_from, the number of its first degraded snapshot, as there is "
            f"no usual one for test {run.number}, got nothing"
        )
    if num_found != run.num_snapshots:
        raise DataError(
            Fault(
                folder,
                (
                    f"hold the {run.num_snapshots} snapshots of test {run.number}, as the usual label "
                    "follows from the row number, or federation.degraded_from must be given"
                ),
                f"{num_found} snapshots",
            )
        )
    return run.first_degraded


def list_snapshots(folder: Path) -> list[Path]:
    """Return a folder's snapshots in the order of time; hidden files are passed over.

    Args:
        folder: An existing folder.

    Raises:
        DataError: If the folder can't be read, holds no snapshot, or something else beside them: as labels follow from
            the row number, a misnamed snapshot must not pass unseen.
    """
    try:
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"the folder of snapshots {folder} can't be read: {error.strerror}") from None
    others = [path.name for path in entries if not (SNAPSHOT_NAME.fullmatch(path.name) and path.is_file())]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise DataError(
            Fault(
                folder,
                "hold snapshots alone, files named by their time such as 2004.02.12.10.32.39",
                f"{others[0]!r}{more}",
            )
        )
    if not entries:
        raise DataError(Fault(folder, "hold snapshots, files named such as 2004.02.12.10.32.39, but it is empty"))
    return entries


def read_snapshot(path: Path, num_channels: int) -> npt.NDArray[np.float64]:
    """Return one snapshot, shape `(num_channels, 20480)`.

    Args:
        path: An existing file.
        num_channels: Columns that it must have.

    Raises:
        DataError: If it can't be read, has other columns or another number of lines, something that is no finite
            number, or a channel that never changes.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(Fault(path, "be ASCII text", f"another byte at position {error.start}")) from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from None
    if len(lines) != NUM_SAMPLES:
        raise DataError(Fault(path, f"hold the {NUM_SAMPLES} lines of one second", len(lines)))
    try:
        values = np.loadtxt(lines, delimiter="\t", comments=None, ndmin=2)
    except ValueError:
        values = np.empty((0, 0))
    if values.shape != (NUM_SAMPLES, num_channels) or not np.isfinite(values).all():
        raise DataError(_first_fault(path, lines, num_channels))
    stuck = np.flatnonzero(np.ptp(values, axis=0) == 0)
    if len(stuck):
        raise DataError(
            Fault(f"every channel of {path}", f"vary, but column {stuck[0] + 1} is {values[0, stuck[0]]:g} throughout")
        )
    return np.ascontiguousarray(values.T)


def _first_fault(path: Path, lines: list[str], num_channels: int) -> str:
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if len(fields) != num_channels:
            return Fault(
                f"every line of {path}",
                f"hold {num_channels} columns, tabs between them",
                f"{len(fields)} in line {number}",
            )
        for column, field in enumerate(fields, start=1):
            if not _is_finite(field):
                return Fault(path, "hold finite numbers", f"{field or 'nothing'!r} in line {number}, column {column}")
    return Fault(f"every line of {path}", f"hold {num_channels} numbers, tabs between them")


def _is_finite(field: str) -> bool:
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
