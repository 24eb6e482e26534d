"""The fixed table of what a client answers. Each entry is a pure function of its data that returns aggregates only."""

from __future__ import annotations

from detectors.feature_histograms import FEATURE_HISTOGRAM, feature_histogram
from detectors.feature_skew import FEATURE_CENTROID, FEATURE_MOMENTS, feature_centroid, feature_moments
from detectors.label_skew import LABEL_COUNTS, label_counts
from detectors.mean_outputs import MEAN_OUTPUT, mean_output
from engine.queries import QueryTable

CLIENT_QUERIES: QueryTable = {
    LABEL_COUNTS: label_counts,
    FEATURE_MOMENTS: feature_moments,
    FEATURE_CENTROID: feature_centroid,
    FEATURE_HISTOGRAM: feature_histogram,
    MEAN_OUTPUT: mean_output,
}
