"""What share of a language model's recorded answers is valid, by what their prompts showed.

A file holds JSON lines of either form, side by side:

    the exchanges of a record (`llm.jsonl`), which name the prompt's shape
    {"text": "...", "format": "A", "show_schema": false, "few_shot": true}    an answer from elsewhere

An answer counts where it would have been taken: read as a model's answer is, and found to be a configuration of the
space. The share is of first answers. Those to a prompt that names the faults of an earlier one stand beside it, as such
a prompt says what is allowed, whatever the first one left out. Requests that brought no answer count for nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedscout.engine.errors import LogError
from fedscout.search.language_model.chat import ChatReply, Exchange
from fedscout.search.language_model.record import read_lines
from fedscout.search.recommender_config import PromptShape
from fedscout.search.recommenders.answers import AnswerError, answer_schema, read_answer
from fedscout.strategies import SearchSpace

FAULTS_TOLD = 3


class AnswerText(PromptShape, frozen=True, extra="forbid"):
    """An answer without its request.

    Attributes:
        text: What the model said.
        finish_reason: Why it ended, as servers say it.
    """

    text: str
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Validity:
    """What became of the answers to prompts of one shape.

    Attributes:
        shape: What the prompts showed; None where the record does not say.
        num_first: First answers.
        num_valid: Those of them that are valid.
        num_corrections: Answers to prompts that named the faults of an earlier one.
        num_corrected: Those of them that are valid.
        faults: The most frequent faults of first answers, with their numbers.
    """

    shape: PromptShape | None
    num_first: int
    num_valid: int
    num_corrections: int
    num_corrected: int
    faults: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float | None:
        """Valid ones among first answers, in `[0, 1]`; None if there is none."""
        return self.num_valid / self.num_first if self.num_first else None

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        shape = None if self.shape is None else self.shape.model_dump(mode="json")
        return {**vars(self), "shape": shape, "share": self.share, "faults": dict(self.faults)}


@dataclass(frozen=True)
class _Answer:
    """One answer, and where it stood."""

    shape: PromptShape | None
    reply: ChatReply
    is_first: bool


def count_valid(files: Iterable[Path], space: SearchSpace) -> list[Validity]:
    """Return the validity of recorded answers by the shape of their prompts, in the order A, B, C.

    An exchange that several files hold, as the record of a replay does, counts once.

    Args:
        files: Of answers.
        space: What could be chosen.

    Raises:
        LogError: If a file can't be read or holds no answer, or was recorded for another space.
    """
    by_shape: dict[PromptShape | None, list[_Answer]] = {}
    for answer in _answers(files, space):
        by_shape.setdefault(answer.shape, []).append(answer)
    shapes = sorted(by_shape, key=lambda shape: "" if shape is None else _order(shape))
    return [_validity(shape, by_shape[shape], space) for shape in shapes]


def _order(shape: PromptShape) -> str:
    return f"{shape.format}{not shape.show_schema}{not shape.few_shot}"


def _answers(files: Iterable[Path], space: SearchSpace) -> Iterator[_Answer]:
    schema, seen = answer_schema(space), set[str]()
    form: TypeAdapter[Exchange | AnswerText] = TypeAdapter(Exchange | AnswerText)
    for path in files:
        lines, _ = read_lines(path, form.validate_json)
        answers = list(filter(None, (_answer(line, schema, path) for line in lines if _is_new(line, seen))))
        if not lines or not any(isinstance(line, AnswerText) or line.reply is not None for line in lines):
            raise LogError(f"recorded answers must be at least one, got {path} without any")
        yield from answers


def _is_new(line: Exchange | AnswerText, seen: set[str]) -> bool:
    if isinstance(line, AnswerText):
        return True
    text = line.model_dump_json()
    is_new = text not in seen
    seen.add(text)
    return is_new


def _answer(line: Exchange | AnswerText, schema: dict[str, Any], path: Path) -> _Answer | None:
    if isinstance(line, AnswerText):
        shape = PromptShape(format=line.format, show_schema=line.show_schema, few_shot=line.few_shot)
        return _Answer(shape, ChatReply(text=line.text, finish_reason=line.finish_reason), True)
    asked = line.request.answer_schema
    if asked is not None and json.dumps(asked, sort_keys=True) != json.dumps(schema, sort_keys=True):
        raise LogError(
            f"recorded answers must be to the strategies and ranges of the federation that is configured, got {path}, "
            "which was recorded for others: the settings are those of the recommendation"
        )
    is_first = not any(message.role == "assistant" for message in line.request.messages)
    return None if line.reply is None else _Answer(line.prompt, line.reply, is_first)


def _validity(shape: PromptShape | None, answers: Sequence[_Answer], space: SearchSpace) -> Validity:
    faults = {
        is_first: [_fault(each, space) for each in answers if each.is_first is is_first] for is_first in (True, False)
    }
    return Validity(
        shape=shape,
        num_first=len(faults[True]),
        num_valid=faults[True].count(None),
        num_corrections=len(faults[False]),
        num_corrected=faults[False].count(None),
        faults=tuple(Counter(filter(None, faults[True])).most_common(FAULTS_TOLD)),
    )


def _fault(answer: _Answer, space: SearchSpace) -> str | None:
    """Return what is wrong with an answer; None if it is valid."""
    try:
        read_answer(answer.reply, space)
    except AnswerError as error:
        return str(error)
    return None
