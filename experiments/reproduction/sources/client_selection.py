"""FLASH: who trains, under skew, label noise and latency at once: tables and figures.

X. Chang, S. M. Ahmed, S. V. Krishnamurthy, B. Guler, A. Swami, S. Oymak, A. K. Roy-Chowdhury. FLASH: Federated
Learning Across Simultaneous Heterogeneities, arXiv:2402.08769, 2024. 10 of 50 clients a round, ResNet-18 on CIFAR-10,
five local epochs of Adam, up to 1,500 rounds, best round.
"""

from __future__ import annotations

from itertools import product

from fedscout.experiments.benchmarks.selection.selection_battery import (
    AGGREGATIONS,
    GRID,
    PARTS,
    POLICIES,
    PUBLISHED,
    case_of,
)
from fedscout.experiments.reproduction.benchmark_cells import SelectionCells
from fedscout.experiments.reproduction.published_study import Cell, Number, Ordering, PublishedStudy, Source
from fedscout.experiments.reproduction.trained_cells import TrainedCells, best_round, crossed

QUICK = ("fedavg", "fedprox", "scaffold")
FLASH = "flash, robust loss"
NOTE = (
    "Digits and a dense net 64-64-10, 60 rounds of SGD, in place of CIFAR-10 and ResNet-18; best round, as published."
)

TABLE_1 = PublishedStudy(
    name="table1",
    title="selection policies, means over aggregations",
    rows=tuple(row.name for row in PARTS["table"].rows),
    columns=PARTS["table"].heterogeneities,
    measurements={
        "laptop": SelectionCells("table", strategies=QUICK, num_seeds=3),
        "published": SelectionCells("table", "fashion_mnist", AGGREGATIONS),
    },
    published={
        (FLASH if policy == "flash" else policy, column): Number(value / 100)
        for column, values in PUBLISHED.items()
        for policy, value in values.items()
    },
    orderings=tuple(
        Ordering((FLASH, column), (policy, column), "FLASH is best")
        for column, policy in product(PUBLISHED, POLICIES[:-1])
    ),
    notes=(
        NOTE,
        "The source does not say whether rivals train with FLASH's robust loss: here with the plain one. With the "
        "robust loss for all, and at each one's best step size, most differences vanish (docs/selection.md).",
    ),
    scale_notes={"laptop": ("FedAvg, FedProx and SCAFFOLD of the seven aggregations, three seeds.",)},
)

FIGURE_2 = PublishedStudy(
    name="fig2",
    also=("fig3",),
    title="FLASH and FedCor by the share of skewed clients and label noise",
    rows=tuple(row.name for row in PARTS["grid"].rows),
    columns=tuple(GRID),
    measurements={
        "laptop": SelectionCells("grid", num_seeds=3),
        "published": SelectionCells("grid", "fashion_mnist"),
    },
    orderings=tuple(
        Ordering((FLASH, column), ("fedcor", column), "FLASH above FedCor, by 3.76 points on average")
        for column in GRID
    ),
    notes=(NOTE, "The source prints surfaces; the mean gain is its text's."),
)

FIGURE_4 = PublishedStudy(
    name="fig4",
    title="another bandit inside FLASH",
    rows=tuple(row.name for row in PARTS["bandits"].rows),
    columns=PARTS["bandits"].heterogeneities,
    measurements={
        "laptop": SelectionCells("bandits", strategies=("fedavg",), num_seeds=3),
        "published": SelectionCells("bandits", "fashion_mnist"),
    },
    orderings=tuple(
        Ordering((FLASH, column), (row.name, column), "the linear bandit is best")
        for column in PARTS["bandits"].heterogeneities
        for row in PARTS["bandits"].rows[:-1]
    ),
    notes=(NOTE, "The source prints curves (4a, b)."),
)

CONTEXTS = PublishedStudy(
    name="fig4cd",
    title="FLASH without one of its contexts",
    rows=tuple(row.name for row in PARTS["contexts"].rows),
    columns=PARTS["contexts"].heterogeneities,
    measurements={
        "laptop": SelectionCells("contexts", num_seeds=3),
        "published": SelectionCells("contexts", "fashion_mnist"),
    },
    orderings=(
        Ordering(
            (FLASH, "noise"), ("flash without training, robust loss", "noise"), "the training loss matters under noise"
        ),
        Ordering((FLASH, "skew"), ("flash without validation, robust loss", "skew"), "the validation loss under skew"),
    ),
    notes=(NOTE, "The source prints curves (4c, d)."),
)

_WEIGHTS = (("0.1", "4"), ("0.5", "4"), ("1", "4"), ("0.1", "1"), ("0.1", "2"), ("1", "1"))
_COLUMNS = ("skew", "noise", "both")


def _loss_cells() -> dict[Cell, tuple[str, ...]]:
    chosen = ("selection.kind=flash", "strategy.kind=fedavg")
    return crossed(
        {column: (*case_of("digits", column).arguments, *chosen) for column in _COLUMNS},
        {
            f"α {alpha}, β {beta}": (
                f"training.pseudo_label_weight={alpha}",
                f"training.reverse_weight={beta}",
                f"selection.alpha={alpha}",
                f"selection.beta={beta}",
            )
            for alpha, beta in _WEIGHTS
        },
    )


FIGURE_5 = PublishedStudy(
    name="fig5",
    title="FLASH by the weights of its robust loss",
    rows=tuple(f"α {alpha}, β {beta}" for alpha, beta in _WEIGHTS),
    columns=_COLUMNS,
    measurements={
        "laptop": TrainedCells(_loss_cells(), 3, best_round),
        "published": TrainedCells(_loss_cells(), 10, best_round),
    },
    notes=(
        NOTE,
        "The source prints curves, and names the pairs that it tried on CIFAR-10. As there, one pair weighs the loss "
        "that clients train on and that of the policy's contexts and rewards.",
    ),
)

SOURCE = Source(
    "selection",
    "FLASH: federated learning across simultaneous heterogeneities (Chang et al. 2024, arXiv:2402.08769)",
    (TABLE_1, FIGURE_2, FIGURE_4, CONTEXTS, FIGURE_5),
)
