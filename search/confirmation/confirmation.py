"""Confirmation: does the winner hold up on seeds that the search never used?

The challengers (the best configurations other than FedAvg, one by default) and the reference are trained again on fresh
seeds. A seed fixes split, initial model and batches and is shared by all of them, so differences are paired; the
partition and the scenario are unchanged. All seeds are trained at once, or in batches until the comparison is decided;
a challenger that is significantly worse than the best of them gets no more seeds. A configuration is reported as better
than FedAvg only by an interval that holds simultaneously for all challengers and all looks
(`fedscout.search.confirmation.intervals`).

**The reference** is FedAvg at the client rate that was best on the search's seed, or at the study's own rate
(`fedscout.search.confirmation.runs`). Choosing the rate by scores on the same rows favours the reference, which is
conservative for "better".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import BaseModel, computed_field, model_validator

from fedscout.engine.seeds import integer
from fedscout.engine.trials.record import Trial
from fedscout.search.config import View
from fedscout.search.confirmation.intervals import PairedDifference, SequentialDesign
from fedscout.search.objective import ACCURACY, Measure

Verdict = Literal["better", "no difference", "worse", "not confirmed"]
Role = Literal["challenger", "contender", "fedavg", "tuned-fedavg"]


class Candidate(BaseModel, frozen=True):
    """Results of a configuration on the fresh seeds.

    Attributes:
        role: `challenger` is the pick, `contender` any other configuration of the search; `fedavg`, `tuned-fedavg`.
        name: Display name of the configuration.
        strategy: Its kind, or the import path of a user's own.
        parameters: Its parameters.
        learning_rate: Client learning rate.
        own: Fitness per seed, on test data as clients have them; that of guessing if the trial failed.
        clean: Fitness per seed on uncorrupted test data.
        failures: Reason of each failed trial, by seed.
        global_accuracy: As `own`, but of the global model; None if no client has a personal model.
        new_client_accuracy: As `own`, but of clients that never train; None if there are none.
        score: Mean score of the last five rounds per seed; None if that is `own`.
        bytes_down: Bytes of train messages to all clients of a round; None if unknown.
        bytes_up: Bytes of their answers.
    """

    role: Role
    name: str
    strategy: str
    parameters: Mapping[str, Any]
    learning_rate: float
    own: tuple[float, ...]
    clean: tuple[float, ...]
    failures: Mapping[int, str]
    global_accuracy: tuple[float, ...] | None = None
    new_client_accuracy: tuple[float, ...] | None = None
    score: tuple[float, ...] | None = None
    bytes_down: float | None = None
    bytes_up: float | None = None

    def scores(self, view: View) -> tuple[float, ...]:
        """Return the fitness per seed in one view."""
        return self.own if view == "own" else self.clean


class RunnerUp(BaseModel, frozen=True):
    """A challenger other than the pick.

    Attributes:
        name: Display name of the configuration.
        behind: Pick minus this one, in the deciding view.
        versus_reference: This one minus the reference, in the deciding view.
        dropped: Whether it got no more seeds, as it was significantly worse than the pick or the reference.
    """

    name: str
    behind: PairedDifference
    versus_reference: PairedDifference
    dropped: bool


class Confirmation(BaseModel, frozen=True):
    """Outcome of a confirmation.

    Attributes:
        seeds: The fresh seeds, shared by all; dropped challengers have the first of them.
        view: The view that decides.
        candidates: The pick, the reference, then the other challengers.
        versus: Pick minus reference, by view.
        verdict: The pick against the reference in the deciding view.
        runners_up: The other challengers, in the order of the candidates.
        design: The sequential design of the intervals.
        caveats: Caveats on the verdict, each a sentence, the most important first; they are part of `sentence`.
        measure: What the scores measure.
        guessing: Score of a constant answer, such as the most frequent class; 0 may mean unknown.
        no_verdict: Why the measure is uninformative, with the verdict `not confirmed`; empty otherwise.
    """

    seeds: tuple[int, ...]
    view: View
    candidates: tuple[Candidate, ...]
    versus: Mapping[View, PairedDifference]
    verdict: Verdict
    runners_up: tuple[RunnerUp, ...] = ()
    design: SequentialDesign
    caveats: tuple[str, ...] = ()
    measure: Measure = ACCURACY
    guessing: float = 0.0
    no_verdict: str = ""

    @model_validator(mode="after")
    def _compares(self) -> Self:
        scored = [candidate.role for candidate in self.candidates[:2] if candidate.own and candidate.clean]
        are_compared = scored in (["challenger", "fedavg"], ["challenger", "tuned-fedavg"])
        if not are_compared or self.view not in self.versus:
            raise ValueError("candidates and versus must hold the pick, the reference and their scores")
        return self

    @property
    def reference(self) -> Candidate:
        """The reference."""
        return self.candidates[1]

    @property
    def chosen(self) -> Candidate:
        """The recommended configuration: the pick if significantly better than the reference, else the reference."""
        return self.candidates[0] if self.verdict == "better" else self.reference

    @property
    def difference(self) -> PairedDifference:
        """The pick minus the reference in the deciding view."""
        return self.versus[self.view]

    @property
    def stopped_for_futility(self) -> bool:
        """Whether it stopped early for futility, as further seeds would hardly separate pick and reference."""
        return self.verdict == "no difference" and len(self.seeds) < self.design.max_seeds

    @property
    def means(self) -> tuple[float, float]:
        """Mean score of the pick and of the reference in the deciding view."""
        pick, other = (fmean(candidate.scores(self.view)) for candidate in self.candidates[:2])
        return pick, other

    @property
    def scores_text(self) -> str:
        """The two means, and the score of a constant answer if known: `accuracy 72.4 % against 68.1 %`."""
        pick, reference = map(self.measure.value, self.means)
        text = f"{self.measure.name} {pick} against {reference}"
        if not self.guessing:
            return text
        constant = "always predicting the most frequent class" if self.measure.is_accuracy else "a constant prediction"
        return f"{text} ({constant}: {self.measure.value(self.guessing)})"

    @property
    def advised(self) -> str:
        """The display name of the recommended configuration."""
        return self.chosen.name if self.chosen is self.candidates[0] else reference_name(self.chosen)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """The verdict with both scores, their difference and its interval; then failures, caveats, and equal picks."""
        failures = map(_failure, (candidate for candidate in self.candidates if candidate.failures))
        equals = [runner_up.name for runner_up in self.runners_up if not runner_up.dropped]
        last = [f"Not distinguishable from the best configuration: {'; '.join(equals)}."] if equals else []
        return " ".join([_verdict_sentence(self), *failures, *self.caveats, *last])

    @property
    def intervals_text(self) -> str:
        """Both intervals of the difference, what they are corrected for, and when seeds ended early."""
        measure, design, difference = self.measure, self.design, self.difference
        if difference.low is None or difference.high is None:
            return "The difference has no interval."
        text = f"95 % interval {design.wider_is}: {measure.interval_text(difference.low, difference.high)}"
        low, high = difference.here_low, difference.here_high
        if low is not None and high is not None and low != difference.low:
            text += f"; for a rerun on these rows: {measure.interval_text(low, high)}"
        sentences = [f"{text}."]
        if design.num_tried > 1 and design.test_to_train > 0:
            sentences.append(f"The lower end is corrected for the choice among {design.num_tried} configurations.")
        joint = [f"all {design.num_challengers} configurations"] if design.num_challengers > 1 else []
        looks = ", ".join(map(str, design.looks))
        joint += [f"the analyses after {looks} seeds"] if len(design.looks) > 1 else []
        sentences += [f"The interval holds jointly for {' and '.join(joint)}."] if joint else []
        if len(self.seeds) < design.max_seeds:
            sentences.append(f"Decided after {len(self.seeds)} of at most {design.max_seeds} seeds.")
        return " ".join(sentences)


def confirmation_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Return distinct seeds other than the search's own."""
    seeds: list[int] = []
    index = 0
    while len(seeds) < count:
        candidate = integer(seed, "confirmation-seed", index) % 2**31
        index += 1
        if candidate != seed and candidate not in seeds:
            seeds.append(candidate)
    return tuple(seeds)


def candidate_of(role: Role, trials: Sequence[Trial], guessing: float = 0.0, measure: Measure = ACCURACY) -> Candidate:
    """Return one configuration's results from its trials, one per seed.

    Args:
        role: Role of the configuration.
        trials: Trials on the fresh seeds.
        guessing: Fitness assigned to failed trials.
        measure: What the fitness measures.
    """
    first = trials[0]
    return Candidate(
        role=role,
        name=str(first.spec),
        strategy=first.strategy,
        parameters=dict(first.parameters),
        learning_rate=first.learning_rate,
        own=tuple(score_of(trial, "own", guessing) for trial in trials),
        clean=tuple(score_of(trial, "clean", guessing) for trial in trials),
        failures={trial.seed: trial.error or "" for trial in trials if trial.status == "failed"},
        global_accuracy=_each([trial.global_accuracy for trial in trials], guessing),
        new_client_accuracy=_each([trial.new_client_accuracy for trial in trials], guessing),
        score=None if measure.of == "mean" else _each([trial.score for trial in trials], guessing),
        bytes_down=_mean([trial.bytes_down for trial in trials]),
        bytes_up=_mean([trial.bytes_up for trial in trials]),
    )


def _each(scores: Sequence[float | None], guessing: float) -> tuple[float, ...] | None:
    """Return scores, that of guessing for failed trials; None if no trial has one."""
    if all(score is None for score in scores):
        return None
    return tuple(guessing if score is None else score for score in scores)


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def score_of(trial: Trial, view: View, guessing: float) -> float:
    """Return a trial's fitness, or that of guessing if it failed."""
    if trial.status == "failed":
        return guessing
    return trial.own_fitness if view == "own" else trial.clean_fitness


@dataclass(frozen=True)
class InterimDecision:
    """State of the challengers after a look.

    Attributes:
        pick: Index of the best so far.
        remaining: Indices of those that may still be the best and better than the reference.
        settled: Whether no more seeds are needed: only the pick remains and beats the reference, the pick is worse than
            the reference, or the remaining seeds would not separate any challenger from it.
    """

    pick: int
    remaining: tuple[int, ...]
    settled: bool


def assess(
    design: SequentialDesign, challengers: Mapping[int, Sequence[float]], reference: Sequence[float]
) -> InterimDecision:
    """Decide after a look which challengers continue.

    Args:
        design: The sequential design.
        challengers: Scores of the remaining challengers, by index; the same seeds each.
        reference: Scores of the reference on these seeds.
    """
    pick = max(challengers, key=lambda place: (sum(challengers[place]), -place))
    verdicts = {place: design.against_baseline(scores, reference).verdict for place, scores in challengers.items()}
    remaining = tuple(
        place
        for place, scores in challengers.items()
        if verdicts[place] >= 0 and design.against_challenger(challengers[pick], scores).verdict <= 0
    )
    is_decided = verdicts[pick] < 0 or (verdicts[pick] > 0 and remaining == (pick,))
    settled = is_decided or all(design.is_futile(challengers[place], reference) for place in remaining)
    return InterimDecision(pick=pick, remaining=remaining, settled=settled)


def confirm(
    seeds: Sequence[int],
    candidates: Sequence[Candidate],
    view: View,
    design: SequentialDesign | None = None,
    measure: Measure = ACCURACY,
) -> Confirmation:
    """Compare the pick with the reference and with the other challengers.

    Args:
        seeds: In the order of the candidates' scores.
        candidates: The pick, the reference, then the other challengers.
        view: The view that decides.
        design: The sequential design; by default one look at one challenger.
        measure: What the scores measure.
    """
    design = design or SequentialDesign(max_seeds=len(seeds))
    pick, reference, *others = candidates
    both: tuple[View, View] = ("own", "clean")
    versus = {side: design.against_baseline(pick.scores(side), reference.scores(side)) for side in both}
    runners_up = [_runner_up(each, pick, reference, view, design) for each in others]
    difference = versus[view]
    verdict: Verdict = {1: "better", 0: "no difference", -1: "worse"}[difference.verdict]  # type: ignore[assignment]
    if difference.low is None:
        verdict = "not confirmed"
    return Confirmation(
        seeds=tuple(seeds),
        view=view,
        candidates=tuple(candidates),
        versus=versus,
        verdict=verdict,
        runners_up=tuple(runners_up),
        design=design,
        measure=measure,
    )


def reference_name(reference: Candidate) -> str:
    """Return the display name of a baseline."""
    tuned = reference.role == "tuned-fedavg"
    return f"FedAvg at its tuned client rate {reference.learning_rate:g}" if tuned else "FedAvg"


def _runner_up(one: Candidate, pick: Candidate, reference: Candidate, view: View, design: SequentialDesign) -> RunnerUp:
    """Return how a challenger compares with the pick and with the reference."""
    behind = design.against_challenger(pick.scores(view), one.scores(view))
    versus_reference = design.against_baseline(one.scores(view), reference.scores(view))
    dropped = len(one.own) < len(pick.own) or behind.verdict > 0 or versus_reference.verdict < 0
    return RunnerUp(name=one.name, behind=behind, versus_reference=versus_reference, dropped=dropped)


def _verdict_sentence(confirmation: Confirmation) -> str:
    """Return both scores, their difference and its interval, or why there is no verdict."""
    if confirmation.no_verdict:
        return f"No verdict: {confirmation.no_verdict}. Measured: {confirmation.scores_text}."
    measure, difference = confirmation.measure, confirmation.difference
    name, reference = confirmation.candidates[0].strategy, reference_name(confirmation.reference)
    count = len(difference.differences)
    seeds = f"{count} fresh seed{'s' if count > 1 else ''}"
    gain = f"{confirmation.scores_text}, {measure.difference_text(difference.mean)}"
    if difference.low is None or difference.high is None:
        return f"{name} and {reference}: {gain} on {seeds}, too few to tell it from noise."
    interval = f"95 % interval {measure.interval_text(difference.low, difference.high)}, {seeds}"
    if confirmation.verdict == "better":
        return f"{name} is better than {reference}: {gain} ({interval})."
    if confirmation.verdict == "worse":
        return f"The search's best, {name}, is worse than {reference}: {gain} ({interval})."
    design = confirmation.design
    if confirmation.stopped_for_futility:
        if difference.low == -(design.span or 0.0) and difference.high == design.span:
            interval = f"{count} of {design.max_seeds} fresh seeds exclude no difference"
        left = f"{design.max_seeds - count} more seeds are unlikely to show a difference"
        return f"{name} and {reference} are not shown to differ: {gain} ({interval}); {left}."
    return f"{name} and {reference} are not shown to differ: {gain} ({interval}; it contains zero)."


def _failure(candidate: Candidate) -> str:
    """Return a sentence on the seeds on which a configuration failed."""
    is_fedavg = "fedavg" in candidate.role
    name = f"FedAvg at client rate {candidate.learning_rate:g}" if is_fedavg else candidate.name
    reason = next(iter(candidate.failures.values())).splitlines()[0].rstrip(".")
    seeds = f"{len(candidate.failures)} of {len(candidate.own)} seeds"
    return f"{name} failed on {seeds}, which are scored as guessing: {reason}."
