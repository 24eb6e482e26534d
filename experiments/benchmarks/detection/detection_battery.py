"""How often detection is right: published and calibrated rules on many federations whose truth is known.

A battery is data sets × cases × numbers of clients × seeds (`battery_federations`). Each figure is over the federations
in which it has a meaning:

- **Recall**, where there is something to find: the rule finds it; of outliers, it flags every affected client.
- **False alarms**, where there is nothing of the kind: the rule finds it nevertheless.
- **Blamed**, where some clients are affected: the rule flags one that is not.

Clients may miss exchanges (`absent_clients`): an affected client that never told of its labels is none of those to be
found. Beside the detectors a rival may be asked that the program does not have (`shared_set`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from fedscout.detectors import CalibratedFinding, Finding
from fedscout.detectors.report import DetectorName
from fedscout.engine.errors import ConfigurationError, Fault, UserError
from fedscout.engine.trials.trial_runner import OpensGrids
from fedscout.experiments.benchmarks.detection.absent_clients import AbsentClients
from fedscout.experiments.benchmarks.detection.battery_federations import (
    BUNDLED,
    CASES,
    DEVELOPMENT,
    HELD_OUT,
    DataSource,
    Truth,
    case_arguments,
)
from fedscout.experiments.benchmarks.detection.shared_set import SETTINGS, shared_set_findings
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.federations.datasets.loaders.dataset_table import load_dataset

DETECTORS: Final[tuple[DetectorName, ...]] = ("label_skew", "feature_skew", "outliers")
SEEDS_APART = 10_000


@dataclass(frozen=True)
class BatteryPlan:
    """What is run: so many federations of each cell of data sets, scenarios and numbers of clients.

    No two scenarios have the same seed, so that no deal of the rows counts twice.

    Attributes:
        sources: Data sets.
        num_clients: Numbers of clients.
        seeds: Federations of each cell.
        scenarios: Cases.
        settings: `key=value`, of all federations.
        absent: Probability that a client misses an exchange, in `[0, 1)`.
        shared_set: Whether the rival is asked, too; the server then holds rows.
    """

    sources: tuple[DataSource, ...]
    num_clients: tuple[int, ...]
    seeds: int
    scenarios: tuple[str, ...] = tuple(CASES)
    settings: tuple[str, ...] = ()
    absent: float = 0.0
    shared_set: bool = False


SMALL = BatteryPlan(BUNDLED, (4, 10), seeds=3)
FULL = BatteryPlan(DEVELOPMENT + HELD_OUT, (4, 10, 50, 100), seeds=5)


def battery_plan(
    full: bool,
    datasets: Sequence[str],
    num_clients: Sequence[int],
    scenarios: Sequence[str],
    seeds: int | None,
    settings: Sequence[str] = (),
    held_out: bool = False,
    absent: float = 0.0,
    shared_set: bool = False,
) -> BatteryPlan:
    """Return the bundled or the full plan, with whatever is given in the place of its own; data sets as `NAME[:ROWS]`.

    Those held out alone are taken if `held_out`.

    Raises:
        ConfigurationError: If there is no such scenario, or rows are no number.
    """
    plan = FULL if full else SMALL
    if unknown := [name for name in scenarios if name not in CASES]:
        raise ConfigurationError(Fault("--scenario", f"be one of {', '.join(CASES)}", ", ".join(unknown)))
    return BatteryPlan(
        tuple(_source(name) for name in datasets) or (HELD_OUT if held_out else plan.sources),
        tuple(num_clients) or plan.num_clients,
        plan.seeds if seeds is None else seeds,
        tuple(scenarios) or plan.scenarios,
        (*(SETTINGS if shared_set else ()), *settings),
        absent,
        shared_set,
    )


def _source(text: str) -> DataSource:
    name, colon, rows = text.rpartition(":")
    if not colon or "/" in rows:
        return DataSource(text)
    if not rows.isdecimal() or int(rows) < 2:
        raise ConfigurationError(Fault("--dataset", "be a name, or NAME:ROWS with a number of rows >= 2", repr(text)))
    return DataSource(name, int(rows))


class Verdict(BaseModel, frozen=True):
    """What one rule of one detector made of one federation.

    Attributes:
        measured: Whether it could say anything. If not it found nothing.
        found: Whether it found what there was; None where nothing was to be found, or that is open.
        false_alarm: Whether it found what was not there; None where an alarm would not be false, or that is open.
        blamed: Whether it flagged a client that is like the others; None where no clients alone are affected.
    """

    measured: bool
    found: bool | None = None
    false_alarm: bool | None = None
    blamed: bool | None = None


class BatteryRun(BaseModel, frozen=True):
    """What the two rules made of one federation, by detector; of outliers, also the rival's two rules, if asked."""

    dataset: str
    scenario: str
    num_clients: int
    seed: int
    published: Mapping[DetectorName, Verdict]
    calibrated: Mapping[DetectorName, Verdict]
    shared_votes: Verdict | None = None
    shared_exchanged: Verdict | None = None


class Battery(BaseModel, frozen=True):
    """A battery that was run, and the cells that the data do not allow, with the reason."""

    runs: tuple[BatteryRun, ...]
    impossible: Mapping[str, str]


def run_battery(plan: BatteryPlan, note: Callable[[str], None] = lambda _: None) -> Battery:
    """Run detection on every federation of a plan, in this process; `note` is told which cell is next.

    Raises:
        UserError: If a setting is wrong, or a data set can't be read: before any is run.
    """
    for source in plan.sources:
        first = _arguments(source, plan.scenarios[0], max(plan.num_clients), seed=0)
        load_dataset(load_config([*first, *plan.settings]).federation)
    runs: list[BatteryRun] = []
    impossible: dict[str, str] = {}
    for source in plan.sources:
        readable = False
        for scenario, clients in ((scenario, clients) for scenario in plan.scenarios for clients in plan.num_clients):
            cell = f"{source.name}, {scenario}, {clients} clients"
            if clients < CASES[scenario].min_clients:
                continue
            note(cell)
            try:
                runs += _cell(plan, source, scenario, clients)
                readable = True
            except UserError as error:
                impossible[cell] = str(error)
        if not readable:
            raise UserError([reason for cell, reason in impossible.items() if cell.startswith(f"{source.name},")][:1])
    return Battery(runs=tuple(runs), impossible=impossible)


def _cell(plan: BatteryPlan, source: DataSource, scenario: str, clients: int) -> Iterator[BatteryRun]:
    """Run detection on the federations of one data set, scenario and number of clients."""
    from fedscout.experiments.studies.workflow import Display, Road, measure

    first = SEEDS_APART * list(CASES).index(scenario)
    seeds = range(first, first + plan.seeds)
    truth = CASES[scenario].truth
    for config in [load_config([*_arguments(source, scenario, clients, seed), *plan.settings]) for seed in seeds]:
        road = Road(config, Display())
        with road.place(config.detection.num_rounds) as runner:
            asked: OpensGrids = AbsentClients(runner, plan.absent, config.seed) if plan.absent else runner
            report = measure(asked, config)
            rival = shared_set_findings(asked, config, report) if plan.shared_set else ()
        answered = {facts.client for facts in report.clients}
        affected = [client for client in road.federation.affected_clients if client in answered]
        published, calibrated = (
            {finding.name: verdict(finding, truth, affected) for finding in findings}
            for findings in (report.findings, report.calibrated)
        )
        rivals = [verdict(finding, truth, affected) for finding in rival]
        yield BatteryRun(
            dataset=source.name,
            scenario=scenario,
            num_clients=clients,
            seed=config.federation.seed,
            published=published,
            calibrated=calibrated,
            shared_votes=rivals[0] if rivals else None,
            shared_exchanged=rivals[1] if rivals else None,
        )


def _arguments(source: DataSource, scenario: str, clients: int, seed: int) -> list[str]:
    sample = source.sampled(clients)
    rows = [] if sample is None else [f"federation.max_rows={sample}"]
    federation = [f"federation.dataset={source.name}", f"federation.num_clients={clients}", f"federation.seed={seed}"]
    return [*federation, f"seed={seed}", "engine.grid=local", *rows, *case_arguments(scenario, clients)]


def verdict(finding: Finding | CalibratedFinding, truth: Truth, affected: Sequence[int]) -> Verdict:
    """Compare one finding with the truth; see the module. `affected` are those that answered."""
    true, flagged, measured = truth[finding.name], set(finding.flagged_clients), finding.measured
    if truth["outliers"] and not affected:
        return Verdict(measured=measured)
    if true is False:
        return Verdict(measured=measured, false_alarm=finding.detected)
    attackers = set(affected) if truth["outliers"] else set()
    blamed = not flagged <= attackers if attackers else None
    if finding.name == "outliers":
        return Verdict(measured=measured, found=attackers <= flagged, blamed=blamed)
    return Verdict(measured=measured, found=finding.detected if true else None, blamed=blamed)
