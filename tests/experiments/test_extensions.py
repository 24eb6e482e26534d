"""A strategy, a selection policy, a model and a data set from outside the package, in one command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.commands import ran_python

OURS = """
import torch
from flwr.serverapp.strategy import FedAvg
from fedscout.engine.messages.calls import SelectionPolicy

class Slower(FedAvg):
    def __init__(self, share=0.5, **counts):
        super().__init__(**counts)
        self.share, self.sent = share, None

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name, array in arrays.items():
            sent = self.sent[name].numpy()
            arrays[name] = type(array)(sent + self.share * (array.numpy() - sent))
        return arrays, metrics

class FirstOnes(SelectionPolicy):
    def choose(self, server_round, table, num_chosen, generator):
        return table.clients[:num_chosen]

def net(num_features, num_classes):
    return torch.nn.Linear(num_features, num_classes)
"""


@pytest.mark.slow
def test_everything_of_ones_own_runs_together(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(240, 4)), columns=list("abcd"))
    rows["kind"] = np.where(rows["a"] + rows["b"] > 0, "up", "down")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    settings = [
        *("federation.dataset=rows.csv", "federation.label=kind", "federation.num_clients=4", "model.kind=ours:net"),
        "strategy={kind: custom, path: 'ours:Slower', values: {share: 0.8}}",
        "selection={kind: custom, path: 'ours:FirstOnes'}",
        *("training.fraction_train=0.5", "training.num_rounds=4", "engine.grid=local"),
    ]
    done = ran_python("-m", "fedscout", "train", "--json", "--out", "out", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    trial = json.loads(done.stdout)["trial"]
    assert (trial["status"], trial["num_rounds"]) == ("completed", 4)
    assert (trial["parameters"]["values"], trial["selection"]) == ({"share": 0.8}, "ours:FirstOnes")
    assert trial["fitness"] > 0.8
