"""`fedscout embed`: from pictures to a data set that the other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.experiments.cli.conftest import Cli


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Pictures by hospital and class."""
    draw = np.random.default_rng(0)
    for hospital in ("north", "south"):
        for number, kind in enumerate(("ill", "well")):
            folder = tmp_path / "eyes" / hospital / kind
            folder.mkdir(parents=True)
            for place in range(12):
                pixels = draw.integers(0, 100, (24, 24, 3)) + 100 * number
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{place}.png")
    return tmp_path / "eyes"


def test_from_pictures_to_a_diagnosis(cli: Cli, hospitals: Path, tmp_path: Path) -> None:
    asked = ("embed", f"federation.dataset={hospitals}/", "--random", "0")
    first = cli(*asked, "--size", "32", "--json")
    assert first.code == 0, first.err
    told = json.loads(first.out)
    assert (told["computed"], told["rows"], told["weights"]) == (True, 48, {"random_seed": 0})
    again = cli(*asked, "--size", "32")
    assert "random features, of no trained network, as they were" in again.out
    assert json.loads(cli(*asked, "--size", "64", "--json").out)["computed"]
    done = cli("detect", *told["use"].split(), "engine.grid=local", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)["report"]
    assert (report["num_features"], report["num_clients"]) == (512, 2)


def test_only_pictures_are_embedded(cli: Cli) -> None:
    done = cli("embed", "federation.dataset=wine", "--random", "0")
    assert done.code == 2
    assert done.err.startswith("fedscout: federation.dataset must be one of pictures")
