"""The configurations of the published table: a grid over the joint space of strategies and clients' settings.

Of every default strategy a few values that the literature and the documented defaults take, each at three client
rates and two numbers of local epochs; FedAvg, of which the tuned reference is made, at six rates; and small batches for
FedAvg and for the two strategies that rules propose most. What does not exist in a federation is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedscout.strategies import SearchSpace, StrategySpec, Value

RATES = (0.02, 0.1, 0.5)
FEDAVG_RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
EPOCHS = (1, 3)
BATCHES = (32, 8)
"""The first is the study's own, at which the whole grid is."""

_ADAPTIVE = {"tau": 1e-3, "beta_1": 0.9, "beta_2": 0.99}
SERVER_POINTS: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "fedavg": ({},),
    "fedprox": ({"proximal_mu": 0.1}, {"proximal_mu": 1.0}),
    "fedavgm": tuple({"server_learning_rate": 1.0, "server_momentum": momentum} for momentum in (0.5, 0.7, 0.9)),
    "fedadam": tuple({"eta": eta, **_ADAPTIVE} for eta in (0.03, 0.1, 0.3)),
    "fedyogi": ({"eta": 0.1, **_ADAPTIVE},),
    "fedadagrad": ({"eta": 0.1, "tau": 1e-3},),
    "fedmedian": ({},),
    "fedtrimmedavg": ({"beta": 0.2}, {"beta": 0.35}),
    "krum": ({"num_malicious_nodes": 1},),
    "multikrum": ({"num_malicious_nodes": 1},),
    "bulyan": ({"num_malicious_nodes": 1},),
    "qfedavg": ({"q": 1.0},),
}
SMALL_BATCHES = ("fedavg", "fedavgm", "fedadam")


def joint_grid(space: SearchSpace) -> list[StrategySpec]:
    """Return the configurations that exist in a federation's space, equivalents once."""
    found: dict[str, StrategySpec] = {}
    for spec in grid_points(space):
        found.setdefault(space.digest(spec), spec)
    return list(found.values())


def grid_points(space: SearchSpace) -> Iterator[StrategySpec]:
    """Yield every point of the grid, a value out of its range moved to the nearest in it; several may be equivalent."""
    for kind in space.kinds:
        for point in SERVER_POINTS[kind]:
            for settings in _client_settings(kind):
                spec = space.nearest(space.members[kind].with_values({**point, **settings}))
                assert spec is not None, "its kind is in the space"
                yield spec


def fedavg_rates(space: SearchSpace, grid: list[StrategySpec]) -> list[StrategySpec]:
    """Return FedAvg at every client rate of the grid, all else as the study has it: of which the tuned reference is."""
    own = {name: space.given[name] for name in ("client_local_epochs", "client_batch_size")}
    return [spec for spec in grid if spec.kind == "fedavg" and own.items() <= {**own, **spec.client_values()}.items()]


def _client_settings(kind: str) -> Iterator[Mapping[str, Value]]:
    own, *smaller = BATCHES
    rates = FEDAVG_RATES if kind == "fedavg" else RATES
    for epochs in EPOCHS:
        for rate in rates:
            yield {"client_learning_rate": rate, "client_local_epochs": epochs, "client_batch_size": own}
    for batch in smaller if kind in SMALL_BATCHES else ():
        for rate in RATES:
            yield {"client_learning_rate": rate, "client_local_epochs": EPOCHS[0], "client_batch_size": batch}
