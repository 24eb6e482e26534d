"""The trials of a study beside each other: the best, the worst, what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedscout.engine.trials.trial_record import Trial
from fedscout.strategies import FedAvgSpec

BASELINE = FedAvgSpec()


def trainings_of(trials: Iterable[Trial], num_rounds: int) -> float:
    """Return what trials cost, in full trainings: of a configuration that went on, its longest trial counts.

    A trial that failed early counts in full.

    Args:
        trials: Of one seed.
        num_rounds: Rounds of a full training.
    """
    longest: dict[str, int] = {}
    for trial in trials:
        key = trial.spec.model_dump_json()
        longest[key] = max(trial.asked_rounds or num_rounds, longest.get(key, 0))
    return sum(longest.values()) / num_rounds


def comparable(trials: Iterable[Trial]) -> list[Trial]:
    """Return the full trainings that went through."""
    return [trial for trial in trials if trial.status == "completed" and trial.whole]


def front_of(trials: Iterable[Trial]) -> list[Trial]:
    """Return the full trainings that no other beats, best by the first objective first; none without two objectives.

    One beats another if it is no worse by any objective and better by one. Of equals the earliest stands for all.
    """
    left = sorted((trial for trial in comparable(trials) if trial.objectives), key=lambda trial: trial.trial)
    found: list[Trial] = []
    for trial in left:
        others = [other.objectives or () for other in left if other is not trial]
        known = [one.objectives for one in found]
        if trial.objectives not in known and not any(beats(other, trial.objectives or ()) for other in others):
            found.append(trial)
    return sorted(found, key=lambda trial: -trial.fitness)


def beats(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether one is no worse than the other by any objective, and better by one."""
    return tuple(ours) != tuple(theirs) and all(our >= their for our, their in zip(ours, theirs, strict=True))


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the completed full training of largest fitness, the earliest of equals; None if there is none."""
    return max(comparable(trials), key=lambda trial: trial.fitness, default=None)


def worst_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the completed full training of smallest fitness, the earliest of equals; None if there is none."""
    return min(comparable(trials), key=lambda trial: trial.fitness, default=None)
