"""A strategy chosen from measured heterogeneity, by a language model or a genetic search: tables and figures.

Four clients of a bearing data set with a binary label, dense nets, 30 rounds, means and standard deviations of ten
runs; CIFAR-10 where it says so. Its rows and their split were not published, nor its clients' step size.
"""

from __future__ import annotations

from fedscout.experiments.reproduction.published_study import Source
from fedscout.experiments.reproduction.sources.choice_detection import (
    FEATURE_MEASURES,
    FIGURE_5,
    FIGURE_6,
    FIGURE_7,
    FIGURE_12,
    MODULES_ALONE,
)
from fedscout.experiments.reproduction.sources.choice_elsewhere import (
    CARTPOLE,
    EMBEDDINGS,
    FIGURE_11,
    FIGURE_13,
    TABLE_5,
)
from fedscout.experiments.reproduction.sources.choice_searches import FIGURE_10, MULTI_SHOT, MUTATION
from fedscout.experiments.reproduction.sources.choice_tables import TABLE_3, TABLE_6, TABLE_8

SOURCE = Source(
    "choice",
    "An aggregation strategy chosen from measured heterogeneity, by a language model or a genetic search",
    (
        TABLE_3,
        TABLE_5,
        TABLE_6,
        TABLE_8,
        FIGURE_5,
        FIGURE_6,
        FIGURE_7,
        MULTI_SHOT,
        FIGURE_10,
        MUTATION,
        FIGURE_11,
        FIGURE_12,
        FEATURE_MEASURES,
        MODULES_ALONE,
        FIGURE_13,
        EMBEDDINGS,
        CARTPOLE,
    ),
)
