"""Heterogeneity detection: measure how clients' data differ from the aggregates that clients release.

`fedscout.detectors.detect.detect` creates a report through a Flower grid. It is not exported here, because this
package is also imported by processes that do not need Flower, such as the command line's help.
"""

from fedscout.detectors.queries import CLIENT_QUERIES as CLIENT_QUERIES
from fedscout.detectors.report import (
    CalibratedFinding as CalibratedFinding,
    ClientEvidence as ClientEvidence,
    DetectionConfig as DetectionConfig,
    Finding as Finding,
    HeterogeneityReport as HeterogeneityReport,
    ReportedMetrics as ReportedMetrics,
)
