"""A text in a few lines of a screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fedscout.experiments.visible import visible

WIDTH = 80
INDENT = "  "
NEAR = 20


def paragraph(text: str, width: int, most: int, indent: str = INDENT, style: str = "") -> list[Text]:
    """Return a text in lines of at most this width, at most so many; of what is longer the beginning and `…`."""
    room = width - len(indent)
    lines = list(Text(visible(" ".join(text.split()))).wrap(Console(width=width), room))
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].rstrip()
        _cut(lines[-1], room - 2)
        lines[-1].append(" …")
    for line in lines:
        line.rstrip()
    return [Text(indent, style=style).append_text(line) for line in lines if line.plain]


def _cut(line: Text, most: int) -> None:
    """Shorten a line that is wider to what ends behind its last comma, if that is near, or behind a word."""
    line.rstrip()
    if line.cell_len <= most:
        return
    line.truncate(most)
    words, _, broken = line.plain.rpartition(" ")
    comma = words.rpartition(", ")[0]
    if len(comma) > len(line) - NEAR:
        line.right_crop(len(line) - len(comma) - 1)
    elif words and len(broken) < NEAR:
        line.right_crop(len(broken) + 1)
