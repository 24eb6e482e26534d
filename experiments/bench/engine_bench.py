"""How long a round takes through the Grid: train, aggregate, evaluate."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel, ConfigDict

from engine.trial import TrialSpec
from experiments.bench.engine_work import TRAINING, WorkName, work_federation
from experiments.engine_config import EngineConfig
from experiments.open_runner import open_runner
from strategies import StrategySpec

WARM_UP_ROUNDS = 2


class EngineTiming(BaseModel):
    """One measurement.

    Attributes:
        work: `dense` or `lenet`.
        clients: Clients.
        samples: Rows of each.
        rounds: Rounds measured, after warm-up.
        strategy: The strategy for people.
        hosts: Hosts.
        seconds_per_round: Wall time of a whole round.
        phases: Its parts, seconds a round; `hosts` is the summed compute time of the hosts.
        accuracy: After the last round, to tell that the work was done.
        start_seconds: From nothing to hosts that answer.
    """

    model_config = ConfigDict(frozen=True)

    work: WorkName
    clients: int
    samples: int
    rounds: int
    strategy: str
    hosts: int
    seconds_per_round: float
    phases: dict[str, float]
    accuracy: float
    start_seconds: float


def time_engine(
    work: WorkName, clients: int, samples: int, rounds: int, strategies: list[StrategySpec], engine: EngineConfig
) -> list[EngineTiming]:
    """Measure strategies on the same hosts, one after the other.

    Raises:
        RuntimeError: If a strategy's trial fails.
    """
    federation = work_federation(work, clients, samples)
    timings = []
    with open_runner(federation, engine, None, parallel=1) as runner:
        runner.started()
        for strategy in strategies:
            _run(runner, strategy, clients, WARM_UP_ROUNDS)
            began = time.perf_counter()
            result = _run(runner, strategy, clients, rounds)
            seconds = time.perf_counter() - began
            timings.append(
                EngineTiming(
                    work=work,
                    clients=clients,
                    samples=samples,
                    rounds=rounds,
                    strategy=str(strategy),
                    hosts=runner.num_hosts,
                    seconds_per_round=seconds / rounds,
                    phases={phase: spent / rounds for phase, spent in result.seconds.items() if phase != "total"},
                    accuracy=result.rounds[-1].accuracy,
                    start_seconds=runner.start_seconds,
                )
            )
    return timings


def _run(runner: Any, strategy: StrategySpec, clients: int, rounds: int) -> Any:
    """Drive one trial from this process, as a trial task would."""
    from engine.trial import run_trial

    spec = TrialSpec(
        key="bench",
        strategy=strategy,
        seed=0,
        num_rounds=rounds,
        num_sampled=clients,
        training=TRAINING,
        evaluate_on="train",
        test_fraction=0.0,
    )
    result = run_trial(spec, runner.grid(spec.session()))
    if result.status == "failed":
        raise RuntimeError(f"{strategy} failed: {result.error}")
    return result
