"""Trains the table of trials: every configuration of its grid on every seed, by federation of `choice/replay.yaml`.

OUT/studies/     the trials, in ordinary logs, so that a run that was cut off goes on
OUT/trials.parquet    the table
OUT/priors.parquet    what its development federations teach: priors for studies of other federations

Of each federation the priors have one study in the joint space, and one at each setting of the clients at which the
grid has every strategy, as a user's study has a setting of its own. The gain of a configuration is its mean score less
FedAvg's at the study's own setting, over all seeds. Of each the best `KEPT` are kept.
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

KEPT = 12


Note = Callable[[str], None]


def train_table(
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] = SEEDS,
    out: Path = Path("runs/bench-table"),
    settings: Sequence[str] = (),
    note: Note = lambda _: None,
) -> tuple[Path, Path]:
    """Train what a folder lacks of the table, and write it.

    Args:
        columns: Names of federations; None is all.
        seeds: Of each configuration's trials.
        out: The folder; continued if it holds an earlier run.
        settings: Arguments that hold on every federation.
        note: Told what is done next.

    Returns:
        The table, and the priors.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    experiment = read_experiment(REPLAY).only(None, columns)
    with measurement_folder(out, [TABLE, PRIORS]) as folder:
        found = [*_trained(experiment, seeds, folder.path, settings, note)]
        table, priors = folder.path / TABLE, folder.path / PRIORS
        write_table(table, found)
        write_studies(priors, prior_studies(found))
    return table, priors


def _trained(
    experiment: Experiment, seeds: Sequence[int], out: Path, settings: Sequence[str], note: Note
) -> Iterator[FederationTrials]:
    halves = {name: half for half, columns in experiment.groups.items() for name in columns}
    for name, own in experiment.federations.items():
        given = (*arguments(own), *settings)
        try:
            built = built_federation(name, given, SPACE)
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
    """Return the studies of all development federations of a table."""
    return [study for federation in table if federation.about.half == "development" for study in _studies(federation)]


def _studies(federation: FederationTrials) -> Iterator[EarlierStudy]:
    means = dict(zip(federation.specs, federation.scores.mean(axis=1).tolist(), strict=True))
    own = {"client_learning_rate": 0.1, "client_local_epochs": EPOCHS[0], "client_batch_size": BATCHES[0]}
    yield _study(federation, SPACE, means, means[_fedavg(means, own)])
    for rate in RATES:
        for epochs in EPOCHS:
            setting = {**own, "client_learning_rate": rate, "client_local_epochs": epochs}
            here = {spec: mean for spec, mean in means.items() if spec.client_values() == setting}
            fedavg = here.pop(_fedavg(here, setting))
            settings = [f"training.{CLIENT_PARAMETERS[name]}={value}" for name, value in setting.items()]
            unset = dict.fromkeys(CLIENT_PARAMETERS)
            plain = {spec.model_copy(update=unset): mean for spec, mean in here.items()}
            yield _study(federation, settings, plain, fedavg)


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
        name=", ".join([about.name, *(each.removeprefix("training.") for each in settings if each not in SPACE)]),
        config_hash=config.digest(),
        config=config.identity(),
        data_digest=about.data_digest,
        report=report,
        gains=best_first(gains)[:KEPT],
    )
