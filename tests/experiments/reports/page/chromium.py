"""A real headless Chromium, ended whatever happens; and the pictures of docs/report.md.

python -m tests.experiments.reports.page.chromium OUT/report.html docs/images/report
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PHONE, DESKTOP = 390, 1280
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """Return the path of a Chromium on this machine; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def reason_against() -> str:
    """Return why no browser can be driven here; empty if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if executable() else "no Chromium on the path"


@contextmanager
def chromium() -> Iterator[Any]:
    """Open a browser for a block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=executable(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, path: Path, width: int = DESKTOP, scheme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """Open a page, and yield it once its pictures are drawn, with what it asked of the network and complained of."""
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme, offline=True)
    page, faults = context.new_page(), []
    page.on("console", lambda told: faults.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else faults.append(asked.url))
    try:
        page.goto(path.absolute().as_uri())
        page.wait_for_selector(f"html[data-drawn={scheme}]", timeout=60_000)
        yield page, faults
    finally:
        context.close()


def shoot(report: Path, stem: str) -> None:
    """Write what one sees first at both widths, and the rest of the page on the phone's."""
    with chromium() as browser:
        for width, scheme in ((DESKTOP, "light"), (PHONE, "dark")):
            with opened(browser, report, width, scheme) as (page, _):
                page.set_viewport_size({"width": width, "height": 860 if width == DESKTOP else 1300})
                page.screenshot(path=f"{stem}-{width}.png")


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), sys.argv[2])
