"""How good is a choice, and what does it cost? Every chooser on every federation of a battery, against an oracle.

For each federation a dense grid finds the best and the worst configuration; each chooser chooses on several search
seeds; and all that was picked is trained on fresh seeds, by which the regrets are told (`choice_regret`). Trials are
shared and kept in the folder, so that a measurement that was cut off goes on, and a later one with more choosers or
federations trains only what is new. One process uses the folder at a time:

OUT/studies/        trials and reports, by federation (`choice_laboratory`)
OUT/result.json     the last measurement
OUT/choices.parquet the same, one row a federation, chooser and search seed
OUT/llm.jsonl       what a language model was asked and answered, which is not asked again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel

from fedscout.engine.errors import ConfigurationError, Fault, RecommenderError
from fedscout.experiments.benchmarks.choice.choice_archives import Archived
from fedscout.experiments.benchmarks.choice.choice_battery import (
    BATTERY,
    QUICK_BATTERY,
    ReadyCase,
    case_of,
    ready_cases,
)
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS, TUNED, Chooser, Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import (
    Laboratory,
    Pick,
    measurement_folder,
    open_laboratory,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.benchmarks.choice.choice_oracle import DENSE, QUICK, Density, Oracle, find_oracle
from fedscout.experiments.benchmarks.choice.choice_regret import Choice, Level, Summary, TunedGain, summarise
from fedscout.search.confirmation.intervals import tested_to_trained
from fedscout.search.language_model.record import NAME as LLM_RECORD
from fedscout.search.study_trials import BASELINE

OWN = ("trials", "result.json", "choices.parquet", LLM_RECORD)
"""Of a folder, beside its studies; earlier versions kept their trials in `trials`."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        choosers: Who chooses, in the order of the tables.
        num_search_seeds: Choices of each chooser on each federation.
        num_fresh_seeds: On which every pick is trained, >= 2.
        density: Of the oracle's grid.
    """

    choosers: tuple[Chooser, ...]
    num_search_seeds: int
    num_fresh_seeds: int
    density: Density


def plan_of(
    choosers: Sequence[str] | None, quick: bool, num_search_seeds: int | None = None, num_fresh_seeds: int | None = None
) -> Plan:
    """Return what is measured: by the named choosers or all; coarse and few if quick, where nothing else is said.

    Raises:
        ConfigurationError: If a chooser is unknown.
    """
    for name in choosers or ():
        if name not in CHOOSERS:
            raise ConfigurationError(Fault("--chooser", f"be one of {', '.join(CHOOSERS)}", repr(name)))
    return Plan(
        choosers=tuple(chooser for name, chooser in CHOOSERS.items() if not choosers or name in choosers),
        num_search_seeds=num_search_seeds or (2 if quick else 3),
        num_fresh_seeds=num_fresh_seeds or (3 if quick else 5),
        density=QUICK if quick else DENSE,
    )


class MeasuredFederation(BaseModel, frozen=True):
    """What there was to win: accuracies on the fresh seeds, the best configuration, why a chooser could not choose.

    Attributes:
        tuned: Of tuned FedAvg, mean over its choices on the search seeds.
        beyond_tuned: What the oracle gains on it.
    """

    name: str
    arguments: tuple[str, ...]
    num_rounds: int
    fedavg: float
    tuned: float
    oracle: float
    beyond_tuned: TunedGain
    worst: float
    best: str
    grid_size: int
    failures: Mapping[str, str]


class ChoiceReport(BaseModel, frozen=True):
    """The whole measurement.

    Attributes:
        summary: One a chooser.
        federations: What there was to win.
        choices: One a federation, chooser and search seed.
        unavailable: Choosers that could not be measured at all, and why.
        missing: Federations whose files are not there, and why.
    """

    summary: tuple[Summary, ...]
    federations: tuple[MeasuredFederation, ...]
    choices: tuple[Choice, ...]
    unavailable: Mapping[str, str]
    missing: Mapping[str, str]
    num_search_seeds: int
    num_fresh_seeds: int


@dataclass
class _Picks:
    """What was found out about one federation before the fresh seeds."""

    ready: ReadyCase
    oracle: Oracle
    picks: dict[tuple[str, int], Pick] = field(default_factory=dict)
    searched: dict[int, list[Archived]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_choice(
    plan: Plan,
    settings: Sequence[str],
    federations: Sequence[str] | None,
    quick: bool,
    out: Path,
    note: Note = lambda _: None,
) -> ChoiceReport:
    """Measure every chooser on every federation, and write the result into the folder.

    Args:
        plan: What is measured.
        settings: Arguments that hold on every federation.
        federations: Each in one text; None takes the battery, the short one if quick.
        quick: Whether rounds are few.
        out: The folder; continued if it holds an earlier measurement.
        note: Told what is done next.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    import pandas as pd

    battery = QUICK_BATTERY if quick else BATTERY
    cases = [case_of(text) for text in federations] if federations else battery
    ready, missing = ready_cases(cases, settings, quick)
    for name, reason in missing.items():
        note(f"{name} is left out: {reason}")
    with measurement_folder(out, OWN) as folder:
        report = _measure(ready, plan, folder.path, missing, note)
        folder.write("choices.parquet", pd.DataFrame([choice.model_dump() for choice in report.choices]).to_parquet)
        folder.write_text("result.json", report.model_dump_json(indent=2) + "\n")
    return report


def _measure(cases: Sequence[ReadyCase], plan: Plan, out: Path, missing: Mapping[str, str], note: Note) -> ChoiceReport:
    unavailable = {
        chooser.name: reason
        for chooser in plan.choosers
        if (reason := chooser.unavailable(cases[0].config, out)) is not None
    }
    able = [chooser for chooser in plan.choosers if chooser.name not in unavailable]
    found = [_choose_alone(ready, plan, able, out, note) for ready in cases]
    if not any(_earlier(found, picks) for picks in found):
        reason = "no searcher was run on another federation, from which to learn"
        unavailable |= {chooser.name: reason for chooser in able if chooser.is_warm}
    measured: list[tuple[MeasuredFederation, list[Choice]]] = []
    for picks in found:
        with open_laboratory(picks.ready, out) as laboratory:
            for chooser in able:
                if chooser.is_warm and chooser.name not in unavailable:
                    _choose(chooser, laboratory, picks, plan, _earlier(found, picks), note)
            note(f"{laboratory.name}: fresh seeds")
            measured.append(_measured(laboratory, picks, plan))
    choices = [choice for _, ours in measured for choice in ours]
    return ChoiceReport(
        summary=tuple(
            summarise(chooser.name, choices)
            for chooser in able
            if any(choice.chooser == chooser.name for choice in choices)
        ),
        federations=tuple(federation for federation, _ in measured),
        choices=tuple(choices),
        unavailable=unavailable,
        missing=missing,
        num_search_seeds=plan.num_search_seeds,
        num_fresh_seeds=plan.num_fresh_seeds,
    )


def _choose_alone(ready: ReadyCase, plan: Plan, able: Sequence[Chooser], out: Path, note: Note) -> _Picks:
    """Find the oracle, and let those choose who need no other federation."""
    with open_laboratory(ready, out) as laboratory:
        oracle = find_oracle(laboratory, plan.density, lambda text: note(f"{laboratory.name}: {text}"))
        picks = _Picks(ready, oracle)
        for chooser in able:
            if not chooser.is_warm:
                _choose(chooser, laboratory, picks, plan, {}, note)
    return picks


def _earlier(found: Sequence[_Picks], present: _Picks) -> dict[int, list[Archived]]:
    """Return the studies of the other federations, by seed."""
    others = [picks for picks in found if picks is not present]
    seeds = {seed for picks in others for seed in picks.searched}
    return {seed: [study for picks in others for study in picks.searched.get(seed, ())] for seed in seeds}


def _choose(
    chooser: Chooser,
    laboratory: Laboratory,
    picks: _Picks,
    plan: Plan,
    earlier: Mapping[int, Sequence[Archived]],
    note: Note,
) -> None:
    note(f"{laboratory.name}: {chooser.name}")
    for seed in search_seeds(plan.num_search_seeds):
        choosing = Choosing(laboratory, seed, earlier.get(seed, ()))
        try:
            picks.picks[chooser.name, seed] = chooser.choose(choosing)
        except RecommenderError as error:
            picks.failures[chooser.name] = str(error)
            continue
        if not chooser.is_warm:
            picks.searched.setdefault(seed, []).extend(choosing.searched)


def _measured(laboratory: Laboratory, found: _Picks, plan: Plan) -> tuple[MeasuredFederation, list[Choice]]:
    """Train what was picked on the fresh seeds."""
    oracle = found.oracle
    fresh = other_seeds("fresh", plan.num_fresh_seeds)
    tuned = _tuned(laboratory, plan, fresh)
    references = laboratory.scores([Pick(spec) for spec in (oracle.best, oracle.worst, BASELINE)], fresh)
    training, search = laboratory.config.training, laboratory.config.search
    level = Level(
        oracle=float(references[0].mean()),
        worst=float(references[1].mean()),
        fedavg=tuple(references[2].tolist()),
        beyond_tuned=TunedGain.of(references[0].tolist(), tuned),
        resolution=laboratory.resolution(fresh),
        test_to_train=tested_to_trained(training.test_fraction, search.validation_fraction),
    )
    scores = laboratory.scores(list(found.picks.values()), fresh)
    choices = []
    for ((chooser, seed), pick), accuracies in zip(found.picks.items(), scores, strict=True):
        accuracy, difference = float(accuracies.mean()), level.versus_fedavg(accuracies.tolist())
        choices.append(
            Choice(
                federation=laboratory.name,
                chooser=chooser,
                seed=seed,
                pick=str(pick),
                cost=pick.cost,
                archive=pick.archive,
                accuracy=accuracy,
                regret_worst=level.regret_worst(accuracy),
                regret_fedavg=level.regret_fedavg(accuracy),
                regret_tuned=level.regret_tuned(accuracy),
                difference=difference.mean,
                difference_low=difference.low,
                difference_high=difference.high,
            )
        )
    federation = MeasuredFederation(
        name=laboratory.name,
        arguments=found.ready.arguments,
        num_rounds=laboratory.config.training.num_rounds,
        fedavg=fmean(level.fedavg),
        tuned=fmean(tuned),
        oracle=level.oracle,
        beyond_tuned=level.beyond_tuned,
        worst=level.worst,
        best=str(oracle.best),
        grid_size=oracle.grid_size,
        failures=found.failures,
    )
    return federation, choices


def _tuned(laboratory: Laboratory, plan: Plan, fresh: Sequence[int]) -> list[float]:
    """Return tuned FedAvg's accuracy on each fresh seed, the mean over its choices on the search seeds."""
    picks = [TUNED.choose(Choosing(laboratory, seed)) for seed in search_seeds(plan.num_search_seeds)]
    found: list[float] = laboratory.scores(picks, fresh).mean(axis=0).tolist()
    return found
