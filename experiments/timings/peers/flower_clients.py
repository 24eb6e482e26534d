"""The clients of `flower_simulation`. A module that workers import, so that what they hold outlives a message.

Functions of a main program would be sent to the workers with every message, their globals with them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from .work import WorkName, model, num_correct, on_device, read_task, train_epoch

FOLDER_KEY, TASK_KEY = "folder", "task"
FEATURES_FILE, LABELS_FILE = "features.npy", "labels.npy"

clients = ClientApp()


@cache
def _all_rows(folder: str, device: str) -> tuple[Tensor, Tensor]:
    """Return the rows of all clients on a device, shapes `(clients, samples, …)`."""
    torch.set_num_threads(1)
    files = (np.load(f"{folder}/{file}", mmap_mode="c") for file in (FEATURES_FILE, LABELS_FILE))  # no worker waits
    features, labels = (torch.from_numpy(rows).to(device) for rows in files)
    return features, labels


@cache
def _scratch_net(name: WorkName, device: str) -> nn.Module:
    return on_device(model(name), device)


def _received(message: Message, context: Context) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the net with the message's parameters, and the client's rows."""
    config = message.content.config_records["config"]
    task = read_task(str(config[TASK_KEY]))
    features, labels = _all_rows(str(config[FOLDER_KEY]), task.device)
    net = _scratch_net(task.name, task.device)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    return net, features[client], labels[client]


@clients.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the model after one epoch."""
    net, features, labels = _received(message, context)
    loss = train_epoch(net, features, labels)
    metrics = MetricRecord({"loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@clients.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Answer with the model's accuracy."""
    net, features, labels = _received(message, context)
    accuracy = num_correct(net, features, labels) / len(labels)
    return Message(
        RecordDict({"metrics": MetricRecord({"accuracy": accuracy, "num-examples": len(labels)})}), reply_to=message
    )
