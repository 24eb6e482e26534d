"""What a detection costs, in rounds of FedAvg on the same hosts.

A round-equivalent is the wall time of one round of FedAvg over the same federation: every client trains and evaluates,
through the Grid. Blocks of about as many rounds as a detection lasts alternate with detections, and the shortest of
each counts, so that other work on the machine disturbs both alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pydantic import BaseModel

from fedscout.detectors import DetectionConfig
from fedscout.detectors.detection.detect import detect
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.engine_config import EngineConfig
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_runner import TrialRunner
from fedscout.experiments.benchmarks.round_times import run_rounds
from fedscout.experiments.studies.open_runner import open_runner
from fedscout.strategies import FedAvgSpec

BLOCK_ROUNDS = 10
"""Rounds timed at a time, after a first one that is not counted."""


class DetectionCost(BaseModel, frozen=True):
    """One measurement; all times are of the shortest of several runs.

    Attributes:
        seconds: Wall time of a whole detection.
        round_seconds: Wall time of a round of FedAvg.
        round_equivalents: Their ratio.
        parts: Seconds of that detection: waiting for `clients`, and the server's own work by detector.
    """

    federation: str
    clients: int
    hosts: int
    seconds: float
    round_seconds: float
    round_equivalents: float
    parts: Mapping[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {1000 * spent:.1f}" for name, spent in self.parts.items())
        return (
            f"{self.federation}, {self.hosts} hosts: {1000 * self.seconds:.1f} ms = {self.round_equivalents:.1f} "
            f"rounds of {1000 * self.round_seconds:.2f} ms  ({parts})"
        )


def detection_cost(
    federation: Federation, training: LocalTraining, engine: EngineConfig, repeats: int = 5
) -> DetectionCost:
    """Measure detections and rounds on the same hosts, in so many turns after one that warms up.

    Raises:
        RuntimeError: If a round fails.
    """
    rounds: list[float] = []
    detections: list[tuple[float, Mapping[str, float]]] = []
    with open_runner(federation, engine, None, parallel=1) as lazy:
        runner = lazy.started()
        for _ in range(1 + repeats):
            rounds.append(round_seconds(runner, training))
            detections.append(_detection_seconds(runner, training))
        num_hosts = runner.num_hosts
    shortest = min(rounds[1:])
    seconds, parts = min(detections[1:], key=lambda detection: detection[0])
    return DetectionCost(
        federation=federation.name,
        clients=federation.num_clients,
        hosts=num_hosts,
        seconds=seconds,
        round_seconds=shortest,
        round_equivalents=seconds / shortest,
        parts=parts,
    )


def _detection_seconds(runner: TrialRunner, training: LocalTraining) -> tuple[float, Mapping[str, float]]:
    grid = runner.grid(Session(training=training, test_fraction=0.0))
    began = time.perf_counter()
    report = detect(grid, grid.initial_vectors, training, DetectionConfig(), seed=0)
    return time.perf_counter() - began, report.timings


def round_seconds(runner: TrialRunner, training: LocalTraining) -> float:
    """Return the wall time of a round of FedAvg of all clients, the mean of a block after one that is not counted."""
    ends: list[float] = []
    clients = runner.facts.num_clients
    run_rounds(
        runner.grid, FedAvgSpec(), clients, training, 1 + BLOCK_ROUNDS, lambda _: ends.append(time.perf_counter())
    )
    return (ends[-1] - ends[0]) / (len(ends) - 1)
