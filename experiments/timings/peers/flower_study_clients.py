"""The clients of `flower_study`: plain SGD on their training rows, with FedProx's term where a message asks for it.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated optimization in heterogeneous networks.
MLSys 2020: the loss has mu/2 times the squared distance from the received model added (eq. 2). Flower sends mu, its
clients add the term.

A last batch of a single row joins the one before it. The rows of all clients are mapped from their files, so no worker
waits for any of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .study_plan import Rows, StudyPlan, read_plan, read_split
from .work import mapped_rows

FOLDER_KEY, SEED_KEY, RATE_KEY, MU_KEY = "folder", "seed", "learning-rate", "proximal-mu"

clients = ClientApp()


@cache
def _study(folder: str) -> tuple[StudyPlan, nn.Module, Tensor, Tensor]:
    """Return the plan, a scratch net, and all rows."""
    plan = read_plan(Path(folder))
    return plan, plan.net(), *mapped_rows(folder)


@cache
def _split(folder: str, seed: int) -> list[tuple[Rows, Rows]]:
    return read_split(Path(folder), seed, read_plan(Path(folder)).clients)


def batch_starts(num_rows: int, batch_size: int) -> list[int]:
    """Return where batches begin."""
    starts = list(range(0, num_rows, batch_size))
    alone = batch_size > 1 and len(starts) > 1 and num_rows - starts[-1] == 1
    return starts[:-1] if alone else starts


def descend(
    net: nn.Module, features: Tensor, labels: Tensor, plan: StudyPlan, learning_rate: float, mu: float
) -> float:
    """Train a net on some rows; return the last batch's loss."""
    received = [weights.detach().clone() for weights in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    starts = batch_starts(len(labels), plan.batch_size)
    loss = torch.zeros(())
    for _ in range(plan.local_epochs):
        order = torch.randperm(len(labels))
        for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True):
            rows = order[start:stop]
            optimizer.zero_grad()
            loss = cross_entropy(net(features[rows]), labels[rows])
            if mu > 0:
                away = [((here - there) ** 2).sum() for here, there in zip(net.parameters(), received, strict=True)]
                loss = loss + mu / 2 * torch.stack(away).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return loss.item()


def _received(message: Message, context: Context, part: int) -> tuple[StudyPlan, nn.Module, Tensor, Tensor]:
    """Return the net with the message's parameters, and the client's training (0) or test (1) rows."""
    config = message.content.config_records["config"]
    folder = str(config[FOLDER_KEY])
    plan, net, features, labels = _study(folder)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    rows = torch.from_numpy(_split(folder, int(str(config[SEED_KEY])))[int(context.node_config["partition-id"])][part])
    return plan, net, features[rows], labels[rows]


def _number(config: ConfigRecord, key: str) -> float:
    return float(str(config.get(key, 0.0)))


@clients.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the model after the local epochs."""
    plan, net, features, labels = _received(message, context, 0)
    config = message.content.config_records["config"]
    loss = descend(net, features, labels, plan, _number(config, RATE_KEY), _number(config, MU_KEY))
    metrics = MetricRecord({"loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@clients.evaluate()
@torch.no_grad()
def evaluate(message: Message, context: Context) -> Message:
    """Answer with loss and accuracy on the test rows."""
    _, net, features, labels = _received(message, context, 1)
    outputs = net(features)
    loss = cross_entropy(outputs, labels, reduction="sum").item() / max(1, len(labels))
    accuracy = int((outputs.argmax(dim=1) == labels).sum().item()) / max(1, len(labels))
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
