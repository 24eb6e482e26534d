"""Bearings: the label rests on the row number, so the rows must be the 984 snapshots in order."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import signal, stats

from fedscout.engine.errors import DataError
from fedscout.experiments.data.loaders import bearing as bearing_raw
from fedscout.experiments.data.loaders.bearing import (
    BAND_NAMES,
    CHARACTERISTIC_HERTZ,
    DROPPED,
    FAULT_FILES,
    KEPT,
    NUM_SAMPLES,
    SAMPLING_HERTZ,
    extract_features,
    list_snapshots,
    read_snapshot,
    vibration_features,
)
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, load_dataset
from tests.kits.refusals import refused

FILE, MEAN = "test2_features_from_raw.csv.gz", "column 'B1_mean' of data set 'bearing'"


def snapshots(num_rows: int = 984) -> list[str]:
    return ["file,B1_mean,B1_std", *(f"2004.02.12.{row:04d},{row},{row % 7}" for row in range(num_rows))]


def write(folder: Path, lines: list[str]) -> Path:
    return image_files.write(folder / "bearing" / FILE, gzip.compress("\n".join(lines).encode()))


def test_last_two_rows_go_and_row_530_is_the_first_degraded(tmp_path: Path) -> None:
    write(tmp_path, snapshots())
    dataset = load_dataset("bearing", folder=tmp_path)

    assert dataset.num_rows == 982
    assert dataset.labels[:530].tolist() == [0] * 530
    assert dataset.labels[530:].tolist() == [1] * 452
    assert dataset.class_names == ("healthy", "degraded")
    assert dataset.feature_names == ("B1_mean", "B1_std")
    # 0 … 981 has population variance (982² − 1)/12: the dropped rows had no part in it.
    np.testing.assert_allclose(dataset.features[-1, 0], 490.5 / np.sqrt((982**2 - 1) / 12), rtol=1e-6)
    assert dataset.facts["num_dropped_rows"] == 2


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        (snapshots(983), FILE),
        (snapshots(985), FILE),
        ([*snapshots()[:10], snapshots()[11], snapshots()[10], *snapshots()[12:]], f"column 'file' of {FILE}"),
        ([line.replace("file", "time") for line in snapshots()], FILE),
        ([line.split(",")[0] + ",,1" if "0005" in line else line for line in snapshots()], MEAN),
    ],
    ids=["a row short", "a row more", "order", "no time", "gap"],
)
def test_malformed(tmp_path: Path, lines: list[str], key: str) -> None:
    write(tmp_path, lines)
    assert_refused("bearing", folder=tmp_path, key=key)


@pytest.mark.parametrize(
    ("name", "columns", "dropped"), [("bearing_faults", KEPT, DROPPED), ("bearing_faults_all", (*KEPT, *DROPPED), ())]
)
def test_faults_of_all_files(tmp_path: Path, name: str, columns: tuple[str, ...], dropped: tuple[str, ...]) -> None:
    for number, (file, fault) in enumerate(
        zip(FAULT_FILES, ("Normal", "Outer", "Outer", "Inner", "Roller"), strict=True)
    ):
        rows = [",".join([*(str(number * 10 + row + column) for column in range(9)), fault]) for row in range(3)]
        image_files.write(tmp_path / file, "\n".join([",".join((*KEPT, *DROPPED, "Fault")), *rows]))
    dataset = load_dataset(name, folder=tmp_path)
    assert dataset.class_names == ("Inner", "Normal", "Outer", "Roller")
    assert np.bincount(dataset.labels).tolist() == [3, 3, 6, 3]
    assert dataset.feature_names == columns
    assert dataset.facts["dropped_columns"] == dropped


@pytest.mark.data
def test_published_files(data_folder: Path) -> None:
    dataset = load_dataset("bearing", folder=data_folder)
    assert np.bincount(dataset.labels).tolist() == [530, 452]
    assert dataset.feature_names == tuple(f"B{bearing}_{name}" for bearing in range(1, 5) for name in features(noise()))
    faults = load_dataset("bearing_faults", folder=data_folder)
    assert faults.class_names == ("Inner Race", "Normal", "Outer Race", "Roller Element")
    assert np.bincount(faults.labels).tolist() == [465, 768, 580, 465]


# Raw snapshots.


FIRST = datetime(2004, 2, 12, 10, 32, 39)


def times(number: int) -> list[str]:
    """Names of snapshots taken every ten minutes, the first as in test 2."""
    return [(FIRST + timedelta(minutes=10 * index)).strftime("%Y.%m.%d.%H.%M.%S") for index in range(number)]


def vibration(seed: int) -> npt.NDArray[np.float64]:
    """Noise in thousandths of g, as the files have it, shape `(4, 20480)`."""
    return np.random.default_rng(seed).normal(0, 0.1, (4, NUM_SAMPLES)).round(3)


def lines_of(values: npt.NDArray[np.float64]) -> list[str]:
    return ["\t".join(map(str, row)) for row in values.T.tolist()]


def write_snapshot(folder: Path, lines: list[str]) -> Path:
    path = folder / times(1)[0]
    path.write_text("\r\n".join(lines) + "\r\n")  # as published
    return path


@pytest.mark.slow
def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, lines_of(vibration(0)))
    np.testing.assert_array_equal(read_snapshot(path), vibration(0))
    (row,) = extract_features([path]).to_pylist()
    expected = vibration_features(vibration(0)).items()
    assert row == {"file": path.name, **{f"B{b + 1}_{name}": cells[b] for b in range(4) for name, cells in expected}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "text"), [(2, "0.1\t0.2\t0.3"), (2, ""), (2, "0.1\t0.2\t\t0.4"), (20_479, "inf\t0.2\t0.3\t0.4")]
)
def test_malformed_line(tmp_path: Path, line: int, text: str) -> None:
    lines = lines_of(vibration(0))
    lines[line] = text
    with refused(DataError, key=times(1)[0]):
        read_snapshot(write_snapshot(tmp_path, lines))


def test_a_channel_that_never_changes(tmp_path: Path) -> None:
    values = vibration(0)
    values[2] = -0.005
    with refused(DataError, key=times(1)[0], names="vary"):
        read_snapshot(write_snapshot(tmp_path, lines_of(values)))


@pytest.mark.parametrize("stranger", ["readme.txt", "2004.02.12.10.32.39.txt", times(31)[30]])
def test_snapshots_are_in_the_order_of_time_and_alone_but_for_hidden_files(tmp_path: Path, stranger: str) -> None:
    """A folder that is called as a snapshot is a stranger, too."""
    for name in [*reversed(times(30)), ".DS_Store"]:
        (tmp_path / name).touch()
    assert [path.name for path in list_snapshots(tmp_path)] == times(30)
    (tmp_path / stranger).mkdir() if stranger in times(31) else (tmp_path / stranger).touch()
    with refused(DataError, key=tmp_path.name, given=repr(stranger)):
        list_snapshots(tmp_path)


@pytest.mark.slow
def test_raw_snapshots_are_labelled_as_their_table_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of made-up content: 64 values a channel."""

    def made_up(path: Path) -> npt.NDArray[np.float64]:
        return np.random.default_rng(int(path.name.replace(".", ""))).normal(size=(4, 64))

    monkeypatch.setattr(bearing_raw, "read_snapshot", made_up)
    folder = tmp_path / "bearing/2nd_test"
    folder.mkdir(parents=True)
    for time in times(984):
        (folder / time).touch()
    dataset = load_dataset("bearing_raw", folder=tmp_path)
    assert dataset.features.shape == (982, 244)
    assert dataset.feature_names == tuple(f"B{bearing}_{name}" for bearing in range(1, 5) for name in features(noise()))
    assert dataset.labels.tolist() == [0] * 530 + [1] * 452
    assert (dataset.class_names, dataset.facts["num_dropped_rows"]) == (("healthy", "degraded"), 2)
    (folder / times(1)[0]).unlink()
    assert_refused("bearing_raw", folder=tmp_path, key="2nd_test", given="983 snapshots")


# Features of vibration: frequencies from the geometry, statistics against scipy, what a tone and a defect raise.


SECONDS = np.arange(NUM_SAMPLES) / SAMPLING_HERTZ
Array = npt.NDArray[np.float64]


def features(vibration: Array) -> dict[str, float]:
    """Return the features of a channel beside another one, which it must not see."""
    return {name: float(cells[0]) for name, cells in vibration_features(np.stack([vibration, knocks(99)])).items()}


def noise(seed: int = 0, level: float = 0.1) -> Array:
    return np.random.default_rng(seed).normal(0.0, level, NUM_SAMPLES)


def knocks(hertz: float) -> Array:
    """A blow every 1/hertz seconds, each ringing at 4.5 kHz for about a millisecond, in noise of a tenth of it."""
    train = np.zeros(NUM_SAMPLES)
    train[(np.arange(0, SECONDS[-1], 1 / hertz) * SAMPLING_HERTZ).astype(int)] = 1.0
    ringing = np.exp(-SECONDS[:200] / 1e-3) * np.sin(2 * np.pi * 4500 * SECONDS[:200])
    return np.convolve(train, ringing)[:NUM_SAMPLES] + noise()


def test_characteristic_frequencies_of_the_rexnord_za_2115() -> None:
    # Qiu, Lee, Lin and Yu, Journal of Sound and Vibration 289, 2006, give 236.4 Hz for the outer race.
    expected = {"env_bpfo": 236.4, "env_bpfi": 296.9, "env_bsf": 139.9, "env_ftf": 14.8, "env_shaft": 33.3}
    assert pytest.approx(expected, abs=0.05) == CHARACTERISTIC_HERTZ


def test_statistics_agree_with_scipy() -> None:
    x = noise() ** 3 + 0.02
    found = features(x)
    root_mean_square = np.sqrt(np.mean(x**2))
    expected = {
        "mean": np.mean(x),
        "std": np.std(x),
        "rms": root_mean_square,
        "min": x.min(),
        "max": x.max(),
        "p2p": x.max() - x.min(),
        "absmean": np.mean(np.abs(x)),
        "skew": stats.skew(x),
        "kurt": stats.kurtosis(x),
        "crest": np.abs(x).max() / root_mean_square,
        "shape": root_mean_square / np.mean(np.abs(x)),
        "impulse": np.abs(x).max() / np.mean(np.abs(x)),
        "clearance": np.abs(x).max() / stats.pmean(np.abs(x), 0.5),
        "q01": stats.scoreatpercentile(x, 1),
        "q25": stats.scoreatpercentile(x, 25),
        "q75": stats.scoreatpercentile(x, 75),
        "q99": stats.scoreatpercentile(x, 99),
        "difrms": np.sqrt(np.mean((x[1:] - x[:-1]) ** 2)),
        "zcr": np.sum(np.diff(np.sign(x - x.mean())) != 0) / (NUM_SAMPLES - 1),
        "env_std": np.std(np.abs(signal.hilbert(x - x.mean()))),
        "env_kurt": stats.kurtosis(np.abs(signal.hilbert(x - x.mean()))),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_spectrum_agrees_with_scipy() -> None:
    x = noise() + 0.3
    frequencies, power = signal.periodogram(x, SAMPLING_HERTZ, window=np.hanning(NUM_SAMPLES), detrend="constant")
    share = power / power.sum()
    centroid = float(np.sum(share * frequencies))
    found = features(x)
    # periodogram doubles all but 0 Hz and half the sampling rate, two of 10,241 bins: equal but for a few in 10,000.
    assert found["spcent"] == pytest.approx(centroid, rel=1e-3)
    assert found["spstd"] == pytest.approx(np.sqrt(np.sum(share * (frequencies - centroid) ** 2)), rel=1e-3)
    assert found["spent"] == pytest.approx(stats.entropy(share), rel=1e-3)


@pytest.mark.parametrize("hertz", [450.0, 1000.0, 5001.0, 9900.0])
def test_a_tone_s_energy_lands_in_its_band(hertz: float) -> None:
    found = features(0.5 * np.sin(2 * np.pi * hertz * SECONDS))
    energies = {name: np.exp(found[name]) for name in BAND_NAMES}
    own = BAND_NAMES[int(hertz / 312.5)]  # 10 kHz in 32 bands
    assert energies[own] / sum(energies.values()) > 0.999
    assert found["spcent"] == pytest.approx(hertz, rel=1e-3)
    # A tone of amplitude a under a window w puts Σ over bins of |DFT|² = n · Σ(w·x)² / 2 = n · (a²/2) · (3/8) n / 2.
    assert energies[own] == pytest.approx(NUM_SAMPLES**2 * 0.5**2 * 3 / 32, rel=1e-3)
    assert found["zcr"] == pytest.approx(2 * hertz / SAMPLING_HERTZ, abs=2 / NUM_SAMPLES)
    # A tone's envelope is its amplitude, but for the ends of the cut.
    assert found["env_std"] < 0.1 * found["std"]


@pytest.mark.parametrize(
    ("hertz", "raised", "others", "factor"),
    [
        (CHARACTERISTIC_HERTZ["env_bpfo"], "env_bpfo", ("env_bpfi", "env_bsf"), 5),
        (CHARACTERISTIC_HERTZ["env_bpfi"], "env_bpfi", ("env_bpfo", "env_bsf"), 5),
        (2 * CHARACTERISTIC_HERTZ["env_bsf"], "env_bsf", (), 3),  # a roller knocks at twice its rotation
    ],
    ids=["outer race", "inner race", "roller"],
)
def test_a_defect_raises_its_own_frequency(hertz: float, raised: str, others: tuple[str, ...], factor: float) -> None:
    healthy, damaged = features(noise()), features(knocks(hertz))
    assert damaged[raised] > healthy[raised] + np.log(factor)
    assert damaged[raised] > np.log(0.5) or not others  # most of the envelope below 1 kHz
    assert all(damaged[other] < healthy[other] for other in others)


def test_a_pure_tone_leaves_no_infinity() -> None:
    assert np.isfinite(list(features(np.sin(2 * np.pi * 1000 * SECONDS)).values())).all()
    assert np.isfinite(list(features(np.where(np.arange(NUM_SAMPLES) % 2, 1.0, -1.0)).values())).all()
