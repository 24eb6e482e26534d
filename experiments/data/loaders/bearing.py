"""Bearing data sets: run-to-failure tests and fault classes, from feature tables or raw vibration records.

All stem from J. Lee, H. Qiu, G. Yu, J. Lin and Rexnord Technical Services, IMS, University of Cincinnati, "Bearing Data
Set", NASA Prognostics Data Repository, 2007: four bearings on one shaft ran until one failed, three times.

`bearing`, degradation: 982 snapshots of test 2, in which the outer race of the first bearing failed, 244 features,
healthy or degraded. The file holds the features of each snapshot, `B1_…` to `B4_…` for the four bearings: 61 statistics
of the raw signal each (moments, quantiles, log energies of 32 frequency bands, envelope spectrum at the characteristic
frequencies). The column `file` is the snapshot's time stamp; rows are in its order. The file has no label; as is usual
for this test, snapshots from row 530 (counted from 0) on are degraded. The last two of the 984 snapshots were taken
after the rig had been shut down and are dropped. Columns are standardised.

`bearing_faults`: 2,278 snapshots of three tests in four classes, nine time-domain statistics per snapshot, in one file
per fault. Four of the nine columns are dropped, because they identify the test rig rather than the fault. The
accelerometers of test 1, the source of all inner-race and roller rows, have an offset of about -0.115, those of tests 2
and 3 almost none, so `Mean` reveals the test. With `Std` and `Max`, which are kept, so do `RMS` = √(Std² + Mean²),
`Form Factor` = RMS/Mean and `Crest Factor` = Max/RMS: dropping `Mean` alone would hide nothing. The remaining columns
(`Max`, `Min`, `Std`, `Skewness`, `Kurtosis`) still differ between rigs, so accuracies on this data set are optimistic
for every strategy. `bearing_faults_all` keeps all nine columns, for comparison with published results.

`bearing_raw`: degradation from the raw snapshots of test 2, 61 features per channel, one for each bearing (B1 to B4).
Each snapshot, one second of vibration, is one row: a text file named by its time stamp, such as `2004.02.12.10.32.39`,
which holds 20,480 lines with one value in g per channel, separated by tabs. Snapshots are read one at a time, and
nothing is cached on disk. Labels and dropped snapshots are those of `bearing`.

The 61 features are time statistics and envelope analysis as in R. B. Randall and J. Antoni, "Rolling element bearing
diagnostics: a tutorial", Mechanical Systems and Signal Processing 25(2), 2011; the characteristic frequencies follow
its equations 1 to 4 (kinematics without slip, inner race turning, outer race at rest). With x the signal in g, n its
length and c = x - mean(x):

- `mean`, `std` (divided by n), `rms`, `min`, `max`, `p2p` = max - min, `absmean` = mean |x|;
- `skew` and `kurt`: third and fourth standardised moment, `kurt` less 3, both without bias correction;
- `crest` = max |x| / rms, `shape` = rms / absmean, `impulse` = max |x| / absmean, `clearance` = max |x| /
  mean(√|x|)²;
- `q01`, `q25`, `q75`, `q99`: quantiles of x, interpolated linearly;
- `zcr`: share of neighbouring samples between which c changes its sign; `difrms`: root mean square of the
  differences of neighbouring samples;
- with P the power |DFT|² of c under a Hann window, unscaled, at 0 Hz to half the sampling rate: `spcent` and
  `spstd`, the mean and standard deviation of the frequency in Hz weighted by P, and `spent`, the entropy of P /
  ΣP in nats;
- `logband00` to `logband31`: natural logarithm of the sum of P in 32 equally wide bands;
- with e the envelope, the magnitude of the analytic signal of c, and Q the power of e - mean(e) under a Hann
  window: `env_bpfo`, `env_bpfi`, `env_bsf`, `env_ftf` and `env_shaft`, the natural logarithm of the share of Q up
  to 1000 Hz that lies within 2 % of the outer race's, the inner race's, the roller's, the cage's and the shaft's
  frequency or of its second or third multiple; `env_std` and `env_kurt` of e itself.

Their names and order are those of the feature table that `bearing` reads. `docs/bearing.md` describes which of these
definitions the values of the table confirm and which are reconstructed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import cos, radians
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedscout.engine.errors import DataError
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import ColumnRoles
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, Publication, reading
from fedscout.experiments.data.table_files import read_csv
from fedscout.experiments.data.tables import dataset_from_table

BEARING = Publication(
    "Lee et al., IMS Bearing Data Set, NASA Prognostics Data Repository, 2007",
    "https://www.nasa.gov/intelligent-systems-division/discovery-and-systems-health/pcoe/pcoe-data-set-repository/",
    derivation="bearing_raw reads the snapshots of test 2, unpacked; the other files hold statistics of snapshots",
)
FILE = "bearing/test2_features_from_raw.csv.gz"
TIME = "file"
LABEL = "state"
SERIES = "snapshots of a run to failure"
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
    request.choose_label((LABEL,))
    (path,) = BEARING.files(request, FILE)
    rows = read_csv(path, delimiter=",", limits=request.limits, required=(TIME,))
    _check_order(path, rows)
    rows = rows.slice(0, NUM_SNAPSHOTS - NUM_AFTER_SHUTDOWN)
    return _degradation("bearing", rows)


def _degradation(name: str, rows: pa.Table) -> Dataset:
    """Return the snapshots before the shutdown as a data set: `0` before the first degraded one, `1` from there on."""
    table = rows.append_column(LABEL, [np.where(np.arange(len(rows)) < FIRST_DEGRADED, "0", "1")])
    roles = ColumnRoles(label=LABEL, never_features=(TIME,))
    facts = {"num_dropped_rows": NUM_AFTER_SHUTDOWN}
    dataset = dataset_from_table(name, table, roles, source=str(BEARING), facts=facts)
    return replace(dataset, class_names=CLASS_NAMES, series=SERIES)


def _check_order(path: Path, rows: pa.Table) -> None:
    """Check the number and order of the snapshots, from which the label is derived."""
    if len(rows) != NUM_SNAPSHOTS:
        raise DataError.of(
            path,
            f"hold the {NUM_SNAPSHOTS} snapshots of test 2, as the label follows from the row number",
            f"{len(rows)} rows",
        )
    times = rows[TIME].to_pylist()
    late = [row for row in range(1, len(times)) if times[row] <= times[row - 1]]
    if late:
        raise DataError.of(
            f"column {TIME!r} of {path}",
            "ascend, as the label follows from the row number",
            f"{times[late[0]]!r} after {times[late[0] - 1]!r} in row {late[0] + 1}",
        )


def load_faults(request: DatasetRequest) -> Dataset:
    """Load the columns that do not identify the rig, or all; the label is `Fault`."""
    columns = KEPT if request.dataset == "bearing_faults" else (*KEPT, *DROPPED)
    request.choose_label((FAULT,))
    used = [*columns, FAULT]
    tables = [
        read_csv(path, delimiter=",", limits=request.limits, required=used).select(used)
        for path in BEARING.files(request, *FAULT_FILES)
    ]
    table = pa.concat_tables(tables)
    facts = {"num_dropped_rows": 0, "dropped_columns": tuple(column for column in DROPPED if column not in columns)}
    dataset = dataset_from_table(request.dataset, table, ColumnRoles(label=FAULT), source=str(BEARING), facts=facts)
    return replace(dataset, series=SERIES)


RealArray = npt.NDArray[np.floating[Any]]

CLASS_NAMES = ("healthy", "degraded")
SAMPLING_HERTZ = 20_000
NUM_SAMPLES = 20_480
NUM_ROLLERS = 16
SHAFT_HERTZ = 2000 / 60
DIAMETER_RATIO = 0.331 / 2.815
SLOPE = DIAMETER_RATIO * cos(radians(15.17))
CHARACTERISTIC_HERTZ = {
    "env_bpfo": NUM_ROLLERS / 2 * SHAFT_HERTZ * (1 - SLOPE),
    "env_bpfi": NUM_ROLLERS / 2 * SHAFT_HERTZ * (1 + SLOPE),
    "env_bsf": SHAFT_HERTZ / (2 * DIAMETER_RATIO) * (1 - SLOPE**2),
    "env_ftf": SHAFT_HERTZ / 2 * (1 - SLOPE),
    "env_shaft": SHAFT_HERTZ,
}
"""Of outer race, inner race, roller, cage and shaft, for the Rexnord ZA-2115 of the tests: 16 rollers, of a diameter of
0.331 inches on a pitch circle of 2.815, a contact angle of 15.17 degrees, 2000 revolutions a minute."""

NUM_BANDS = 32
NUM_MULTIPLES = 3
TOLERANCE = 0.02
LARGEST_ENVELOPE_HERTZ = 1000.0
LOG_FLOOR = 1e-12
QUANTILES = {"q01": 0.01, "q25": 0.25, "q75": 0.75, "q99": 0.99}
BAND_NAMES = tuple(f"logband{band:02d}" for band in range(NUM_BANDS))


def vibration_features(signals: RealArray) -> dict[str, RealArray]:
    """Return the features of several channels by name, in the order of the table's, each of shape `(channels,)`.

    Args:
        signals: In g, finite, none of them constant, shape `(channels, samples)`.
    """
    centred = signals - signals.mean(axis=1, keepdims=True)
    return {**_amplitudes(signals, centred), **_spectrum(centred), **_envelope(centred)}


def _amplitudes(signals: RealArray, centred: RealArray) -> dict[str, RealArray]:
    magnitude = np.abs(signals)
    largest, mean_magnitude = magnitude.max(axis=1), magnitude.mean(axis=1)
    rms = np.sqrt(np.mean(signals**2, axis=1))
    positive = centred > 0
    return {
        "mean": signals.mean(axis=1),
        "std": signals.std(axis=1),
        "rms": rms,
        "min": signals.min(axis=1),
        "max": signals.max(axis=1),
        "p2p": np.ptp(signals, axis=1),
        "absmean": mean_magnitude,
        "skew": _standardised_moment(signals, 3),
        "kurt": _standardised_moment(signals, 4) - 3,
        "crest": largest / rms,
        "shape": rms / mean_magnitude,
        "impulse": largest / mean_magnitude,
        "clearance": largest / np.sqrt(magnitude).mean(axis=1) ** 2,
        **dict(zip(QUANTILES, np.quantile(signals, list(QUANTILES.values()), axis=1), strict=True)),
        "zcr": np.mean(positive[:, 1:] != positive[:, :-1], axis=1),
        "difrms": np.sqrt(np.mean(np.diff(signals, axis=1) ** 2, axis=1)),
    }


def _spectrum(centred: RealArray) -> dict[str, RealArray]:
    frequencies, power = _power(centred)
    share = power / power.sum(axis=1, keepdims=True)
    centroid = share @ frequencies
    spread = np.sum(share * (frequencies - centroid[:, None]) ** 2, axis=1)
    nats = -np.sum(share * np.log(share + np.finfo(np.float64).tiny), axis=1)
    # The highest frequency, half the sampling rate, would open a band of its own: it belongs to the last.
    bands = np.minimum((frequencies * 2 * NUM_BANDS / SAMPLING_HERTZ).astype(np.int64), NUM_BANDS - 1)
    starts = np.searchsorted(bands, np.arange(NUM_BANDS))
    energies = np.log(np.add.reduceat(power, starts, axis=1) + LOG_FLOOR)
    return {
        "spcent": centroid,
        "spstd": np.sqrt(spread),
        "spent": nats,
        **dict(zip(BAND_NAMES, energies.T, strict=True)),
    }


def _envelope(centred: RealArray) -> dict[str, RealArray]:
    from scipy.signal import hilbert

    envelope = np.abs(hilbert(centred, axis=1))
    frequencies, power = _power(envelope - envelope.mean(axis=1, keepdims=True))
    total = power[:, frequencies <= LARGEST_ENVELOPE_HERTZ].sum(axis=1)

    def log_share(hertz: float) -> RealArray:
        near = np.zeros(len(frequencies), dtype=np.bool_)
        for multiple in hertz * np.arange(1, NUM_MULTIPLES + 1):
            near |= np.abs(frequencies - multiple) <= TOLERANCE * multiple
        shares: RealArray = power[:, near].sum(axis=1) / (total + LOG_FLOOR)
        logarithms: RealArray = np.log(shares + LOG_FLOOR)
        return logarithms

    return {
        **{name: log_share(hertz) for name, hertz in CHARACTERISTIC_HERTZ.items()},
        "env_std": envelope.std(axis=1),
        "env_kurt": _standardised_moment(envelope, 4) - 3,
    }


def _power(centred: RealArray) -> tuple[RealArray, RealArray]:
    """Return the frequencies in Hz, shape `(bins,)`, and the power at each, shape `(channels, bins)`."""
    num_samples = centred.shape[1]
    spectrum = np.fft.rfft(centred * np.hanning(num_samples), axis=1)
    return np.fft.rfftfreq(num_samples, 1 / SAMPLING_HERTZ), spectrum.real**2 + spectrum.imag**2


def _standardised_moment(values: RealArray, order: int) -> RealArray:
    deviations = values - values.mean(axis=1, keepdims=True)
    # A constant envelope, of a pure tone, has no spread to divide by.
    spread = np.maximum(np.sqrt(np.mean(deviations**2, axis=1)), np.finfo(np.float64).tiny ** 0.25)
    standardised = deviations / spread[:, None]
    squares = standardised**2
    # Products, as numpy takes logarithms for a third or fourth power.
    moment: RealArray = np.mean(squares * (standardised if order == 3 else squares), axis=1)
    return moment


SNAPSHOT_NAME = re.compile(r"\d{4}(\.\d{2}){5}", re.ASCII)


SNAPSHOTS = "bearing/2nd_test"
CHANNELS = ("B1", "B2", "B3", "B4")


def load_bearing_raw(request: DatasetRequest) -> Dataset:
    """Load the raw snapshots of test 2, 244 features; the label is `state`: 0 is healthy, 1 is degraded."""
    request.choose_label((LABEL,))
    folder = BEARING.files(request, f"{SNAPSHOTS}/*")[0].parent
    snapshots = list_snapshots(folder)
    if len(snapshots) != NUM_SNAPSHOTS:
        must = f"hold the {NUM_SNAPSHOTS} snapshots of test 2, as the label follows from the row number"
        raise DataError.of(folder, must, f"{len(snapshots)} snapshots")
    return _degradation("bearing_raw", extract_features(snapshots[:-NUM_AFTER_SHUTDOWN]))


def extract_features(snapshots: list[Path]) -> pa.Table:
    """Return one row of features per snapshot, and the column `file` with its name; snapshots are read one at a time.

    Args:
        snapshots: Paths in time order.

    Raises:
        DataError: If a snapshot is malformed.
    """
    rows: list[dict[str, Any]] = []
    for path in snapshots:
        features = vibration_features(read_snapshot(path))
        cells = {
            f"{channel}_{name}": values[place]
            for place, channel in enumerate(CHANNELS)
            for name, values in features.items()
        }
        rows.append({TIME: path.name, **cells})
    return pa.Table.from_pylist(rows)


def list_snapshots(folder: Path) -> list[Path]:
    """Return a folder's snapshots in time order; hidden files are ignored.

    Args:
        folder: An existing folder.

    Raises:
        DataError: If the folder can't be read, or holds any other file: as labels follow from the row number, a
            misnamed snapshot must not go unnoticed.
    """
    with reading(f"the folder of snapshots {folder}", OSError):
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    unexpected = [path.name for path in entries if not (SNAPSHOT_NAME.fullmatch(path.name) and path.is_file())]
    if unexpected:
        must = "hold only snapshots, files named by their time such as 2004.02.12.10.32.39"
        raise DataError.of(folder, must, listed(map(repr, unexpected), most=1))
    return entries


def read_snapshot(path: Path) -> npt.NDArray[np.float64]:
    """Return one snapshot, shape `(4, 20480)`.

    Args:
        path: An existing file.

    Raises:
        DataError: If it can't be read, has other columns or another number of lines, a value that is not a finite
            number, or a constant channel.
    """
    with reading(path, OSError, ValueError, kind="numbers between tabs"):
        values = np.loadtxt(path, delimiter="\t", comments=None, ndmin=2, encoding="ascii")
    if values.shape != (NUM_SAMPLES, len(CHANNELS)):
        must = f"hold the {NUM_SAMPLES} lines of one second, with a number for each of {len(CHANNELS)} channels"
        raise DataError.of(path, must, f"{values.shape[0]} lines of {values.shape[1]}")
    if not np.isfinite(values).all() or (np.ptp(values, axis=0) == 0).any():
        raise DataError.of(path, "hold finite numbers that vary in every channel")
    return np.ascontiguousarray(values.T)
