"""What a table of trials says: how much there is to win beyond tuned FedAvg, and how much of it each chooser finds.

    R_t = (oracle − pick) / (oracle − tuned FedAvg)     what of the gain that a step size does not give was lost
    R_f = (oracle − pick) / (oracle − FedAvg)           the same against FedAvg as the study has it

R_t is told where its denominator is at least 0.01 and more than twice its standard error over the seeds, R_f where its
denominator is at least 0.02. On how many federations there is that much to win is a result of its own. How picks and
references are judged without flattery: `replay`. A pick is *below* where it is more than a point below tuned FedAvg on
average, and the 95 % interval of the difference, over the seeds that judge, lies below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.benchmarks.choice.choice_archives import Archived
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS, Chooser, Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import Pick
from fedscout.experiments.benchmarks.choice.choice_regret import (
    BootstrapMean,
    TunedGain,
    bootstrap_mean,
    regret_fedavg,
)
from fedscout.experiments.benchmarks.choice.joint_battery import SPACE, Half, federations_of_half
from fedscout.experiments.benchmarks.choice.own_searcher import own_chooser
from fedscout.experiments.benchmarks.choice.replay import ReplayLaboratory
from fedscout.experiments.benchmarks.choice.trial_table import PUBLISHED, FederationTrials, read_table
from fedscout.experiments.federations.models.imported_model import is_import_path
from fedscout.search.confirmation.intervals import PairedDifference, paired_difference
from fedscout.search.measure import ACCURACY

ONE_POINT = 0.01


class TabledGain(BaseModel, frozen=True):
    """What there is to win on one federation.

    Attributes:
        name: Of the federation.
        half: Of the battery.
        fedavg: Mean accuracy over seeds of FedAvg as the study has it.
        tuned: Of FedAvg at its best client rate, the rate chosen on other seeds than the judging one.
        oracle: Of the best configuration, chosen likewise.
        standard_error: Of `oracle − tuned` over the seeds.
        best: The configuration of largest mean over all seeds.
    """

    name: str
    half: Half
    fedavg: float
    tuned: float
    oracle: float
    standard_error: float
    best: str

    @property
    def beyond_tuned(self) -> TunedGain:
        """What the oracle gains on tuned FedAvg."""
        return TunedGain(mean=self.oracle - self.tuned, standard_error=self.standard_error)

    @property
    def is_to_win(self) -> bool:
        """Whether anything beats tuned FedAvg by a point or more, beyond noise."""
        return self.beyond_tuned.is_to_win


class ReplayedChoice(BaseModel, frozen=True):
    """One chooser on one federation and search seed, judged by the other seeds.

    Attributes:
        cost: In full trainings beside one of FedAvg.
        archive: Full trainings elsewhere on which it rests (`choice_archives`).
        regret_tuned: R_t; None where there is nothing to win.
        regret_fedavg: R_f, likewise.
        versus_tuned: Mean difference to tuned FedAvg.
    """

    federation: str
    half: Half
    chooser: str
    seed: int
    pick: str
    cost: float
    archive: float
    regret_tuned: float | None
    regret_fedavg: float | None
    versus_tuned: float


class ReplaySummary(BaseModel, frozen=True):
    """One chooser over one half of the battery; `below` counts federations."""

    chooser: str
    half: Half
    cost: float
    archive: float
    regret_tuned: BootstrapMean | None
    regret_fedavg: BootstrapMean | None
    versus_tuned: BootstrapMean | None
    below: tuple[str, ...]
    num_federations: int


class ReplayReport(BaseModel, frozen=True):
    """All of it."""

    gains: tuple[TabledGain, ...]
    choices: tuple[ReplayedChoice, ...]
    summary: tuple[ReplaySummary, ...]


@dataclass(frozen=True)
class Judged:
    """A choice, its difference to tuned FedAvg on each seed that judges, and one test row's share of its accuracy."""

    choice: ReplayedChoice
    differences: Mapping[int, float]
    resolution: float


def gain_of(laboratory: ReplayLaboratory) -> TabledGain:
    """Return what there is to win on a federation."""
    return TabledGain(
        name=laboratory.name,
        half=laboratory.about.half,
        fedavg=float(laboratory.baseline.mean()),
        tuned=float(laboratory.tuned.mean()),
        oracle=float(laboratory.oracle.mean()),
        standard_error=TunedGain.of(laboratory.oracle.tolist(), laboratory.tuned.tolist()).standard_error,
        best=str(laboratory.best),
    )


def replay(
    table: Sequence[FederationTrials],
    choosers: Sequence[Chooser],
    settings: Sequence[str] = SPACE,
    note: Callable[[str], None] = lambda _: None,
) -> ReplayReport:
    """Have every chooser choose on every federation and seed of a table, in studies of these settings.

    Warm choosers learn from the development federations alone, and there from the others.
    """
    laboratories = [ReplayLaboratory(federation, settings) for federation in table]
    gains = {laboratory.name: gain_of(laboratory) for laboratory in laboratories}
    earlier: dict[int, list[Archived]] = {}
    judged: list[Judged] = []
    for chooser in sorted(choosers, key=lambda each: each.is_warm):
        note(chooser.name)
        for laboratory in laboratories:
            for seed in laboratory.federation.seeds:
                choosing = Choosing(laboratory, seed, earlier.get(seed, ()) if chooser.is_warm else ())
                pick = chooser.choose(choosing)
                if laboratory.about.half == "development" and not chooser.is_warm:
                    earlier.setdefault(seed, []).extend(choosing.searched)
                judged.append(judged_pick(laboratory, gains[laboratory.name], chooser.name, seed, pick))
    order = {chooser.name: place for place, chooser in enumerate(choosers)}
    judged.sort(key=lambda each: order[each.choice.chooser])
    return ReplayReport(
        gains=tuple(gains.values()),
        choices=tuple(each.choice for each in judged),
        summary=tuple(_summaries(judged)),
    )


def run_replay(
    table: str,
    choosers: Sequence[str] | None,
    half: str | None,
    settings: Sequence[str],
    strategies_alone: bool,
    note: Callable[[str], None] = lambda _: None,
) -> ReplayReport:
    """Replay named choosers, or all built-in ones whose picks a table may hold, on a table.

    Args:
        table: Its file, or `published`.
        choosers: Their names; `package.module:Class` is a searcher of the user's own.
        half: `development` or `held-out` federations alone.
        settings: Arguments that hold on every federation.
        strategies_alone: Whether the clients' settings are the study's own; else the joint space is searched.
        note: Told who chooses.

    Raises:
        UserError: If something of it can't be used.
    """
    wanted = {each.half for each in federations_of_half(half)}
    built_in = {name: chooser for name, chooser in CHOOSERS.items() if chooser.in_tables}
    replayed = [_chooser(name, built_in) for name in choosers or built_in]
    found = read_table(PUBLISHED if table == "published" else Path(table))
    # warm choosers learn from the development federations, whichever half is told of
    report = replay(found, replayed, (*(() if strategies_alone else SPACE), *settings), note)
    return ReplayReport(
        gains=tuple(each for each in report.gains if each.half in wanted),
        choices=tuple(each for each in report.choices if each.half in wanted),
        summary=tuple(each for each in report.summary if each.half in wanted),
    )


def _chooser(name: str, built_in: Mapping[str, Chooser]) -> Chooser:
    if is_import_path(name):
        return own_chooser(name)
    if name not in built_in:
        raise ConfigurationError(
            Fault(
                "--chooser of a replay",
                f"be one of {', '.join(built_in)}, or the package.module:Class of a searcher",
                repr(name),
            )
        )
    return built_in[name]


def judged_pick(laboratory: ReplayLaboratory, gain: TabledGain, chooser: str, seed: int, pick: Pick) -> Judged:
    """Judge what a chooser picked on one seed by the others."""
    scores = laboratory.federation.scores[laboratory.places(pick)]
    judges = [place for place, each in enumerate(laboratory.federation.seeds) if each != seed]
    lost = float((laboratory.oracle - scores)[judges].mean())
    differences = {laboratory.federation.seeds[place]: float((scores - laboratory.tuned)[place]) for place in judges}
    choice = ReplayedChoice(
        federation=laboratory.name,
        half=gain.half,
        chooser=chooser,
        seed=seed,
        pick=str(pick),
        cost=pick.cost,
        archive=pick.archive,
        regret_tuned=gain.beyond_tuned.regret(lost),
        regret_fedavg=regret_fedavg(lost, gain.oracle - gain.fedavg),
        versus_tuned=float(np.mean([*differences.values()])),
    )
    return Judged(choice, differences, laboratory.resolution)


def _summaries(judged: Sequence[Judged]) -> Iterable[ReplaySummary]:
    halves: tuple[Half, ...] = ("development", "held out")
    for half in halves:
        for chooser in dict.fromkeys(each.choice.chooser for each in judged):
            own = [each for each in judged if (each.choice.chooser, each.choice.half) == (chooser, half)]
            if own:
                yield _summary(chooser, half, own)


def _summary(chooser: str, half: Half, own: Sequence[Judged]) -> ReplaySummary:
    groups: dict[str, list[Judged]] = {}
    for each in own:
        groups.setdefault(each.choice.federation, []).append(each)

    def mean(of: Callable[[ReplayedChoice], float | None]) -> BootstrapMean | None:
        values = {name: [of(each.choice) for each in group] for name, group in groups.items()}
        return bootstrap_mean({name: [v for v in each if v is not None] for name, each in values.items()})

    return ReplaySummary(
        chooser=chooser,
        half=half,
        cost=float(np.mean([each.choice.cost for each in own])),
        archive=float(np.mean([each.choice.archive for each in own])),
        regret_tuned=mean(lambda choice: choice.regret_tuned),
        regret_fedavg=mean(lambda choice: choice.regret_fedavg),
        versus_tuned=mean(lambda choice: choice.versus_tuned),
        below=tuple(name for name, group in groups.items() if _is_below(group)),
        num_federations=len(groups),
    )


def _is_below(group: Sequence[Judged]) -> bool:
    """Whether a chooser's picks on a federation are below tuned FedAvg."""
    versus = versus_tuned(group)
    return versus.mean < -ONE_POINT and versus.verdict < 0


def versus_tuned(group: Sequence[Judged]) -> PairedDifference:
    """Compare picks on one federation with tuned FedAvg; a seed judges the mean of the picks of all others."""
    by_seed: dict[int, list[float]] = {}
    for each in group:
        for seed, difference in each.differences.items():
            by_seed.setdefault(seed, []).append(difference)
    means = [float(np.mean(differences)) for differences in by_seed.values()]
    return paired_difference(means, [0.0] * len(means), resolution=group[0].resolution, span=ACCURACY.span)
