"""What a round takes under each strategy, as a multiple of FedAvg's, paired in one process.

Each measurement stands right beside one of FedAvg, of as many rounds, and turns go through all strategies again, so
that other work on the machine disturbs both alike. Time is processor time of this process, its threads included, and
what counts is the median of the turns' ratios, each of two medians over rounds. Clients are those of `peers/work.py`,
in this process, without Ray; the server holds labelled rows. Strategies about batch normalisation are compared with
FedAvg on the same net with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from pydantic import BaseModel

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.engine_config import EngineConfig
from fedscout.engine.errors import UserError
from fedscout.engine.trials.trial_runner import TrialRunner
from fedscout.experiments.benchmarks.engine_bench import Note
from fedscout.experiments.benchmarks.engine_work import TRAINING, work_federation
from fedscout.experiments.benchmarks.peers.work import Task
from fedscout.experiments.benchmarks.round_times import run_rounds
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.studies.open_runner import open_runner
from fedscout.strategies import (
    ALL,
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    FedAvgSpec,
    StrategySpec,
    parse_strategy,
)

HEADINGS = ("strategy", "times FedAvg", "from … to", "ms a round", "FedAvg, ms", "net")


class StrategyCost(BaseModel, frozen=True):
    """One strategy.

    Attributes:
        strategy: For people.
        batch_norm: Whether the net has batch normalisation.
        ratios: Of its round to FedAvg's, a turn each; empty if it can't be trained.
        round_seconds: Processor time, the median of the turns.
        fedavg_seconds: The same of FedAvg's beside it.
        missing: Why it can't be trained.
    """

    strategy: str
    batch_norm: bool
    ratios: tuple[float, ...] = ()
    round_seconds: float = 0.0
    fedavg_seconds: float = 0.0
    missing: str | None = None

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        net = "batch normalisation" if self.batch_norm else "plain"
        if self.missing is not None:
            return self.strategy, "–", "", "", "", self.missing
        span = f"{min(self.ratios):.2f} … {max(self.ratios):.2f}"
        times = (f"{1000 * seconds:.1f}" for seconds in (self.round_seconds, self.fedavg_seconds))
        return self.strategy, f"{median(self.ratios):.2f}", span, *times, net


def asked_strategies(asked: Sequence[str | Mapping[str, object]] | None) -> list[StrategySpec]:
    """Return the named strategies, or all of the table for `[all]`; FedAvg is beside each anyway.

    Raises:
        StrategyError: If one is unknown.
    """
    named = [*BUILT_IN_KINDS[1:], *CHOSEN_BY_NAME_KINDS] if asked == [ALL] else asked or ()
    return [parse_strategy(each) for each in named]


def strategy_costs(
    task: Task, strategies: Sequence[StrategySpec], turns: int, note: Note = lambda _: None
) -> list[StrategyCost]:
    """Measure strategies in so many turns; `note` is told what is being done."""
    plain = [spec for spec in strategies if not _is_about_batch_norm(spec)]
    normalised = [spec for spec in strategies if _is_about_batch_norm(spec)]
    return [*_costs(task, plain, turns, note), *_costs(task, normalised, turns, note, batch_norm=True)]


def _is_about_batch_norm(spec: StrategySpec) -> bool:
    """Return whether it is possible on a net with batch normalisation alone."""
    possible = [
        spec.unavailable(Cohort(100, 100, 0.1, layers=frozenset(layers), server_rows=None, server_labels=True)) is None
        for layers in ({"Linear"}, {"Linear", "BatchNorm1d"})
    ]
    return possible == [False, True]


def _costs(
    task: Task, strategies: Sequence[StrategySpec], turns: int, note: Note, batch_norm: bool = False
) -> list[StrategyCost]:
    if not strategies:
        return []
    found: dict[StrategySpec, list[tuple[float, float]]] = {spec: [] for spec in strategies}
    missing: dict[StrategySpec, str] = {}
    federation = work_federation(task.name, task.clients, task.samples, batch_norm)
    with open_runner(federation, EngineConfig(grid="local"), None, parallel=1) as lazy:
        runner = lazy.started()
        for turn in range(turns):
            note(f"turn {turn + 1} of {turns}")
            for spec in strategies:
                if spec in missing:
                    continue
                try:
                    found[spec].append((round_seconds(runner, spec, task), round_seconds(runner, FedAvgSpec(), task)))
                except (UserError, RuntimeError) as error:
                    missing[spec] = str(error)
    return [_cost(spec, batch_norm, found[spec], missing.get(spec)) for spec in strategies]


def _cost(
    spec: StrategySpec, batch_norm: bool, times: Sequence[tuple[float, float]], missing: str | None
) -> StrategyCost:
    if missing is not None:
        return StrategyCost(strategy=str(spec), batch_norm=batch_norm, missing=missing)
    own, fedavg = zip(*times, strict=True)
    ratios = tuple(one / other for one, other in times)
    return StrategyCost(
        strategy=str(spec),
        batch_norm=batch_norm,
        ratios=ratios,
        round_seconds=median(own),
        fedavg_seconds=median(fedavg),
    )


def round_seconds(runner: TrialRunner, spec: StrategySpec, task: Task) -> float:
    """Return the median processor time of a strategy's rounds, after a first one that is not counted."""
    ends: list[float] = []
    run_rounds(runner.grid, spec, task.clients, TRAINING, 1 + task.rounds, lambda _: ends.append(time.process_time()))
    return median(after - before for before, after in pairwise(ends))


def cost_lines(task: Task, costs: Sequence[StrategyCost]) -> list[str]:
    """Return the costs for people."""
    return [
        f"{task.name}, {task.clients} clients of {task.samples} rows, one process; processor time",
        "",
        *markdown_table(HEADINGS, [cost.cells() for cost in costs]),
    ]
