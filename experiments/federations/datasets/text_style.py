"""How a text file is written: its encoding, what separates its columns, and whether its first line names them."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
WHITE_SPACE = SEPARATORS["space"]
"""Stands for any number of spaces and tabs."""


@dataclass(frozen=True)
class TextStyle:
    """What the user says of a text file.

    Attributes:
        encoding: Python's name of it (`federation.encoding`); None means UTF-8 or what is found out.
        separator: One character (`federation.separator`), `WHITE_SPACE` means any; None means what is found out.
        has_header: Whether the first line names the columns (`federation.header`); None means unless it holds numbers.
    """

    encoding: str | None = None
    separator: str | None = None
    has_header: bool | None = None


FOUND_OUT = TextStyle()


def known_encoding(name: str | None) -> str | None:
    """Return the name of an encoding of text.

    Raises:
        ValueError: If Python knows none of this name.
    """
    if name is None:
        return None
    try:
        "".encode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"must name an encoding, such as utf-8, cp1252 or utf-16, got {name!r}") from None


def known_separator(name: str | None) -> str | None:
    """Return the character that a name or the character itself stands for.

    Raises:
        ValueError: If it is neither, or a character that cells hold.
    """
    character = name if name is None else SEPARATORS.get(name, name)
    if character is not None and (len(character) != 1 or character.isalnum() or character in "\"'.+-_\r\n"):
        raise ValueError(
            f"must be {', '.join(SEPARATORS)}, or one character that is no letter, digit, quote or sign, got {name!r}"
        )
    return character
