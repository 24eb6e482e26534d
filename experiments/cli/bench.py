"""`fedscout bench`: measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.cli.options import AsJson, Settings
from fedscout.experiments.visible import show, tell

Work = Annotated[
    Literal["dense", "lenet", "textcnn", "tiny", "resnet18", "resnet18-32"],
    typer.Option(
        help="Dense 254-64-32-2, LeNet-5 or ResNet-18 on images, TextCNN, or dense 8-8-2 for very many clients."
    ),
]
Hosts = Annotated[int, typer.Option(min=1, help="Ray hosts.")]
Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="What hosts and peers train on.")]
Local = Annotated[bool, typer.Option("--local", help="In this process instead of on Ray.")]

bench = typer.Typer(name="bench", help="Measure the program.", no_args_is_help=True)


SUITES = Path(__file__).parents[1] / "suites"


@bench.command()
def engine(
    work: Work = "dense",
    clients: Annotated[int, typer.Option(min=1, help="Clients.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Rows a client.")] = 250,
    sampled: Annotated[
        int | None, typer.Option(min=1, help="Clients that train in a round, and score; all if left out.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured, after warm-up.")] = 20,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Kind or JSON; may be repeated. FedAvg if left out.")
    ] = None,
    hosts: Hosts = 2,
    local: Local = False,
    device: Device = "cpu",
    peers: Annotated[bool, typer.Option("--peers", help="Run other simulators on the same work.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Turns: ours and peers, again and again.")] = 1,
    peer_seconds: Annotated[float, typer.Option(min=1.0, help="After which a peer is given up.")] = 600.0,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of our clients' layers; peers have float32.")
    ] = "float32",
    memory: Annotated[bool, typer.Option("--memory", help="Sample our memory, which takes a little time.")] = False,
    strategies: Annotated[
        str | None,
        typer.Option(help="In one process, each beside FedAvg, so many turns: kinds such as fedbn,ditto, or all."),
    ] = None,
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed",
            help="Local training alone, in one process: settings of clients' own beside one setting of as many steps, "
            "so many turns.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time a round: train, aggregate and evaluate through the Grid."""
    from fedscout.engine.runtime.ray_runtime import prepare_environment

    prepare_environment(verbose=False)
    from fedscout.engine.contracts.trial_strategy import Cohort
    from fedscout.engine.engine_config import EngineConfig
    from fedscout.engine.errors import ConfigurationError
    from fedscout.experiments.benchmarks.engine.engine_bench import Sitting, measure_engine, report_lines
    from fedscout.experiments.benchmarks.engine.engine_work import SERVER_ROWS, TRAINING
    from fedscout.experiments.benchmarks.engine.peer_runs import PEERS
    from fedscout.experiments.benchmarks.peers.work import Task
    from fedscout.strategies import parse_strategy

    if mixed:
        from fedscout.experiments.benchmarks.engine.mixed_settings import mixed_lines, mixed_turns

        task = Task(work, clients, samples, rounds, workers=1)
        turns = mixed_turns(task, repeats, note=tell)
        _show(as_json, {"turns": [turn.model_dump() for turn in turns]}, mixed_lines(task, turns))
        return
    if strategies is not None:
        from fedscout.experiments.benchmarks.engine.strategy_cost import asked_strategies, cost_lines, strategy_costs

        task = Task(work, clients, samples, rounds, workers=1)
        costs = strategy_costs(task, asked_strategies(_listed("strategies", strategies)), repeats, note=tell)
        _show(as_json, {"costs": [cost.model_dump(mode="json") for cost in costs]}, cost_lines(task, costs))
        return
    if sampled is not None and (peers or sampled > clients):
        raise ConfigurationError(
            Fault(
                "--sampled",
                (f"be at most --clients={clients}, and left out beside --peers, all of whose clients train"),
                hint=f"got {sampled}",
            )
        )
    cohort = Cohort(clients, sampled or clients, TRAINING.learning_rate, server_rows=SERVER_ROWS, server_labels=True)
    specs = [parse_strategy(text, cohort) for text in strategy or ["fedavg"]]
    shares = hosts if device == "cuda" else None
    config = EngineConfig(grid="local" if local else "ray", num_hosts=hosts, device=device, hosts_per_gpu=shares)
    training = TRAINING.model_copy(update={"precision": precision})
    sitting = Sitting(repeats, PEERS if peers else (), peer_seconds, memory, training)
    note = tell if peers or repeats > 1 else lambda _: None
    task = Task(work, clients, samples, rounds, hosts, device, sampled)
    report = measure_engine(task, specs, config, sitting, note)
    _show(as_json, report.document(), report_lines(report))


@bench.command()
def study(
    settings: Settings = None,
    work: Annotated[
        Literal["digits", "lenet"], typer.Option(help="The demo, or the same digits as 32 x 32 pictures for LeNet-5.")
    ] = "digits",
    repeats: Annotated[int, typer.Option(min=1, help="Turns: ours and peers, again and again.")] = 1,
    grid: Annotated[
        list[str] | None, typer.Option(help="auto, ray or local; may be repeated, the first is compared with.")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Run the same trainings in Flower's simulation.")] = True,
    peer_trainings: Annotated[
        int | None, typer.Option(min=3, help="Made there at most, the rest estimated; all if left out.")
    ] = None,
    peer_seconds: Annotated[float, typer.Option(min=1.0, help="After which a peer is given up.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Time the whole job, from command to confirmed choice, beside Flower's simulation with Optuna."""
    from fedscout.experiments.cli.options import prepare

    prepare(verbose=False)
    from fedscout.experiments.benchmarks.study.study_bench import WAYS, StudySitting, measure_study
    from fedscout.experiments.benchmarks.study.study_tables import table_lines

    ways = tuple(WAYS) if peers else ()
    sitting = StudySitting(settings or (), grid or ("auto",), ways, repeats, peer_trainings, peer_seconds)
    report = measure_study(work, sitting, note=tell)
    _show(as_json, report.model_dump(mode="json"), table_lines(report))


@bench.command()
def kernels(
    turns: Annotated[int, typer.Option(min=1, help="Of which the shortest counts.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Set one core's training and scoring of larger models, and of a block of small ones, beside its products."""
    from fedscout.engine.runtime.ray_runtime import prepare_environment

    prepare_environment(verbose=False)
    from fedscout.experiments.benchmarks.engine import block_bench
    from fedscout.experiments.benchmarks.engine.kernel_bench import kernel_timings, product_rates, table_lines

    rates, timings, blocks = product_rates(turns), list(kernel_timings(turns)), block_bench.block_timings(turns)
    document = {
        "products": rates,
        "timings": [timing.model_dump() for timing in timings],
        "blocks": [block.model_dump() for block in blocks],
    }
    _show(as_json, document, [*table_lines(rates, timings), "", *block_bench.table_lines(blocks)])


@bench.command("detection-cost")
def detection_cost(
    work: Work = "dense",
    clients: Annotated[
        list[int] | None, typer.Option(min=3, help="Clients; may be repeated. 4, 10, 30 and 100 if left out.")
    ] = None,
    samples: Annotated[int, typer.Option(min=5, help="Rows a client.")] = 250,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of rounds and detections, after one to warm up.")] = 5,
    modules: Annotated[bool, typer.Option("--modules", help="Each module on its own, and the whole.")] = False,
    hosts: Hosts = 2,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Compare a whole detection with rounds of FedAvg on the same hosts."""
    from fedscout.engine.runtime.ray_runtime import prepare_environment

    prepare_environment(verbose=False)
    from fedscout.engine.engine_config import EngineConfig
    from fedscout.experiments.benchmarks.engine import detection_cost as measurement
    from fedscout.experiments.benchmarks.engine.engine_work import TRAINING, work_federation

    config = EngineConfig(grid="local" if local else "ray", num_hosts=hosts)
    federations = (work_federation(work, number, samples) for number in clients or (4, 10, 30, 100))
    if modules:
        from fedscout.experiments.benchmarks.engine.detection_modules import module_costs, table_lines

        found = [module_costs(federation, TRAINING, config, repeats) for federation in federations]
        _show(as_json, {"costs": [cost.model_dump() for cost in found]}, table_lines(found))
        return
    costs = [measurement.detection_cost(federation, TRAINING, config, repeats) for federation in federations]
    _show(as_json, {"costs": [cost.model_dump() for cost in costs]}, [str(cost) for cost in costs])


@bench.command()
def detection(
    battery: Annotated[
        bool, typer.Option("--battery", help="Only federations of data sets: the bundled ones, 4 and 10 clients.")
    ] = False,
    withheld: Annotated[
        bool, typer.Option("--withheld", help="Only label counts, of which clients withhold small classes.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Federations of each kind, of either part alone.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Battery of all data sets, 4, 10, 50 and 100 clients, 5 seeds: hours.")
    ] = False,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Data set, or NAME:ROWS for a sample of it; may be repeated.")
    ] = None,
    clients: Annotated[list[int] | None, typer.Option(min=3, help="Clients; may be repeated.")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Case, such as iid; may be repeated.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Data sets on which no rule was set.")] = False,
    absent: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Probability that a client misses an exchange.")
    ] = 0.0,
    shared_set: Annotated[
        bool, typer.Option("--shared-set", help="Score models on 200 labelled rows of the server, too.")
    ] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Count how often published and calibrated detection are right, on federations of known truth.

    Without --battery, --withheld and options of the battery both parts are printed.
    """
    from fedscout.experiments.cli.options import prepare

    prepare(verbose=False)
    from fedscout.experiments.benchmarks.detection import detection_battery, detection_battery_table, withheld_labels

    chosen = any((battery, full, dataset, clients, scenario, held_out, absent, shared_set, settings))
    if chosen and withheld:
        raise ConfigurationError(
            Fault("--withheld", "be given without --battery and its options: it takes --seeds alone")
        )
    if seeds is not None and not chosen and not withheld:
        raise ConfigurationError(Fault("--seeds", "be given with --battery or --withheld, whose federations it counts"))
    document: dict[str, Any] = {}
    lines: list[str] = []
    if not withheld:
        asked = (dataset or (), clients or (), scenario or (), seeds, settings or ())
        plan = detection_battery.battery_plan(full, *asked, held_out, absent, shared_set)
        found = detection_battery.run_battery(plan, note=tell)
        document |= detection_battery_table.battery_document(found)
        lines += detection_battery_table.table_lines(found)
    if not chosen:
        alarms = withheld_labels.withheld_alarms(seeds or withheld_labels.FEDERATIONS, note=tell)
        document |= withheld_labels.alarms_document(alarms)
        lines += withheld_labels.table_lines(alarms)
    _show(as_json, document, lines)


@bench.command()
def scaling(
    nodes: Annotated[str, typer.Option(help="Numbers of raylets, ascending, such as 1,2,4.")] = "2,4,8,16,32",
    clients: Annotated[int, typer.Option(min=1, help="Clients where there are many.")] = 1000,
    rounds: Annotated[int, typer.Option(min=4, help="Rounds measured of each size, after warm-up.")] = 30,
    target: Annotated[int, typer.Option(min=1, help="Nodes to forecast.")] = 100,
    gigabits: Annotated[float, typer.Option(min=0.001, help="Bandwidth of the forecast's network, Gbit/s.")] = 10.0,
    latency_ms: Annotated[float, typer.Option(min=0.0, help="From a call to its answer in that network.")] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Measure a round's overhead on clusters of many raylets here, and model that of a larger one."""
    numbers = _ascending(nodes)
    from fedscout.engine.runtime.ray_runtime import prepare_environment

    prepare_environment(verbose=False)
    from fedscout.experiments.benchmarks.engine.cost_model import Network
    from fedscout.experiments.benchmarks.engine.scaling_bench import measure_scaling, report_lines

    network = Network(gigabits_per_second=gigabits, latency_seconds=latency_ms / 1000)
    report = measure_scaling(numbers, clients, rounds, target, network, note=tell)
    _show(as_json, report.model_dump(), report_lines(report))


@bench.command()
def choice(
    settings: Settings = None,
    federation: Annotated[
        list[str] | None,
        typer.Option(
            help="Arguments of a federation in place of the battery's, such as 'federation.dataset=wine "
            "federation.num_clients=6'; may be repeated."
        ),
    ] = None,
    chooser: Annotated[
        list[str] | None,
        typer.Option(
            help="May be repeated; all of them if left out. Of a replay also a searcher of your own, "
            "package.module:Class."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three federations, fewer rounds, a coarse grid.")] = False,
    search_seeds: Annotated[int | None, typer.Option(min=1, help="Choices of each chooser on each federation.")] = None,
    fresh_seeds: Annotated[int | None, typer.Option(min=2, help="On which every pick is trained.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the trials; what it holds is not trained again.")
    ] = Path("runs/bench-choice"),
    replay: Annotated[
        str | None,
        typer.Option(help="A table of trials to choose from in place of training, such as published, the own one."),
    ] = None,
    half: Annotated[str | None, typer.Option(help="Of a replay: development or held-out federations alone.")] = None,
    strategies_alone: Annotated[
        bool, typer.Option("--strategies-alone", help="Of a replay: the clients' settings are not searched.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much each way to choose a strategy loses against the best one, and what it costs."""
    from fedscout.engine.errors import ConfigurationError
    from fedscout.experiments.cli.options import prepare, user_folders

    prepare(verbose=False)
    of_a_replay = {"--half": half is not None, "--strategies-alone": strategies_alone}
    if replay is None and (given := [option for option, is_given in of_a_replay.items() if is_given]):
        raise ConfigurationError(Fault(" and ".join(given), "be given with --replay", "no --replay"))
    of_trainings = {
        "--federation": bool(federation),
        "--quick": quick,
        "--search-seeds": search_seeds is not None,
        "--fresh-seeds": fresh_seeds is not None,
    }
    if replay is not None and (given := [option for option, is_given in of_trainings.items() if is_given]):
        raise ConfigurationError(Fault(" and ".join(given), "be left out with --replay, which trains nothing"))
    if replay is not None:
        from fedscout.experiments.benchmarks.choice.replay_measurement import run_replay
        from fedscout.experiments.benchmarks.choice.replay_tables import replay_lines

        user_folders()
        replayed = run_replay(replay, chooser, half, settings or [], strategies_alone, note=tell)
        _show(as_json, replayed.model_dump(mode="json"), replay_lines(replayed))
        return
    from fedscout.experiments.benchmarks.choice.choice_measurement import plan_of, run_choice
    from fedscout.experiments.benchmarks.choice.choice_tables import table_lines

    plan = plan_of(chooser, quick, search_seeds, fresh_seeds)
    report = run_choice(plan, settings or [], federation, quick, out, note=tell)
    _show(as_json, report.model_dump(mode="json"), table_lines(report))


@bench.command()
def table(
    settings: Settings = None,
    half: Annotated[str | None, typer.Option(help="development or held-out federations alone.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the trials; what it holds is not trained again.")
    ] = Path("runs/bench-table"),
) -> None:
    """Train the table of trials on which choosers are replayed, and write it and the priors that follow from it."""
    from fedscout.experiments.cli.options import prepare

    prepare(verbose=False)
    from fedscout.experiments.benchmarks.choice.joint_battery import federations_of_half
    from fedscout.experiments.benchmarks.choice.table_training import train_table

    for path in train_table(federations_of_half(half), out=out, settings=settings or [], note=tell):
        typer.echo(str(path))


@bench.command()
def intervals(
    seeds: Annotated[str, typer.Option(help="Fresh seeds of a study at most.")] = "5,10,20,50",
    studies: Annotated[int, typer.Option(min=10, help="Simulated, of each scene and number of seeds.")] = 400,
    as_json: AsJson = False,
) -> None:
    """Simulate studies of which the truth is known, and count how often intervals and verdicts are right."""
    from fedscout.experiments.benchmarks.intervals.interval_coverage import coverage_lines, measure_coverage

    found = measure_coverage(_ascending(seeds, "--seeds"), studies, note=tell)
    _show(as_json, [one.model_dump(mode="json") for one in found], coverage_lines(found))


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE | KEY=VALUE]...",
        help="Tables of the suite, all if left out, and keys that hold for every cell, such as training.num_rounds=5.",
        show_default=False,
    ),
]
Rows = Annotated[str | None, typer.Option(help="Names of rows, separated by commas; all if left out.")]
Columns = Annotated[str | None, typer.Option(help="Names of columns, likewise.")]
Seeds = Annotated[int | None, typer.Option(min=2, help="In place of each table's own number.", show_default=False)]
SuiteOut = Annotated[
    Path, typer.Option("--out", "-o", help="Folder of trials and tables; what it holds is not trained again.")
]


@bench.command()
def strategies(
    what: What = None,
    rows: Rows = None,
    columns: Columns = None,
    seeds: Seeds = None,
    out: SuiteOut = Path("runs/bench"),
    as_json: AsJson = False,
) -> None:
    """Compare all strategies, each at a client rate of its own, and look whether the papers' claims show."""
    _run_suite("strategies", what, rows, columns, seeds, out, as_json)


@bench.command()
def selection(
    what: What = None,
    rows: Rows = None,
    columns: Columns = None,
    seeds: Seeds = None,
    out: SuiteOut = Path("runs/bench"),
    as_json: AsJson = False,
) -> None:
    """Compare selection policies under the strategies and heterogeneities of FLASH's study, at a smaller scale."""
    _run_suite("selection", what, rows, columns, seeds, out, as_json)


@bench.command("client-settings")
def client_settings(
    settings: Settings = None,
    part: Annotated[
        str,
        typer.Option(
            help="table, searches, cells, proxies, metrics, adaptive, families, normalisation; cost, tuning steps by "
            "clients; steps, how fast searches are; or threshold, who lies far."
        ),
    ] = "table",
    rows: Annotated[str | None, typer.Option(help="Names of a part's rows; all of them if left out.")] = None,
    strategies: Annotated[str | None, typer.Option(help="Kinds such as fedavg,fednova; likewise.")] = None,
    dataset: Annotated[str, typer.Option(help="digits, fashion_mnist, wine, text, cifar10 or shakespeare.")] = "digits",
    seeds: Annotated[int, typer.Option(min=2, help="On which everything is tuned and trained.")] = 5,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of trials and tables; what it holds is not trained again.")
    ] = Path("runs/bench-client-settings"),
    as_json: AsJson = False,
) -> None:
    """Compare a table of client settings with one setting for all, with other tables and with each client's own."""
    from fedscout.experiments.cli.options import prepare

    prepare(verbose=False)
    from fedscout.engine.errors import ConfigurationError
    from fedscout.experiments.benchmarks.client_settings.settings_battery import OTHER_PARTS, part_of
    from fedscout.experiments.benchmarks.client_settings.settings_measurement import run_client_settings
    from fedscout.experiments.benchmarks.client_settings.settings_tables import table_lines
    from fedscout.experiments.benchmarks.client_settings.tuning_steps import run_tuning_steps

    if part in OTHER_PARTS:
        given = [f"--{name}" for name, text in (("rows", rows), ("strategies", strategies)) if text is not None]
        if given:
            raise ConfigurationError(Fault(" and ".join(given), f"be left out with --part {part}, which has none"))
        lines = run_tuning_steps(part, dataset, seeds, settings or [], out, note=tell)
        _show(as_json, lines, lines)
        return
    asked = part_of(part, _listed("rows", rows), _listed("strategies", strategies))
    report = run_client_settings(asked, part, dataset, seeds, settings or [], out, note=tell)
    _show(as_json, report.model_dump(mode="json"), table_lines(report))


def _run_suite(
    suite: str,
    what: Sequence[str] | None,
    rows: str | None,
    columns: str | None,
    seeds: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Run the tables of a suite, and print them."""
    from fedscout.experiments.cli.options import names, prepare

    prepare(verbose=False)
    from fedscout.experiments.grids.catalogue import Run, catalogue, entries_named, run_entries
    from fedscout.experiments.grids.tables import result_lines

    entries = [entry for entry in catalogue(SUITES) if entry.source == suite]
    tables = [f"{suite}/{text}" for text in what or () if "=" not in text]
    settings = tuple(text for text in what or () if "=" in text)
    command = "fedscout bench {entry.source} {entry.table}"
    asked = Run(command, settings, None, seeds, None, names(rows), names(columns), tell)
    results = [*run_entries(entries, entries_named(entries, tables), out, asked)]
    lines = [line for result in results for line in (*result_lines(result), "")]
    _show(as_json, {"tables": [result.model_dump(mode="json") for result in results]}, lines)


def _show(as_json: bool, document: Any, lines: Sequence[str]) -> None:
    """Print a result as JSON or for people."""
    if as_json:
        from fedscout.experiments.reports.console import show_json

        show_json(document)
    else:
        show("\n".join(lines))


def _listed(option: str, text: str | None) -> list[Any] | None:
    """Read `a,b` or `a,{kind: b}`, as YAML writes a list."""
    import yaml

    from fedscout.engine.errors import ConfigurationError

    if text is None:
        return None
    try:
        items = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, RecursionError):
        items = []
    if not items or not all(isinstance(item, str | dict) and item for item in items):
        raise ConfigurationError(Fault(f"--{option}", "be names with commas between them", repr(text)))
    return list(items)


def _ascending(text: str, option: str = "--nodes") -> list[int]:
    """Read `1,2,4`."""
    from fedscout.engine.errors import ConfigurationError

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers != sorted(set(numbers)):
        raise ConfigurationError(Fault(option, "be ascending numbers >= 1, such as 1,2,4", repr(text)))
    return numbers
