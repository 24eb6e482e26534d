"""Reports of federations that never were, and look-alikes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedscout.detectors import ClientFacts, DetectionConfig, Finding, HeterogeneityReport, ReportedMetrics
from fedscout.detectors.detection.detect import detect
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.federations.assembly.build_federation import build_federation
from tests.detectors.federations import RecordingGrid

QUICK = DetectionConfig(outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=1)


def report_on(*counts: tuple[int, ...], untold: tuple[int, ...] = (), **fields: Any) -> HeterogeneityReport:
    """Return a report on clients with these label counts, some holding rows that they do not tell of.

    Args:
        counts: Of each client.
        untold: Rows beyond these counts, of the first clients.
        fields: What the report says else.
    """
    left_out = [*untold, *[0] * len(counts)]
    facts = tuple(
        ClientFacts(client=client, num_rows=sum(own) + left_out[client], label_counts=own, heterogeneity_index=0.0)
        for client, own in enumerate(counts)
    )
    nothing = {
        "seed": 0,
        "settings": DetectionConfig(),
        "num_clients": len(counts),
        "num_classes": len(counts[0]),
        "num_features": 4,
        "clients": facts,
        "label_skew": Finding.unmeasured("label_skew", 0.1, "never was"),
        "feature_skew": Finding.unmeasured("feature_skew", 0.1, "never was"),
        "outliers": Finding.unmeasured("outliers", 0.1, "never was"),
        "metrics": ReportedMetrics(),
    }
    return HeterogeneityReport(**{**nothing, **fields})


def written(report: HeterogeneityReport, folder: Path) -> Path:
    """Return the file of a report."""
    path = folder / "diagnosis.json"
    path.write_text(report.model_dump_json())
    return path


def built(*arguments: str) -> Federation:
    """Return the federation of these arguments."""
    config = load_config(arguments)
    return build_federation(config.federation, config.model)


def detected(federation: Federation) -> HeterogeneityReport:
    """Return what a quick detection tells of a federation."""
    grid = RecordingGrid(federation)
    return detect(grid, grid.initial_vectors, LocalTraining(), QUICK, seed=0)
