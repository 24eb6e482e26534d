"""`report.html` in a folder of a study or a sweep; a report that can't be written takes nothing with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from fedscout.engine.errors import EngineError, first_line
from fedscout.engine.runtime.atomic_file import not_written
from fedscout.experiments.reports.page.page_parts import Page

REPORT = "report.html"
COMPARISON = "comparison.html"

logger = logging.getLogger("fedscout")


def page_in(folder: Path) -> Page:
    """Return the page of a folder, be it a study's or a sweep's.

    Raises:
        LogError: If the folder holds neither.
    """
    if (folder / "sweep.json").is_file():
        from fedscout.experiments.reports.page.sweep_page import sweep_page

        return sweep_page(folder)
    from fedscout.experiments.reports.page.study_page import study_page

    return study_page(folder)


def write_report(folder: Path) -> Path:
    """Write the report of a study or a sweep into its folder.

    Raises:
        LogError: If the folder holds neither.
        EngineError: If it can't be written, as when the disk is full.
    """
    return written(page_in(folder), folder / REPORT)


def write_comparison(folders: Sequence[Path]) -> Path:
    """Write a page of several studies into the folder of the first.

    Raises:
        UserError: If a folder holds no study, or they can't be compared.
        EngineError: If it can't be written.
    """
    from fedscout.experiments.reports.page.comparison_page import comparison_page

    return written(comparison_page(folders), folders[0] / COMPARISON)


def written(page: Page, path: Path) -> Path:
    """Write a page.

    Raises:
        EngineError: If it can't be written.
    """
    from fedscout.experiments.reports.page.write_page import write_page

    try:
        return write_page(page, path)
    except OSError as error:
        raise EngineError(not_written(path, error)) from error


def report_of_finished(folder: Path) -> Path | None:
    """Write the report at the end of a study or a sweep, whose results stand whatever happens here.

    Returns:
        The file; None if there is none, which is said in a line, but for a folder that can only be read.
    """
    if not os.access(folder, os.W_OK):
        return folder / REPORT if (folder / REPORT).is_file() else None
    try:
        return write_report(folder)
    except Exception as error:  # nothing that goes wrong in a picture may end a finished study
        logger.warning("the report was not written (%s); fedscout report %s writes it", first_line(error), folder)
        return None
