"""A page as one HTML file that needs nothing else: pictures as Vega-Lite, Vega's own code beside them.

A file's policy (`Content-Security-Policy`) forbids it to load anything, so it can't even by mistake. What others have
written, names of files, columns, classes and strategies, is escaped by the template and in the data of pictures.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fedscout.engine.runtime.atomic_file import write_atomically
from fedscout.experiments.reports.page.page_parts import Page
from fedscout.experiments.reports.page.pictures.chart_style import MANY_MARKS, chart_config
from fedscout.experiments.reports.page.vega_code import vega_code
from fedscout.experiments.visible import visible

TEMPLATE = "page.html.jinja"


def write_page(page: Page, path: Path) -> Path:
    """Write a page, all at once.

    Raises:
        OSError: If it can't be written.
    """
    text = html_of(page)
    write_atomically(path, partial(Path.write_text, data=text, encoding="utf-8"))
    return path


def html_of(page: Page) -> str:
    """Return a page as text."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    specifications = {picture.name: _specification(picture.chart) for picture in page.pictures}
    return environment.get_template(TEMPLATE).render(
        page=page,
        specifications=specifications,
        looks={"dark": chart_config(dark=True), "light": {**chart_config(dark=False), "background": "transparent"}},
        vega=Markup(vega_code()),  # noqa: S704 - the library's own code, which holds no `</script`
    )


def _specification(chart: Any) -> dict[str, Any]:
    """Return a chart as Vega-Lite, as wide as its place; without validation, which takes longer than all the rest."""
    found: dict[str, Any] = chart.properties(width="container").to_dict(validate=False)
    found.pop("config", None)
    held = [one["data"]["values"] for one in (found, *found.get("layer", ())) if "values" in one.get("data", {})]
    if sum(map(len, [*held, *found.get("datasets", {}).values()])) > MANY_MARKS:
        found["usermeta"] = {"renderer": "canvas"}
    return found
