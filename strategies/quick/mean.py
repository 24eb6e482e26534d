"""The strategies that see the replies through their mean: Flower's, with `QuickMessages`."""

from __future__ import annotations

from flwr.serverapp import strategy as flower

from strategies.quick.messages import QuickMessages


class FedAvg(QuickMessages):
    """Flower's FedAvg."""


class FedProx(QuickMessages, flower.FedProx):
    """Flower's FedProx."""


class FedAvgM(QuickMessages, flower.FedAvgM):
    """Flower's FedAvgM."""


class FedAdagrad(QuickMessages, flower.FedAdagrad):
    """Flower's FedAdagrad."""


class FedAdam(QuickMessages, flower.FedAdam):
    """Flower's FedAdam."""


class FedYogi(QuickMessages, flower.FedYogi):
    """Flower's FedYogi."""
