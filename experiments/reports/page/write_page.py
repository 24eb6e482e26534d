"""A page as one HTML file that needs nothing else: pictures as Vega-Lite, Vega's own code beside them.

A file's policy (`Content-Security-Policy`) forbids it to load anything, so it can't even by mistake. What others have
written, names of files, columns, classes and strategies, is escaped by the template and in the data of pictures.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

from fedscout.engine.runtime.atomic_file import write_atomically
from fedscout.experiments.chart_style import MANY_MARKS, chart_config
from fedscout.experiments.reports.page.page_parts import Page
from fedscout.experiments.reports.page.vega_code import vega_code
from fedscout.experiments.visible import visible

TEMPLATE = "page.html.jinja"
POLICY_HERE = "POLICY-HERE"
CODE = {tag: re.compile(f"<{tag}>(.*?)</{tag}>", re.DOTALL) for tag in ("script", "style")}


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
    text = environment.get_template(TEMPLATE).render(
        policy=POLICY_HERE,
        page=page,
        specifications=specifications,
        looks={"dark": chart_config(dark=True), "light": {**chart_config(dark=False), "background": "transparent"}},
        vega=Markup(vega_code()),  # noqa: S704 - the library's own code, which holds no `</script`
    )
    return text.replace(POLICY_HERE, _policy(text), 1)


def _policy(text: str) -> str:
    """Return what the page may run and look like: its own scripts and styles, told by their digests, and no other.

    Args:
        text: Of the page, in which the words of others are escaped, so that these are all its scripts and styles.
    """
    scripts, styles = (" ".join(map(_digest, CODE[tag].findall(text))) for tag in ("script", "style"))
    return f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:"


def _digest(code: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def _specification(chart: Any) -> dict[str, Any]:
    """Return a chart as Vega-Lite, as wide as its place; without validation, which takes longer than all the rest."""
    found: dict[str, Any] = chart.properties(width="container").to_dict(validate=False)
    found.pop("config", None)
    held = [one["data"]["values"] for one in (found, *found.get("layer", ())) if "values" in one.get("data", {})]
    if sum(map(len, [*held, *found.get("datasets", {}).values()])) > MANY_MARKS:
        found["usermeta"] = {"renderer": "canvas"}
    return found
