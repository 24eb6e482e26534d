"""Warm start: configurations that did well in similar earlier studies are tried first.

**Earlier studies.** Of an earlier study, its configuration, report and log are used. The gain of a
configuration is its fitness minus FedAvg's on the same seed, averaged over the seeds on which both were trained: the
search's, and for confirmed configurations the fresh ones, if the reference has the study's own client rate. Trials of
fewer rounds than the study's are excluded.

**Similarity.** That of two federations in the priors (`fedscout.search.recommenders.priors`).

**Proposals.** From each study, the configurations that beat FedAvg there on the same seeds, best first. They are
interleaved: the best of the most similar study, then its second and the best of the next, and so on. Each is mapped to
the present search space: a strategy that is impossible here is skipped, values are clipped to their ranges, and a
client parameter that was not searched there is taken from the present study. The other proposals of an informed search
follow.

**Leave-one-out.** A study is never used for itself, nor for another study of the same federation: the same `federation`
settings, or the same rows with the same partition and scenario. Otherwise its own result would leak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.errors import StrategyError
from fedscout.engine.trials.record import Trial
from fedscout.search.recommenders.diagnosis import RecommendationContext, diagnose
from fedscout.search.recommenders.priors import Traits
from fedscout.search.recommenders.rules import calls_for_robust
from fedscout.strategies import FedAvgSpec, SearchSpace, StrategySpec, parse_strategy

PHASES = ("baseline", "search", "confirmation")


@dataclass(frozen=True)
class EarlierStudy:
    """Summary of a study.

    Attributes:
        name: Its folder, as given.
        config_hash: Hash of everything that determines its results.
        config: The configuration behind the hash.
        data_digest: Digest of its rows and their partition; None if unknown.
        report: Heterogeneity report.
        gains: Mean gain over FedAvg of each configuration that was trained in full, best first.
    """

    name: str
    config_hash: str
    config: Mapping[str, Any]
    data_digest: str | None
    report: HeterogeneityReport
    gains: tuple[tuple[StrategySpec, float], ...]

    def is_of(self, config_hash: str, config: Mapping[str, Any], data_digest: str | None) -> bool:
        """Whether it is the given study, or one of the same federation, whatever was trained there."""
        if self.config_hash == config_hash:
            return True
        ours, theirs = self.config.get("federation", {}), config.get("federation", {})
        same_rows = self.data_digest is not None and self.data_digest == data_digest
        return ours == theirs or (same_rows and ours.get("scenario") == theirs.get("scenario"))

    def is_of_data(self, config: Mapping[str, Any]) -> bool:
        """Whether its federation uses the same data set as that of a configuration."""
        ours, theirs = (each.get("federation", {}).get("dataset") for each in (self.config, config))
        return ours is not None and ours == theirs


def best_first(gains: Iterable[tuple[StrategySpec, float]]) -> tuple[tuple[StrategySpec, float], ...]:
    """Return configurations with their gains, in descending order of gain; ties are in a deterministic order."""
    return tuple(sorted(gains, key=lambda gain: (-gain[1], gain[0].model_dump_json())))


def logged_strategy(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a strategy in a log, which names a user's own by its import path instead of its kind."""
    return {"kind": "custom" if "path" in parameters else name, **parameters}


def gains_of(trials: Sequence[Trial], num_rounds: int) -> tuple[tuple[StrategySpec, float], ...]:
    """Return the mean gain over FedAvg of each configuration, best first, from a log; see the module.

    Args:
        trials: The study's trials.
        num_rounds: Rounds of its full trainings.
    """
    fitness: dict[str, dict[tuple[str, int], float]] = {}
    specs: dict[str, StrategySpec] = {}
    study_rates = {trial.learning_rate for trial in trials if trial.phase == "baseline"}
    for trial in trials:
        full = trial.status == "failed" or trial.num_rounds >= num_rounds
        if trial.phase not in PHASES or not full:
            continue
        try:
            spec = parse_strategy(logged_strategy(trial.strategy, trial.parameters))
        except StrategyError:  # of another version, or of a strategy that there is no more
            continue
        if spec == FedAvgSpec() and trial.learning_rate not in study_rates:
            continue
        key = spec.model_dump_json()
        specs[key] = spec
        phase = "confirmation" if trial.phase == "confirmation" else "search"
        fitness.setdefault(key, {})[phase, trial.seed] = trial.fitness
    baseline = fitness.pop(FedAvgSpec().model_dump_json(), {})
    gains = []
    for key, scores in fitness.items():
        differences = [score - baseline[run_key] for run_key, score in scores.items() if run_key in baseline]
        if differences:
            gains.append((specs[key], fmean(differences)))
    return best_first(gains)


class SimilarStudy(BaseModel, frozen=True):
    """An earlier study and its similarity.

    Attributes:
        study: Its folder.
        similarity: See the module; None if it is not used.
        note: Why it is not used.
        same_data: Whether its federation uses the same data set.
    """

    study: str
    similarity: float | None
    note: str | None = None
    same_data: bool = False


class WarmProposal(BaseModel, frozen=True):
    """A configuration that is tried first.

    Attributes:
        strategy: Its kind and parameters in the present space.
        study: The study in which it did well.
        gain: Its gain over FedAvg there.
    """

    strategy: Mapping[str, Any]
    study: str
    gain: float


class WarmStart(BaseModel, frozen=True):
    """Proposals from earlier studies; saved with the study, so that it resumes with the same ones if they change.

    Attributes:
        studies: The most similar first, then those that are not used.
        proposals: In the order of their trials.
        notes: What could not be read or used.
    """

    studies: tuple[SimilarStudy, ...]
    proposals: tuple[WarmProposal, ...]
    notes: tuple[str, ...] = ()

    def specs(self) -> list[StrategySpec]:
        """Return the proposals as specifications."""
        return [parse_strategy(proposal.strategy) for proposal in self.proposals]

    def fits(self, space: SearchSpace) -> bool:
        """Whether a space contains all proposals; nothing outside the space is imported."""
        try:
            return all(space.contains(spec) for spec in self.specs())
        except StrategyError:
            return False


def traits_of(context: RecommendationContext) -> Traits:
    """Return the traits of a diagnosed federation."""
    return Traits.of(context.diagnosis, calls_for_robust(context))


def warm_start(
    studies: Sequence[EarlierStudy],
    context: RecommendationContext,
    num_proposals: int,
    references: Sequence[StrategySpec] = (),
) -> WarmStart:
    """Return the configurations to try first.

    Args:
        studies: Earlier studies, none of them of the present federation.
        context: The present federation, with a diagnosis.
        num_proposals: Largest number of proposals.
        references: Configurations that are never proposed.
    """
    space = context.space
    ours = traits_of(context)
    theirs = (traits_of(context.diagnosed(diagnose(study.report))) for study in studies)
    similarities = [ours.similarity(traits) for traits in theirs]
    order = sorted(range(len(studies)), key=lambda place: (-similarities[place], studies[place].name))
    taken = {space.digest(spec) for spec in references}
    proposals: list[WarmProposal] = []
    for study, spec, gain in _interleaved([studies[place] for place in order]):
        if len(proposals) == num_proposals:
            break
        moved = space.nearest(spec)
        if moved is None or space.has_equivalent(moved) or space.digest(moved) in taken:
            continue
        taken.add(space.digest(moved))
        document = {"kind": moved.kind, **moved.parameters()}
        proposals.append(WarmProposal(strategy=document, study=study.name, gain=gain))
    similar = tuple(SimilarStudy(study=studies[place].name, similarity=similarities[place]) for place in order)
    return WarmStart(studies=similar, proposals=tuple(proposals))


def _interleaved(studies: Sequence[EarlierStudy]) -> Iterator[tuple[EarlierStudy, StrategySpec, float]]:
    """Yield what beat FedAvg: the best of the first study; its second and the best of the second study; and so on."""
    winners = [[(spec, gain) for spec, gain in study.gains if gain > 0] for study in studies]
    last = max((index + len(gains) for index, gains in enumerate(winners)), default=0)
    for turn in range(last):
        for index in range(min(turn + 1, len(studies))):
            if turn - index < len(winners[index]):
                yield (studies[index], *winners[index][turn - index])
