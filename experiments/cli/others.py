"""Commands that run no study.

- `describe`, `strategies`, `scenarios` and `keys` show data and configuration.
- `trials`, `report`, `plot` and `export` show or write results.
- `fedscout app`: write a Flower app for real clients.
- `fedscout mcp`: serve tools for agents.
- `fedscout predict`: predict new rows with a trained model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import refuse_links, write_atomically
from fedscout.engine.user_code import user_folders
from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, StudyFolder, Verbose, prepare, read_settings
from fedscout.experiments.reports.console import markdown_table, out_console, plain_table, show_json, show_path
from fedscout.experiments.reports.progress import WorkLine
from fedscout.experiments.text import extra_module, show, show_json_text, tell, visible

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


Files = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for description.json, clients.png and clients.svg.")
]


def describe(
    settings: Settings = None, config_file: ConfigFile = None, out: Files = None, as_json: AsJson = False
) -> None:
    """Build the federation and show how its clients differ; nothing is trained."""
    config = read_settings(settings, config_file, verbose=False)
    from fedscout.experiments.reports.description_console import write_description

    with WorkLine("reading data").live():
        from fedscout.experiments.description import describe_federation
        from fedscout.experiments.federation import build_federation

        federation = build_federation(config.federation, config.model)
        description = describe_federation(federation, config.detection, config.seed, config.training.test_fraction)
        written = () if out is None else write_description(description, out)
    if as_json:
        show_json(description.model_dump(mode="json"))
        return
    from fedscout.experiments.reports.description_console import show_description

    console = out_console()
    show_description(console, description)
    if written:
        console.print()
    for label, path in zip(("Description", "Picture", "Picture"), written, strict=False):
        show_path(console, label, path)


def strategies(settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the strategies with their parameters and ranges for a federation's number of clients.

    The default search space comes first, then the strategies that search.strategies can name, the parts of pairs, and
    the client-selection policies. With strategy.kind=… and its parameters, notes on that strategy follow, such as its
    privacy cost.
    """
    config = read_settings(settings, config_file, verbose=False)
    from rich.text import Text

    from fedscout.engine.text import listed
    from fedscout.experiments.studies.checks import own_selection, own_strategy
    from fedscout.experiments.studies.workflow import cohort_of
    from fedscout.search.study import planned_space
    from fedscout.strategies import CHOSEN_BY_NAME_KINDS, SELECTIONS
    from fedscout.strategies.space import StrategyRow
    from fedscout.strategies.table import CLIENT_KINDS, SERVER_RULE_KINDS, strategy_class

    user_folders()
    clients = config.federation.num_seen
    if clients is None:  # natural clients: the data determine it
        from fedscout.experiments.federation import built_study

        config, federation = built_study(config)
        clients = federation.num_seen
    cohort = cohort_of(config, clients)
    selection = own_selection(config)
    space = planned_space(config.search, cohort, selection=selection)
    others = tuple(kind for kind in CHOSEN_BY_NAME_KINDS if kind not in {*space.kinds, *space.absent})
    impossible = {kind: reason for kind in others if (reason := strategy_class(kind).unavailable(cohort))}
    possible = tuple(kind for kind in others if kind not in impossible)
    by_name_config = config.search.model_copy(update={"strategies": possible, "customs": ()})
    by_name = planned_space(by_name_config, cohort, selection=selection) if possible else None
    notes = own_strategy(config, cohort).notes(cohort) if config.strategy else []
    if as_json:
        document = {
            "num_clients": clients,
            "num_sampled": cohort.num_sampled,
            "schema": space.json_schema(),
            "by_name": by_name and by_name.json_schema(),
            "pairs": {"server_rules": SERVER_RULE_KINDS, "clients": CLIENT_KINDS},
            "selections": {kind: policy_class.model_json_schema() for kind, policy_class in SELECTIONS.items()},
        }
        show_json({**document, "notes": notes} if config.strategy else document)
        return
    console = out_console()
    console.print(f"{clients} clients; {cohort.num_sampled} of them train in each round")
    table = plain_table("strategy", "parameter", "search range", "meaning")
    absent = [StrategyRow(kind, "", "", unavailable=reason) for kind, reason in impossible.items()]
    for row in (*space.describe(), *(by_name.describe() if by_name else ()), *absent):
        if row.unavailable:
            table.add_row(row.name, "", "", f"unavailable: {row.unavailable}")
            continue
        searched = "" if row.name in space.kinds else f" Searched with search.strategies=[{row.name}]."
        table.add_row(Text(row.name, style="bold"), "", "", f"{row.summary} {row.paper}{searched}")
        for parameter in row.parameters:
            table.add_row("", parameter.name, parameter.range, parameter.meaning)
    console.print(table)
    console.print(
        f"Pairs, such as strategy.kind=fedadam+fedprox or search.strategies=[fedavg,fedadam+fedprox], combine the "
        f"server rule of {listed(SERVER_RULE_KINDS)} with the client algorithm of {listed(CLIENT_KINDS)}."
    )
    policies = plain_table("policy", "chooses")
    for kind, policy_class in SELECTIONS.items():
        parameter_names = ", ".join(name for name in policy_class.model_fields if name != "kind")
        parameters_text = f" Parameters: {parameter_names}." if parameter_names else ""
        policies.add_row(
            Text(kind, style="bold"),
            f"{(policy_class.__doc__ or '').splitlines()[0]} {policy_class.paper}.{parameters_text}",
        )
    console.print("Client-selection policies, such as selection.kind=oort or search.selection=[random,oort,flash]:")
    console.print(policies)
    for note in notes:
        console.print(Text(note))


def scenarios(as_json: AsJson = False) -> None:
    """List the published scenarios, and the effects with their keys as a Markdown table."""
    from fedscout.experiments.scenarios.effects import ScenarioEffect
    from fedscout.experiments.scenarios.table import EFFECTS, SCENARIOS

    if as_json:
        effects = {kind: effect.model_json_schema() for kind, effect in EFFECTS.items()}
        show_json({"scenarios": list(SCENARIOS), "effects": effects})
        return

    def key_rows(first: str, keys: Mapping[str, FieldInfo]) -> Iterator[Sequence[object]]:
        for name, key in keys.items():
            default = "must be given" if key.is_required() else default_text(key)
            yield first, f"`{name}`", default, key.description

    shared = {name: key for name, key in ScenarioEffect.model_fields.items() if name != "kind"}
    rows = [*key_rows("every effect", shared)]
    for kind, effect in EFFECTS.items():
        own_keys = {name: key for name, key in effect.model_fields.items() if name not in {*shared, "kind"}}
        rows += [(f"`{kind}`", "", "", (effect.__doc__ or "").splitlines()[0]), *key_rows("", own_keys)]
    print(f"Published scenarios: {', '.join(SCENARIOS)}\n")
    print("\n".join(markdown_table(("kind", "key", "default", "meaning"), rows)))


def keys(as_json: AsJson = False) -> None:
    """List the keys of the configuration with their defaults, as a Markdown table."""
    from fedscout.experiments.config import known_keys

    fields = known_keys()
    if as_json:
        show_json({name: {"default": default_of(key), "description": key.description} for name, key in fields.items()})
        return
    rows = [(f"`{name}`", default_text(key), key.description) for name, key in fields.items()]
    print("\n".join(markdown_table(("key", "default", "meaning"), rows)))


def default_of(key: FieldInfo) -> Any:
    """Return the default of a key."""
    return key.get_default(call_default_factory=True)


def default_text(key: FieldInfo) -> str:
    """Return a default as it would be typed; empty if there is none."""
    default = default_of(key)
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


COLUMNS = [
    *("folder", "trial", "phase", "generation", "strategy", "parameters", "selection", "seed", "num_rounds"),
    *("status", "fitness", "error"),
]
"""Columns of `fedscout trials`; `folder` for a sweep, `selection` if there is any."""


def trials(out: StudyFolder, as_json: AsJson = False) -> None:
    """Show the trials of a study or a sweep."""
    prepare(verbose=False)
    from fedscout.engine.trials.log import read_trials

    log = read_trials(out)
    table = log[[name for name in COLUMNS if name in log and (name != "selection" or log[name].notna().any())]]
    if as_json:
        show_json_text(table.to_json(orient="records", indent=2))
        return
    show(table.to_string(index=False, na_rep="-", max_colwidth=60))


Open = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


def report(out: StudyFolder, show_it: Open = False) -> None:
    """Write a study's or a sweep's report, finished or not: one HTML file with all pictures, in OUT/report.html."""
    prepare(verbose=False)
    from fedscout.experiments.reports.page import write_report

    path = write_report(out)
    show(f"Report: {path}")
    if show_it:
        import webbrowser

        webbrowser.open(path.absolute().as_uri())


FileFormat = Literal["png", "pdf", "svg"]
Format = Annotated[FileFormat, typer.Option("--format", help="Format of the files.")]
What = Annotated[
    str | None,
    typer.Option("--what", help="Name of one chart, such as learning-curves; all by default.", show_default=False),
]


def plot(out: StudyFolder, file_format: Format = "png", what: What = None) -> None:
    """Write the pictures of a study's or a sweep's report into OUT/figures, as PNG, PDF or SVG."""
    prepare(verbose=False)
    from fedscout.experiments.reports.page import write_figures

    for path in write_figures(out, file_format, what):
        show(str(path))


Target = Literal["optuna", "mlflow", "tensorboard", "wandb"]
To = Annotated[Target, typer.Option("--to", help="Target program.")]
At = Annotated[
    str | None,
    typer.Option(
        "--path",
        help="SQLite file of Optuna studies, MLflow tracking URI, or folder; in OUT/exports by default.",
        show_default=False,
    ),
]


def export(out: StudyFolder, to: To = "optuna", path: At = None) -> None:
    """Export a study's trials, finished or not, to Optuna's dashboard, MLflow, TensorBoard or Weights & Biases."""
    prepare(verbose=False)
    user_folders()
    from fedscout.experiments.reports import export as exports
    from fedscout.experiments.studies.result import read_study

    refuse_links(out)
    study = read_study(out)
    folder = out / "exports"
    names = {"optuna": folder / "optuna.db", "mlflow": f"sqlite:///{(folder / 'mlflow.db').absolute()}"}
    place = path or str(names.get(to, folder / to))
    written = exports.export(study, to, place)
    for fault in study.faults:
        tell(fault)
    viewers = {
        "optuna": f"optuna-dashboard sqlite:///{place}",
        "mlflow": f"mlflow ui --backend-store-uri {place}",
        "tensorboard": f"tensorboard --logdir {place}",
        "wandb": f"wandb sync --sync-all {Path(place) / exports.name_of(study)}",
    }
    show(f"{written} trial{'' if written == 1 else 's'} of {exports.name_of(study)} written to {place}")
    show(f"To see them: {viewers[to]}")


def app(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="New or empty folder of the app, whose name is the app's name.")
    ] = Path("federation_app"),
    study: Annotated[Path | None, typer.Option("--from", help="Finished study whose winner is trained.")] = None,
    choose: Annotated[
        Literal["rules", "search"] | None,
        typer.Option("--choose", help="How the server app chooses a strategy if none is given; rules by default."),
    ] = None,
    max_rounds: Annotated[int | None, typer.Option(min=1, help="Maximum rounds of a search on real clients.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Maximum bytes that a search exchanges.")] = None,
    verbose: Verbose = False,
) -> None:
    """Write a Flower app that trains a study's winner or strategy.kind on real clients, or chooses a strategy there."""
    prepare(verbose)
    user_folders()
    from fedscout.engine.models.flat import new_model
    from fedscout.experiments.deployment.client import Agreement
    from fedscout.experiments.deployment.driver import FEWEST_CLIENTS, Program, check_new, winner_of, write_app
    from fedscout.experiments.trained import what_is_kept
    from fedscout.strategies import parse_strategy

    check_new(out)
    chooses = choose is not None or max_rounds is not None or max_bytes is not None
    if study is None:
        config = read_settings(settings, config_file, verbose)
        strategy = config.strategy
    else:
        if settings or config_file:
            must = "be left out with --from, which uses the configuration of the study"
            raise ConfigurationError.of("the settings" if settings else "-c", must)
        config, strategy = winner_of(study)
    if strategy and chooses:
        must = f"be left out with {('--from' if study else 'strategy.kind')}, which determines the strategy"
        raise ConfigurationError.of("--choose and --max-…", must)
    agreement, note = Agreement.of_study(config), None
    if strategy:
        note = what_is_kept(parse_strategy(strategy), new_model(agreement.factory, seed=0).layout)
    num_clients = config.federation.num_seen or FEWEST_CLIENTS
    program = Program(strategy or None, choose or "rules", max_rounds, max_bytes, num_clients)
    show(f"The app for `flwr run` is in {write_app(out, agreement, program)}; its README.md lists the commands")
    if note is not None:
        show(f"note: {note}")


def mcp(
    root: Annotated[
        Path, typer.Option("--root", help="Working directory; agents can't name files outside it.")
    ] = Path(),
    own_code: Annotated[
        bool, typer.Option("--own-code", help="Allow settings to name strategies and models by import path.")
    ] = False,
) -> None:
    """Serve describe, detect, recommend and studies to an agent over the Model Context Protocol (stdio)."""
    prepare(verbose=False)
    if not root.is_dir():
        raise ConfigurationError.of("--root", "be a folder", root)
    if sys.stdin is None or sys.stdout is None:
        raise ConfigurationError.of(
            "standard input and output", "be open, as fedscout mcp communicates over them", "a closed one"
        )
    extra_module("mcp", "mcp", "fedscout mcp")
    from fedscout.experiments.agents import mcp_server

    try:
        mcp_server(root.resolve(), own_code).run("stdio")
    except BaseExceptionGroup as group:
        if group.split((BrokenPipeError, ConnectionError))[1] is not None:
            raise
        with Path(os.devnull).open("wb") as nowhere:  # what could not be written would be tried again at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        tell("the agent has closed the pipe")
        raise typer.Exit(code=1) from None


SUFFIXES = (".csv", ".parquet")


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a training (fedscout train --out).")],
    table: Annotated[str, typer.Argument(help="Table with the columns of the training data, or folder of images.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file, .csv or .parquet; CSV is printed by default.")
    ] = None,
    group: Annotated[
        int | None, typer.Option(help="Index of the group whose model is used, from 0, if each group has one.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Import path of the model, if it is user code.")] = None,
) -> None:
    """Print the predictions of a trained model for each row: class and probabilities, or the regression target."""
    prepare(verbose=False)
    user_folders()
    from fedscout.experiments.trained import load

    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise ConfigurationError.of("--out", f"end in {' or '.join(SUFFIXES)}", out)
    predictions = load(model, code).predict(table, group)
    if out is None:
        sys.stdout.write(visible(predictions.to_csv(index=False)))
        return
    as_csv = out.suffix.lower() == ".csv"
    write_atomically(
        out, lambda path: predictions.to_csv(path, index=False) if as_csv else predictions.to_parquet(path)
    )
    show(f"{len(predictions)} row{'' if len(predictions) == 1 else 's'} written to {out}")
