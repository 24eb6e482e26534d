"""The table of metrics beside accuracy: here one is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedscout.engine.metrics.confusion import BalancedAccuracy, MacroF1
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.metrics.quantity_errors import R2, Mae
from fedscout.engine.metrics.score_histograms import Auroc

ACCURACY = "accuracy"
"""Which is always measured, and needs no metric of its own."""

OF_CLASSES: Mapping[str, Callable[[], Metric]] = {each.name: each for each in (BalancedAccuracy, MacroF1, Auroc)}
"""Of labels that are classes."""

OF_QUANTITIES: Mapping[str, Callable[[], Metric]] = {each.name: each for each in (R2, Mae)}
"""Of a quantity that is predicted; the first is the usual one."""
