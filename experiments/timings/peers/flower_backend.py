"""Apps in Flower's own simulation over its Ray backend (`pip install 'flwr[simulation]'`).

D. J. Beutel, T. Topal, A. Mathur, X. Qiu, J. Fernandez-Marques, Y. Gao, L. Sani, K. H. Li, T. Parcollet,
P. P. B. de Gusmão, N. D. Lane. Flower: A Friendly Federated Learning Research Framework. arXiv:2007.14390, 2020.
"""

from __future__ import annotations

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation


def simulate(server: ServerApp, clients: ClientApp, num_clients: int, workers: int, device: str = "cpu") -> None:
    """Run two apps, with one actor a worker, which share a GPU if that is the device."""
    run_simulation(
        server_app=server,
        client_app=clients,
        num_supernodes=num_clients,
        backend_config={
            # Without "local" it would join whatever cluster runs on this machine.
            "init_args": {"address": "local", "num_cpus": workers},
            "client_resources": {"num_cpus": 1, "num_gpus": 1 / workers if device == "cuda" else 0.0},
        },
    )
