"""Write the table of features that the data set `bearing` reads, from the raw snapshots of test 2.

`python -m fedscout.experiments.federations.datasets.bearings.write_bearing_features SNAPSHOTS TABLE.csv.gz`
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedscout.engine.errors import DataError, Fault, UserError
from fedscout.experiments.federations.datasets.bearings.bearing_raw import ONE_EACH, extract_features, list_snapshots
from fedscout.experiments.visible import show, visible_line

SUFFIXES = (".csv", ".csv.gz")
USAGE = (
    "usage: python -m fedscout.experiments.federations.datasets.bearings.write_bearing_features SNAPSHOTS TABLE.csv.gz"
)


def write_bearing_features(folder: Path, target: Path) -> int:
    """Write one line per snapshot, the column `file` with its name first, and return how many there are.

    Args:
        folder: Holds the snapshots of a test with four channels.
        target: Does not exist yet; its name ends in `.csv` or `.csv.gz`.

    Raises:
        DataError: If the target can't be written, or a snapshot is malformed.
    """
    if not target.name.endswith(SUFFIXES):
        raise DataError(Fault("the table's name", f"end in {' or '.join(SUFFIXES)}", repr(str(target))))
    if target.exists():
        raise DataError(Fault(target, "not exist yet: nothing is written over"))
    if not target.absolute().parent.is_dir():
        raise DataError(Fault(f"the folder of {target}", "exist"))
    table = extract_features(list_snapshots(folder), ONE_EACH)
    try:
        table.to_csv(target, index=False)
    except OSError as error:
        raise DataError(f"{target} can't be written: {error.strerror}") from None
    return len(table)


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code, 2 after a user's mistake."""
    if len(arguments) != 2:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        num_rows = write_bearing_features(Path(arguments[0]), Path(arguments[1]))
    except UserError as error:
        print(f"error: {visible_line(str(error))}", file=sys.stderr)
        return 2
    show(f"{num_rows} snapshots: {arguments[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
