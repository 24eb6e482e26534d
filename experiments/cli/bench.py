"""`fedscout bench`: measurements."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from experiments.cli.options import AsJson

bench = typer.Typer(name="bench", help="Measure the program.", no_args_is_help=True)


@bench.command()
def engine(
    work: Annotated[Literal["dense", "lenet"], typer.Option(help="Dense 254-64-32-2, or LeNet-5 on images.")] = "dense",
    clients: Annotated[int, typer.Option(min=1, help="Clients.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Rows a client.")] = 250,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured, after warm-up.")] = 20,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Kind or JSON; may be repeated. FedAvg if left out.")
    ] = None,
    hosts: Annotated[int, typer.Option(min=1, help="Ray hosts.")] = 2,
    local: Annotated[bool, typer.Option("--local", help="In this process instead of on Ray.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time a round: train, aggregate and evaluate through the Grid."""
    from experiments.ray_runtime import prepare_environment

    prepare_environment(verbose=False)
    from engine.strategy_contract import Cohort
    from experiments.bench.engine_bench import time_engine
    from experiments.bench.engine_work import TRAINING
    from experiments.engine_config import EngineConfig
    from strategies import parse_strategy

    cohort = Cohort(clients, clients, TRAINING.learning_rate)
    specs = [parse_strategy(text, cohort) for text in strategy or ["fedavg"]]
    config = EngineConfig(grid="local" if local else "ray", num_hosts=hosts)
    timings = time_engine(work, clients, samples, rounds, specs, config)
    if as_json:
        from experiments.cli.console import show_json

        show_json(timings[0].model_dump() if len(timings) == 1 else {"timings": [t.model_dump() for t in timings]})
        return
    print(f"{work}, {clients} clients of {samples} rows, {timings[0].hosts} hosts, {rounds} rounds")
    for timing in timings:
        parts = ", ".join(f"{phase} {1000 * spent:.1f}" for phase, spent in timing.phases.items())
        print(f"{1000 * timing.seconds_per_round:9.2f} ms a round  {timing.strategy}  ({parts})")
