"""Which clients join after the training: a draw by the federation's seed, so all trials of a study leave out the same.

Drawn, not the last ones: partitions and natural clients have an order, by class or by name. They are drawn in turn, so
`federation.unseen_clients=3` leaves out those of `=2` and one more. An effect of the scenario may well be on some.
"""

from __future__ import annotations

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.seeds import stream
from fedscout.experiments.federations.assembly.federation_config import FederationConfig


def draw_unseen(federation: FederationConfig, num_clients: int) -> frozenset[int]:
    """Return the clients that are left out.

    Args:
        federation: How many, and the seed.
        num_clients: Clients that there are.

    Raises:
        ConfigurationError: If none would be left to train.
    """
    if federation.unseen_clients >= num_clients:
        raise ConfigurationError(
            Fault(
                "federation.unseen_clients",
                f"leave at least one of {num_clients} clients to train",
                federation.unseen_clients,
            )
        )
    order = stream(federation.seed, "unseen-clients").permutation(num_clients)
    return frozenset(order[: federation.unseen_clients].tolist())
