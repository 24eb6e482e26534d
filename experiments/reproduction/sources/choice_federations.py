"""What the studies of `strategy_choice` share: federations, who chooses, and what stands in for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedscout.experiments.reproduction.chosen_cells import (
    Searched,
)
from fedscout.experiments.reproduction.published_study import (
    Measurement,
    Scale,
)

SCENARIOS: Mapping[str, str] = {
    "label skew": "label_skew",
    "feature skew": "feature_skew",
    "noisy labels": "noisy_labels",
    "label poisoning": "label_poisoning",
    "corrupted client": "corrupted_client",
    "IID": "iid",
}
SKEWED = tuple(SCENARIOS)[:-1]

BEARING = ("federation.dataset=bearing", "federation.num_clients=4")
TRAINED = ("training.num_rounds=30", "training.learning_rate=0.1")
BEARINGS = {name: (*BEARING, *TRAINED, f"federation.scenario={scenario}") for name, scenario in SCENARIOS.items()}
CIFAR = ("federation.dataset=cifar10", "model.kind=lenet", "training.batch_size=32", "training.learning_rate=0.05")

TEN_SEEDS = 10
SIZES = (4, 10, 50, 100)
"""Clients of the scaling studies."""

BEARING_NOTE = (
    "The source's bearing features are not public; 244 features computed from the IMS test-to-failure records stand in "
    "for its 254. They are easier: all accuracies lie higher. One dealing of the rows; a seed decides splits, models, "
    "batches and searches. Its clients' step size is not known; 0.1 stands in."
)
MODEL_NOTE = (
    "One-shot answers need a language model (a key, or recommender.base_url of a local server) or recorded answers "
    "(recommender.replay=FILE); the rules' answer stands beside, as a row of its own."
)

GENETIC = Searched(("search.kind=genetic", "search.budget=8"))
FIFTY = ("search.kind=tpe", "search.budget=50")
RULES, MODEL, FEDAVG = "rules", "one-shot", "FedAvg"


def at_both(laptop: Callable[[int], Measurement], few: int, many: int = TEN_SEEDS) -> dict[Scale, Measurement]:
    """Return the same measurement with fewer and with the source's number of seeds."""
    return {"laptop": laptop(few), "published": laptop(many)}


def cifar(alpha: str, *settings: str) -> tuple[str, ...]:
    """Return arguments of CIFAR-10 by the α of a Dirichlet partition, or IID."""
    dealt = "federation.partition.kind=iid" if alpha == "IID" else f"federation.partition.alpha={alpha}"
    return (*CIFAR, dealt, *settings)
