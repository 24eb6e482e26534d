"""Pictures as files, and several studies on one page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.reports.page import comparison_page, study_page, write_comparison, write_figures
from tests.experiments.reports.page.test_study_page import specifications, values_of
from tests.experiments.reports.page.written_study import write_study
from tests.kits.refusals import refused

MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<svg"}


@pytest.mark.slow
def test_every_picture_of_the_page_becomes_a_file(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out")
    files = write_figures(folder, "svg")
    assert [file.stem for file in files] == [picture.name for picture in study_page(folder).pictures]
    assert all(file.read_bytes().startswith(MAGIC["svg"]) for file in files)


@pytest.mark.parametrize("file_format", ["png", "pdf"])
def test_one_picture_in_each_format(tmp_path: Path, file_format: str) -> None:
    (file,) = write_figures(write_study(tmp_path / "out"), file_format, "client-scores")  # type: ignore[arg-type]
    assert file == tmp_path / "out" / "figures" / f"client-scores.{file_format}"
    assert file.read_bytes().startswith(MAGIC[file_format])


def test_a_picture_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with refused(ConfigurationError, key="--what"):
        write_figures(write_study(tmp_path / "out"), "png", "curves")


@pytest.mark.slow
def test_studies_stand_side_by_side(tmp_path: Path) -> None:
    folders = [write_study(tmp_path / name, num_trials=3 + place) for place, name in enumerate(("one", "two"))]
    drawn = specifications(write_comparison(folders))
    gains = {row["against"]: row["mean"] for row in values_of(drawn["gains"]) if "mean" in row}
    assert gains == {"one": pytest.approx(11), "two": pytest.approx(11)}
    assert {row["role"] for row in values_of(drawn["curves"])} == {"one", "two"}
    table = comparison_page(folders).sections[0].table
    assert table is not None
    assert [row[0] for row in table.rows] == ["one", "two"]


@pytest.mark.slow
def test_an_unfinished_study_beside_a_finished_one(tmp_path: Path) -> None:
    folders = [write_study(tmp_path / "one"), write_study(tmp_path / "two", finished=False)]
    assert write_comparison(folders).is_file()
    assert "1 of 2" in comparison_page(folders).headline
