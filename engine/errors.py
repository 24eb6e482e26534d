"""Every error that fedscout raises on purpose.

```
FedscoutError
├── UserError             what was asked for can't be done; the command line prints it and exits with 2
│   ├── ConfigurationError    a key or a value of the configuration
│   ├── DataError             a data set: file, column, label, partition
│   ├── StrategyError         a strategy's parameters, or a strategy that does not fit the federation
│   ├── LogError              the output folder: another configuration, an unreadable state
│   └── RecommenderError      a language model can't be asked as it was meant: key, address, request, record
│       └── LanguageModelError    it failed, which is no mistake: the command line exits with 1
│           ├── UnreachableModelError   no answer came that could be read
│           └── NoValidAnswerError      its answers name no strategy
├── EngineError           a host or a task was lost for good; the study stops, and can be continued
│   └── LostStatesError       what clients kept was lost with a node; the trial goes on from its checkpoint
└── TrialError            a trial that can't go on; the study records the reason and fitness 0
```

A `Fault` says what must hold, what was given and what would help, in fields; its text is made of them here alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FOLDERS = re.compile(r"(?<![^\s'\"])(?:/[^/\s'\"]+)*/(?=[^/\s'\"])")
_KEY = re.compile(r"(--[a-z][a-z-]*|[a-z]\w*([._]\w+)+)(?=[ =:]|$)")


class FedscoutError(Exception):
    """Root of the tree."""


class Fault(str):
    """What is wrong, as one sentence: `SUBJECT must MUST, got GIVEN; HINT`, or `SUBJECT PROBLEM; HINT`.

    Args:
        subject: What is at fault: a configuration key, an option, a column, a file. Alone, the whole sentence.
        must: The condition, as it follows the word "must".
        given: What was given in its place; `...` where the sentence says nothing of it.
        hint: What would help.
        problem: In place of a condition, what is the matter with the subject, such as "can't be read: no such file".
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
        """Make the sentence."""
        hint = hint.removeprefix("; ") if hint else None
        ending = ("" if given is ... else f", got {given}") + (f"; {hint}" if hint else "")
        said = problem if must is None else f"must {must}"
        fault = super().__new__(cls, f"{subject}{ending}" if said is None else f"{subject} {said}{ending}")
        fault.subject, fault.must, fault.problem = (None if said is None else str(subject)), must, problem
        fault.given, fault.hint = None if given is ... else str(given), hint
        return fault

    def __getnewargs__(self) -> tuple[object, ...]:  # type: ignore[override]
        if self.subject is None:
            return (str(self),)
        return self.subject, self.must, ... if self.given is None else self.given, self.hint, self.problem

    def with_hint(self, hint: str) -> Fault:
        """Return the fault with something more that would help."""
        if self.subject is None:
            return Fault(str(self), hint=hint)
        given = ... if self.given is None else self.given
        return Fault(self.subject, self.must, given, "; ".join(filter(None, (self.hint, hint))), self.problem)

    @property
    def key(self) -> str | None:
        """The configuration key, parameter or option that the subject begins with, or else the whole subject.

        A path is its last part there, so that a key is the same wherever a file lies.
        """
        found = _KEY.match((self.subject or "").replace(": ", "."))
        return found[0] if found else self.subject and _FOLDERS.sub("", self.subject)


class UserError(FedscoutError):
    """Something the user can mend. Carries all faults found, not just the first.

    Args:
        faults: One fault, or several; a text is a complete sentence.
    """

    def __init__(self, faults: str | Sequence[str]) -> None:
        told = [faults] if isinstance(faults, str) else faults
        self.faults: tuple[Fault, ...] = tuple(each if isinstance(each, Fault) else Fault(each) for each in told)
        super().__init__("; ".join(self.faults))

    def __reduce__(self) -> tuple[type[UserError], tuple[tuple[Fault, ...]]]:
        return type(self), (self.faults,)

    @property
    def keys(self) -> tuple[str | None, ...]:
        """What each fault is about."""
        return tuple(fault.key for fault in self.faults)


class ConfigurationError(UserError):
    """A key or a value of the configuration is wrong."""


class DataError(UserError):
    """A data set can't be read, or can't be divided as asked."""


class StrategyError(UserError):
    """A strategy's parameters are invalid, or do not fit the federation."""


class LogError(UserError):
    """The output folder can't be used as asked."""


class RecommenderError(UserError):
    """A language model can't be asked as it was meant: its key, its address, the request, the record in its place."""


class LanguageModelError(RecommenderError):
    """A language model failed, without a mistake of the user's."""


class UnreachableModelError(LanguageModelError):
    """No answer came: no connection, no time left, too many requests, a server that fails or speaks something else."""


class NoValidAnswerError(LanguageModelError):
    """A language model answered, as often as it may, and never with a strategy that can be chosen."""


class EngineError(FedscoutError):
    """The machinery failed, not the trial: nothing is logged, and the same command goes on later."""


class LostStatesError(EngineError):
    """What clients kept was lost with the node where it lay; the trial can be begun again from its checkpoint."""


class TrialError(FedscoutError):
    """A trial can't go on. Its message is the reason that the trial log keeps."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
