"""A text in lines of a screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fedscout.experiments.visible import visible

WIDTH = 80
INDENT = "  "


def paragraph(text: str, width: int, indent: str = INDENT, style: str = "") -> list[Text]:
    """Return a text in lines of at most this width."""
    lines = list(Text(visible(" ".join(text.split()))).wrap(Console(width=width), width - len(indent)))
    for line in lines:
        line.rstrip()
    return [Text(indent, style=style).append_text(line) for line in lines if line.plain]
