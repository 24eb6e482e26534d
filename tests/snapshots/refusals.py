"""The full text of representative refusals of the configuration."""

from __future__ import annotations

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import load_config

ARGUMENTS = (
    *("foo", "nokey=1", "trainin.batch_size=1", "training.batchsize=1"),
    *("training.batch_size=0", "training.batch_size=abc", "training.learning_rate=-1", "training.learning_rate=nan"),
    *("training.optimizer=sdg", "training.momentum=1", "training=1", "seed=abc", "seed=-1"),
    *("federation.dataset=1", "federation.num_clients=0", "federation.num_clients=two", "federation.scenario=1.5"),
    *("federation.partition.kind=dirichle", "federation.partition.alpha=0", "federation.min_release=-1"),
    *("federation.max_rows=0", "federation.columns=1.5", "federation.missing_values=drop"),
    *("search.kind=genetik", "search.num_trials=0"),
    *("search.client_ranges.batch_size=1.5", "search.client_ranges.batch_size.low=1"),
    *("model.kind=1", "runtime.num_hosts=0"),
)


def refusals() -> str:
    """Return each argument and the lines of its refusal."""
    told = []
    for argument in ARGUMENTS:
        try:
            load_config([argument])
        except ConfigurationError as error:
            told.append("\n".join([argument, *(f"    {fault}" for fault in error.faults)]))
        else:
            told.append(f"{argument}\n    (accepted here)")
    return "\n".join(told) + "\n"
