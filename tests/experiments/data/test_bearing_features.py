"""Features of vibration: frequencies from the geometry, statistics against scipy, what a tone and a defect raise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import signal, stats

from fedscout.experiments.data.columns import as_numbers
from fedscout.experiments.data.loaders.bearing import BAND_NAMES, FEATURES, ZA_2115, vibration_features
from fedscout.experiments.data.table_files import read_csv

HERTZ = 20_000
NUM_SAMPLES = 20_480
SECONDS = np.arange(NUM_SAMPLES) / HERTZ
Array = npt.NDArray[np.float64]


def features(vibration: Array) -> dict[str, float]:
    return dict(zip(FEATURES, vibration_features(vibration[None], HERTZ, ZA_2115)[0].tolist(), strict=True))


def noise(seed: int = 0, level: float = 0.1) -> Array:
    return np.random.default_rng(seed).normal(0.0, level, NUM_SAMPLES)


def knocks(hertz: float) -> Array:
    """A blow every 1/hertz seconds, each ringing at 4.5 kHz for about a millisecond, in noise of a tenth of it."""
    train = np.zeros(NUM_SAMPLES)
    train[(np.arange(0, SECONDS[-1], 1 / hertz) * HERTZ).astype(int)] = 1.0
    ringing = np.exp(-SECONDS[:200] / 1e-3) * np.sin(2 * np.pi * 4500 * SECONDS[:200])
    return np.convolve(train, ringing)[:NUM_SAMPLES] + noise()


def test_characteristic_frequencies_of_the_rexnord_za_2115() -> None:
    # Qiu, Lee, Lin and Yu, Journal of Sound and Vibration 289, 2006, give 236.4 Hz for the outer race.
    assert ZA_2115.outer_race_hertz == pytest.approx(236.4, abs=0.05)
    assert ZA_2115.inner_race_hertz == pytest.approx(296.9, abs=0.05)
    assert ZA_2115.roller_hertz == pytest.approx(139.9, abs=0.05)
    assert ZA_2115.cage_hertz == pytest.approx(14.8, abs=0.05)
    assert ZA_2115.shaft_hertz == pytest.approx(33.33, abs=0.005)


def test_every_roller_passes_the_outer_race_or_the_inner_one() -> None:
    # Relative to the cage the races turn at rates that add up to the shaft's.
    assert ZA_2115.outer_race_hertz + ZA_2115.inner_race_hertz == pytest.approx(16 * ZA_2115.shaft_hertz)
    assert ZA_2115.outer_race_hertz == pytest.approx(16 * ZA_2115.cage_hertz)


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
    frequencies, power = signal.periodogram(x, HERTZ, window=np.hanning(NUM_SAMPLES), detrend="constant")
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
    assert found["zcr"] == pytest.approx(2 * hertz / HERTZ, abs=2 / NUM_SAMPLES)
    # A tone's envelope is its amplitude, but for the ends of the cut.
    assert found["env_std"] < 0.1 * found["std"]


def test_white_noise_fills_all_bands_alike() -> None:
    found = features(noise())
    energies = np.exp([found[name] for name in BAND_NAMES])
    # 320 bins a band; Hann leaves about half of them independent, so one band varies by 1/√165 = 8 %.
    np.testing.assert_allclose(energies, energies.mean(), rtol=0.4)
    assert energies.sum() == pytest.approx(NUM_SAMPLES**2 * found["std"] ** 2 * 3 / 16, rel=0.05)
    # The envelope of Gaussian noise is Rayleigh distributed: standard deviation √(2 - π/2) of the noise's.
    assert found["env_std"] == pytest.approx(np.sqrt(2 - np.pi / 2) * found["std"], rel=0.02)
    assert found["env_kurt"] == pytest.approx(float(stats.rayleigh.stats(moments="k")), abs=0.2)


@pytest.mark.parametrize(
    ("hertz", "raised", "others"),
    [
        (ZA_2115.outer_race_hertz, "env_bpfo", ("env_bpfi", "env_bsf")),
        (ZA_2115.inner_race_hertz, "env_bpfi", ("env_bpfo", "env_bsf")),
    ],
    ids=["outer race", "inner race"],
)
def test_a_defect_raises_the_envelope_at_its_own_frequency(hertz: float, raised: str, others: tuple[str, ...]) -> None:
    healthy, damaged = features(noise()), features(knocks(hertz))
    assert damaged[raised] > healthy[raised] + np.log(5)
    assert damaged[raised] > np.log(0.5)  # most of the envelope below 1 kHz
    for other in others:
        assert damaged[other] < healthy[other]


def test_a_defect_of_a_roller_knocks_at_twice_its_rotation() -> None:
    assert features(knocks(2 * ZA_2115.roller_hertz))["env_bsf"] > features(noise())["env_bsf"] + np.log(3)


def test_the_scale_of_the_signal_shifts_energies_and_leaves_shares() -> None:
    once, tenfold = features(knocks(236.4)), features(10 * knocks(236.4))
    assert tenfold["logband07"] - once["logband07"] == pytest.approx(np.log(100))
    for name in ("skew", "kurt", "crest", "zcr", "spcent", "spent", "env_bpfo", "env_shaft", "env_kurt"):
        assert tenfold[name] == pytest.approx(once[name], rel=1e-9)


def test_channels_do_not_see_each_other() -> None:
    channels = np.stack([noise(1), knocks(236.4), noise(2)])
    together = vibration_features(channels, HERTZ, ZA_2115)
    assert together.shape == (3, 61)
    for row, channel in zip(together, channels, strict=True):
        np.testing.assert_allclose(row, vibration_features(channel[None], HERTZ, ZA_2115)[0], rtol=1e-9)


def test_a_pure_tone_leaves_no_infinity() -> None:
    assert np.isfinite(list(features(np.sin(2 * np.pi * 1000 * SECONDS)).values())).all()
    assert np.isfinite(list(features(np.where(np.arange(NUM_SAMPLES) % 2, 1.0, -1.0)).values())).all()


@pytest.mark.data
def test_the_published_table_of_features_has_these_columns_and_obeys_these_definitions(data_folder: Path) -> None:
    table = read_csv(data_folder / "bearing/test2_features_from_raw.csv.gz", delimiter=",").slice(0, 982)
    assert [name for name in table.column_names if name != "file"] == [
        f"B{b}_{name}" for b in range(1, 5) for name in FEATURES
    ]
    for bearing in range(1, 5):
        column = {name: as_numbers(table[f"B{bearing}_{name}"]) for name in FEATURES}
        largest = np.maximum(np.abs(column["min"]), np.abs(column["max"]))
        # The file has eight digits.
        np.testing.assert_allclose(column["rms"] ** 2, column["std"] ** 2 + column["mean"] ** 2, rtol=1e-6)
        np.testing.assert_allclose(column["p2p"], column["max"] - column["min"], rtol=1e-6)
        np.testing.assert_allclose(column["crest"], largest / column["rms"], rtol=1e-6)
        np.testing.assert_allclose(column["shape"], column["rms"] / column["absmean"], rtol=1e-6)
        np.testing.assert_allclose(column["impulse"], largest / column["absmean"], rtol=1e-6)
        changes = column["zcr"] * (NUM_SAMPLES - 1)
        np.testing.assert_allclose(changes, np.rint(changes), atol=1e-3)
        # Parseval under a Hann window, whose mean square is 3/8; half of the bins are above 0 Hz.
        energy = np.sum([np.exp(column[name]) for name in BAND_NAMES], axis=0)
        assert np.median(energy / (NUM_SAMPLES * column["std"]) ** 2) == pytest.approx(3 / 16, rel=0.01)
        middles = (np.arange(32) + 0.5) * 312.5
        centroid = np.sum(
            [np.exp(column[name]) * hertz for name, hertz in zip(BAND_NAMES, middles, strict=True)], axis=0
        )
        np.testing.assert_allclose(column["spcent"], centroid / energy, rtol=0.06)
        for name in ("env_bpfo", "env_bpfi", "env_bsf", "env_ftf", "env_shaft"):
            assert (column[name] < 0).all()  # logarithms of shares
