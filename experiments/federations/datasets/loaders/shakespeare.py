"""Tiny Shakespeare: 1.1 million characters of plays; the natural client is the speaker.

A. Karpathy, "The unreasonable effectiveness of recurrent neural networks", 2015, whose text it is. A speech is a line
`NAME:` and the lines below it up to an empty one. Each speaker's speeches, in order, are one text, of which windows are
taken, as S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097, 2018, do for all plays. LEAF's
windows move by one character; here they do not overlap unless `federation.text.stride` says so, as overlapping windows
put the same lines into a client's training and test rows. A speaker with less text than a window and the character
behind it has no row.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.column_choice import choose_label
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Layout, Publication, locate_layout
from fedscout.experiments.federations.datasets.texts.next_character import (
    LABEL,
    USUAL_LENGTH,
    next_character_dataset,
    windows,
)

SHAKESPEARE = Publication(
    "Karpathy, tiny Shakespeare, 2015",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
)
LAYOUTS = tuple(
    Layout("text", (f"shakespeare/{name}",))
    for name in ("input.txt", "tinyshakespeare_input.txt", "tinyshakespeare.txt")
)
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def load_shakespeare(request: DatasetRequest) -> Dataset:
    """Load the windows; the label is the next character, the natural client `speaker`."""
    choose_label(request, (LABEL,), client="speaker")
    _, (path,) = locate_layout(request.name, LAYOUTS, SHAKESPEARE, request.folder)
    request.limits.check_file(path)
    speakers = read_speakers(path)
    length = request.text.length or USUAL_LENGTH
    stride = request.text.stride or length
    clients = {name: part for name, text in speakers.items() if len(part := windows(text, length, stride))}
    if not clients:
        longest = max(map(len, speakers.values()))
        raise DataError(
            Fault(
                f"federation.text.length of data set {request.name!r}",
                f"be below the {longest} characters of the longest speaker",
                length,
            )
        )
    facts = {"num_speakers": len(speakers), "num_speakers_without_rows": len(speakers) - len(clients)}
    return next_character_dataset(request, clients, str(SHAKESPEARE), facts)


def read_speakers(path: Path) -> dict[str, str]:
    """Return the text of each speaker, speeches joined by a line end, in the order of first appearance.

    Args:
        path: An existing file.

    Raises:
        DataError: If it is empty or not UTF-8, or a speech does not start with its speaker.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(Fault(path, f"be UTF-8 text: {error.reason} at byte {error.start}")) from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error}") from None
    speeches: dict[str, list[str]] = {}
    for number, block in enumerate(BLANK_LINES.split(text.strip()), start=1):
        speaker, _, speech = block.strip("\n").partition("\n")
        name = speaker.strip()
        if len(name) < 2 or not name.endswith(":"):
            raise DataError(
                Fault(
                    f"every speech of {path}",
                    "start with a line that names its speaker and ends with a colon",
                    f"{speaker[:60] or 'nothing'!r} in speech {number}",
                )
            )
        speeches.setdefault(name[:-1], []).append(speech)
    return {name: "\n".join(texts) for name, texts in speeches.items()}
