"""A study's folder written by hand through the program's own log: no training, every number known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.runtime.files import json_text
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import config_of
from fedscout.search.confirmation.confirmation import candidate_of, confirm
from fedscout.strategies import parse_strategy
from tests.search.recommenders.reports import finding, report_of

CLIENTS = 4
SEEDS = (11, 12, 13)


def write_study(
    folder: Path,
    num_trials: int = 6,
    num_rounds: int = 10,
    finished: bool = True,
    diagnosed: bool = True,
    class_names: tuple[str, ...] = ("cat", "dog"),
    name: str = "by hand",
) -> Path:
    """Write FedAvg, a search of FedAdam, and a confirmation in which FedAdam wins everywhere but at client 3."""
    config = config_of({"training": {"num_rounds": num_rounds}})
    claim = {"config": config.identity(), "config_hash": config.digest(), "versions": {"fedscout": "0.1.0"}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json_text(claim))
    log = TrialLog(folder)
    shared = {"study": name, "config_hash": config.digest()}
    curves = np.random.default_rng(0).uniform(0.4, 0.9, (num_trials + 1, num_rounds))
    curves[0] = 0.3
    trials = [_trial("fedavg", curve=curves[0], phase="baseline", trial=0, **shared)]
    for number in range(1, num_trials + 1):
        kind = {"kind": "fedadam", "eta": 0.001 * number}
        trials.append(_trial(kind, curve=curves[number], phase="search", trial=number, generation=1, **shared))
    best = max(trials[1:], key=lambda trial: trial.fitness)
    confirmed = {"challenger": [], "fedavg": []}
    for place, seed in enumerate(SEEDS):
        for role, spec in (("challenger", best.spec), ("fedavg", trials[0].spec)):
            level = 0.8 + 0.01 * place if role == "challenger" else 0.7
            clients = (level, level, level, 0.5 if role == "challenger" else 0.6)
            trial = _trial(
                spec, np.full(num_rounds, level), clients, phase="confirmation", seed=seed, trial=len(trials), **shared
            )
            trials.append(trial)
            confirmed[role].append(trial)
    for trial in trials if finished else trials[: num_trials + 1]:
        log.append(trial)
    report = _report() if diagnosed else None
    if report is not None:
        (folder / "report.json").write_text(json_text(report.model_dump(mode="json")))
    if finished:
        candidates = [candidate_of(role, own) for role, own in confirmed.items()]
        result = {
            "config_hash": config.digest(),
            "federation": {"name": name, "class_names": list(class_names), "client_rows": [40, 30, 20, 10]},
            "confirmation": confirm(SEEDS, candidates, "own").model_dump(mode="json"),
            "timings": {"seconds": {"total": 3.0}},
        }
        (folder / "result.json").write_text(json_text(result))
    return folder


def _trial(spec: Any, curve: Any, clients: tuple[float, ...] = (0.7,) * CLIENTS, **held: Any) -> Trial:
    spec = parse_strategy(spec) if isinstance(spec, str | dict) else spec
    scores = tuple(float(score) for score in curve)
    fitness = float(np.mean(scores[-5:]))
    return Trial(
        spec,
        key=f"{held['trial']:064x}",
        strategy=spec.label,
        parameters=spec.parameters(),
        learning_rate=0.2,
        fitness=fitness,
        own_fitness=fitness,
        clean_fitness=fitness,
        rounds=dict.fromkeys(("accuracy", "clean_accuracy", "loss", "clean_loss", "train_loss"), scores),
        clients={
            **{"id": tuple(range(CLIENTS)), "num_examples": (8, 6, 4, 2)},
            **dict.fromkeys(("accuracy", "clean_accuracy"), clients),
        },
        bytes_down=1000.0,
        bytes_up=500.0,
        seconds={"total": 0.5},
        versions={"fedscout": "0.1.0"},
        **held,
    )


def _report() -> HeterogeneityReport:
    counts = [(40, 0), (0, 30), (10, 10), (5, 5)]
    report = report_of(None, None, rows=tuple(map(sum, counts)))
    clients = [
        facts.model_copy(update={"label_counts": own}) for facts, own in zip(report.clients, counts, strict=True)
    ]
    values = {0: 0.4, 1: 0.3, 2: 0.05, 3: 0.05}
    skew = finding("label_skew", 0.4, 0.1, flagged=(0,)).model_copy(update={"client_values": values})
    return report.model_copy(update={"clients": tuple(clients), "label_skew": skew})
