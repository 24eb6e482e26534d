"""What feature skew says of one client whose pictures went through JPEG, by quality.

Everything else is alike: rows are dealt IID, and the same federation is measured once as it is and once at each
quality. Both rules are asked, and of the calibrated one how far the compressed client is shifted, beside whoever else
is shifted most. With `federation.embedding=features` pixels are compared, with `auto` the last hidden layer of the
untrained model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config.config_file import given_settings, load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.scenarios.compression_effects import JpegEffect
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.studies.sweeps.grid_configurations import flattened

DEFAULTS = (
    "federation.dataset=fashion_mnist",
    "federation.max_rows=4000",
    "federation.num_clients=10",
    "federation.partition.kind=iid",
    "detection.outlier_repetitions=1",
    "detection.outlier_min_flags=1",
    "engine.grid=local",
)
"""Of what is not given; models are compared as little as possible, since they are not asked about."""

COMPRESSED = 2


class CompressionRow(BaseModel, frozen=True):
    """Feature skew of one federation; None where it could not be measured.

    Attributes:
        quality: Of the compressed client's files; None without compression.
        seed: Of the federation.
        distance: Of centroids, over the threshold of the published rule: above 1 is skew.
        shift: Of the client, calibrated, in standard deviations of a feature within a class.
        largest_other: The largest shift of the other clients.
        p_value: Of the client.
        found: Whether the published rule, and whether the calibrated one finds skew.
        blamed: Whether the calibrated rule flags the client and nobody else.
    """

    quality: int | None
    seed: int
    distance: float | None
    shift: float | None
    largest_other: float | None
    p_value: float | None
    found: tuple[bool, bool]
    blamed: bool


class CompressionSkew(BaseModel, frozen=True):
    """All qualities and seeds of one data set."""

    dataset: str
    num_clients: int
    embedding: str
    rows: tuple[CompressionRow, ...]


def compression_config(arguments: Sequence[str], file: Path | None) -> StudyConfig:
    """Read the configuration over the defaults of this measurement.

    Raises:
        ConfigurationError: With every fault; if a scenario is given, which the measurement sets itself.
    """
    given = given_settings(arguments, file)
    if given.get("federation", {}).get("scenario") is not None:
        raise ConfigurationError("federation.scenario must be left out: the measurement compresses a client itself")
    missing = [default for default in DEFAULTS if default.partition("=")[0] not in flattened(given)]
    config = load_config([*arguments, *missing], file)
    num_clients = config.federation.num_clients
    if num_clients is not None and num_clients <= COMPRESSED:
        raise ConfigurationError(
            f"federation.num_clients must be above {COMPRESSED}, the client that is compressed, got {num_clients}"
        )
    return config


def measure_compression(
    config: StudyConfig, qualities: Sequence[int], num_seeds: int, note: Callable[[str], None] = lambda _: None
) -> CompressionSkew:
    """Detect at each quality, and without compression, on `num_seeds` federations from `federation.seed` on.

    Raises:
        UserError: If the data can't be read, or hold no pictures.
    """
    from fedscout.experiments.studies.workflow import Display, run_detection

    rows = []
    for quality in (None, *qualities):
        effects = None if quality is None else (JpegEffect(clients=(COMPRESSED,), quality=quality),)
        for seed in range(config.federation.seed, config.federation.seed + num_seeds):
            note(f"quality {quality}, seed {seed}")
            federation = config.federation.model_copy(update={"scenario": effects, "seed": seed})
            _, report = run_detection(config.model_copy(update={"federation": federation}), Display())
            rows.append(_row(report, quality, seed))
    settings = config.federation
    return CompressionSkew(
        dataset=settings.dataset, num_clients=settings.num_clients, embedding=settings.embedding, rows=tuple(rows)
    )


def _row(report: HeterogeneityReport, quality: int | None, seed: int) -> CompressionRow:
    published, calibrated = report.feature_skew, report.calibrated_finding("feature_skew")
    clients = {} if calibrated is None else calibrated.clients
    own = clients.get(COMPRESSED)
    others = [evidence.effect for client, evidence in clients.items() if client != COMPRESSED]
    return CompressionRow(
        quality=quality,
        seed=seed,
        distance=None if published.value is None else published.value / published.threshold,
        shift=own.effect if own else None,
        largest_other=max(others, default=None),
        p_value=own.p_value if own else None,
        found=(published.detected, calibrated is not None and calibrated.detected),
        blamed=calibrated is not None and calibrated.flagged_clients == (COMPRESSED,),
    )


def table_lines(result: CompressionSkew) -> list[str]:
    """Return the result as a Markdown table, a line a quality with means over the seeds."""
    headings = ["quality", "distance over its threshold", "found, published", "shift of the client"]
    headings += ["largest of others", "p-value, median", "found, calibrated", "blamed alone"]
    lines = []
    for quality in dict.fromkeys(row.quality for row in result.rows):
        rows = [row for row in result.rows if row.quality == quality]
        cells = ["as it is" if quality is None else str(quality), _mean([row.distance for row in rows])]
        cells += [_part([row.found[0] for row in rows]), _mean([row.shift for row in rows])]
        cells += [_mean([row.largest_other for row in rows]), _median([row.p_value for row in rows])]
        cells += [_part([row.found[1] for row in rows]), _part([row.blamed for row in rows])]
        lines.append(cells)
    what = {"features": "pixels", "auto": "the untrained model's last hidden layer"}
    compared = what.get(result.embedding, result.embedding)
    title = f"{result.dataset}, {result.num_clients} clients, client {COMPRESSED} compressed; compared: {compared}"
    return [title, "", *markdown_table(headings, lines)]


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.3f}" if known else "not measured"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2g}" if known else "not measured"


def _part(values: Sequence[bool]) -> str:
    return f"{sum(values)}/{len(values)}"
