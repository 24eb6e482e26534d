"""FedAvg in Flower's own simulation over its Ray backend (`pip install 'flwr[simulation]'`).

D. J. Beutel, T. Topal, A. Mathur, X. Qiu, J. Fernandez-Marques, Y. Gao, L. Sani, K. H. Li, T. Parcollet,
P. P. B. de Gusmão, N. D. Lane. Flower: A Friendly Federated Learning Research Framework. arXiv:2007.14390, 2020.

The clients' rows lie in files that all workers map, so no round waits for data. Workers import this module, so that
what they hold outlives a message.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from . import work

clients = ClientApp()


@cache
def _all_rows(folder: str, device: str) -> tuple[Tensor, Tensor]:
    """Return the rows of all clients on a device, shapes `(clients, samples, …)`."""
    torch.set_num_threads(1)
    files = (np.load(f"{folder}/{file}.npy", mmap_mode="c") for file in ("features", "labels"))  # no worker waits
    features, labels = (torch.from_numpy(rows).to(device) for rows in files)
    return features, labels


@cache
def _scratch_net(name: work.WorkName, device: str) -> nn.Module:
    return work.on_device(work.model(name), device)


def _received(message: Message, context: Context) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the net with the message's parameters, and the client's rows."""
    config = message.content.config_records["config"]
    task = work.read_task(str(config["task"]))
    features, labels = _all_rows(str(config["folder"]), task.device)
    net = _scratch_net(task.name, task.device)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    return net, features[client], labels[client]


@clients.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the model after one epoch."""
    net, features, labels = _received(message, context)
    loss = work.train_epoch(net, features, labels)
    metrics = MetricRecord({"loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@clients.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Answer with the model's accuracy."""
    net, features, labels = _received(message, context)
    accuracy = work.num_correct(net, features, labels) / len(labels)
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


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


def main(task: work.Task) -> None:
    """Time the rounds."""
    measured: list[tuple[list[float], float]] = []
    server = ServerApp()
    with tempfile.TemporaryDirectory() as folder:
        rows = zip(*(work.client_rows(task.name, client, task.samples) for client in range(task.clients)), strict=True)
        for file, values in zip(("features", "labels"), rows, strict=True):
            np.save(f"{folder}/{file}.npy", np.stack(values))
        config = ConfigRecord({"folder": folder, "task": task.text()})

        @server.main()
        def drive(grid: Grid, _: Context) -> None:
            arrays = ArrayRecord(work.initial_model(task.name).state_dict())
            for rounds in (work.WARM_UP_ROUNDS, task.rounds):
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
    work.report(times, accuracy, ["flwr", "ray", "torch"])


if __name__ == "__main__":
    from .flower import main as imported_main  # functions of `__main__` would be sent with every message

    imported_main(work.read_task(sys.argv[1]))
