"""Folders of small earlier studies, with scripted results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.trials.record import TrialSettings
from fedscout.strategies import FedAvgSpec, StrategySpec
from tests.search.recommenders import reports
from tests.search.studies import SEED, ScriptedRunner, completed, failed, open_ledger

TRAINING = {"learning_rate": 0.2, "local_epochs": 1, "batch_size": 32, "num_rounds": 2, "fraction_train": 1.0}
FEDAVG = FedAvgSpec()


def report_of(
    num_clients: int = 10,
    label_skew: float | None = 0.3,
    outliers: tuple[int, ...] = (),
    num_classes: int = 10,
    curvature: float | None = None,
) -> HeterogeneityReport:
    """Return a report in which every client holds 20 rows, and the models of outliers are far from the others'."""
    rows = (20,) * num_clients
    distances = tuple(10.0 if client in outliers else 1.0 + client / 100 for client in range(num_clients))
    report = reports.report_of(label_skew, 0.1, outliers, distances=distances, rows=rows, num_classes=num_classes)
    values = {} if label_skew is None else dict.fromkeys(range(num_clients), label_skew)
    metrics = report.metrics.model_copy(update={"input_curvature": curvature})
    label_finding = report.label_skew.model_copy(update={"client_values": values})
    return report.model_copy(update={"label_skew": label_finding, "metrics": metrics})


def write_study(
    folder: Path,
    scores: Mapping[StrategySpec, float | None],
    report: HeterogeneityReport | None = None,
    dataset: str = "digits",
    config_hash: str = "0123",
    data_digest: str = "rows",
    rounds: int | None = None,
    confirmed: Mapping[int, Mapping[StrategySpec, float]] | None = None,
    training: Mapping[str, Any] | None = None,
) -> Path:
    """Write a study's folder.

    Args:
        folder: Where.
        scores: Fitness of each trial on the search's seed; None failed.
        report: Of its federation; None is that of `report_of`.
        dataset: By which federations differ.
        config_hash: Of the study.
        data_digest: Of its rows.
        rounds: Of all its trials but FedAvg; None is a full training.
        confirmed: Fitness on fresh seeds, by seed.
        training: Where it differs from `TRAINING`.
    """
    wanted = {SEED: dict(scores), **{seed: dict(found) for seed, found in (confirmed or {}).items()}}

    def outcome(spec: TrialSettings) -> Any:
        score = wanted[spec.session.seed][spec.strategy]  # type: ignore[index]
        return failed("no") if score is None else completed(score, num_rounds=spec.num_rounds)

    ledger = open_ledger(folder, ScriptedRunner(outcome), config_hash=config_hash)
    for spec in scores:
        phase = "baseline" if spec == FEDAVG else "search"
        ledger.run([ledger.facts.trial(phase, spec, num_rounds=None if spec == FEDAVG else rounds)])
    for seed, found in (confirmed or {}).items():
        ledger.run([ledger.facts.trial("confirmation", spec, seed) for spec in found])
    claim = {
        "config_hash": config_hash,
        "data_digest": data_digest,
        "config": {"federation": {"dataset": dataset}, "training": {**TRAINING, **(training or {})}},
    }
    (folder / "config.json").write_text(json.dumps(claim))
    (folder / "report.json").write_text((report or report_of()).model_dump_json())
    return folder
