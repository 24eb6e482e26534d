"""What a recommendation is made for and what it says, whoever makes it: a configuration, why, and whence that comes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.search.dealing import Dealing
from fedscout.search.measure import ACCURACY, Measure
from fedscout.search.recommenders.diagnosis import Diagnosis
from fedscout.search.search_config import View
from fedscout.strategies import SearchSpace, StrategySpec

Source = Literal["rules", "llm"]

RULES_WERE_ASKED = "The rules answer, as they were asked."
TRAINING_SHARE = 0.8
"""Share of a client's rows that train, as far as a recommendation needs it."""


@dataclass(frozen=True)
class Situation:
    """A federation that needs a strategy.

    Attributes:
        space: What can be chosen for it.
        num_rounds: Of a training.
        view: Whose test data judge the model: the clients' own, or uncorrupted ones.
        diagnosis: How the clients' data differ; None if that was not measured.
        description: The same in a person's words; None if nobody gave any.
        measure: What is to be as large as possible.
        dealing: How rows came to the clients; None if nobody knows.
        selection: Kind of the policy that says who trains; None where the strategy does.
    """

    space: SearchSpace
    num_rounds: int
    view: View = "own"
    diagnosis: Diagnosis | None = None
    description: str | None = None
    measure: Measure = ACCURACY
    dealing: Dealing | None = None
    selection: str | None = None

    @property
    def cohort(self) -> Cohort:
        """The clients."""
        return self.space.cohort

    @property
    def steps_a_round(self) -> int | None:
        """Optimizer steps that a median client makes in a round; None where rows or local training are not known."""
        rows = self.diagnosis.median_rows if self.diagnosis is not None else None
        epochs, batch_size = (self.space.given.get(name) for name in ("client_local_epochs", "client_batch_size"))
        if rows is None or not isinstance(epochs, int) or not isinstance(batch_size, int):
            return None
        return max(1, math.ceil(TRAINING_SHARE * rows / batch_size)) * epochs

    def diagnosed(self, diagnosis: Diagnosis) -> Situation:
        """Return the same federation with another diagnosis."""
        return replace(self, diagnosis=diagnosis, description=None)


@dataclass(frozen=True)
class Ground:
    """One reason for a recommendation.

    Attributes:
        rule: Its name.
        applied: Whether it decided, or was considered and passed over.
        because: The facts that decided, in a sentence.
        source: Where the rule was published, or what it rests on.
    """

    rule: str
    applied: bool
    because: str
    source: str


@dataclass(frozen=True)
class Alternative:
    """Another configuration that is worth a trial.

    Attributes:
        spec: Fits the federation's cohort.
        because: Why, in a sentence.
        source: Who advises it.
    """

    spec: StrategySpec
    because: str
    source: str

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "strategy": {"kind": self.spec.kind, **self.spec.parameters()},
            "name": str(self.spec),
            "because": self.because,
            "source": self.source,
        }


@dataclass(frozen=True)
class ModelUse:
    """What a language model was asked and what that took.

    Attributes:
        model: Its name.
        format: Of the prompt; None where only a person's words were shown.
        num_answers: Answers that it gave; all but the last were invalid.
        prompt_tokens: Of all requests; None if the server did not count.
        completion_tokens: Of all answers, likewise.
        cost_usd: Of all; None without a price.
    """

    model: str
    format: str | None
    num_answers: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None


@dataclass(frozen=True)
class Recommendation:
    """A strategy with its parameters, chosen without a trial.

    Attributes:
        spec: Fits the federation's cohort, and is in its search space.
        source: Who chose it.
        grounds: Why, the deciding reason first.
        alternatives: What others advise to compare it with.
        notes: What else is worth knowing.
        diagnosis: What it rests on; None if nothing was measured.
        model_use: Of a language model; None if none was asked.
        instead_of_model: Why the rules answer and no language model, and what of the question they do not use; None
            where a model answers, or where the rules were asked and use all.
    """

    spec: StrategySpec
    source: Source
    grounds: tuple[Ground, ...]
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    model_use: ModelUse | None = None
    instead_of_model: str | None = None

    @property
    def answered_by(self) -> str:
        """Who gave it, for people, and where the rules did, why no language model."""
        if self.model_use is not None:
            return f"The language model {self.model_use.model} answers."
        return self.instead_of_model or RULES_WERE_ASKED

    def with_alternatives(self, found: Iterable[Alternative]) -> Recommendation:
        """Return it beside others' advice."""
        return replace(self, alternatives=tuple(found))

    def document(self) -> dict[str, Any]:
        """Return the recommendation as JSON-able values."""
        use = self.model_use
        return {
            "source": self.source,
            "instead_of_model": self.instead_of_model,
            "strategy": {"kind": self.spec.kind, **self.spec.parameters()},
            "name": str(self.spec),
            "grounds": [vars(ground) for ground in self.grounds],
            "alternatives": [alternative.document() for alternative in self.alternatives],
            "notes": list(self.notes),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.model_dump(mode="json"),
            "language_model": None if use is None else vars(use),
        }
