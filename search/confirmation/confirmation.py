"""Confirmation: does the winner hold up on seeds that the search never saw?

The challengers (the best configurations that are not FedAvg, one by default) and the baselines train again on fresh
seeds. A seed fixes split, initial model and batches and is shared by all of them, so differences are paired; the
partition, and what a scenario did to it, stay. Seeds come all at once, or in batches until it is decided; a challenger
that is clearly worse than the best of them gets no more. Nothing is announced as better than FedAvg unless an interval
says so that holds for all challengers and all looks together (`fedscout.search.confirmation.intervals`).

**The reference** is the baseline of largest mean on these seeds: FedAvg, or FedAvg at a tuned client rate, if that was
trained. Taking the stronger one after the fact is to the challenger's disadvantage. "Better" is said no more often for
it; "worse", which advises nothing else than "no difference" does, may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fedscout.engine.seeds import integer
from fedscout.engine.trials.record import Trial
from fedscout.search.config import View
from fedscout.search.confirmation.intervals import NEW_DATA, PairedDifference, SequentialDesign
from fedscout.search.objective import ACCURACY, Measure

Verdict = Literal["better", "no difference", "worse", "not confirmed"]
Reference = Literal["fedavg", "tuned-fedavg"]
Role = Literal["challenger", "contender"] | Reference


class Candidate(BaseModel):
    """A configuration on the fresh seeds.

    Attributes:
        role: `challenger` is the pick, `contender` any other configuration of the search; `fedavg`, `tuned-fedavg`.
        name: The configuration for people.
        strategy: Its kind, or the import path of a user's own.
        parameters: Its parameters.
        learning_rate: The clients' step size.
        own: Fitness a seed, on test data as clients have them; that of guessing where the trial failed.
        clean: The same on uncorrupted test data.
        failures: Reason of each failed trial, by seed.
        global_accuracy: As `own`, but of the global model; None where no client has another.
        new_client_accuracy: As `own`, but of clients that never train; None where there are none.
        score: Mean score of the last five rounds a seed; None where that is `own`.
        second: Fitness a seed by the second objective in the deciding view; None where there is one objective.
        bytes_down: What train messages carry to all clients of a round; None if not known.
        bytes_up: What their answers carry back.
    """

    model_config = ConfigDict(frozen=True)

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
    second: tuple[float, ...] | None = None
    bytes_down: float | None = None
    bytes_up: float | None = None

    def scores(self, view: View) -> tuple[float, ...]:
        """Return the fitness a seed in one view."""
        return self.own if view == "own" else self.clean


class RunnerUp(BaseModel):
    """Another challenger than the pick.

    Attributes:
        name: The configuration for people.
        behind: Pick minus this one, in the deciding view.
        versus_fedavg: This one minus FedAvg, in the deciding view.
        dropped: Whether it got no more seeds, as it was clearly worse than the best of them or than the reference.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    behind: PairedDifference
    versus_fedavg: PairedDifference
    dropped: bool


class Confirmation(BaseModel):
    """The outcome.

    Attributes:
        seeds: The fresh seeds, the same for all; who was dropped has the first of them.
        view: The view that decides.
        contestants: The pick, the baselines, then the other challengers.
        versus: Pick minus baseline, by the baseline's role, then by view.
        reference: The strongest baseline, by its mean in the deciding view.
        verdict: On the pick against the reference in the deciding view.
        sentence: The outcome for people.
        rivals: The other challengers, in the order of the contestants.
        design: The plan, on which the intervals rest.
        caveats: What is worth knowing of the verdict, each a sentence; they are part of `sentence`.
        measure: What all scores are of.
        guessing: Score of a constant answer, such as the most frequent class; 0 may mean that it is not known.
        no_verdict: Why the measure says too little for a verdict, which is then `not confirmed`; empty otherwise.
    """

    model_config = ConfigDict(frozen=True)

    seeds: tuple[int, ...]
    view: View
    contestants: tuple[Candidate, ...]
    versus: Mapping[str, Mapping[str, PairedDifference]]
    reference: Reference = "fedavg"
    verdict: Verdict
    sentence: str
    rivals: tuple[RunnerUp, ...] = ()
    design: SequentialDesign
    caveats: tuple[str, ...] = ()
    measure: Measure = ACCURACY
    guessing: float = 0.0
    no_verdict: str = ""

    @property
    def gave_up(self) -> bool:
        """Whether seeds of the plan were left, as they would hardly tell pick and reference apart."""
        return self.verdict == "no difference" and len(self.seeds) < self.design.max_seeds

    @property
    def means(self) -> tuple[float, float]:
        """Mean score of the pick and of the reference in the deciding view."""
        reference = next(one for one in self.contestants if one.role == self.reference)
        pick, other = (fmean(one.scores(self.view)) for one in (self.contestants[0], reference))
        return pick, other

    @property
    def scores_text(self) -> str:
        """The two means, and what a constant answer gives where that is known: `accuracy 72.4 % against 68.1 %`."""
        pick, reference = map(self.measure.value, self.means)
        text = f"{self.measure.name} {pick} against {reference}"
        if not self.guessing:
            return text
        constant = "the most frequent class alone" if self.measure.is_accuracy else "a constant answer"
        return f"{text} ({constant}: {self.measure.value(self.guessing)})"

    @property
    def advised(self) -> str:
        """What to use: the pick where it is better than the reference beyond noise, else the reference."""
        if self.verdict == "better":
            return self.contestants[0].name
        return reference_name(next(one for one in self.contestants if one.role == self.reference))

    def with_caveats(self, caveats: Sequence[str]) -> Confirmation:
        """Return the same with what else is worth knowing of it."""
        known = (*self.caveats, *caveats)
        return self.model_copy(update={"caveats": known, "sentence": " ".join([self.sentence, *caveats])})


def confirmation_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Return distinct seeds that differ from the search's own."""
    return fresh_seeds("confirmation-seed", seed, count)


def fresh_seeds(purpose: str, seed: int, count: int) -> tuple[int, ...]:
    """Return distinct seeds for a purpose that differ from the search's own."""
    seeds: list[int] = []
    index = 0
    while len(seeds) < count:
        candidate = integer(seed, purpose, index) % 2**31
        index += 1
        if candidate != seed and candidate not in seeds:
            seeds.append(candidate)
    return tuple(seeds)


def contestant(role: Role, trials: Sequence[Trial], guessing: float = 0.0, measure: Measure = ACCURACY) -> Candidate:
    """Gather one configuration's trials, one a seed.

    Args:
        role: Of the configuration.
        trials: On the fresh seeds.
        guessing: What counts as the fitness of a trial that failed.
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
        second=_each([trial.objectives[1] if trial.objectives else None for trial in trials], 0.0),
        bytes_down=_mean([trial.bytes_down for trial in trials]),
        bytes_up=_mean([trial.bytes_up for trial in trials]),
    )


def _each(scores: Sequence[float | None], guessing: float) -> tuple[float, ...] | None:
    """Return scores, that of guessing where a trial failed; None if no trial has one."""
    if all(score is None for score in scores):
        return None
    return tuple(guessing if score is None else score for score in scores)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def score_of(trial: Trial, view: View, guessing: float) -> float:
    """Return a trial's fitness; one that failed is worth what guessing is."""
    if trial.status == "failed":
        return guessing
    return trial.own_fitness if view == "own" else trial.clean_fitness


@dataclass(frozen=True)
class InterimDecision:
    """Where the challengers stand after a look.

    Attributes:
        pick: The best so far, by place.
        remaining: Who may still be the best and better than the reference, by place.
        settled: Whether no more seeds are needed: the pick beats the reference and is alone, or is worse than it, or
            the seeds that are left would not tell any of them from it.
    """

    pick: int
    remaining: tuple[int, ...]
    settled: bool


def assess(
    design: SequentialDesign, challengers: Mapping[int, Sequence[float]], reference: Sequence[float]
) -> InterimDecision:
    """Decide after a look who goes on.

    Args:
        design: The plan.
        challengers: Scores of those that are left, by place; the same seeds each.
        reference: Scores of the strongest baseline on these seeds.
    """
    pick = max(challengers, key=lambda place: (sum(challengers[place]), -place))
    verdicts = {place: design.against_baseline(scores, reference).verdict for place, scores in challengers.items()}
    beaten = {
        place
        for place, scores in challengers.items()
        if place != pick and design.against_challenger(challengers[pick], scores).verdict > 0
    }
    remaining = tuple(place for place in challengers if verdicts[place] >= 0 and place not in beaten)
    settled = verdicts[pick] < 0 or (verdicts[pick] > 0 and remaining == (pick,))
    settled = settled or all(design.hopeless(challengers[place], reference) for place in remaining)
    return InterimDecision(pick=pick, remaining=remaining, settled=settled)


def confirm(
    seeds: Sequence[int],
    contestants: Sequence[Candidate],
    view: View,
    design: SequentialDesign | None = None,
    measure: Measure = ACCURACY,
) -> Confirmation:
    """Compare the pick with the baselines and with the other challengers.

    Args:
        seeds: In the order of the contestants' scores.
        contestants: The pick first, then FedAvg, then tuned FedAvg if it was trained, then the other challengers.
        view: The view that decides.
        design: The plan; one look at one challenger if none is given.
        measure: What the scores are of.
    """
    design = design or SequentialDesign(max_seeds=len(seeds))
    pick = contestants[0]
    baselines = [one for one in contestants[1:] if one.role != "contender"]
    fedavg = next(one for one in baselines if one.role == "fedavg")
    versus = {
        baseline.role: {
            side: design.against_baseline(pick.scores(side), baseline.scores(side)) for side in ("own", "clean")
        }
        for baseline in baselines
    }
    reference = baselines[strongest([one.scores(view) for one in baselines])]
    rivals = [_rival(one, (pick, fedavg, reference), view, design) for one in contestants if one.role == "contender"]
    difference = versus[reference.role][view]
    verdict: Verdict = {1: "better", 0: "no difference", -1: "worse"}[difference.verdict]  # type: ignore[assignment]
    if difference.low is None:
        verdict = "not confirmed"
    told = (
        _sentence(pick.name, reference_name(reference), difference_text(difference, measure, design), verdict),
        rivals_told(rivals),
        _design_told(design, len(seeds), verdict),
        failures_told(contestants),
    )
    return Confirmation(
        seeds=tuple(seeds),
        view=view,
        contestants=tuple(contestants),
        versus=versus,
        reference=reference.role,
        verdict=verdict,
        sentence="".join(told),
        rivals=tuple(rivals),
        design=design,
        measure=measure,
    )


def strongest(baselines: Sequence[Sequence[float]]) -> int:
    """Return the place of the baseline of largest mean score, the first of equals."""
    return max(range(len(baselines)), key=lambda place: (sum(baselines[place]), -place))


def reference_name(reference: Candidate) -> str:
    """Return a baseline for people."""
    tuned = reference.role == "tuned-fedavg"
    return f"FedAvg at its tuned client rate {reference.learning_rate:g}" if tuned else "FedAvg"


def _rival(
    one: Candidate, others: tuple[Candidate, Candidate, Candidate], view: View, design: SequentialDesign
) -> RunnerUp:
    """Return how a challenger stands to the pick, to FedAvg and to the reference, which are the others."""
    pick, fedavg, reference = (other.scores(view) for other in others)
    behind = design.against_challenger(pick, one.scores(view))
    beaten = design.against_baseline(one.scores(view), reference).verdict < 0
    dropped = len(one.own) < len(pick) or behind.verdict > 0 or beaten
    versus_fedavg = design.against_baseline(one.scores(view), fedavg)
    return RunnerUp(name=one.name, behind=behind, versus_fedavg=versus_fedavg, dropped=dropped)


def difference_text(
    difference: PairedDifference, measure: Measure = ACCURACY, design: SequentialDesign | None = None
) -> str:
    """Return a difference in the measure's unit with its intervals and the number of seeds.

    Args:
        difference: On fresh seeds.
        measure: What it is of.
        design: Says what the intervals are for; None: the usual.
    """
    seeds = f"{len(difference.differences)} seed{'s' if len(difference.differences) != 1 else ''}"
    if difference.low is None or difference.high is None:
        return f"{measure.told(difference.mean)}, no interval from {seeds}"
    beyond = _interval(difference.low, difference.high, measure)
    if difference.here_low is None or difference.here_high is None or difference.here_low == difference.low:
        return f"{measure.told(difference.mean)}, 95 % interval {beyond}, {seeds}"
    here = _interval(difference.here_low, difference.here_high, measure)
    wider = NEW_DATA if design is None else design.wider_is
    return f"{measure.told(difference.mean)}, 95 % interval {beyond} {wider}, {here} for another run here, {seeds}"


def _interval(low: float, high: float, measure: Measure) -> str:
    return f"[{measure.number(low)}, {measure.number(high)}]"


def _sentence(name: str, reference: str, measured: str, verdict: Verdict) -> str:
    return {
        "better": f"{name} beats {reference} on fresh seeds: {measured}.",
        "no difference": (
            f"{name} is not shown to differ from {reference} on fresh seeds: {measured}. Keep {reference}."
        ),
        "worse": f"{name} is worse than {reference} on fresh seeds: {measured}. Keep {reference}.",
        "not confirmed": (
            f"{name} against {reference}: {measured}; at least two seeds with scores are needed to tell it from noise."
        ),
    }[verdict]


def rivals_told(rivals: Sequence[RunnerUp]) -> str:
    """Return who can't be told from the pick, which then is no best one."""
    level = [rival.name for rival in rivals if not rival.dropped]
    return f" Not told apart from it: {'; '.join(level)}." if level else ""


def _design_told(design: SequentialDesign, num_seeds: int, verdict: Verdict) -> str:
    """Return for what the interval was widened, and whether and why the seeds did not run out."""
    told = ""
    if design.num_tried > 1 and design.test_to_train > 0:
        told = f" The lower end allows for the choice among {design.num_tried} configurations."
    parts = []
    if design.num_challengers > 1:
        parts.append(f"all {design.num_challengers} configurations compared")
    if len(design.looks) > 1:
        parts.append(f"looks at {', '.join(map(str, design.looks))} seeds")
    told += f" The interval holds for {' and '.join(parts)} together." if parts else ""
    if num_seeds < design.max_seeds:
        told += f" Decided after {num_seeds} of at most {design.max_seeds} seeds."
        told += " The others would hardly tell them apart." if verdict == "no difference" else ""
    return told


def _configuration(one: Candidate) -> str:
    """Return which configuration was trained: FedAvg at its client rate, or the search's."""
    return f"FedAvg at client rate {one.learning_rate:g}" if "fedavg" in one.role else one.name


def failures_told(contestants: Sequence[Candidate]) -> str:
    """Return what a reader must know of seeds on which somebody failed."""
    told = [
        f" {_configuration(one)} failed on {len(one.failures)} of {len(one.own)} seeds, which count as guessing: "
        f"{next(iter(one.failures.values())).splitlines()[0].rstrip('.')}."
        for one in contestants
        if one.failures
    ]
    return "".join(told)
