"""FedAvg in Flower's own simulation over its Ray backend (`pip install 'flwr[simulation]'`).

D. J. Beutel, T. Topal, A. Mathur, X. Qiu, J. Fernandez-Marques, Y. Gao, L. Sani, K. H. Li, T. Parcollet,
P. P. B. de Gusmão, N. D. Lane. Flower: A Friendly Federated Learning Research Framework. arXiv:2007.14390, 2020.

The clients' rows lie in files that all workers map, so no round waits for data.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from .flower_clients import FEATURES_FILE, FOLDER_KEY, LABELS_FILE, TASK_KEY, clients
from .work import WARM_UP_ROUNDS, Task, client_rows, initial_model, read_task, report


class TimedFedAvg(FedAvg):
    """FedAvg that notes when rounds end."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, fraction_evaluate=1.0)
        self.ends: list[float] = []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Do what FedAvg does, which is a round's last step."""
        metrics = super().aggregate_evaluate(server_round, replies)
        self.ends.append(time.perf_counter())
        return metrics


def main(task: Task) -> None:
    """Time the rounds."""
    measured: list[tuple[list[float], float]] = []
    server = ServerApp()
    with tempfile.TemporaryDirectory() as folder:
        rows = [client_rows(task.name, client, task.samples) for client in range(task.clients)]
        np.save(Path(folder) / FEATURES_FILE, np.stack([features for features, _ in rows]))
        np.save(Path(folder) / LABELS_FILE, np.stack([labels for _, labels in rows]))
        config = ConfigRecord({FOLDER_KEY: folder, TASK_KEY: task.text()})

        @server.main()
        def drive(grid: Grid, _: Context) -> None:
            arrays = ArrayRecord(initial_model(task.name).state_dict())
            for rounds in (WARM_UP_ROUNDS, task.rounds):
                strategy = TimedFedAvg()
                began = time.perf_counter()
                result = strategy.start(grid, arrays, rounds, train_config=config, evaluate_config=config)
                accuracy = result.evaluate_metrics_clientapp[rounds]["accuracy"]
                measured.append(([began, *strategy.ends], float(str(accuracy))))

        run_simulation(
            server_app=server,
            client_app=clients,
            num_supernodes=task.clients,
            backend_config={
                # Without "local" it would join whatever cluster runs on this machine.
                "init_args": {"address": "local", "num_cpus": task.workers},
                # One actor a worker; they share a GPU if that is the device.
                "client_resources": {"num_cpus": 1, "num_gpus": 1 / task.workers if task.device == "cuda" else 0.0},
            },
        )
    times, accuracy = measured[-1]
    report(times, accuracy, ["flwr", "ray", "torch"])


if __name__ == "__main__":
    main(read_task(sys.argv[1]))
