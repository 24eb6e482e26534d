"""Training of the table of trials: the grid on every seed, for each federation of `choice/replay.yaml`.

OUT/studies/     the trials, in ordinary logs, so that an interrupted run resumes
OUT/trials.parquet    the table
OUT/priors.parquet    priors for studies of other data sets

For each federation the priors have one study in the joint space, and one at each setting of the clients for which the
grid has every strategy, as a user's study has a fixed setting. The gain of a configuration is its mean score minus
FedAvg's at the study's own setting, over all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscout.engine.errors import DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.experiment import Experiment, arguments, read_experiment
from fedscout.experiments.grids.federation_runner import Choice, built_federation, measurement_folder, open_federation
from fedscout.experiments.suites.replay import (
    BATCHES,
    EPOCHS,
    RATES,
    SPACE,
    FederationTrials,
    TabledFederation,
    TabledTrial,
    joint_grid,
    write_table,
)
from fedscout.search.warm_start import EarlierStudy, best_first, write_studies
from fedscout.strategies import StrategySpec, Value
from fedscout.strategies.specification import CLIENT_PARAMETERS

SEEDS = (0, 1, 2, 3)
TABLE, PRIORS = "trials.parquet", "priors.parquet"
REPLAY = Path(__file__).parent / "choice" / "replay.yaml"

Note = Callable[[str], None]


def train_table(
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] = SEEDS,
    out: Path = Path("runs/bench-table"),
    settings: Sequence[str] = (),
    note: Note = lambda _: None,
) -> tuple[Path, Path]:
    """Train the trials that a folder lacks, and write the table and the priors.

    Args:
        columns: Names of federations; None is all.
        seeds: Of each configuration's trials.
        out: The folder; resumed if it holds an earlier run.
        settings: Additional arguments for every federation.
        note: Called with a description of the next step.

    Returns:
        The paths of the table and of the priors.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    experiment = read_experiment(REPLAY).only(None, columns)
    with measurement_folder(out, [TABLE, PRIORS]) as folder:
        federations = [*_trained(experiment, seeds, folder.path, settings, note)]
        table, priors = folder.path / TABLE, folder.path / PRIORS
        write_table(table, federations)
        write_studies(priors, prior_studies(federations))
    return table, priors


def _trained(
    experiment: Experiment, seeds: Sequence[int], out: Path, settings: Sequence[str], note: Note
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
            trials = runner.records([Choice(spec) for spec in joint_grid(runner.space)], seeds)
            about = {
                "name": name,
                "half": halves[name],
                "arguments": [argument for argument in built.arguments if argument not in SPACE],
                "num_clients": runner.cohort.num_clients,
                "guessing": runner.ledger(built.config).facts.guessing,
                "data_digest": runner.data_digest,
                "reports": {seed: runner.report(seed).model_dump(mode="json") for seed in seeds},
            }
        rows = [TabledTrial.of(trial) for trial in trials]
        yield FederationTrials(TabledFederation.model_validate(about), {(row.spec, row.seed): row for row in rows})


def prior_studies(table: Iterable[FederationTrials]) -> list[EarlierStudy]:
    """Return the studies of all federations of a table."""
    return [study for federation in table for study in _studies(federation)]


def _studies(federation: FederationTrials) -> Iterator[EarlierStudy]:
    means = dict(zip(federation.specs, federation.scores.mean(axis=1).tolist(), strict=True))
    study_setting = {"client_learning_rate": 0.1, "client_local_epochs": EPOCHS[0], "client_batch_size": BATCHES[0]}
    yield _study(federation, SPACE, means, means[_fedavg(means, study_setting)])
    for rate in RATES:
        for epochs in EPOCHS:
            setting = {**study_setting, "client_learning_rate": rate, "client_local_epochs": epochs}
            setting_means = {spec: mean for spec, mean in means.items() if spec.client_values() == setting}
            fedavg = setting_means.pop(_fedavg(setting_means, setting))
            settings = [f"training.{CLIENT_PARAMETERS[name]}={value}" for name, value in setting.items()]
            unset = dict.fromkeys(CLIENT_PARAMETERS)
            strategy_means = {spec.model_copy(update=unset): mean for spec, mean in setting_means.items()}
            yield _study(federation, settings, strategy_means, fedavg)


def _fedavg(means: Mapping[StrategySpec, float], setting: Mapping[str, Value]) -> StrategySpec:
    return next(spec for spec in means if spec.kind == "fedavg" and spec.client_values() == setting)


def _study(
    federation: FederationTrials, settings: Iterable[str], means: Mapping[StrategySpec, float], fedavg: float
) -> EarlierStudy:
    about = federation.about
    config = load_config((*about.arguments, *settings))
    gains = [(spec, round(mean - fedavg, 4)) for spec, mean in means.items()]
    report: Mapping[str, Any] = next(iter(about.reports.values()))
    return EarlierStudy(
        name=", ".join(
            [about.name, *(setting.removeprefix("training.") for setting in settings if setting not in SPACE)]
        ),
        config_hash=config.digest(),
        config=config.identity(),
        data_digest=about.data_digest,
        report=report,
        gains=best_first(gains),
    )
