"""What the loss for wrong labels is there for: digits of which 40 % are called something else."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.strategies import FedAvgSpec


def clean_accuracy(training: LocalTraining, seed: int) -> float:
    """Return the mean of the last five of 30 rounds, on labels as they were."""
    federation = FederationConfig.model_validate(
        {
            "dataset": "digits",
            "num_clients": 10,
            "partition": {"kind": "iid"},
            "seed": seed,
            "scenario": {"kind": "label_flip", "clients": "all", "rate": 0.4},
        }
    )
    host = ClientHost(build_federation(federation, ModelConfig()), {})
    session = Session(seed=seed, training=training)
    trial = run_trial(TrialSettings(FedAvgSpec(), 30, 10, session), LocalGrid(host, session=session))
    assert trial.error is None
    return float(np.mean(trial.round_clean_accuracy[-5:]))


@pytest.mark.stress
def test_the_added_terms_help_where_labels_are_wrong() -> None:
    """On every one of three splits; docs/strategies.md has both losses at their best rates."""
    plain = LocalTraining(local_epochs=5)
    robust = plain.model_copy(update={"pseudo_label_weight": 1.0, "reverse_weight": 1.0})
    gains = [clean_accuracy(robust, seed) - clean_accuracy(plain, seed) for seed in range(3)]
    assert min(gains) > 0
