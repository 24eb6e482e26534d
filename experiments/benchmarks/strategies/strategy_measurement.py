"""How good is each strategy, and do the papers' claims show? All strategies on every federation, by equal effort.

Each strategy, its parameters at their defaults, gets its client learning rate from one small grid on the same tuning
seeds, and is then trained at that rate on fresh seeds, the same for all. A seed fixes split, initial model and batches,
so differences to FedAvg, tuned likewise, are taken seed by seed, with the interval for new data of `intervals`. A trial
that fails counts at chance, the share of the most frequent class, in tuning as on the fresh seeds.

Trials are kept in the folder by federation (`choice_laboratory`), so that a measurement that was cut off goes on, and
a later one with more strategies or federations trains only what is new. One process uses the folder at a time:

OUT/studies/        trials, by federation
OUT/result.json     the last measurement
OUT/table.md        the same as Markdown, as it is printed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_state import cohort_of
from fedscout.experiments.benchmarks.choice.choice_battery import ready_cases
from fedscout.experiments.benchmarks.choice.choice_laboratory import (
    Laboratory,
    Pick,
    measurement_folder,
    open_laboratory,
    other_seeds,
)
from fedscout.experiments.benchmarks.strategies.strategy_battery import StrategyFederation, federations_of
from fedscout.experiments.benchmarks.strategies.strategy_claims import claims_about, verdict_of
from fedscout.experiments.benchmarks.strategies.strategy_results import (
    MeasuredFederation,
    MeasuredStrategy,
    Ordering,
    StrategiesReport,
)
from fedscout.experiments.benchmarks.strategies.strategy_tables import table_lines
from fedscout.search.confirmation.confirmation import score_of
from fedscout.search.confirmation.confirmation_runs import resolution
from fedscout.search.confirmation.intervals import PairedDifference, paired_difference, tested_to_trained
from fedscout.search.measure import ACCURACY
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, StrategySpec, parse_strategy

RATES = (0.03, 0.1, 0.3, 1.0)
"""Client learning rates, ascending."""
RESULT, TABLE = "result.json", "table.md"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        strategies: FedAvg first, whatever was asked for.
        federations: Of the battery.
        num_seeds: Fresh ones, >= 2.
        num_tuning_seeds: On which each client rate is tried.
    """

    strategies: tuple[StrategySpec, ...]
    federations: tuple[StrategyFederation, ...]
    num_seeds: int = 5
    num_tuning_seeds: int = 2

    def specs_on(self, federation: StrategyFederation) -> dict[str, StrategySpec]:
        """Return what is trained on a federation by name, FedAvg first: all, unless it is there for claims."""
        found: list[StrategySpec] = [BASELINE] if federation.for_claims else [*self.strategies]
        for claim in claims_about(federation.name, (spec.kind for spec in self.strategies)):
            found += claim.specs()
        return {name_of(spec): spec for spec in found}


def plan_of(
    strategies: Sequence[str | Mapping[str, object]] | None,
    federations: Sequence[str] | None,
    num_seeds: int = 5,
    num_tuning_seeds: int = 2,
) -> Plan:
    """Return what is measured: by the named strategies and federations, or all.

    Raises:
        UserError: If a strategy or a federation is unknown, or a strategy says what is tuned.
    """
    asked = strategies if strategies is not None else (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)
    specs = [BASELINE, *map(parse_strategy, asked)]
    if given := [str(spec) for spec in specs if spec.client_learning_rate is not None]:
        raise ConfigurationError(
            f"client_learning_rate must be left out of --strategies, as each strategy's is tuned, got {given[0]}"
        )
    return Plan(
        tuple({name_of(spec): spec for spec in specs}.values()),
        federations_of(federations),
        num_seeds,
        num_tuning_seeds,
    )


def name_of(spec: StrategySpec) -> str:
    """Return the name in the tables: with its parameters where some were given."""
    return str(spec) if spec.model_fields_set - {"kind"} else spec.label


def run_strategies(plan: Plan, settings: Sequence[str], out: Path, note: Note = lambda _: None) -> StrategiesReport:
    """Measure every strategy on every federation, and write the result into the folder.

    Args:
        plan: What is measured.
        settings: Arguments that hold on every federation.
        out: The folder; continued if it holds an earlier measurement.
        note: Told what is done next.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    ready, missing = ready_cases([federation.case for federation in plan.federations], settings, quick=False)
    for name, reason in missing.items():
        note(f"{name} is left out: {reason}")
    by_name = {federation.name: federation for federation in plan.federations}
    parts = []
    with measurement_folder(out, (RESULT, TABLE)) as folder:
        for one in ready:
            chance = chance_level(one.federation)
            with open_laboratory(one, folder.path) as laboratory:
                parts.append(_Part(laboratory, by_name[one.case.name], plan, chance).measured(note))
        report = StrategiesReport(
            strategies=tuple(map(name_of, plan.strategies)),
            federations=tuple(federation for federation, _, _ in parts),
            measured=tuple(cell for _, cells, _ in parts for cell in cells),
            orderings=tuple(ordering for _, _, orderings in parts for ordering in orderings),
            missing=missing,
            rates=RATES,
            num_seeds=plan.num_seeds,
            num_tuning_seeds=plan.num_tuning_seeds,
        )
        folder.write_text(RESULT, report.model_dump_json(indent=2) + "\n")
        folder.write_text(TABLE, "\n".join(table_lines(report)) + "\n")
    return report


def chance_level(federation: Federation) -> float:
    """Return the share of the most frequent class among all clients' rows, with the labels that they have."""
    clients = (federation.client_data(client).own for client in range(federation.num_clients))
    counts = np.sum([client.label_counts(federation.num_classes) for client in clients], axis=0)
    return float(counts.max() / counts.sum())


def faults_of(spec: StrategySpec, laboratory: Laboratory) -> list[str]:
    """Return why a strategy can't be trained on a federation, with its model and clients; empty if it can."""
    settings = laboratory.ledger(laboratory.config).facts.trial("confirmation", spec)
    cohort = cohort_of(settings, laboratory.runner.grid(settings.session))
    return spec.faults(replace(cohort, has_clock=laboratory.cohort.has_clock))


@dataclass(frozen=True)
class _Part:
    """The measurement of one federation."""

    laboratory: Laboratory
    federation: StrategyFederation
    plan: Plan
    chance: float

    def measured(self, note: Note) -> tuple[MeasuredFederation, list[MeasuredStrategy], list[Ordering]]:
        cells: dict[str, MeasuredStrategy] = {}
        for name, spec in self.plan.specs_on(self.federation).items():
            note(f"{self.federation.name}: {name}")
            cells[name] = self._strategy(name, spec)
        step = self._resolution(cells[name_of(BASELINE)])
        compare = partial(self._difference, cells, step)
        compared = [
            cell.model_copy(update={"difference": compare(name, name_of(BASELINE))}) for name, cell in cells.items()
        ]
        config, ready = self.laboratory.config, self.laboratory.ready
        federation = MeasuredFederation(
            name=self.federation.name,
            about=self.federation.about,
            arguments=ready.arguments,
            num_clients=ready.federation.num_clients,
            num_rounds=config.training.num_rounds,
            chance=self.chance,
            resolution=step,
        )
        return federation, compared, self._orderings(compare)

    @property
    def _fresh(self) -> tuple[int, ...]:
        return other_seeds("fresh strategies", self.plan.num_seeds)

    def _strategy(self, name: str, spec: StrategySpec) -> MeasuredStrategy:
        cell = MeasuredStrategy(federation=self.federation.name, strategy=name)
        if faults := faults_of(spec, self.laboratory):
            return cell.model_copy(update={"impossible": "; ".join(faults)})
        seeds = other_seeds("tuning strategies", self.plan.num_tuning_seeds)
        tried = self._scores(self.laboratory.records([Pick(spec, learning_rate=rate) for rate in RATES], seeds))
        means = [float(mean) for mean in np.reshape(tried, (len(RATES), len(seeds))).mean(axis=1)]
        rate = RATES[means.index(max(means))]
        fresh = self.laboratory.records([Pick(spec, learning_rate=rate)], self._fresh)
        return cell.model_copy(
            update={
                "learning_rate": rate,
                "tuning": tuple(means),
                "accuracies": tuple(self._scores(fresh)),
                "failures": tuple(trial.error or "" for trial in fresh if trial.status == "failed"),
            }
        )

    def _scores(self, trials: Sequence[Trial]) -> list[float]:
        view = self.laboratory.config.search.view
        return [score_of(trial, view, self.chance) for trial in trials]

    def _resolution(self, fedavg: MeasuredStrategy) -> float:
        """Return one test row's share, told by trials that are in the log."""
        known = Pick(BASELINE, learning_rate=fedavg.learning_rate)
        return resolution([self.laboratory.records([known], self._fresh)])

    def _difference(
        self, cells: Mapping[str, MeasuredStrategy], step: float, ours: str, theirs: str
    ) -> PairedDifference | None:
        one, other = cells[ours].accuracies, cells[theirs].accuracies
        if not one or not other:
            return None
        training, search = self.laboratory.config.training, self.laboratory.config.search
        shared = tested_to_trained(training.test_fraction, search.validation_fraction)
        return paired_difference(one, other, resolution=step, test_to_train=shared, span=ACCURACY.span)

    def _orderings(self, compare: Callable[[str, str], PairedDifference | None]) -> list[Ordering]:
        found = []
        for claim in claims_about(self.federation.name, (spec.kind for spec in self.plan.strategies)):
            ours, theirs = map(name_of, claim.specs())
            difference = compare(ours, theirs)
            found.append(
                Ordering(
                    federation=self.federation.name,
                    strategy=ours,
                    than=theirs,
                    why=claim.why,
                    difference=difference,
                    verdict=None if difference is None else verdict_of(difference),
                )
            )
        return found
