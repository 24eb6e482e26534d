"""The configuration of search, confirmation and recommendation, and the redaction of external text.

It covers the search, the ranges of the clients' parameters in it, its confirmation, and one-shot recommendation; the
language model's API key is never part of it.

A client parameter without a range has the study's value for every strategy. With a range it is a search parameter of
every strategy, including FedAvg; the reference FedAvg keeps the study's value.

External text is sanitised before it is sent, stored or displayed: secrets are redacted, and it is reduced to one line
for the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError
from pydantic.functional_validators import AfterValidator, BeforeValidator, field_validator, model_validator

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import Fault
from fedscout.engine.text import details, fault_of

if TYPE_CHECKING:
    from fedscout.strategies import Range


class RealInterval(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Bounds of a range of real numbers."""

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value, included")
    log: bool = Field(default=False, description="sample in log space")


class IntegerInterval(RealInterval, frozen=True):
    """Bounds of a range of integers."""

    low: int = Field(description="smallest value")
    high: int = Field(description="largest value, included")


class ClientRanges(BaseModel, frozen=True, extra="forbid"):
    """Ranges of the clients' parameters in a search, named as in the study's local training."""

    learning_rate: RealInterval | None = Field(
        default=None, description="search range of the client learning rate, {low, high, log}; fixed by default"
    )
    local_epochs: IntegerInterval | None = Field(
        default=None, description="search range of the local epochs; fixed by default"
    )
    batch_size: IntegerInterval | None = Field(
        default=None, description="search range of the batch size; fixed by default"
    )

    @model_validator(mode="after")
    def _trainable(self) -> Self:
        faults: list[str] = []
        for name, interval in self:
            if interval is None:
                continue
            if interval.low > interval.high:
                faults.append(Fault(name, "not end below its start", f"[{interval.low}, {interval.high}]"))
            for end in ("low", "high"):
                try:
                    LocalTraining.model_validate({name: getattr(interval, end)})
                except ValidationError as error:
                    faults.append(fault_of(f"{name}.{end}", details(error)[0]))
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def ranges(self) -> Mapping[str, Range]:
        """Return the ranges by the parameter names of a specification."""
        from fedscout.strategies.specification import CLIENT_PARAMETERS, IntegerRange, RealRange

        ranges: dict[str, Range] = {}
        for name, field_name in CLIENT_PARAMETERS.items():
            interval = getattr(self, field_name)
            if interval is not None:
                kind = IntegerRange if isinstance(interval, IntegerInterval) else RealRange
                ranges[name] = kind(interval.low, interval.high, interval.log)
        return ranges


View = Literal["own", "clean"]

ObjectiveName = Literal["accuracy", "worst_clients", "rounds_to_target", "bytes_to_target", "time_to_accuracy"]

HAS_TARGET = ("rounds_to_target", "bytes_to_target", "time_to_accuracy")
"""Objectives that measure the cost of reaching `search.target`."""

INFORMED = frozenset({"genetic", "tpe", "gp", "racing"})
"""Searchers whose first trials may come from the diagnosis. Random search and grid are baselines, CMA-ES has one
strategy, and a language model reads the diagnosis itself."""


KNOWLEDGE = "2026-11-28.3"
"""Version of the rules and priors of an informed first generation; each change of them makes a different study, and
needs a new date."""


ONE_SHOT = "one_shot"
"""The kind that searches nothing and trains what is recommended without a trial."""


class RacingConfig(BaseModel, frozen=True, extra="forbid"):
    """Budget and reduction of a race (successive halving)."""

    trainings: float = Field(
        default=2.5, ge=1, le=10_000, description="racing: budget in full trainings, instead of search.budget"
    )
    reduction_factor: int = Field(
        default=4,
        ge=2,
        le=100,
        description="racing: one in this many candidates is promoted, to this many times the rounds",
    )
    min_rounds: int = Field(
        default=2, ge=1, le=1_000_000, description="racing: smallest number of rounds before a candidate is dropped"
    )


def _distinct(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names is not None and (not names or len({*names}) < len(names)):
        raise ValueError(f"must name at least one, and each once, got {', '.join(names) or 'none'}")
    return names


def _list_of_one(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


PUBLISHED: Mapping[str, Any] = {
    "kind": "genetic",
    "budget": 8,
    "generation_size": 4,
    "mutation_rate": 1.0,
    "mutation_step": 0.1,
    "informed": False,
    "tuned_baseline": False,
    "confirmation_seeds": 0,
}
"""Settings of `search.published`."""


JOINT: Mapping[str, Any] = {
    "learning_rate": {"low": 0.02, "high": 1.0, "log": True},
    "local_epochs": {"low": 1, "high": 3},
    "batch_size": {"low": 8, "high": 32, "log": True},
}
"""Client ranges of `search.joint`, in which the priors were measured (docs/choice.md)."""


class SearchConfig(BaseModel, frozen=True, extra="forbid"):
    """Configuration of the search for a strategy and the confirmation of its winner."""

    published: bool = Field(
        default=False,
        strict=True,
        description="the published search: 2 x 4 trials, the first four drawn uniformly, without detection, tuned "
        "FedAvg and confirmation; other keys but search.kind override it",
    )

    kind: Literal[
        "genetic", "tpe", "gp", "cmaes", "random", "grid", "racing", "multishot_llm", "llm_genetic", "one_shot"
    ] = Field(default="genetic", description="searcher; one_shot trains only what is recommended")
    budget: int = Field(default=8, ge=1, le=10_000, description="number of trials, not counting FedAvg as trial 0")
    generation_size: int = Field(default=4, ge=1, le=1000, description="number of trials evaluated in parallel")
    mutation_rate: float = Field(default=1.0, ge=0, le=1, description="fraction of the children that are mutated")
    mutation_step: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=(
            "largest mutation of a real parameter as a fraction of its range; 0.1 by default, 0.3 "
            "if client settings are searched"
        ),
    )
    grid_points: int = Field(
        default=3, ge=1, le=1000, description="kind grid: values per real parameter, and at most per integer parameter"
    )
    strategies: Annotated[tuple[str, ...] | None, BeforeValidator(_list_of_one)] = Field(
        default=None,
        description="strategies to choose from, also pairs; all means every one that fits; the usual ones by default",
    )
    customs: tuple[dict[str, Any], ...] = Field(
        default=(), description="a user's own strategies with their ranges; each is tried first with its values"
    )
    joint: bool = Field(
        default=False,
        strict=True,
        description="also search client learning rates of 0.02 to 1, one to three local epochs and batches of 8 to 32; "
        "search.client_ranges overrides each",
    )
    client_ranges: ClientRanges = Field(default_factory=ClientRanges)
    selection: Annotated[tuple[str, ...] | None, BeforeValidator(_list_of_one), AfterValidator(_distinct)] = Field(
        default=None,
        description="selection policies to choose from, such as [random, oort, flash]; the study's by default",
    )
    informed: bool = Field(
        default=True, description="genetic, tpe, gp and racing: whether the first generation follows from the diagnosis"
    )
    racing: RacingConfig = Field(default_factory=RacingConfig)
    warm_start: tuple[str, ...] = Field(
        default=(), description="folders of earlier studies whose best configurations are tried first"
    )
    objective: ObjectiveName = Field(
        default="accuracy",
        description=(
            "objective to maximise: accuracy (or training.metric), that of the worst tenth of the "
            "clients, or rounds, bytes or simulated time left when search.target is reached"
        ),
    )
    target: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="target score (mean of five rounds) of the objectives that need one"
    )
    view: View = Field(
        default="own", description="test data of the fitness: as clients have them (own), or uncorrupted (clean)"
    )
    validation_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=0.9,
        description="fraction of the training rows that the search is scored on, instead of the test rows",
    )
    confirmation_seeds: int = Field(
        default=5, ge=0, le=1000, description="fresh seeds for winner and reference; the maximum if run in batches"
    )
    confirmation_top: int = Field(default=1, ge=1, le=100, description="number of best configurations to confirm")
    confirmation_batch: int | None = Field(
        default=None, ge=1, le=1000, description="fresh seeds between interim analyses; all at once by default"
    )
    tuned_baseline: bool = Field(default=True, description="compare with FedAvg at its best client learning rate")
    tuning_factors: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(
        default=(0.25, 0.5, 2.0, 4.0),
        min_length=1,
        description="multiples of the rate for the tuned baseline: first the ends, then those towards the better end",
    )

    @model_validator(mode="before")
    @classmethod
    def _presets(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            given = {**(PUBLISHED if given.get("published") is True else {}), **given}
            ranges = given.get("client_ranges", {})
            if given.get("joint") is True and isinstance(ranges, Mapping):
                given["client_ranges"] = {**JOINT, **ranges}
        return given

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if self.strategies == () and not self.customs:
            raise ValueError("strategies must name at least one kind if customs is empty, got []")
        needs_target = self.objective in HAS_TARGET
        if needs_target and self.target is None:
            raise ValueError(f"target must be given if objective={self.objective}, such as target=0.9, got none")
        if not needs_target and self.target is not None:
            raise ValueError(
                f"target must be left out unless objective is {' or '.join(HAS_TARGET)}, got {self.target:g} "
                f"beside objective={self.objective}"
            )
        if self.published and self.kind != PUBLISHED["kind"]:
            raise ValueError(f"kind must be {PUBLISHED['kind']} if published=true, got {self.kind}")
        if self.kind == ONE_SHOT and self.warm_start:
            raise ValueError(
                f"warm_start must be left out if kind={ONE_SHOT}, which trains only the recommendation, "
                f"got {list(self.warm_start)}"
            )
        return self

    @property
    def trials_at_once(self) -> int:
        """Largest number of proposals trained concurrently."""
        return 1 if self.kind in (ONE_SHOT, "multishot_llm") else self.generation_size

    @property
    def has_tuned_reference(self) -> bool:
        """Whether FedAvg is tuned as a reference, which requires a confirmation."""
        return self.tuned_baseline and self.confirmation_seeds > 0

    @property
    def is_informed(self) -> bool:
        """Whether the diagnosis, if there is one, proposes the first trials."""
        return self.informed and self.kind in INFORMED


LONGEST = 300
REDACTED = "[redacted]"

_KEY_LIKE = re.compile(r"\b(?:sk|gsk|hf|xai|pk|rk)[-_][A-Za-z0-9_-]{8,}")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")

SHORT = 8
"""A key below this length is only found where it stands by itself: its letters may be part of any word."""


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return a text without line breaks and control characters, truncated to a length.

    Control characters could manipulate the terminal and display text that the program did not print.
    """
    joined = " ".join(text[: 10 * longest].split())
    printable = "".join(character if character.isprintable() else "?" for character in joined)
    cut = len(printable) > longest or len(text) > 10 * longest
    return printable[:longest] + (" …" if cut else "")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without secrets.

    Args:
        text: Any text.
        secrets: Known keys; anything in the form of a key is redacted as well.
    """
    for secret in secrets:
        pattern = re.escape(secret) if len(secret) >= SHORT else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(pattern, REDACTED, text)
    return _BEARER.sub(rf"\1{REDACTED}", _KEY_LIKE.sub(REDACTED, text))


PromptFormat = Literal["A", "B", "C"]
SourceChoice = Literal["auto", "rules", "llm"]

LONGEST_DESCRIPTION = 4000
"""Characters of a person's words."""

EXCLUDED_FROM_IDENTITY = ("base_url", "api_key_variable", "timeout_seconds", "connection_retries", "replay")
"""Settings that decide where and how long a model is asked, not what it is asked. A study may be resumed with another
server; recorded answers are looked up by the server that gave them."""


class PromptShape(BaseModel, frozen=True, extra="forbid"):
    """Configurable content of a prompt."""

    format: PromptFormat = Field(
        default="B", description="format of the diagnosis: A raw statistics only, B yes or no, C with severity"
    )
    show_schema: bool = Field(
        default=True,
        description="whether the prompt contains the strategies with their ranges, and the server is sent the schema",
    )
    few_shot: bool = Field(default=True, description="whether the prompt has examples of a diagnosis and its answer")


class RecommenderConfig(PromptShape, frozen=True, extra="forbid", allow_inf_nan=False):
    """Configuration of the recommendation source and of the language model."""

    source: SourceChoice = Field(
        default="auto", description="recommender: auto is a language model if an API key is set, else the rules"
    )
    text: str | None = Field(
        default=None, max_length=LONGEST_DESCRIPTION, description="how the clients' data differ, for a language model"
    )

    model: str = Field(default="gpt-4.1", min_length=1, max_length=200, description="name of the language model")
    base_url: str | None = Field(default=None, description="URL of an OpenAI-compatible server; OpenAI's by default")
    api_key_variable: str | None = Field(
        default="OPENAI_API_KEY", description="environment variable of the API key; null if none is needed"
    )
    temperature: float = Field(default=0.0, ge=0, le=2, description="sampling temperature of the model")
    max_answer_tokens: int = Field(default=1000, ge=50, le=100_000, description="largest number of tokens of an answer")
    max_corrections: int = Field(
        default=3, ge=0, le=3, description="number of times that an invalid answer is returned with its errors"
    )
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600, description="time limit of a request to the model")
    connection_retries: int = Field(
        default=2, ge=0, le=10, description="number of retries if the server is busy or unreachable"
    )
    replay: Path | None = Field(
        default=None, description="recorded exchanges (llm.jsonl) to replay instead of asking the model"
    )

    @property
    def prompt(self) -> PromptShape:
        """The configurable content of the prompt."""
        return PromptShape(**{name: getattr(self, name) for name in PromptShape.model_fields})

    @field_validator("text")
    @classmethod
    def _says_something(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("must say how the clients' data differ, got nothing")
        return None if text is None else redact(text)  # it is written into log and result

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, base_url: str | None) -> str | None:
        if base_url is not None and (fault := address_fault(base_url)):
            raise ValueError(fault)
        return base_url

    @field_validator("api_key_variable")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "must be the name of an environment variable, of capitals, digits and _, such as OPENAI_API_KEY; the "
                "given value is not shown, as it may be the key itself"
            )
        return name

    @model_validator(mode="after")
    def _openai_needs_a_key(self) -> Self:
        if self.api_key_variable is None and self.base_url is None:
            raise ValueError("api_key_variable must name a variable if base_url is not given: OpenAI needs a key")
        return self


_ADDRESS = "must be an address such as http://127.0.0.1:8000/v1"
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)


def address_fault(address: str) -> str | None:
    """Return why a server address is invalid, without possible secrets in it; None if it is valid."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        (parts.hostname or "").encode("idna")  # as it is looked up
    except ValueError:
        return _ADDRESS
    if "@" in address or parts.query or parts.fragment:
        return f"{_ADDRESS}, without user, password, query or fragment: these are not shown here"
    if not (usable and address.isprintable() and " " not in address):
        return f"{_ADDRESS}, got {redact(one_line(address))!r}"
    return None
