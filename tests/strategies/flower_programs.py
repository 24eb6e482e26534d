"""Strategies as users write them for Flower, each with one promise that a simulation may break in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    Result,
    Strategy,
)

from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import seed_global_random
from tests.engine.federations import counting, dense, normalised

NUM_CLIENTS = 5
SEED = 3
"""Of the trials that these programs are compared in."""

Messages = Iterable[Message]
Aggregate = tuple[ArrayRecord | None, MetricRecord | None]


def _all_clients() -> dict[str, Any]:
    return dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), NUM_CLIENTS)


class Plain(FedAvg):
    """FedAvg."""

    def __init__(self) -> None:
        super().__init__(**_all_clients())


class HalvesTheRate(Plain):
    """The learning-rate decay of Flower's how-to guide."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        if server_round % 2 == 0:
            config["lr"] *= 0.5  # type: ignore[operator]
        return super().configure_train(server_round, arrays, config, grid)


class DrivesItself(Plain):
    """FedAvg's own rounds in a `start` of its own."""

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **settings: Any) -> Result:
        arrays, timeout = initial_arrays, settings.get("timeout", 3600)
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, settings["train_config"], grid)
            aggregated, _ = self.aggregate_train(server_round, grid.send_and_receive(messages, timeout=timeout))
            arrays = aggregated
            if evaluate_fn := settings.get("evaluate_fn"):
                evaluate_fn(server_round, arrays)
        return Result(arrays=arrays)


class OwnStartHalvesTheRate(DrivesItself, HalvesTheRate):
    """The decay, driven by itself."""


class TwoPhases(Plain):
    """Flower's own `start` twice, the second time with a tenth of the step size: rounds are counted anew."""

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **settings: Any) -> Result:
        first = super().start(grid, initial_arrays, 2, **settings)
        settings["train_config"]["lr"] *= 0.1
        return super().start(grid, first.arrays, num_rounds - 2, **settings)


class Proximal(FedProx):
    """Flower's FedProx."""

    def __init__(self, mu: float = 5.0) -> None:
        super().__init__(proximal_mu=mu, **_all_clients())


class WritesProximal(Plain):
    """Asks for a proximal term as FedProx does, growing by round."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        config["proximal-mu"] = float(server_round)
        return super().configure_train(server_round, arrays, config, grid)


class SendsAlong(Plain):
    """Sends a vector beside the model, which no client of a Flower strategy reads."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["auxiliary"] = ArrayRecord({"control": Array(np.ones(3, np.float32))})
        return messages


class EveryOtherRound(Plain):
    """Gives a model in odd rounds alone."""

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        return super().aggregate_train(server_round, replies) if server_round % 2 else (None, None)


class RestsInRoundTwo(Plain):
    """Sends nobody anything in its second round."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        return [] if server_round == 2 else super().configure_train(server_round, arrays, config, grid)


class ClippedByClients(DifferentialPrivacyClientSideFixedClipping):
    """Flower's client-side clipping, without noise."""

    def __init__(self, clipping_norm: float = 0.05) -> None:
        super().__init__(Plain(), noise_multiplier=0.0, clipping_norm=clipping_norm, num_sampled_clients=NUM_CLIENTS)


class AdaptivelyClipped(DifferentialPrivacyClientSideAdaptiveClipping):
    """The same with a norm that follows the clients' answers."""

    def __init__(self, initial_clipping_norm: float = 0.05) -> None:
        super().__init__(
            Plain(), noise_multiplier=0.0, num_sampled_clients=NUM_CLIENTS, initial_clipping_norm=initial_clipping_norm
        )


class HeadByPosition(Plain):
    """Averages all arrays but the last two, the head; moves its bias by the count of batches, the third from the end.

    So it needs the order of Flower's record of a state dict, and the counts that Flower's clients send.
    """

    net = staticmethod(normalised)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        aggregated, metrics = super().aggregate_train(server_round, replies)
        count, weight, bias = [*self._sent][-3:]
        moved = np.float32(0.01) * aggregated[count].numpy()
        aggregated[weight], aggregated[bias] = Array(self._sent[weight]), Array(self._sent[bias] + moved)
        return aggregated, metrics


class Cumulative(Plain):
    """FedAvg of a net whose statistics are means over all batches so far: their count decides how batches weigh."""

    net = staticmethod(counting)


class ClippedNormalised(ClippedByClients):
    """Clipping measures whatever the record holds, counts of batches included."""

    net = staticmethod(normalised)


class Private(DifferentialPrivacyServerSideFixedClipping):
    """Flower's server-side clipping with noise, which it draws from NumPy's global generator: seeded as in a trial."""

    noise_multiplier, clipping_norm = 0.4, 0.05

    def __init__(self) -> None:
        equally = FedAvg(**_all_clients(), weighted_by_key="num-clients", fraction_evaluate=0.0)
        super().__init__(equally, type(self).noise_multiplier, type(self).clipping_norm, NUM_CLIENTS)

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        seed_global_random(SEED, "aggregate", server_round)
        return super().aggregate_train(server_round, replies)


PROGRAMS: Mapping[str, type[Strategy]] = {
    program.__name__: program  # type: ignore[type-abstract]
    for program in (
        Plain,
        HalvesTheRate,
        OwnStartHalvesTheRate,
        TwoPhases,
        Proximal,
        WritesProximal,
        EveryOtherRound,
        RestsInRoundTwo,
        ClippedByClients,
        AdaptivelyClipped,
        Private,
        HeadByPosition,
        Cumulative,
        ClippedNormalised,
    )
}

NETS: Mapping[str, ModelFactory] = {name: getattr(program, "net", dense) for name, program in PROGRAMS.items()}
