"""What the detectors make of the six published scenarios, beside the published figures.

For each scenario a federation is built and the three published detectors run once on it. The figures were published for
four clients of the bearing data, on deals of the rows that were not; so orderings can be compared, and whoever wants to
know how much rests on the deal varies `federation.seed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pydantic import BaseModel

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config.config_file import given_settings, load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.scenarios.published_scenarios import BEARING_SCENARIOS
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.studies.sweeps.grid_configurations import flattened

PUBLISHED_DATASET = "bearing"
PUBLISHED_NUM_CLIENTS = 4
DEFAULTS = (
    f"federation.dataset={PUBLISHED_DATASET}",
    f"federation.num_clients={PUBLISHED_NUM_CLIENTS}",
    "engine.grid=local",
)
"""Of what is not given: the published federation, in this process."""


class PublishedFigures(NamedTuple):
    """What was published of one scenario.

    Attributes:
        label_divergence: Largest Jensen-Shannon divergence, in bits.
        centroid_distance: Largest distance of two clients' centroids.
        outlier_votes: Of five repetitions, those that flag the client flagged most often, such as `"4"` or `"<= 2"`.
    """

    label_divergence: str = ""
    centroid_distance: str = ""
    outlier_votes: str = ""


PUBLISHED: Mapping[str, PublishedFigures] = MappingProxyType(
    {
        "iid": PublishedFigures("0.0001 to 0.0002", "0.577"),
        "label_skew": PublishedFigures("0.1890", outlier_votes="<= 2"),
        "feature_skew": PublishedFigures(centroid_distance="15.060", outlier_votes="<= 2"),
        "noisy_labels": PublishedFigures(outlier_votes="3"),
        "label_poisoning": PublishedFigures(outlier_votes="5"),
        "corrupted_client": PublishedFigures(centroid_distance="7.435", outlier_votes="4"),
    }
)


class ScenarioRow(BaseModel, frozen=True):
    """The detectors on one scenario; None where one could not measure.

    Attributes:
        scenario: Its name.
        affected_clients: By construction.
        label_divergence: Largest Jensen-Shannon divergence of a client from all, in bits.
        centroid_distance: Largest distance of two clients' centroids on two principal axes.
        outlier_votes: By client, the repetitions that flag it.
        outlier_clients: Who is flagged often enough.
        found: The detectors that decide for heterogeneity.
    """

    scenario: str
    affected_clients: tuple[int, ...]
    label_divergence: float | None
    centroid_distance: float | None
    outlier_votes: Mapping[int, int]
    outlier_clients: tuple[int, ...]
    found: tuple[str, ...]


class Separability(BaseModel, frozen=True):
    """All scenarios, in the order of their table, on one data set, number of clients and `federation.seed`."""

    dataset: str
    num_clients: int
    repetitions: int
    seed: int
    rows: tuple[ScenarioRow, ...]


def scenario_bench_config(arguments: Sequence[str], file: Path | None) -> StudyConfig:
    """Read the configuration over the defaults of this measurement.

    Raises:
        ConfigurationError: With every fault; if scenario or partition are given, which the measurement sets itself.
    """
    given = given_settings(arguments, file)
    missing = [default for default in DEFAULTS if default.partition("=")[0] not in flattened(given)]
    config = load_config([*arguments, *missing], file)
    federation = given.get("federation", {})
    faults = [
        f"federation.{key} must be left out, got {federation[key]!r}: every published scenario is measured, and fixes "
        "the partition"
        for key in ("scenario", "partition")
        if federation.get(key) is not None
    ]
    if faults:
        raise ConfigurationError(faults)
    return config


def measure_separability(config: StudyConfig, note: Callable[[str], None] = lambda _: None) -> Separability:
    """Run the detectors on each of the six scenarios, which `note` is told of; each fixes scenario and partition.

    Raises:
        UserError: If the data can't be read, or can't be dealt as a scenario asks.
    """
    from fedscout.experiments.studies.workflow import Display, run_detection

    rows = []
    num_clients = 0
    for scenario in BEARING_SCENARIOS:
        note(scenario)
        federation_config = config.federation.model_copy(update={"scenario": scenario})
        federation, report = run_detection(config.model_copy(update={"federation": federation_config}), Display())
        num_clients = federation.num_clients
        rows.append(
            ScenarioRow(
                scenario=scenario,
                affected_clients=federation.affected_clients,
                label_divergence=report.label_skew.value,
                centroid_distance=report.feature_skew.value,
                outlier_votes={client: int(votes) for client, votes in report.outliers.client_values.items()},
                outlier_clients=report.outliers.flagged_clients,
                found=tuple(finding.name for finding in report.findings if finding.detected),
            )
        )
    return Separability(
        dataset=config.federation.dataset,
        num_clients=num_clients,
        repetitions=config.detection.outlier_repetitions,
        seed=config.federation.seed,
        rows=tuple(rows),
    )


def table_lines(result: Separability) -> list[str]:
    """Return the result as a Markdown table; the published columns are filled where the data are the published ones."""
    comparable = result.dataset == PUBLISHED_DATASET and result.num_clients == PUBLISHED_NUM_CLIENTS
    lines = [
        f"{result.dataset}, {result.num_clients} clients, federation.seed={result.seed}; votes of "
        f"{result.repetitions} repetitions by client, outliers in bold",
        "",
    ]
    headings = ["scenario", "affected", "largest JS, bits", "published", "centroid distance", "published"]
    headings += [f"votes of clients 0 to {result.num_clients - 1}", "published, most", "found"]
    rows = []
    for row in result.rows:
        published = PUBLISHED[row.scenario] if comparable else PublishedFigures()
        cells = [row.scenario, _clients(row.affected_clients, result.num_clients)]
        cells += [_number(row.label_divergence, 4), published.label_divergence]
        cells += [_number(row.centroid_distance, 3), published.centroid_distance]
        cells += [_votes(row), published.outlier_votes, ", ".join(name.replace("_", " ") for name in row.found)]
        rows.append(cells)
    return [*lines, *markdown_table(headings, rows)]


def _number(value: float | None, digits: int) -> str:
    return "not measured" if value is None else f"{value:.{digits}f}"


def _clients(clients: Sequence[int], num_clients: int) -> str:
    return "all" if len(clients) == num_clients else ", ".join(map(str, clients)) or "none"


def _votes(row: ScenarioRow) -> str:
    shown = (
        f"**{votes}**" if client in row.outlier_clients else str(votes) for client, votes in row.outlier_votes.items()
    )
    return ", ".join(shown) or "not measured"
