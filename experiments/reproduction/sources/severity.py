"""FedPilot: which strategy at which severity of label skew, as its advice has it.

IID or 20: FedAvg. 50: both. 90, Dirichlet, FEMNIST, Shakespeare: FedProx with μ from 0.01. Communities of clients that
are alike beside FedAvg. Its severities are documented as Dirichlet of 1, 0.5 and 0.1; it prints advice, no accuracies.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedscout.experiments.reproduction.published_study import Cell, Ordering, PublishedStudy, Source
from fedscout.experiments.reproduction.trained_cells import TrainedCells, crossed

SEVERITIES = {
    "IID": "federation.partition.kind=iid",
    "20": "federation.partition.alpha=1",
    "50": "federation.partition.alpha=0.5",
    "90": "federation.partition.alpha=0.1",
}
STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "FedAvg": ("strategy.kind=fedavg",),
    "FedProx, μ 0.01": ("strategy.kind=fedprox", "strategy.proximal_mu=0.01"),
    "FedProx, μ 0.1": ("strategy.kind=fedprox", "strategy.proximal_mu=0.1"),
    "communities": ("strategy.kind=communities", "federation.min_release=1"),
}
_DIGITS = (
    *("federation.dataset=digits", "federation.num_clients=20", "model.kind=dense", "model.hidden=[64]"),
    *("training.num_rounds=30", "training.local_epochs=5", "training.learning_rate=0.1"),
)
_PICTURES = (
    *("federation.dataset=fashion_mnist", "federation.num_clients=100", "model.kind=lenet"),
    *(
        "training.num_rounds=100",
        "training.local_epochs=5",
        "training.learning_rate=0.05",
        "training.fraction_train=0.1",
    ),
)


def _cells(base: tuple[str, ...]) -> dict[Cell, tuple[str, ...]]:
    return crossed({column: (*base, dealt) for column, dealt in SEVERITIES.items()}, STRATEGIES)


ADVICE = PublishedStudy(
    name="advice",
    title="FedAvg, FedProx and communities by the severity of label skew",
    rows=tuple(STRATEGIES),
    columns=tuple(SEVERITIES),
    steps="columns",
    measurements={"laptop": TrainedCells(_cells(_DIGITS), 10), "published": TrainedCells(_cells(_PICTURES), 5)},
    orderings=(
        *(
            Ordering(("FedAvg", column), (row, column), "FedAvg where skew is mild")
            for column in ("IID", "20")
            for row in ("FedProx, μ 0.01", "FedProx, μ 0.1")
        ),
        *(
            Ordering((row, "90"), ("FedAvg", "90"), "FedProx where it is severe")
            for row in ("FedProx, μ 0.01", "FedProx, μ 0.1")
        ),
        Ordering(("communities", "90"), ("FedAvg", "90"), "clients that are alike gain by a model of their own"),
    ),
    notes=(
        "The source gives advice without accuracies. Communities are scored by their own models on their own clients, "
        "which tell all label counts for it (federation.min_release=1).",
    ),
    scale_notes={"laptop": ("Digits, 20 clients.",), "published": ("Fashion-MNIST, 10 of 100 clients a round.",)},
)

SOURCE = Source("fedpilot", "FedPilot: a strategy by the kind and severity of the partition", (ADVICE,))
