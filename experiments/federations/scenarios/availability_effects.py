"""Effects on when a client answers: rounds that it misses, and rounds that take it long. Data stay as they are.

Latency is a shift plus an exponential time, in simulated seconds: the usual model of a slow worker (K. Lee, M. Lam,
R. Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64 (3), 2018). With `per_row` both times are per row that the client holds, as in
X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024. Rounds are
missed independently of other rounds and clients.

Where two effects of a kind name a client, the later one counts.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan


class LatencyEffect(ScenarioEffect):
    """A round takes a client a fixed time and a random one, in simulated seconds; the last such effect counts."""

    takes_time: ClassVar[bool] = True

    kind: Literal["latency"] = "latency"
    shift_seconds: float = Field(default=0.0, ge=0, description="that every round takes at least")
    mean_seconds: float = Field(ge=0, description="mean of the exponential time on top")
    per_row: bool = Field(default=False, description="whether both are times for each of the client's rows")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's times."""
        sizes = request.partition.sizes
        timings = {}
        for client in clients:
            scale = int(sizes[client]) if self.per_row else 1
            timings[client] = {"shift_seconds": self.shift_seconds * scale, "mean_seconds": self.mean_seconds * scale}
        facts = {name: [fields[name] for fields in timings.values()] for name in ("shift_seconds", "mean_seconds")}
        return ScenarioPlan(timings=timings, facts=facts)


class DropoutEffect(ScenarioEffect):
    """A client misses rounds at random; the last such effect counts."""

    kind: Literal["dropout"] = "dropout"
    probability: float = Field(ge=0, lt=1, description="that the client misses a round")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's probability."""
        return ScenarioPlan(dropout=dict.fromkeys(clients, self.probability), facts={"probability": self.probability})
