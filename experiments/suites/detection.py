"""How often detection is right: published and calibrated rules on many federations whose truth is known.

A federation is one of data sets × cases × numbers of clients × seeds. A figure is over those in which it has a meaning:

- **Recall**, where there is something to find: the rule finds it; of outliers, it flags every affected client.
- **False alarms**, where there is nothing of the kind: the rule finds it nevertheless.
- **Blamed**, where some clients are affected: the rule flags one that is not.

| case | label skew | feature skew | outliers |
| --- | --- | --- | --- |
| `iid` | no | no | none |
| `label_skew`, `dirichlet` (α = 0.3) | yes | no | none |
| `rare_client`: the first client holds one class, the others all | yes | open | none |
| `feature_skew` | no | yes | none |
| `noisy_labels`, `label_poisoning` | open | open | the third client |
| `corrupted_client` | open | yes | the third client |
| `two_poisoners`, `three_poisoners`, of five and of seven clients or more | open | open | the first ones |
| `sign_flip` (factor 4), `scaled_update`, `gaussian_update` (0.1) | no | no | the third client |

*Open*: wrong labels change what a client's label counts and classes look like, so whoever says so of that client is
neither right nor wrong.

Clients may miss exchanges (`absent_clients`): an affected client that never told of its labels is none of those to be
found.

Detection among clients of which each misses an exchange at random, as where only a part of them answers.

Whoever misses the first exchange has told of no labels and is asked for nothing more; whoever misses a later one is
left out of what that exchange is about.

False alarms and power of calibrated label skew where clients withhold the counts of small classes.

Label counts are drawn, passed through the release of clients (`fedscout.engine.data.client`), and decided on as in a
detection with its default settings. In one half of the federations all clients draw from one distribution; any finding
is a false alarm, and its rate is to be at most that of one detector. In the other half they do not: by

- Dirichlet: each client's distribution of five classes is drawn from a symmetric Dirichlet distribution;
- one client: the first draws two classes evenly, all others 95 and 5 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from flwr.app import Error, Message
from pydantic import BaseModel

from fedscout.detectors import CalibratedFinding, Finding
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew_calibrated
from fedscout.detectors.report import DetectionConfig, DetectorName
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Release, told_counts
from fedscout.engine.errors import ConfigurationError, Fault, UserError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import CLIENT_FAILED
from fedscout.engine.messages.calls import Session
from fedscout.engine.messages.contents import client_of
from fedscout.engine.seeds import stream
from fedscout.engine.trials.runner import OpensGrids
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import CellContext, Measured, together
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.federation_runner import IN_PROCESS
from fedscout.experiments.grids.methods import Given
from fedscout.experiments.studies.workflow import Display, Pipeline, measure

REASON = "the client misses this exchange"


@dataclass(frozen=True)
class AbsentClients:
    """Opens grids on which clients miss exchanges.

    Attributes:
        runner: Whose grids these are.
        probability: That a client misses an exchange, in `[0, 1)`, independently of others and of other exchanges.
        seed: Of who is absent when.
    """

    runner: OpensGrids
    probability: float
    seed: int

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid whose clients miss exchanges."""
        grid = self.runner.grid(session)
        ask, exchanges = grid.send_and_receive, itertools.count()

        def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            sent = list(messages)
            absent = self.absent(next(exchanges), grid.facts.num_clients)
            missed = [message for message in sent if client_of(message.metadata.dst_node_id) in absent]
            asked = [message for message in sent if client_of(message.metadata.dst_node_id) not in absent]
            refusals = [Message(Error(CLIENT_FAILED, REASON), reply_to=message) for message in missed]
            return [*(ask(asked, timeout=timeout) if asked else ()), *refusals]

        grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
        return grid

    def absent(self, exchange: int, num_clients: int) -> Sequence[int]:
        """Return who misses an exchange."""
        drawn = stream(self.seed, "absent from an exchange", exchange).random(num_clients)
        return [client for client in range(num_clients) if drawn[client] < self.probability]


DETECTORS: tuple[DetectorName, ...] = ("label_skew", "feature_skew", "outliers")
RULES = ("published", "calibrated")
MEASURES = {"recall": "found", "false alarms": "false_alarm", "blamed": "blamed"}
ANY = "any"
SEEDS_APART = 10_000

Truth = Mapping[DetectorName, bool | None]
"""Whether there is label skew, feature skew, and whether the affected clients are outliers; None is open."""


@dataclass(frozen=True)
class Case:
    """One kind of federation.

    Attributes:
        truth: Of it.
        arguments: That make it.
        min_clients: Fewer and affected clients would be half of all.
    """

    truth: Truth
    arguments: tuple[str, ...]
    min_clients: int = 3


def _case(truth: tuple[bool | None, bool | None, bool], *arguments: str, min_clients: int = 3) -> Case:
    label_skew, feature_skew, outliers = truth
    names: Truth = {"label_skew": label_skew, "feature_skew": feature_skew, "outliers": outliers}
    return Case(names, tuple(f"federation.{argument}" for argument in arguments), min_clients)


def _poisoners(num_attackers: int) -> Case:
    effect = f"scenario={{kind: poisoning, clients: {list(range(num_attackers))}}}"
    return _case((None, None, True), "partition.kind=iid", effect, min_clients=2 * num_attackers + 1)


def _attack(effect: str) -> Case:
    return _case((False, False, True), "partition.kind=iid", f"scenario={{kind: {effect}, clients: [2]}}")


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "iid": _case((False, False, False), "scenario=iid"),
        "label_skew": _case((True, False, False), "scenario=label_skew"),
        "dirichlet": _case((True, False, False), "partition.kind=dirichlet", "partition.alpha=0.3"),
        "feature_skew": _case((False, True, False), "scenario=feature_skew"),
        "noisy_labels": _case((None, None, True), "scenario=noisy_labels"),
        "label_poisoning": _case((None, None, True), "scenario=label_poisoning"),
        "corrupted_client": _case((None, True, True), "scenario=corrupted_client"),
        "rare_client": _case((True, None, False), "partition.kind=heterogeneity_index", "partition.levels={levels}"),
        "two_poisoners": _poisoners(2),
        "three_poisoners": _poisoners(3),
        "sign_flip": _attack("sign_flip, factor: 4"),
        "scaled_update": _attack("scaled_update"),
        "gaussian_update": _attack("gaussian_update, std: 0.1"),
    }
)
"""In an order that decides their seeds: new ones come last."""


def case_arguments(name: str, num_clients: int) -> list[str]:
    """Return the settings that make a federation of a case."""
    levels = [1, *[0] * (num_clients - 1)]
    return [argument.replace("{levels}", str(levels)) for argument in CASES[name].arguments]


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


@dataclass(frozen=True)
class _Federation:
    """What the rules made of one federation, by rule and detector."""

    dataset: str
    case: str
    clients: int
    verdicts: Mapping[tuple[str, str], Verdict]

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is about it."""
        return all(getattr(self, key) == row[key] for key in ("dataset", "case", "clients") if key in row)

    def value(self, detector: str, rule: str, measure_name: str) -> float | None:
        """Return whether a rule was right or wrong, 1 or 0; None where that has no meaning. `any` is any detector."""
        names = [name for name in DETECTORS if detector in (ANY, name)]
        found = [getattr(self.verdicts[rule, name], MEASURES[measure_name]) for name in names]
        known = [each for each in found if each is not None]
        return float(any(known)) if known else None


@dataclass(frozen=True)
class Detections:
    """Recall, false alarms and wrong blame by rule (columns), of detectors on all or some federations (rows).

    A row's arguments are `detector`, or `any`, and what federations it is about: `dataset`, `case`, `clients`. No two
    cases have the same seed, so that no partition counts twice.

    Attributes:
        datasets: Names; with `max_rows`, and `client_rows` at least for each client.
        clients: Numbers of clients.
        cases: Of `CASES`; None is all.
        absent: Probability that a client misses an exchange, in `[0, 1)`.
    """

    datasets: Mapping[str, Mapping[str, int]]
    clients: Sequence[int]
    cases: Sequence[str] | None = None
    absent: float = 0.0

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Run detection on every federation that a row is about."""
        rows = {row: method.arguments for row, method in experiment.rows.items() if isinstance(method, Given)}
        found: list[_Federation] = []
        absent: dict[str, str] = {}
        for dataset, case, clients in product(self.datasets, self.cases or CASES, self.clients):
            if case not in CASES:
                raise ConfigurationError(Fault("cases", f"be of {', '.join(CASES)}", repr(case)))
            wanted = _Federation(dataset, case, clients, {})
            if clients < CASES[case].min_clients or not any(wanted.is_of(row) for row in rows.values()):
                continue
            name = f"{dataset}, {case}, {clients} clients"
            context.note(name)
            try:
                found += self._detected(dataset, case, clients, context)
            except UserError as error:
                absent[name] = str(error)
        if not found and absent:
            raise UserError([next(iter(absent.values()))])
        values: dict[Cell, tuple[float | None, ...]] = {}
        for (row, about), rule, measure_name in product(rows.items(), RULES, MEASURES):
            of_row = [each for each in found if each.is_of(about)]
            column = f"{measure_name}, {rule}"
            values[row, column] = tuple(each.value(about["detector"], rule, measure_name) for each in of_row)
        return Measured(values, absent=absent)

    def _detected(self, dataset: str, case: str, clients: int, context: CellContext) -> Iterator[_Federation]:
        """Yield what is made of the federations of one data set, case and number of clients."""
        sample = self.datasets[dataset]
        rows = max(sample.get("max_rows", 0), sample.get("client_rows", 0) * clients)
        first, truth = SEEDS_APART * list(CASES).index(case), CASES[case].truth
        for seed in range(first, first + context.num_seeds):
            given = [f"federation.dataset={dataset}", f"federation.num_clients={clients}", f"federation.seed={seed}"]
            sampled = [f"federation.max_rows={rows}"] if rows else []
            arguments = [*given, f"seed={seed}", *IN_PROCESS, *sampled, *case_arguments(case, clients)]
            config = load_config([*arguments, *context.settings])
            road = Pipeline(config, Display())
            with road.place(config.detection.num_rounds) as runner:
                asked: OpensGrids = AbsentClients(runner, self.absent, config.seed) if self.absent else runner
                report = measure(asked, config)
            answered = {facts.client for facts in report.clients}
            affected = [client for client in road.federation.affected_clients if client in answered]
            verdicts: dict[tuple[str, str], Verdict] = {
                **{("published", one.name): verdict(one, truth, affected) for one in report.findings},
                **{("calibrated", one.name): verdict(one, truth, affected) for one in report.calibrated},
            }
            yield _Federation(dataset, case, clients, verdicts)


def verdict(finding: Finding | CalibratedFinding, truth: Truth, affected: Sequence[int]) -> Verdict:
    """Compare one finding with the truth; `affected` are those that answered."""
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


SHARES: Final[Mapping[str, tuple[float, ...]]] = {
    "two classes, 0.5 %": (0.995, 0.005),
    "two classes, 2 %": (0.98, 0.02),
    "two classes, 5 %": (0.95, 0.05),
    "five classes, 2 %": (0.4, 0.3, 0.2, 0.08, 0.02),
}
SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    **{f"{clients} × 30": (30,) * clients for clients in (3, 6, 20, 50)},
    **{f"{rows} and 5 × 1,000": (rows, *[1000] * 5) for rows in (15, 25)},
}
CONCENTRATIONS: Final = (0.1, 0.3, 1.0)
NUM_CLASSES: Final = 5

Draw = Callable[[np.random.Generator, int, int], IntArray]
"""Returns label counts, `(classes,)`, of a client by its place and its number of rows."""


def released_counts(table: IntArray, min_release: int) -> ReleasedCounts:
    """Return what clients tell of their label counts, `(clients, classes)`, of at least `min_release` rows each."""
    least = np.full(len(table), min_release)
    return ReleasedCounts(
        tuple(range(len(table))), told_counts(table, min_release).astype(np.int64), table.sum(axis=1), least
    )


def found_skew(
    labels: str, sizes: str, draw: Draw, federations: int, min_release: int, seed: int = 0
) -> tuple[tuple[float, ...], float]:
    """Return in which federations label skew is found, 1 or 0, and the mean share of rows whose class is withheld.

    Args:
        labels: How labels are drawn, by name.
        sizes: Numbers of rows, by name.
        draw: Of a client.
        federations: How many.
        min_release: Fewest rows of a class of which a client tells.
        seed: Of the draws.
    """
    settings = DetectionConfig()
    found, withheld = [], 0.0
    for index in range(federations):
        generator = stream(seed, f"withheld labels: {labels}, {sizes}", index)
        table = np.stack([draw(generator, client, rows) for client, rows in enumerate(SIZES[sizes])])
        released = released_counts(table, min_release)
        withheld += 1 - released.share_told
        decided = decide_label_skew_calibrated(released, settings.detector_rate, settings.label_effect, index)
        found.append(float(decided.detected))
    return tuple(found), withheld / federations


def from_shares(shares: tuple[float, ...]) -> Draw:
    """Return the draw of clients that are alike."""
    return lambda generator, _, rows: generator.multinomial(rows, shares)


def by_dirichlet(concentration: float) -> Draw:
    """Return the draw of clients each of which has a distribution of its own."""
    alpha = np.full(NUM_CLASSES, concentration)
    return lambda generator, _, rows: generator.multinomial(rows, generator.dirichlet(alpha))


def one_client(generator: np.random.Generator, client: int, rows: int) -> IntArray:
    """Draw as all clients but the first do, or as that one."""
    return np.asarray(generator.multinomial(rows, (0.95, 0.05) if client else (0.5, 0.5)))


DRAWS: Final[Mapping[str, Draw]] = {
    **{labels: from_shares(shares) for labels, shares in SHARES.items()},
    **{f"Dirichlet {value:g}": by_dirichlet(value) for value in CONCENTRATIONS},
    "one client": one_client,
}


@dataclass(frozen=True)
class WithheldLabels:
    """Label skew found by how labels are drawn (rows: `labels`, `min_release`) and by clients' rows (columns)."""

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Draw as many federations as there are seeds of clients that are alike, and a quarter as many of others."""
        parts = []
        for row, method in experiment.rows.items():
            assert isinstance(method, Given)
            labels, least = method.arguments["labels"], method.arguments.get("min_release", Release().min_release)
            count = context.num_seeds if labels in SHARES else max(1, context.num_seeds // 4)
            for sizes in experiment.federations:
                context.note(f"{row} × {sizes}")
                found, withheld = found_skew(labels, sizes, DRAWS[labels], count, least)
                cell = row, sizes
                parts.append(Measured({cell: found}, figures={"share of rows withheld": {cell: (withheld,)}}))
        return together(parts)
