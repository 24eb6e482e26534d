"""FedMedian, FedTrimmedAvg, Krum, MultiKrum and Bulyan on replies where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy.typing as npt
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.multikrum import select_multikrum as flowers_selection
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedscout.engine.messages.view_array import view_record
from fedscout.strategies.aggregation.krum_selection import select_multikrum
from fedscout.strategies.aggregation.order_statistics import Values, mean_around_median, median, trimmed_mean
from fedscout.strategies.aggregation.reply_matrices import arrays_by_name
from fedscout.strategies.aggregation.round_messages import Aggregate, QuickMessages


def _aggregated(contents: list[RecordDict], statistic: Callable[[Values], npt.NDArray[Any]]) -> ArrayRecord:
    return view_record({name: statistic(values) for name, values in arrays_by_name(contents).items()})


class FedMedian(QuickMessages, flower.FedMedian):
    """Flower's FedMedian."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the median of every parameter and the mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies:
            return None, None
        contents = [reply.content for reply in valid_replies]
        return _aggregated(contents, median), self._train_metrics(contents)


class FedTrimmedAvg(QuickMessages, flower.FedTrimmedAvg):
    """Flower's FedTrimmedAvg."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the trimmed mean of every parameter and the mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies:
            return None, None
        contents = [reply.content for reply in valid_replies]
        num_trimmed = int(self.beta * len(contents))
        arrays = _aggregated(contents, lambda values: trimmed_mean(values, num_trimmed))
        return arrays, self._train_metrics(contents)


class MultiKrum(QuickMessages, flower.MultiKrum):
    """Flower's MultiKrum."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the weighted mean of the replies with the best scores, and their mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid_replies:
            return None, None
        contents = [reply.content for reply in valid_replies]
        selected = select_multikrum(contents, self.num_malicious_nodes, self.num_nodes_to_select)
        metrics = self._train_metrics(selected)
        return aggregate_arrayrecords(selected, self.weighted_by_key), metrics


class Krum(MultiKrum, flower.Krum):
    """Flower's Krum."""


class Bulyan(QuickMessages, flower.Bulyan):
    """Flower's Bulyan."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the mean around the median of the replies with the best scores, and their mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        malicious = self.num_malicious_nodes
        if len(valid_replies) < 4 * malicious + 3:
            return super().aggregate_train(server_round, valid_replies)  # a warning and no model
        select = select_multikrum if self.selection_rule is flowers_selection else self.selection_rule
        contents = [reply.content for reply in valid_replies]
        selected = select(contents, malicious, len(contents) - 2 * malicious)
        num_kept = len(contents) - 4 * malicious
        arrays = _aggregated(selected, lambda values: mean_around_median(values, num_kept))
        return arrays, self._train_metrics(selected)
