"""`fedscout embed`: from pictures to a data set that the other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedscout.experiments.federations.embeddings.resnet18_features import ResNet18Features
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


def test_by_a_file_of_weights(cli: Cli, hospitals: Path, tmp_path: Path) -> None:
    torch.save(ResNet18Features().state_dict(), tmp_path / "resnet18.pt")
    done = cli("embed", f"federation.dataset={hospitals}/", "--weights", "resnet18.pt", "--size", "32")
    assert done.code == 0, done.err
    assert "48 pictures as 512 features by resnet18.pt, in embedded.npz" in done.out
    assert np.load(tmp_path / "embedded.npz")["x"].shape == (48, 512)


@pytest.mark.parametrize("lost", ["record", "damaged record", "file", "damaged file"])
def test_what_is_not_whole_is_computed_again(cli: Cli, hospitals: Path, tmp_path: Path, lost: str) -> None:
    asked = ("embed", f"federation.dataset={hospitals}/", "--random", "0", "--size", "32", "--json")
    assert json.loads(cli(*asked).out)["computed"]
    assert not json.loads(cli(*asked).out)["computed"]
    path = tmp_path / f"random-features.npz{'.json' if 'record' in lost else ''}"
    before = (tmp_path / "random-features.npz").read_bytes()
    path.write_bytes(b"junk") if "damaged" in lost else path.unlink()
    done = cli(*asked)
    assert done.code == 0, done.err
    assert json.loads(done.out)["computed"]
    assert (tmp_path / "random-features.npz").read_bytes() == before


def test_a_file_of_another_program_is_left_alone(cli: Cli, hospitals: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    cli("embed", f"federation.dataset={hospitals}/", "--random", "0", "--size", "32", "--out", "mine.npz")
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_only_pictures_are_embedded(cli: Cli) -> None:
    done = cli("embed", "federation.dataset=wine", "--random", "0")
    assert done.code == 2
    assert done.err.startswith("fedscout: federation.dataset must be one of pictures")
