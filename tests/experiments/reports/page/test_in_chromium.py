"""A report in a real browser: it draws, asks the network for nothing, and tells what is pointed at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedscout.experiments.reports.page import write_report
from tests.experiments.reports.page.chromium import DESKTOP, PHONE, chromium, opened, reason_against
from tests.experiments.reports.page.written_study import write_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason_against()), reason=reason_against() or "a browser is there"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write_study(tmp_path_factory.mktemp("study") / "out", name="</script><b>by hand</b>")
    write_report(out)
    return out


@pytest.mark.parametrize(("width", "scheme"), [(DESKTOP, "light"), (PHONE, "dark"), (PHONE, "light")])
def test_every_picture_is_drawn_without_a_request(browser: Any, folder: Path, width: int, scheme: str) -> None:
    with opened(browser, folder / "report.html", width, scheme) as (page, faults):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        drawn = page.evaluate(
            "[...document.querySelectorAll('.picture')].map(p => p.querySelectorAll('svg path').length)"
        )
        assert len(drawn) >= 7
        assert min(drawn) > 0
        assert faults == []
        assert page.inner_text(".of") == "</script><b>by hand</b>"


def test_the_page_runs_its_own_code_alone(browser: Any, folder: Path) -> None:
    """What an injected text could do: a script, a handler, a style, code made of text."""
    with opened(browser, folder / "report.html") as (page, _):
        page.evaluate(
            """() => {
                const place = document.createElement("div");
                place.innerHTML = `<b id="styled" style="color: rgb(1, 2, 3)">b</b>
                    <img src="x" onerror="window.hit = 1">`;
                document.body.append(place);
                const script = document.createElement("script");
                script.textContent = "window.hit = 2";
                document.body.append(script);
            }"""
        )
        page.wait_for_timeout(50)
        assert page.evaluate("window.hit ?? 0") == 0
        assert page.evaluate("getComputedStyle(document.querySelector('#styled')).color") != "rgb(1, 2, 3)"
        policy = page.get_attribute("meta[http-equiv=Content-Security-Policy]", "content")
        assert "unsafe" not in policy


def test_dark_and_light_differ_and_change_while_the_page_is_open(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "report.html") as (page, faults):
        reasons = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
        page.emulate_media(color_scheme="dark")
        page.wait_for_selector("html[data-drawn=dark]")
        reasons.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert reasons == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]
        assert faults == []
