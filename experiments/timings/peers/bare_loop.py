"""The plain loop over clients: PyTorch, one process, one thread, nothing of a federation but the mean."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import work

Rows = tuple[Tensor, Tensor]


def one_round(global_net: nn.Module, local_net: nn.Module, clients: Sequence[Rows]) -> float:
    """Train every client in the scratch net, average into the global net, and score it on every client.

    Returns:
        The new model's share of right answers.
    """
    received = global_net.state_dict()
    total = {name: torch.zeros_like(value) for name, value in received.items()}
    num_rows = sum(len(labels) for _, labels in clients)
    for features, labels in clients:
        local_net.load_state_dict(received)
        work.train_epoch(local_net, features, labels)
        for name, value in local_net.state_dict().items():
            total[name].add_(value, alpha=len(labels) / num_rows)
    global_net.load_state_dict(total)
    return sum(work.num_correct(global_net, *rows) for rows in clients) / num_rows


def main(task: work.Task) -> None:
    """Time the rounds."""
    global_net, local_net = work.initial_model(task.name, task.device), work.model(task.name).to(task.device)
    clients = [work.client_tensors(task.name, client, task.samples, task.device) for client in range(task.clients)]
    begun_with = {name: value.clone() for name, value in global_net.state_dict().items()}
    for _ in range(work.WARM_UP_ROUNDS):
        one_round(global_net, local_net, clients)
    global_net.load_state_dict(begun_with)
    times = [time.perf_counter()]
    accuracy = float("nan")
    for _ in range(task.rounds):
        accuracy = one_round(global_net, local_net, clients)
        times.append(time.perf_counter())
    work.report(times, accuracy, ["torch"])


if __name__ == "__main__":
    main(work.read_task(sys.argv[1]))
