"""The consoles of results, on which the words of others are shown and not obeyed; tables, paths and JSON on them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedscout.engine.runtime.atomic_file import json_text
from fedscout.experiments.visible import show_json_text, visible

if TYPE_CHECKING:
    from pathlib import Path


class PlainConsole(Console):
    """A console for the words of others: markup, emoji codes and control characters are shown, not obeyed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string, be it printed, in a table or a title."""
        return super().render_str(visible(text), **options)


def plain_table(*headings: str, numbers: Sequence[str] = (), **options: Any) -> Table:
    """Return a table without lines; columns of numbers stand on the right. Options are those of rich's own."""
    look = {"box": None, "padding": (0, 2, 0, 0), "title_justify": "left", "title_style": "bold"}
    columns = [Column(heading, justify="right" if heading in numbers else "left") for heading in headings]
    return Table(*columns, **{**look, **options})


def out_console() -> Console:
    """Return the console of results; wide enough for tables where standard output is no terminal."""
    return PlainConsole(width=None if sys.stdout.isatty() else 120, soft_wrap=False)


def show_path(console: Console, label: str, path: Path, remark: str = "") -> None:
    """Print where something lies, on one line however long the path is."""
    console.print(f"{label}: {path}{remark}", soft_wrap=True)


def show_json(document: Mapping[str, Any]) -> None:
    """Print a document alone on standard output."""
    show_json_text(json_text(document).removesuffix("\n"))
