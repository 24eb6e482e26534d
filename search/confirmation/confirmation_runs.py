"""What follows a search: the confirmation of the winner, as trials of the same ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedscout.engine.grid.evaluation import WORST_OF
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.search.confirmation.caveats import judged
from fedscout.search.confirmation.confirmation import (
    Confirmation,
    Role,
    assess,
    confirm,
    confirmation_seeds,
    contestant,
    score_of,
    strongest,
)
from fedscout.search.confirmation.intervals import tested_to_trained
from fedscout.search.confirmation.rate_tuning import TunedRate
from fedscout.search.confirmation.sequential_design import SequentialDesign
from fedscout.search.ledger import Ledger
from fedscout.search.measure import ACCURACY, Measure
from fedscout.search.search_config import SearchConfig, View
from fedscout.search.study_trials import BASELINE, best_of


def confirm_winner(
    config: SearchConfig,
    ledger: Ledger,
    trials: Sequence[Trial],
    tuned: Sequence[TunedRate],
    front: Sequence[Trial] = (),
) -> Confirmation | None:
    """Pit the best configurations other than FedAvg against the baselines on fresh seeds.

    Args:
        config: How many configurations, seeds and looks.
        ledger: Runs and logs the trials.
        trials: Of the search; full trainings are candidates, FedAvg is left out.
        tuned: FedAvg at several client learning rates, best first; empty if that was not asked for. The study's own
            rate is FedAvg itself, and no further baseline.
        front: Of two objectives the trials that no other beats, to which the choice is limited unless FedAvg alone is
            among them.
    """
    facts = ledger.facts
    of_front = [trial for trial in front if trial.spec != BASELINE]
    others = of_front or [trial for trial in trials if trial.spec != BASELINE]
    challengers = challengers_of(others, config.confirmation_top)
    tried = {trial.spec.model_dump_json() for trial in trials if trial.spec != BASELINE}
    if not challengers:
        return None
    entrants: list[tuple[Role, TrialSettings]] = [
        *(("contender", facts.trial("confirmation", trial.spec)) for trial in challengers),
        ("fedavg", facts.trial("confirmation", BASELINE)),
    ]
    best_rate = tuned[0].learning_rate if tuned else facts.session.training.learning_rate
    if best_rate != facts.session.training.learning_rate:
        entrants.append(("tuned-fedavg", facts.trial("confirmation", BASELINE, learning_rate=best_rate)))
    design = SequentialDesign(
        max_seeds=config.confirmation_seeds,
        batch=config.confirmation_batch,
        num_challengers=len(challengers),
        num_tried=max(1, len(tried)),
        test_to_train=tested_to_trained(facts.session.test_fraction, facts.session.validation_fraction),
        span=facts.measure.span,
        same_rows=facts.same_test_rows,
    )
    found = _train_until_decided(ledger, design, entrants)
    if facts.second_measure is None:
        return found
    alone = "the front is FedAvg alone, and of what else was tried"
    whose = "of the front's configurations other than FedAvg" if of_front else alone
    trained = f"{len(challengers)} of {len(others)} trained on fresh seeds"
    return found.with_caveats([f"The verdict is by {facts.measure.name} alone; {whose} {trained}."])


def challengers_of(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the best configurations of a search, best first; fewer if fewer trials went through."""
    left = list(trials)
    found: list[Trial] = []
    while len(found) < count and (best := best_of(left)) is not None:
        found.append(best)
        left = [trial for trial in left if trial.spec != best.spec]
    return found


def _train_until_decided(
    ledger: Ledger, design: SequentialDesign, entrants: Sequence[tuple[Role, TrialSettings]]
) -> Confirmation:
    """Train batch after batch.

    Args:
        ledger: Runs and logs the trials.
        design: The plan; the step of the scores' scale is taken from the trials.
        entrants: Contenders, of which one is picked, then FedAvg, then any other baseline; on whatever seed.
    """
    view, guessing = ledger.facts.view, ledger.facts.guessing
    seeds = confirmation_seeds(ledger.facts.session.seed, design.max_seeds)
    trials: list[list[Trial]] = [[] for _ in entrants]
    contenders = [place for place, (role, _) in enumerate(entrants) if role == "contender"]
    baselines = [place for place in range(len(entrants)) if place not in contenders]
    remaining, pick, num_done = tuple(contenders), contenders[0], 0
    for look in design.looks:
        going = [*remaining, *baselines]
        fresh = seeds[num_done:look]
        new = ledger.run([entrants[place][1].on_seed(seed) for seed in fresh for place in going])
        for offset, place in enumerate(going):
            trials[place] += new[offset :: len(going)]
        num_done = look
        design = design.model_copy(update={"resolution": resolution(trials, ledger.facts.measure)})
        scores = {place: _scores(trials[place], view, guessing) for place in going}
        reference = baselines[strongest([scores[place] for place in baselines])]
        standing = assess(design, {place: scores[place] for place in remaining}, scores[reference])
        remaining, pick = standing.remaining, standing.pick
        if standing.settled:
            break
    in_order = [pick, *baselines, *(place for place in contenders if place != pick)]
    contestants = [
        contestant("challenger" if place == pick else entrants[place][0], trials[place], guessing, ledger.facts.measure)
        for place in in_order
    ]
    found = confirm(seeds[:num_done], contestants, view, design, ledger.facts.measure)
    by_role: dict[str, Sequence[Trial]] = {
        one.role: trials[place] for one, place in zip(contestants, in_order, strict=True)
    }
    return judged(found, by_role, guessing)


def _scores(trials: Sequence[Trial], view: View, guessing: float) -> list[float]:
    return [score_of(trial, view, guessing) for trial in trials]


def resolution(groups: Iterable[Sequence[Trial]], measure: Measure = ACCURACY) -> float:
    """Return the step of a measure's scale, the largest of any trial.

    It is the share of one test row among those that decide, times the best score: all rows, or, of the worst clients,
    as many times the smallest client's as there are clients among the worst. It is 0 if no trial was scored.
    """
    if measure.step is not None:
        return measure.step
    rows = [_deciding_rows(trial, measure) for trials in groups for trial in trials]
    scale = 1.0 if measure.best is None else measure.best
    return scale / min((count for count in rows if count), default=float("inf"))


def _deciding_rows(trial: Trial, measure: Measure) -> int:
    counts = [count for count in trial.client_num_examples if count]
    if measure.of == "worst":
        return min(counts, default=0) * -(-len(counts) // WORST_OF)
    return sum(counts)
