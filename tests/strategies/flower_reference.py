"""Flower's own simulation of the programs of `flower_programs`: `python -m tests.strategies.flower_reference FOLDER`.

FOLDER/work.npz holds each client's training rows, FOLDER/NET.npz the model to begin with; FOLDER/PROGRAM.npz gets each
program's final model. Clients take full-batch steps, so nothing depends on the order of rows. They are written by the
book: Flower's mods, and the loss of FedProx's paper.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from tests.strategies.flower_programs import NETS, NUM_CLIENTS, PROGRAMS, AdaptivelyClipped


def if_asked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Apply the mod that goes with the strategy; one app serves all of them."""
    config = message.content.config_records["config"]
    if "clipping_norm" not in config:
        return call_next(message, context)
    mod = adaptiveclipping_mod if config["program"] == AdaptivelyClipped.__name__ else fixedclipping_mod
    return mod(message, context, call_next)


clients = ClientApp(mods=[if_asked])


@clients.train()
def train(message: Message, context: Context) -> Message:
    """Take full-batch steps of gradient descent."""
    config = message.content.config_records["config"]
    work = np.load(str(config["work"]))
    client = context.node_config["partition-id"]
    features, labels = torch.from_numpy(work[f"features-{client}"]), torch.from_numpy(work[f"labels-{client}"])
    net = NETS[str(config["program"])]()
    received = message.content.array_records["arrays"].to_torch_state_dict()
    net.load_state_dict(received)
    optimizer = torch.optim.SGD(net.parameters(), lr=float(str(config["lr"])))
    for _ in range(int(str(config["local-epochs"]))):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(features), labels)
        if "proximal-mu" in config:
            pull = sum(((value - received[name]) ** 2).sum() for name, value in net.named_parameters())
            loss = loss + float(str(config["proximal-mu"])) / 2 * pull
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(labels), "num-clients": 1})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@clients.evaluate()
def evaluate(message: Message, _: Context) -> Message:
    """Answer; nobody reads it."""
    return Message(RecordDict({"metrics": MetricRecord({"loss": 0.0, "num-examples": 1})}), reply_to=message)


def main(folder: Path) -> None:
    """Run all programs on one simulated federation."""
    settings = json.loads((folder / "settings.json").read_text())
    server = ServerApp()

    @server.main()
    def drive(grid: Grid, _: Context) -> None:
        for name in settings["programs"]:
            initial = np.load(folder / f"{NETS[name].__name__}.npz")
            config = {"program": name, "work": str(folder / "work.npz"), **settings["config"]}
            result = PROGRAMS[name]().start(
                grid=grid,
                initial_arrays=ArrayRecord({key: Array(initial[key]) for key in initial.files}),
                num_rounds=settings["num_rounds"],
                train_config=ConfigRecord(config),
            )
            np.savez(folder / f"{name}.npz", **{key: array.numpy() for key, array in result.arrays.items()})

    run_simulation(
        server_app=server,
        client_app=clients,
        num_supernodes=NUM_CLIENTS,
        backend_config={
            # Without "local" it would join whatever cluster runs on this machine.
            "init_args": {"address": "local", "num_cpus": 1, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
