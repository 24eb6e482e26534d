"""Exceptions raised by fedscout.

```
FedscoutError
├── UserError             the request can't be fulfilled; the command line prints it and exits with 2
│   ├── ConfigurationError    a key or a value of the configuration
│   ├── DataError             a data set: file, column, label, partition
│   ├── StrategyError         a strategy's parameters, or a strategy that does not fit the federation
│   ├── LogError              the output folder: another configuration, an unreadable state
│   └── RecommenderError      a language model can't be queried as configured: key, address, request, record
│       └── LanguageModelError    it failed, without a user error: the command line exits with 1
│           ├── UnreachableModelError   no readable answer was received
│           └── NoValidAnswerError      its answers name no strategy
├── EngineError           a host or a task was lost permanently; the study stops, and can be resumed
│   └── LostStatesError       client states were lost with a node; the trial resumes from its checkpoint
└── TrialError            a trial can't continue; the study records the reason and fitness 0
```

A `Fault` stores the condition, the given value and a hint as fields, and composes its text from them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

_FOLDERS = re.compile(r"(?<![^\s'\"])(?:/[^/\s'\"]+)*/(?=[^/\s'\"])")
_KEY = re.compile(r"(--[a-z][a-z-]*|[a-z]\w*([._]\w+)+)(?=[ =:]|$)")


class FedscoutError(Exception):
    """Base class of all fedscout exceptions."""


class Fault(str):
    """One fault as a sentence: `SUBJECT must MUST, got GIVEN; HINT`, or `SUBJECT PROBLEM; HINT`.

    Args:
        subject: The object at fault: a configuration key, an option, a column, a file. Alone, the whole sentence.
        must: The condition, as it follows the word "must".
        given: The value given; `...` to omit it from the sentence.
        hint: How to fix it.
        problem: Replaces the condition: the problem with the subject, such as "can't be read: no such file".
    """

    subject: str | None
    must: str | None
    given: str | None
    hint: str | None
    problem: str | None

    def __new__(
        cls,
        subject: object,
        must: str | None = None,
        given: object = ...,
        hint: str | None = None,
        problem: str | None = None,
    ) -> Fault:
        """Compose the sentence."""
        hint = hint.removeprefix("; ") if hint else None
        ending = ("" if given is ... else f", got {given}") + (f"; {hint}" if hint else "")
        predicate = problem if must is None else f"must {must}"
        fault = super().__new__(cls, f"{subject}{ending}" if predicate is None else f"{subject} {predicate}{ending}")
        fault.subject, fault.must, fault.problem = (None if predicate is None else str(subject)), must, problem
        fault.given, fault.hint = None if given is ... else str(given), hint
        return fault

    def __getnewargs__(self) -> tuple[object, ...]:  # type: ignore[override]
        if self.subject is None:
            return (str(self),)
        return self.subject, self.must, ... if self.given is None else self.given, self.hint, self.problem

    def below(self, key: str) -> Fault:
        """Return the fault of a field as that of a key's field."""
        given = ... if self.given is None else self.given
        return Fault(f"{key}.{self.subject}", self.must, given, self.hint, self.problem)

    @property
    def key(self) -> str | None:
        """The configuration key, parameter or option with which the subject begins, or else the whole subject.

        Paths are reduced to their last component, so that a key does not depend on a file's folder.
        """
        match = _KEY.match((self.subject or "").replace(": ", "."))
        return match[0] if match else self.subject and _FOLDERS.sub("", self.subject)


class UserError(FedscoutError):
    """An error that the user can fix. Contains all faults found, not just the first.

    Args:
        faults: One fault, or several; a string is a complete sentence.
    """

    def __init__(self, faults: str | Sequence[str]) -> None:
        items = [faults] if isinstance(faults, str) else faults
        self.faults: tuple[Fault, ...] = tuple(item if isinstance(item, Fault) else Fault(item) for item in items)
        super().__init__("; ".join(self.faults))

    @classmethod
    def of(
        cls,
        subject: object,
        must: str | None = None,
        given: object = ...,
        hint: str | None = None,
        problem: str | None = None,
    ) -> Self:
        """Return the error of one fault; arguments as for `Fault`."""
        return cls(Fault(subject, must, given, hint, problem))

    def __reduce__(self) -> tuple[type[UserError], tuple[tuple[Fault, ...]]]:
        return type(self), (self.faults,)

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The key of each fault."""
        return tuple(fault.key for fault in self.faults)


class ConfigurationError(UserError):
    """A key or a value of the configuration is wrong."""


class DataError(UserError):
    """A data set can't be read, or can't be partitioned as requested."""


class StrategyError(UserError):
    """A strategy's parameters are invalid, or do not fit the federation."""


class LogError(UserError):
    """The output folder can't be used as requested."""


class RecommenderError(UserError):
    """A language model can't be queried as configured: its key, address, request, or the record that replaces it."""


class LanguageModelError(RecommenderError):
    """A language model failed, without a user error."""


class UnreachableModelError(LanguageModelError):
    """No readable answer was received: no connection, timeout, rate limit, server failure or unknown protocol."""


class NoValidAnswerError(LanguageModelError):
    """A language model used all its attempts without naming a strategy that can be chosen."""


class EngineError(FedscoutError):
    """The engine failed, not the trial: nothing is logged, and the same command resumes later."""


class LostStatesError(EngineError):
    """Client states were lost with their node; the trial can be restarted from its checkpoint."""


class TrialError(FedscoutError):
    """A trial can't continue. Its message is the reason recorded in the trial log."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type if the text is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
