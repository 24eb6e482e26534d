"""Text on its way to a terminal."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given, strategies as st
from rich.table import Table

from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.text import LONGEST_LINE, visible, visible_line

TEXTS = st.text(
    alphabet=st.characters() | st.sampled_from("\x1b\x07\x08\r\n\t\x7f\x9b\x85\u202e\u2066\u2028\ud800[]/:")
)
BIDIRECTIONAL_CONTROLS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


def steers(character: str) -> bool:
    """Return whether Unicode's own tables say that a character does something instead of being seen."""
    return (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character) in BIDIRECTIONAL_CONTROLS
    )


@given(TEXTS)
def test_nothing_that_steers_is_left_and_everything_else_is(text: str) -> None:
    shown = visible(text)
    assert not [character for character in shown if steers(character) and character not in "\n\t"]
    if not any(steers(character) or character in "\u061c\u200e\u200f" for character in text):
        assert shown == text
    shown.encode()


@given(TEXTS)
def test_a_line_is_one(text: str) -> None:
    line = visible_line(text)
    assert line.splitlines() in ([], [line])


def test_what_is_replaced_reads_as_in_pythons_source() -> None:
    assert visible("a\x1b[2J\x9b\u202eb\udcff\r") == r"a\x1b[2J\x9b\u202eb\udcff\r"


def test_long_values_are_cut_and_counted() -> None:
    one = visible_line(f"must be short, got {'x' * 99_999}; allowed are a, b")
    assert ("x" * 240 in one, "x" * 241 in one, "100000" in one, one[-4:]) == (True, False, True, "a, b")
    many = visible_line("must be one, got " + "x, " * 100_000 + "which is many")
    assert len(many) < LONGEST_LINE + 50
    assert "300030" in many
    assert many.endswith("which is many")


@pytest.mark.parametrize("text", ["[red]x[/red]", "[link=http://e]x[/link]", "[/]", ":smile:", "a\\[b]", "trailing\\"])
def test_markup_in_a_text_is_text(text: str) -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, width=100, force_terminal=True, color_system="truecolor", legacy_windows=False)
    table = Table(title=text, box=None)
    table.add_column(text)
    table.add_row(text)
    console.print(text)
    console.print(table)
    assert file.getvalue().count(text) == 4
    assert "\x1b]8" not in file.getvalue()  # a link
