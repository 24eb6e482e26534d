"""How well does a choice carry over? The same search on originals and on their look-alikes, all judged on the original.

For each federation of the battery: detection on the original writes the report that a look-alike is built from, once
of the other half of the same data and once of another data set. The same search with the same budget chooses on the
original and on both look-alikes. Of what did best on a look-alike, the first `NUM_FINALISTS` also meet the original on
the search's seed, and so does the very first at each of `RATES`, the grid's client rates; the best of each is a choice
of its own. All that was picked, the oracle of a grid, tuned and
plain FedAvg, and what the rules say of the same report, are trained on the original on fresh seeds.

Trials are kept in ordinary logs, each trained once, so a measurement that was cut off goes on:

OUT/studies/        trials and reports, by federation
OUT/diagnoses/      the reports that look-alikes are built from
OUT/result.json     the last measurement
OUT/result.md       the same as Markdown, as it is printed
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, DataError, UserError
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS, Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import (
    Laboratory,
    Pick,
    measurement_folder,
    open_laboratory,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.benchmarks.choice.joint_grid import RATES, fedavg_rates, joint_grid
from fedscout.experiments.benchmarks.look_alikes.look_alike_battery import LookAlikeCase, look_alike, original
from fedscout.experiments.benchmarks.look_alikes.look_alike_regret import (
    CarriedChoice,
    LookAlikeReport,
    Nearness,
    OriginalLevel,
    summarise,
)
from fedscout.experiments.benchmarks.look_alikes.look_alike_tables import table_lines
from fedscout.search.recommenders.rules import recommend_by_rules
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import StrategySpec

OWN = ("diagnoses", "result.json", "result.md")
NUM_FINALISTS = 3
GRID_FINALISTS = 10
GRID_SEEDS = 4
"""The whole grid runs on the first, its best on all."""

NO_SEARCHES = ("FedAvg", "tuned FedAvg", "rules")
"""Choosers that try nothing, or one thing at several rates."""

ON_ORIGINAL = "on the original"
ON_SAME = "on the look-alike, same data"
ON_OTHER = "on the look-alike, other data"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        search: The chooser of `fedscout bench choice` that searches.
        num_search_seeds: Choices on each federation.
        num_fresh_seeds: On which every pick is judged, >= 2.
    """

    search: str = "genetic 16"
    num_search_seeds: int = 2
    num_fresh_seeds: int = 5


def plan_of(search: str, num_search_seeds: int, num_fresh_seeds: int) -> Plan:
    """Return what is measured.

    Raises:
        ConfigurationError: If there is no such search.
    """
    able = [name for name, chooser in CHOOSERS.items() if chooser.in_tables and not chooser.is_warm]
    able = [name for name in able if name not in NO_SEARCHES]
    if search not in able:
        raise ConfigurationError(f"--chooser must be one of {', '.join(able)}, got {search!r}")
    return Plan(search, num_search_seeds, num_fresh_seeds)


@dataclass(frozen=True)
class _Choice:
    chooser: str
    seed: int
    spec: StrategySpec
    real: float
    simulated: float


def run_look_alikes(
    cases: Sequence[LookAlikeCase], plan: Plan, settings: Sequence[str], out: Path, note: Note = lambda _: None
) -> LookAlikeReport:
    """Measure every federation, and write the result into the folder.

    Args:
        cases: The federations.
        plan: How often, and by what.
        settings: Arguments that hold everywhere.
        out: The folder; continued if it holds an earlier measurement.
        note: Told what is done next.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    levels: dict[str, OriginalLevel] = {}
    nearness: dict[str, Nearness] = {}
    choices: list[CarriedChoice] = []
    missing: dict[str, str] = {}
    with measurement_folder(out, OWN) as folder:
        for case in cases:
            try:
                level, near, own = _measure(case, plan, settings, folder.path, note)
            except UserError as error:
                if not (case.case.needs_files and isinstance(error, DataError)):
                    raise
                missing[case.name] = str(error)
                note(f"{case.name} is left out: {error}")
                continue
            levels[case.name], nearness[case.name] = level, near
            choices += own
        report = LookAlikeReport(
            search=plan.search,
            levels=levels,
            nearness=nearness,
            choices=tuple(choices),
            summary=tuple(summarise(name, choices) for name in dict.fromkeys(each.chooser for each in choices)),
            missing=missing,
            num_search_seeds=plan.num_search_seeds,
            num_fresh_seeds=plan.num_fresh_seeds,
        )
        folder.write_text("result.json", report.model_dump_json(indent=2) + "\n")
        folder.write_text("result.md", "\n".join(table_lines(report)) + "\n")
    return report


def _measure(
    case: LookAlikeCase, plan: Plan, settings: Sequence[str], out: Path, note: Note
) -> tuple[OriginalLevel, Nearness, list[CarriedChoice]]:
    ready, proxy = original(case, settings)
    with ExitStack() as stack:
        there = stack.enter_context(open_laboratory(ready, out))
        note(f"{case.name}: detection")
        diagnosis = _written(there.report(0), case.name, out)
        alikes = {
            ON_SAME: stack.enter_context(open_laboratory(look_alike(case, diagnosis, proxy, settings), out)),
            ON_OTHER: stack.enter_context(open_laboratory(look_alike(case, diagnosis, None, settings), out)),
        }
        picks = []
        for seed in search_seeds(plan.num_search_seeds):
            note(f"{case.name}: search, seed {seed}")
            picks += _choices(there, alikes, plan.search, seed)
        note(f"{case.name}: grid")
        oracle, tuned = _references(there)
        note(f"{case.name}: fresh seeds")
        fresh = other_seeds("fresh", plan.num_fresh_seeds)
        best, rate, fedavg = there.scores([Pick(oracle), Pick(tuned), Pick(BASELINE)], fresh).tolist()
        level = OriginalLevel(oracle=tuple(best), tuned=tuple(rate), fedavg=tuple(fedavg), best=str(oracle))
        scores = there.scores([Pick(each.spec) for each in picks], fresh).mean(axis=1)
        carried = [_carried(case.name, each, float(one), level) for each, one in zip(picks, scores, strict=True)]
        return level, _nearness(there, [*alikes.values()]), carried


def _written(report: HeterogeneityReport, name: str, out: Path) -> str:
    """Write the report of an original, and return its file."""
    file = out / "diagnoses" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(report.model_dump_json(indent=2) + "\n")
    return str(file)


def _choices(there: Laboratory, alikes: dict[str, Laboratory], search: str, seed: int) -> list[_Choice]:
    """Return what each way to choose picks on one seed of a search."""
    situation = Choosing(there, seed).situation()
    direct, _, cost = _searched(there, search, seed)
    found = [
        _Choice("FedAvg", seed, BASELINE, 0.0, 0.0),
        _Choice("rules", seed, recommend_by_rules(situation).spec, 0.0, 0.0),
        _Choice(ON_ORIGINAL, seed, direct, cost, 0.0),
    ]
    for name, alike in alikes.items():
        pick, finalists, cost = _searched(alike, search, seed)
        at_rates = [pick.with_values({"client_learning_rate": rate}) for rate in RATES]
        found.append(_Choice(name, seed, pick, 0.0, cost))
        for what, specs in ((f"{NUM_FINALISTS} finalists", finalists), (f"at {len(RATES)} rates", at_rates)):
            found.append(_Choice(f"{name}, {what}", seed, _best(there, specs, [seed]), float(len(specs)), cost))
    return found


def _searched(laboratory: Laboratory, search: str, seed: int) -> tuple[StrategySpec, list[StrategySpec], float]:
    """Return what a search picks, the first of what it tried, the pick included, and its cost in full trainings."""
    choosing = Choosing(laboratory, seed)
    pick = CHOOSERS[search].choose(choosing)
    tried = [spec for each in choosing.searched for spec, _ in each.study.gains]
    return pick.spec, list(dict.fromkeys([pick.spec, *tried]))[:NUM_FINALISTS], pick.cost


def _references(there: Laboratory) -> tuple[StrategySpec, StrategySpec]:
    """Return the oracle of the grid and FedAvg at its best client rate."""
    grid = joint_grid(there.space)
    seeds = other_seeds("oracle", GRID_SEEDS)
    first = there.scores([Pick(spec) for spec in grid], seeds[:1])[:, 0]
    finalists = [grid[place] for place in np.argsort(-first, kind="stable")[:GRID_FINALISTS]]
    best, tuned = (_best(there, specs, seeds) for specs in (finalists, fedavg_rates(there.space, grid)))
    return best, tuned


def _best(there: Laboratory, specs: Sequence[StrategySpec], seeds: Sequence[int]) -> StrategySpec:
    return specs[int(np.argmax(there.scores([Pick(spec) for spec in specs], seeds).mean(axis=1)))]


def _carried(federation: str, choice: _Choice, accuracy: float, level: OriginalLevel) -> CarriedChoice:
    return CarriedChoice(
        federation=federation,
        chooser=choice.chooser,
        seed=choice.seed,
        pick=str(choice.spec),
        real=choice.real,
        simulated=choice.simulated,
        accuracy=accuracy,
        regret_tuned=level.regret_tuned(accuracy),
        regret_fedavg=level.regret_fedavg(accuracy),
        versus_tuned=accuracy - float(np.mean(level.tuned)),
    )


def _nearness(there: Laboratory, alikes: Sequence[Laboratory]) -> Nearness:
    reports = [laboratory.report(0) for laboratory in (there, *alikes)]
    found = [report.calibrated_finding("feature_skew") for report in reports]
    return Nearness(
        label_hellinger=tuple(report.metrics.label_hellinger for report in reports),
        feature_wasserstein=tuple(report.metrics.feature_wasserstein for report in reports),
        shift=tuple(max((own.effect for own in one.clients.values()), default=None) if one else None for one in found),
        scale=tuple(float(alike.ready.federation.facts["like"]["scale"]) for alike in alikes),
    )
