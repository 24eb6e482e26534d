"""What the development federations of a table teach: priors for studies of other federations.

Of each federation one study in the joint space, and one at each setting of the clients at which the grid has every
strategy, as a user's study has a setting of its own. The gain of a configuration is its mean score less FedAvg's at the
study's own setting, over all seeds. Of each the best `KEPT` are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedscout.experiments.benchmarks.choice.joint_battery import SPACE
from fedscout.experiments.benchmarks.choice.joint_grid import BATCHES, EPOCHS, RATES
from fedscout.experiments.benchmarks.choice.trial_table import FederationTrials
from fedscout.experiments.config.config_file import load_config
from fedscout.search.study.earlier_studies import EarlierStudy, best_first
from fedscout.strategies import StrategySpec, Value
from fedscout.strategies.specification import CLIENT_PARAMETERS

KEPT = 12


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
