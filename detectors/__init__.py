"""Heterogeneity detection: how the clients' data differ, told from aggregates that they are willing to give.

`fedscout.detectors.detect.detect` makes a report through a Flower grid. It is not among the names below,
since these are read by processes that need no Flower, such as the command line's help.
"""

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.detectors.report import (
    CalibratedFinding,
    ClientEvidence,
    ClientFacts,
    DetectionConfig,
    Finding,
    HeterogeneityReport,
    ReportedMetrics,
)

__all__ = [
    "CLIENT_QUERIES",
    "CalibratedFinding",
    "ClientEvidence",
    "ClientFacts",
    "DetectionConfig",
    "Finding",
    "HeterogeneityReport",
    "ReportedMetrics",
]
