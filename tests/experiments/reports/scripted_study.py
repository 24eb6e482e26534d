"""Studies whose trials are scripted, in folders as the program writes them."""

from __future__ import annotations

from pathlib import Path

from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.run_folder import open_run_folder
from fedscout.experiments.studies.workflow import cohort_of
from fedscout.search.study import run_study
from tests.search.studies import Measured, ScriptedRunner, completed, failed, open_ledger

NUM_ROUNDS = 3


def by_strategy(spec: TrialSettings) -> Measured:
    """FedAvg has 0.5, FedProx fails, others have 0.25 and their number of rounds as further hundredths."""
    if spec.strategy.kind == "fedprox":
        return failed("it diverged")
    return completed(
        0.5 if spec.strategy.kind == "fedavg" else 0.25 + spec.num_rounds / 100, num_rounds=spec.num_rounds
    )


def write_study(folder: Path, *settings: str) -> None:
    """Run a study of scripted trials on ten clients of wine and leave its folder."""
    data = ["federation.dataset=wine", "federation.num_clients=10", f"training.num_rounds={NUM_ROUNDS}"]
    config = load_config([*data, "search.tuned_baseline=false", *settings])
    with open_run_folder(folder, config) as opened:
        ledger = open_ledger(
            opened.path,
            ScriptedRunner(by_strategy),
            name="wine, 10 clients",
            num_rounds=NUM_ROUNDS,
            cohort=cohort_of(config, 10),
            training=config.training.local(),
            searcher=config.search.kind,
            config_hash=config.digest(),
        )
        run_study(config.search, ledger)
