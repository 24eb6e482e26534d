"""Tables of features of bearings that ran until they failed.

J. Lee, H. Qiu, G. Yu, J. Lin and Rexnord Technical Services, IMS, University of Cincinnati, "Bearing Data Set", NASA
Prognostics Data Repository, 2007.

`bearing`, degradation: 982 snapshots of test 2, in which four bearings ran until the outer race of the first failed,
244 features, healthy or degraded. The file holds features of each snapshot, `B1_…` to `B4_…` for the four bearings: 61
statistics of the raw signal each (moments, quantiles, log energies of 32 frequency bands, envelope spectrum at the
characteristic frequencies). Beside them `file` is the snapshot's time stamp; rows are in its order. There is no label
in it; as is usual for this test, snapshots from row 530 (counted from 0) on are degraded. The last two of the 984
snapshots were taken after the rig had been shut down and are dropped. Columns are standardised.

`bearing_faults`: 2,278 snapshots of three tests in four classes, nine statistics in the time domain per snapshot, in
one file per fault.

Four of the nine columns are dropped, because they tell the test rig and not the fault. The accelerometers of test 1,
from which all inner-race and roller rows come, carry an offset of about -0.115, those of tests 2 and 3 almost none, so
`Mean` reveals the test. With `Std` and `Max`, which stay, so do `RMS` = √(Std² + Mean²), `Form Factor` = RMS/Mean and
`Crest Factor` = Max/RMS: dropping `Mean` alone would hide nothing. What stays (`Max`, `Min`, `Std`, `Skewness`,
`Kurtosis`) still differs between rigs, so accuracies on this data set flatter every strategy alike.
`bearing_faults_all` keeps all nine columns, to compare with results of others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Publication, locate
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles
from fedscout.experiments.federations.datasets.tables.complete_table import dataset_from_table
from fedscout.experiments.federations.datasets.tables.table_file import read_csv, require_columns

if TYPE_CHECKING:
    import pyarrow as pa

BEARING = Publication(
    "Lee et al., IMS Bearing Data Set, NASA Prognostics Data Repository, 2007",
    "https://www.nasa.gov/intelligent-systems-division/discovery-and-systems-health/pcoe/pcoe-data-set-repository/",
    derivation="the files read here hold statistics of its raw snapshots, which have to be computed; for test 2 "
    "python -m fedscout.experiments.federations.datasets.bearings.write_bearing_features does it",
)
FILE = "bearing/test2_features_from_raw.csv.gz"
TIME = "file"
LABEL = "state"
SERIES = "snapshots of a run to failure"
BY_SPLIT = {
    "bearing": ".990 so, .990 by whole runs of 25, 1.000 by federation.split=last",
    "bearing_faults": ".902 so, .815 by whole runs of 25, .025 by federation.split=last",
}
"""FedAvg's accuracy by how rows are split; docs/bearing.md says on which clients, and what prints it."""
NUM_SNAPSHOTS = 984
NUM_AFTER_SHUTDOWN = 2
FIRST_DEGRADED = 530
FAULT_FILES = (
    "bearing/Normal_Bearing.csv",
    "bearing/outer_race_fault_test_2.csv",
    "bearing/outer_race_fault_test_3.csv",
    "bearing/inner_race_fault.csv",
    "bearing/roller_element_fault.csv",
)
FAULT = "Fault"
KEPT = ("Max", "Min", "Std", "Skewness", "Kurtosis")
DROPPED = ("Mean", "RMS", "Crest Factor", "Form Factor")


def load_bearing(request: DatasetRequest) -> Dataset:
    """Load the data set; the label is `state`: 0 is healthy, 1 is degraded."""
    request.require_fixed_columns("bearing", LABEL)
    (path,) = locate("bearing", (FILE,), BEARING, request.folder)
    rows = read_csv(path, delimiter=",", limits=request.limits)
    require_columns(path, rows, (TIME,))
    _check_order(path, rows)
    rows = rows.slice(0, NUM_SNAPSHOTS - NUM_AFTER_SHUTDOWN)
    table = with_states(rows, FIRST_DEGRADED)
    roles = ColumnRoles(label=LABEL, never_features=(TIME,))
    facts = {"num_dropped_rows": NUM_AFTER_SHUTDOWN, "accuracy_by_split": BY_SPLIT["bearing"]}
    dataset = dataset_from_table("bearing", table, roles, source=str(BEARING), facts=facts)
    return replace(dataset, class_names=("healthy", "degraded"), series=SERIES)


def with_states(rows: pa.Table, first_degraded: int) -> pa.Table:
    """Return snapshots with the column `state`: `0` up to the first degraded one, `1` from there on."""
    return rows.append_column(LABEL, [np.where(np.arange(len(rows)) < first_degraded, "0", "1")])


def _check_order(path: Path, rows: pa.Table) -> None:
    """Check what the label, a row number, rests on."""
    if len(rows) != NUM_SNAPSHOTS:
        raise DataError(
            Fault(
                path,
                (f"hold the {NUM_SNAPSHOTS} snapshots of test 2, as the label follows from the row number"),
                f"{len(rows)} rows",
            )
        )
    times = rows[TIME].to_pylist()
    late = [row for row in range(1, len(times)) if times[row] <= times[row - 1]]
    if late:
        raise DataError(
            Fault(
                f"column {TIME!r} of {path}",
                "ascend, as the label follows from the row number",
                f"{times[late[0]]!r} after {times[late[0] - 1]!r} in row {late[0] + 1}",
            )
        )


def load_bearing_faults(request: DatasetRequest) -> Dataset:
    """Load the data set without the columns that tell the rig; the label is `Fault`."""
    return _load_faults("bearing_faults", KEPT, request)


def load_bearing_faults_all(request: DatasetRequest) -> Dataset:
    """Load the data set with all nine columns, as others have used it; the label is `Fault`."""
    return _load_faults("bearing_faults_all", (*KEPT, *DROPPED), request)


def _load_faults(name: str, columns: tuple[str, ...], request: DatasetRequest) -> Dataset:
    import pyarrow as pa

    request.require_fixed_columns(name, FAULT)
    tables = []
    for path in locate(name, FAULT_FILES, BEARING, request.folder):
        rows = read_csv(path, delimiter=",", limits=request.limits)
        require_columns(path, rows, (*columns, FAULT))
        tables.append(rows.select([*columns, FAULT]))
    table = pa.concat_tables(tables)
    facts = {"num_dropped_rows": 0, "dropped_columns": tuple(column for column in DROPPED if column not in columns)}
    facts |= {"accuracy_by_split": BY_SPLIT[name]} if name in BY_SPLIT else {}
    dataset = dataset_from_table(name, table, ColumnRoles(label=FAULT), source=str(BEARING), facts=facts)
    return replace(dataset, series=SERIES)
