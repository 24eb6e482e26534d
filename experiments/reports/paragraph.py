"""A text in a few lines of a screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fedscout.experiments.visible import visible

WIDTH = 80
INDENT = "  "


def paragraph(text: str, width: int, most: int, indent: str = INDENT, style: str = "") -> list[Text]:
    """Return a text in lines of at most this width, at most so many; of what is longer the beginning and `…`."""
    room = width - len(indent)
    lines = list(Text(visible(" ".join(text.split()))).wrap(Console(width=width), room))
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].rstrip()
        lines[-1].truncate(room - 2)
        lines[-1].rstrip()
        lines[-1].append(" …")
    for line in lines:
        line.rstrip()
    return [Text(indent, style=style).append_text(line) for line in lines if line.plain]
