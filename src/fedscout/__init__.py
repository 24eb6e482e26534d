"""Chooses the federated-learning strategy from measured heterogeneity of clients, on Ray.

`Federation`, `study` and `train` are the Python interface (docs/python.md), `read_trials` reads a log (docs/log.md),
`load` a trained model (docs/predict.md), `client_app` and `RealFederation` are for real federations
(docs/real_federation.md). They are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscout.engine.trials.log import read_trials
    from fedscout.experiments.deployment.client import client_app
    from fedscout.experiments.deployment.driver import RealFederation
    from fedscout.experiments.studies.interface import Federation, Study, TrainedStrategy, study, train
    from fedscout.experiments.trained import TrainedModel, load

__all__ = [
    "Federation",
    "RealFederation",
    "Study",
    "TrainedModel",
    "TrainedStrategy",
    "client_app",
    "load",
    "read_trials",
    "study",
    "train",
]

_PLACES = {
    "RealFederation": "fedscout.experiments.deployment.driver",
    "TrainedModel": "fedscout.experiments.trained",
    "client_app": "fedscout.experiments.deployment.client",
    "load": "fedscout.experiments.trained",
    "read_trials": "fedscout.engine.trials.log",
}
"""Of what is not in `interface`: a client's machine needs neither searches nor Ray."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedscout")
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name in __all__:
        from fedscout.engine.runtime.ray import prepare_environment

        prepare_environment(verbose=False)  # before the interface imports what reads it
        return getattr(import_module("fedscout.experiments.studies.interface"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
