"""Pictures as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.reports.page import study_page, write_figures
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
