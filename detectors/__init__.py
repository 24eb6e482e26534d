"""Heterogeneity detection: measure how clients' data differ from the aggregates that clients release.

`fedscout.detectors.detect.detect` creates a report through a Flower grid. It is not exported here, because this
package is also imported by processes that do not need Flower, such as the command line's help.
"""

from fedscout.detectors.queries import CLIENT_QUERIES as CLIENT_QUERIES
from fedscout.detectors.report import CalibratedFinding as CalibratedFinding
from fedscout.detectors.report import ClientEvidence as ClientEvidence
from fedscout.detectors.report import DetectionConfig as DetectionConfig
from fedscout.detectors.report import Finding as Finding
from fedscout.detectors.report import HeterogeneityReport as HeterogeneityReport
from fedscout.detectors.report import ReportedMetrics as ReportedMetrics
