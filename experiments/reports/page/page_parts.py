"""What a page is made of: values that the template lays out. Texts are plain; the template escapes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import altair as alt

from fedscout.engine.errors import UserError


class NothingToDrawError(UserError):
    """A picture was asked for of which the folder holds nothing."""


@dataclass(frozen=True)
class Picture:
    """A picture with the words below it.

    Attributes:
        name: Unique on its page, letters and hyphens; also the name of its file.
        caption: What there is to see, in a sentence or two.
        chart: As wide as whoever shows it makes it.
    """

    name: str
    caption: str
    chart: alt.TopLevelMixin


@dataclass(frozen=True)
class Table:
    """A small table: headings, and a text a cell. Columns but the first hold numbers unless `words` names them."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: Unique on its page.
        title: Its heading.
        sentences: A paragraph each.
        pictures: In order, below the sentences.
        table: Below the pictures.
        missing: What is not there and why, a sentence each.
        code: Commands, a line each.
    """

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None
    missing: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page, verdict first.

    Attributes:
        title: Of what it tells.
        headline: The verdict in a few words.
        lead: Sentences below it.
        figures: The few numbers that matter: what each is, and its text.
        sections: In order.
        foot: The last line.
    """

    title: str
    headline: str
    lead: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())
    foot: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in order."""
        return tuple(picture for section in self.sections for picture in section.pictures)
