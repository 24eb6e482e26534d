"""Columns of numbers as people write them: thousands, decimal commas, units, percent, ranges, and truth values.

A form is one for the whole column, so that every client reads its own rows alike, and is found from all cells: the
prefix (a currency) and suffix (a unit or %) that most cells have, and how their digits are grouped. A range is read as
its middle. `1,234` alone may be one thousand or one and a bit: such a column has no form unless other cells tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.experiments.federations.datasets.tables.column_kinds import distinct_cells, present_cells

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = npt.NDArray[np.float64]

_AFFIXES = re.compile(r"([$€£¥]?) ?([+-]?\d[\d.,' \u00a0\u202f]*?|[+-]?\.\d+) ?((?:[^\W\d_]|[%°$€£¥])[^\s\d]{0,11}|)")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_RANGE = re.compile(r"(\d+(?:\.\d+)?)(?: ?[-–] ?| to )(\d+(?:\.\d+)?)")
_STYLES: Final = {
    "plain": (_PLAIN, "", "."),
    "decimal comma": (re.compile(r"[+-]?\d+(,\d+)?", re.ASCII), "", ","),
    "thousands ,": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?", re.ASCII), ",", "."),
    "thousands .": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?", re.ASCII), ".", ","),
    "thousands '": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}('\d{3})+)(\.\d+)?", re.ASCII), "'", "."),
    "thousands space": (re.compile(r"[+-]?(\d{1,3}|[1-9]\d{0,2}([ \u00a0\u202f]\d{3})+)(,\d+)?"), " \u00a0\u202f", ","),
}
"""By name: what a number looks like, what groups its digits, and its decimal point."""

_CURRENCIES = "$€£¥"
TRUTHS: Final[tuple[dict[str, float], ...]] = (
    {"true": 1, "false": 0},
    {"yes": 1, "no": 0},
    {"y": 1, "n": 0},
    {"t": 1, "f": 0},
    {"1": 1, "0": 0, "1.0": 1, "0.0": 0},
)
"""Spellings of truth values, in lower case."""


@dataclass(frozen=True)
class WrittenForm:
    """How all cells of a column write numbers.

    Attributes:
        style: One of the groupings of digits, `range` or `truth`.
        prefix: Before each number, such as `$`.
        suffix: Behind each number, such as `kg` or `%`.
    """

    style: str
    prefix: str = ""
    suffix: str = ""

    @property
    def said(self) -> str:
        """What it is, for people."""
        if self.style in {"range", "truth"}:
            return {"range": "the middle of ranges", "truth": "truth values in several spellings"}[self.style]
        grouped = "" if self.style == "plain" else f" with {self.style.replace('thousands', 'thousands by')}"
        unit = f" in {self.prefix or self.suffix}" if self.prefix or self.suffix else ""
        return f"numbers{unit}{grouped}"

    def agreement(self) -> dict[str, str]:
        """Return what a client must know to read its own cells alike."""
        return {"as": "written", "style": self.style, "prefix": self.prefix, "suffix": self.suffix}

    def numbers(self, texts: Sequence[str]) -> Numbers:
        """Return the number of each text, NaN where it is not of this form."""
        return np.array([self._number(text) for text in texts], np.float64)

    def _number(self, text: str) -> float:
        if self.style == "truth":
            return next((words[text.lower()] for words in TRUTHS if text.lower() in words), np.nan)
        if self.style == "range":
            ends = _RANGE.fullmatch(text)
            if ends is None:
                return float(text) if _PLAIN.fullmatch(text) else np.nan
            low, high = float(ends[1]), float(ends[2])
            return (low + high) / 2 if low <= high else np.nan
        parts = _AFFIXES.fullmatch(text)
        if parts is None or (parts[1], parts[3]) != (self.prefix, self.suffix):
            return np.nan
        pattern, groups, point = _STYLES[self.style]
        if not pattern.fullmatch(parts[2]):
            return np.nan
        return float("".join(letter for letter in parts[2] if letter not in groups).replace(point, "."))


def written_numbers(cells: pa.ChunkedArray, form: WrittenForm) -> Numbers:
    """Return a column of a form as numbers, NaN where a cell is missing or of another form."""
    codes, texts = distinct_cells(present_cells(cells))
    return np.append(form.numbers(texts), np.nan)[codes]


def form_of_agreement(reading: Mapping[str, str]) -> WrittenForm:
    """Return the form that clients agreed on."""
    return WrittenForm(reading["style"], reading["prefix"], reading["suffix"])


def written_form(texts: Sequence[str], counts: IntArray) -> tuple[WrittenForm, int] | None:
    """Return the form in which most cells of a column write numbers, and how many cells are of another; None if none.

    Args:
        texts: Those that differ, of the cells that are not missing.
        counts: How many cells hold each, shape `(len(texts),)`.
    """
    if not texts:
        return None
    if _are_truths(texts):
        return WrittenForm("truth"), 0
    affixes: Counter[tuple[str, str]] = Counter()
    for text, count in zip(texts, counts.tolist(), strict=True):
        if parts := _AFFIXES.fullmatch(text):
            affixes[parts[1], parts[3]] += count
    usual, num_alike = affixes.most_common(1)[0] if affixes else (("", ""), 0)
    forms = [WrittenForm(style, *usual) for style in _STYLES] if 2 * num_alike > counts.sum() else []
    forms.append(WrittenForm("range"))
    others = [int(counts[np.isnan(form.numbers(texts))].sum()) for form in forms]
    best = int(np.argmin(others))
    form = forms[best]
    if 2 * others[best] >= counts.sum() or form == WrittenForm("plain"):
        return None
    if form.style == "decimal comma" and WrittenForm("thousands ,", form.prefix, form.suffix) in forms:
        thousands = WrittenForm("thousands ,", form.prefix, form.suffix)
        if others[forms.index(thousands)] == others[best]:  # each comma has three digits behind it
            if not {form.prefix, form.suffix} & {*_CURRENCIES} and all("," in text for text in texts):
                return None
            form = thousands
    return form, others[best]


def _are_truths(texts: Sequence[str]) -> bool:
    """Whether texts are truth values in two spellings or more, one of them with both of its words."""
    words = {text.lower() for text in texts}
    spellings = [spelling for spelling in TRUTHS if words & spelling.keys()]
    known = {word for spelling in spellings for word in spelling}
    are_both = any({spelling[word] for word in words & spelling.keys()} == {0, 1} for spelling in spellings)
    return len(spellings) > 1 and are_both and words <= known
