"""`fedscout bench`: benchmarks of the engine and of methods; `fedscout reproduce`: published tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.user_code import user_folders
from fedscout.experiments.cli.options import FOLDER, AsJson, Columns, Rows, Seeds, Settings, names, out_folder, prepare
from fedscout.experiments.reports.console import markdown_table, show_json
from fedscout.experiments.text import show, tell

if TYPE_CHECKING:
    from fedscout.experiments.grids.catalogue import Entry
    from fedscout.experiments.grids.comparison import ExperimentResult

bench = typer.Typer(name="bench", help="Benchmark the engine and methods.", no_args_is_help=True)


SUITES, PUBLISHED = (Path(__file__).parents[1] / name for name in ("suites", "published"))

TrialsOut = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        parser=out_folder,
        metavar=FOLDER,
        help="Folder of trials and tables; existing trials are reused.",
    ),
]


@bench.command()
def engine(
    work: Annotated[
        Literal["dense", "lenet", "textcnn", "tiny", "resnet18", "resnet18-32"],
        typer.Option(
            help="Dense 254-64-32-2, LeNet-5 or ResNet-18 on images, TextCNN, or dense 8-8-2 for very many clients."
        ),
    ] = "dense",
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Rows per client.")] = 250,
    sampled: Annotated[
        int | None, typer.Option(min=1, help="Number of clients that train and evaluate per round; all by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measured rounds, after warm-up.")] = 20,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Strategy as kind or JSON; may be repeated. FedAvg by default.")
    ] = None,
    hosts: Annotated[int, typer.Option(min=1, help="Number of Ray hosts.")] = 2,
    local: Annotated[bool, typer.Option("--local", help="Run in this process instead of on Ray.")] = False,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device on which hosts and peers train.")] = "cpu",
    peers: Annotated[bool, typer.Option("--peers", help="Also run other simulators on the same task.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repetitions; fedscout and peers alternate.")] = 1,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Precision of fedscout's layers; peers use float32.")
    ] = "float32",
    as_json: AsJson = False,
) -> None:
    """Time a round: train, aggregate and evaluate through the Grid."""
    prepare(verbose=False)
    from fedscout.engine.config import EngineConfig
    from fedscout.engine.messages.calls import Cohort
    from fedscout.experiments.timings.engine import PEERS, SERVER_ROWS, TRAINING, measure_engine, report_lines
    from fedscout.experiments.timings.peers.work import Task
    from fedscout.strategies import parse_strategy

    if sampled is not None and (peers or sampled > clients):
        must = f"be at most --clients={clients}, and be left out with --peers, where all clients train"
        raise ConfigurationError.of("--sampled", must, hint=f"got {sampled}")
    cohort = Cohort(clients, sampled or clients, TRAINING.learning_rate, server_rows=SERVER_ROWS, server_labels=True)
    specs = [parse_strategy(text, cohort) for text in strategy or ["fedavg"]]
    shares = hosts if device == "cuda" else None
    config = EngineConfig(grid="local" if local else "ray", num_hosts=hosts, device=device, hosts_per_gpu=shares)
    training = TRAINING.model_copy(update={"precision": precision})
    note = tell if peers or repeats > 1 else lambda _: None
    task = Task(work, clients, samples, rounds, hosts, device, sampled)
    report = measure_engine(task, specs, config, training, repeats, PEERS if peers else (), note)
    _show(as_json, report.model_dump(mode="json"), report_lines(report))


@bench.command()
def kernels(
    turns: Annotated[int, typer.Option(min=1, help="Number of repetitions; the shortest is reported.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Compare training and scoring of large models and of a block of small ones with a matrix product, on one core."""
    prepare(verbose=False)
    from fedscout.experiments.timings.engine import block_timings, kernel_timings, processor_text, product_rates

    tables = {"products": product_rates(turns), "models": [*kernel_timings(turns)], "blocks": block_timings(turns)}
    _show(as_json, {"processor": processor_text(), **tables}, [processor_text(), *_table_lines(tables)])


@bench.command()
def scaling(
    nodes: Annotated[str, typer.Option(help="Numbers of raylets, ascending, such as 1,2,4.")] = "2,4,8,16,32",
    clients: Annotated[int, typer.Option(min=1, help="Number of clients in the measurement with many clients.")] = 1000,
    rounds: Annotated[int, typer.Option(min=4, help="Number of measured rounds per size, after warm-up.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Measure a round's overhead on local clusters of many raylets, and fit its cost per host, client and megabyte."""
    numbers = _ascending(nodes)
    prepare(verbose=False)
    from fedscout.experiments.timings.engine import measure_scaling

    tables = measure_scaling(numbers, clients, rounds, note=tell)
    _show(as_json, tables, _table_lines(tables))


@bench.command()
def table(
    settings: Settings = None,
    columns: Annotated[str | None, typer.Option(help="Federations of the suite; all by default.")] = None,
    suite: Annotated[Literal["replay", "knowledge"], typer.Option(help="Which table is trained.")] = "replay",
    out: TrialsOut = Path("runs/bench-table"),
) -> None:
    """Train a table of trials: the one used to replay recommenders, or the one from which priors are learnt."""
    prepare(verbose=False)
    from fedscout.experiments.suites.replay import train_table

    typer.echo(str(train_table(names(columns), out=out, settings=settings or [], note=tell, suite=suite)))


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE | KEY=VALUE]...",
        help="Tables of the suite (all by default), and settings of every training, such as training.num_rounds=5.",
        show_default=False,
    ),
]


@bench.command()
def choice(
    what: What = None,
    rows: Rows = None,
    columns: Columns = None,
    seeds: Seeds = None,
    scale: Annotated[
        str | None, typer.Option(help="quick (short), or strategies (recorded trials with fixed client settings).")
    ] = None,
    searcher: Annotated[
        list[str] | None, typer.Option(help="Your own searcher, as package.module:Class; may be repeated.")
    ] = None,
    out: TrialsOut = Path("runs/bench"),
    as_json: AsJson = False,
) -> None:
    """Compare searchers and recommenders on recorded trials: regret against the best configuration, and cost."""
    _run_suite("choice", what, rows, columns, seeds, out, as_json, scale, searcher or ())


def _add_suite(suite: str, purpose: str) -> None:
    """Add the command that runs a suite's tables."""

    @bench.command(suite, help=purpose)
    def run(
        what: What = None,
        rows: Rows = None,
        columns: Columns = None,
        seeds: Seeds = None,
        out: TrialsOut = Path("runs/bench"),
        as_json: AsJson = False,
    ) -> None:
        _run_suite(suite, what, rows, columns, seeds, out, as_json)


for _suite, _purpose in {
    "strategies": "Compare all strategies, each at its own client learning rate, and check the papers' claims.",
    "selection": (
        "Compare selection policies under the strategies and heterogeneities of FLASH's study, at a smaller scale."
    ),
    "client-settings": "Compare a table of client settings with one setting for all, other tables and FedRL.",
    "detection": (
        "Count how often published and calibrated detection are right, on federations with known ground truth."
    ),
    "intervals": "Simulate studies with known ground truth; count how often intervals and verdicts are right.",
}.items():
    _add_suite(_suite, _purpose)


def _run_suite(
    suite: str,
    what: Sequence[str] | None,
    rows: str | None,
    columns: str | None,
    seeds: int | None,
    out: Path,
    as_json: bool,
    scale: str | None = None,
    searchers: Sequence[str] = (),
) -> None:
    """Run the tables of a suite and print them."""
    prepare(verbose=False)
    from fedscout.experiments.grids.catalogue import Run, catalogue, entries_named, run_entries
    from fedscout.experiments.grids.experiment import Choose
    from fedscout.experiments.reports.sweep_console import result_lines

    user_folders()
    entries = [entry for entry in catalogue(SUITES) if entry.source == suite]
    tables = [f"{suite}/{text}" for text in what or () if "=" not in text]
    settings = tuple(text for text in what or () if "=" in text)
    command = "fedscout bench {entry.source} {entry.table}"
    own = {path: Choose(kind="choose", by=path) for path in searchers}
    request = Run(command, result_lines, settings, scale, seeds, None, names(rows), names(columns), tell, own)
    selected = entries_named(entries, tables)
    scales = {name for entry in selected for name in entry.read().scales}
    if scale is not None and scale not in scales:
        raise ConfigurationError.of("--scale", f"be {' or '.join(sorted(scales)) or 'left out here'}", repr(scale))
    results = _results(run_entries(entries, selected, out, request), as_json)
    if as_json:
        show_json({"tables": results})


def _results(results: Iterator[ExperimentResult], as_json: bool) -> list[dict[str, Any]]:
    """Return the results of experiments as JSON, or print each as soon as it is there."""
    from fedscout.experiments.reports.sweep_console import result_lines

    documents = []
    for result in results:
        documents.append(result.model_dump(mode="json"))
        if not as_json:
            show("\n".join([*result_lines(result), ""]))
    return documents


def _table_lines(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the lines of Markdown tables with the keys of their rows as headings, numbers with four digits."""
    lines = []
    for rows in tables.values():
        cells = [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
        lines += ["", *markdown_table([*rows[0]], cells)] if rows else []
    return lines


def _show(as_json: bool, document: Any, lines: Sequence[str]) -> None:
    """Print a result as JSON or as text."""
    if as_json:
        show_json(document)
    else:
        show("\n".join(lines))


def _ascending(text: str) -> list[int]:
    """Return the numbers of a list such as `1,2,4`, which must ascend."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers != sorted(set(numbers)):
        raise ConfigurationError.of("--nodes", "be ascending numbers >= 1, such as 1,2,4", repr(text))
    return numbers


Published = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE/TABLE | SOURCE | all | KEY=VALUE]...",
        help="Studies, or all, and keys for every training, such as engine.grid=ray.",
        show_default=False,
    ),
]


def reproduce(
    what: Published = None,
    scale: Annotated[
        Literal["laptop", "published"], typer.Option(help="Size of federations, rounds and seeds.")
    ] = "laptop",
    seeds: Seeds = None,
    out: TrialsOut = Path("runs/reproduction"),
    as_json: AsJson = False,
) -> None:
    """Reproduce published studies and compare with their numbers; without a name, list them."""
    prepare(verbose=False)
    from fedscout.experiments.grids import catalogue
    from fedscout.experiments.reports.sweep_console import page_lines, result_lines
    from fedscout.experiments.studies.run_folder import GridFolder

    entries, absent = catalogue.catalogue(PUBLISHED), catalogue.absent_tables(PUBLISHED)
    sources = [text for text in what or () if "=" not in text]
    settings = tuple(text for text in what or () if "=" in text)
    if sources in ([], ["list"]):
        _list(entries, absent, catalogue.results_in(entries, out), as_json)
        return
    of_scale = None if scale == "laptop" else scale
    command = "fedscout reproduce {entry.name}"
    request = catalogue.Run(command, result_lines, settings, of_scale, seeds, note=tell)
    wanted = catalogue.entries_named(entries, [] if sources == ["all"] else sources, absent)
    results = _results(catalogue.run_entries(entries, wanted, out, request), as_json)
    page = page_lines(catalogue.results_in(entries, out))
    GridFolder(out).write_text(catalogue.PAGE, "\n".join([*page, ""]))
    if as_json:
        show_json({"studies": results, "out": str(out)})


def _list(
    entries: Sequence[Entry], absent: Mapping[str, str], results: Sequence[ExperimentResult], as_json: bool
) -> None:
    from fedscout.experiments.grids.comparison import VERDICTS, verdict_counts

    titles = {entry.name: entry.read().title for entry in entries}
    found = {result.name: verdict_counts(result) for result in results}
    rows = [
        [name, title, *(found.get(name, {}).get(verdict, "–") for verdict in VERDICTS)]
        for name, title in titles.items()
    ]
    studies = markdown_table(["study", "what is compared", *VERDICTS], rows)
    reasons = [[", ".join(group), why] for why, group in groupby(absent, absent.__getitem__)]
    others = markdown_table(["not reproduced", "reason"], reasons)
    _show(as_json, {"studies": titles, "results": found, "absent": absent}, [*studies, "", *others])
