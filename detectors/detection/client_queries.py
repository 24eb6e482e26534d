"""The fixed table of what a client answers. Each entry is a pure function of its data that returns aggregates only."""

from __future__ import annotations

from fedscout.detectors.outliers.label_agreement import LABEL_AGREEMENT, label_agreement
from fedscout.detectors.outliers.mean_outputs import MEAN_OUTPUT, mean_output
from fedscout.detectors.skew.class_sums import CLASS_SUMS, ROW_NORMS, class_sums, row_norms
from fedscout.detectors.skew.feature_histograms import FEATURE_HISTOGRAM, feature_histogram
from fedscout.detectors.skew.feature_skew import FEATURE_CENTROID, FEATURE_MOMENTS, feature_centroid, feature_moments
from fedscout.detectors.skew.group_norms import GROUP_NORMS, group_norms
from fedscout.detectors.skew.label_skew import label_counts
from fedscout.detectors.statistics.design_effects import GROUP_LABELS, group_labels
from fedscout.detectors.statistics.near_copies import NEAR_COPIES, near_copies
from fedscout.detectors.statistics.privacy import PRIVATE_COUNTS, PRIVATE_SUMS, private_counts, private_sums
from fedscout.engine.data.client_query import LABEL_COUNTS, QueryTable

CLIENT_QUERIES: QueryTable = {
    LABEL_COUNTS: label_counts,
    FEATURE_MOMENTS: feature_moments,
    CLASS_SUMS: class_sums,
    FEATURE_CENTROID: feature_centroid,
    FEATURE_HISTOGRAM: feature_histogram,
    LABEL_AGREEMENT: label_agreement,
    MEAN_OUTPUT: mean_output,
    PRIVATE_COUNTS: private_counts,
    PRIVATE_SUMS: private_sums,
    ROW_NORMS: row_norms,
    GROUP_LABELS: group_labels,
    GROUP_NORMS: group_norms,
    NEAR_COPIES: near_copies,
}
