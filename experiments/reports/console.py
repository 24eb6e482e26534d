"""Console output of untrusted text, tables, paragraphs, paths, JSON, and numbers with units."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedscout.engine.runtime.files import json_text
from fedscout.experiments.text import show_json_text, visible


class PlainConsole(Console):
    """A console for untrusted text: markup, emoji codes and control characters are printed literally."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string that is printed or part of a table or title."""
        return super().render_str(visible(text), **options)


def plain_table(*headings: str, numbers: Sequence[str] = (), **options: Any) -> Table:
    """Return a table without borders; number columns are right-aligned. Options are those of rich's `Table`."""
    look = {"box": None, "padding": (0, 2, 0, 0), "title_justify": "left", "title_style": "bold"}
    columns = [Column(heading, justify="right" if heading in numbers else "left") for heading in headings]
    return Table(*columns, **{**look, **options})


def out_console() -> Console:
    """Return the console for results; 120 columns wide if standard output is no terminal."""
    return PlainConsole(width=None if sys.stdout.isatty() else 120, soft_wrap=False)


def show_path(console: Console, label: str, path: Path, remark: str = "") -> None:
    """Print a path on one line, regardless of its length."""
    console.print(f"{label}: {path}{remark}", soft_wrap=True)


def show_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document on standard output."""
    show_json_text(json_text(document).removesuffix("\n"))


WIDTH = 80
INDENT = "  "


def paragraph(text: str, width: int, indent: str = INDENT, style: str = "") -> list[Text]:
    """Return a text wrapped to lines of at most this width."""
    lines = list(Text(visible(" ".join(text.split()))).wrap(Console(width=width), width - len(indent)))
    for line in lines:
        line.rstrip()
    return [Text(indent, style=style).append_text(line) for line in lines if line.plain]


def markdown_table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, with cells converted by `str`."""
    return [f"| {' | '.join(map(str, cells))} |" for cells in (headings, ["---"] * len(headings), *rows)]


def seconds_text(seconds: float) -> str:
    """Return a time as text, such as `42.5 s`, `13.1 min` or `2.78 h`."""
    unit, size = next(((u, s) for u, s in (("h", 3600), ("min", 60)) if seconds >= 2 * s), ("s", 1))
    return f"{seconds / size:.3g} {unit}"


MOST_NAMED = 5


def show_columns(console: Console, facts: Mapping[str, Any], is_brief: bool = False) -> None:
    """Print how the columns of a user's table are used; nothing for other data.

    Args:
        console: Output console.
        facts: Facts of the federation.
        is_brief: Print one line, and only if a column was left out automatically or codes for missing values are
            suspected.
    """
    from fedscout.engine.text import listed  # pydantic, which `fedscout --help` does without

    columns: Sequence[Mapping[str, Any]] = facts.get("columns", ())
    if is_brief:
        left_out = [column["name"] for column in columns if column["became"].startswith("left out:")]
        coded = [f"{one['name']} ({', '.join(one['missing_codes'])})" for one in columns if one["missing_codes"]]
        codes = ", ".join(dict.fromkeys(code for column in columns for code in column["missing_codes"]))
        parts = [f"left out {listed(left_out, MOST_NAMED)}"] if left_out else []
        if coded:
            key = f"'federation.missing_values=[{codes}]'"
            parts.append(f"possible missing-value codes: {listed(coded, MOST_NAMED)}: {key}")
        if parts:
            console.print(f"columns: {'; '.join(parts)} (fedscout describe lists them)")
    elif columns:
        console.print()
        table = plain_table("column", "kind", "missing", "features", "usage", "to change it: federation.…")
        for column in columns:
            usage = "; ".join(filter(None, (column["became"], column["suspicion"])))
            counts = [f"{column[name]:,}" if column[name] else "" for name in ("num_missing", "num_features")]
            table.add_row(column["name"], column["kind"], *counts, usage, column["key"].replace("federation.", ""))
        console.print(table)
