"""The notebooks of the documentation run from top to bottom, in an empty folder, and leave pictures."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))
SHORTEST = "own_table"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_stored_without_what_a_run_left(file: Path) -> None:
    cells = nbformat.read(file, as_version=4).cells
    assert cells[0].source.startswith("# ")
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=() if file.stem == SHORTEST else pytest.mark.stress) for file in NOTEBOOKS],
    ids=lambda file: file.stem,
)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "<svg" in str(output.get("data", {}).get("text/html", ""))]
    streams = [output.text for output in outputs if output.output_type == "stream"]
    assert pictures
    assert streams == []
