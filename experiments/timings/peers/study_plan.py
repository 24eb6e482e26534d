"""A study as another program is asked for it: a folder with a plan and the clients' rows.

plan.json        a `StudyPlan`
features.npy     all rows, float32, shape `(rows, …)`
labels.npy       their classes, int64, shape `(rows,)`
split-SEED.npz   row numbers of what each client trains and is tested on under a seed: `train-CLIENT`, `test-CLIENT`

Needs numpy, and torch where a model is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .work import FEATURES_FILE, LABELS_FILE, WorkName, dense_net, lenet

if TYPE_CHECKING:
    from torch import nn

PLAN_FILE = "plan.json"
FITNESS_ROUNDS = 5
"""The fitness of a training is its mean accuracy over this many last rounds."""


@dataclass(frozen=True)
class StudyPlan:
    """What is searched and confirmed.

    Attributes:
        model: `dense` or `lenet`.
        sizes: The dense net's widths; of LeNet channels, height, width and classes.
        rounds: Of every training; all clients take part and are scored on their test rows in each.
        batch_size: Of a client's plain SGD.
        learning_rate: Of a client where nothing else is said.
        workers: Processes that train.
        search_seed: On which strategies are compared, FedAvg first.
        searched: How many strategies are tried beside FedAvg.
        tuning_rates: Further client rates at which FedAvg is trained on the search's seed.
        finalists: How many of FedAvg's rates are trained on the further seeds.
        tuning_seeds: These.
        confirmation_seeds: On which contestants are trained.
        contestants: The winner; with two of them FedAvg as well, with three also FedAvg at its tuned rate.
    """

    model: WorkName
    sizes: tuple[int, ...]
    clients: int
    rounds: int
    batch_size: int
    local_epochs: int
    learning_rate: float
    workers: int
    search_seed: int
    searched: int
    tuning_rates: tuple[float, ...]
    finalists: int
    tuning_seeds: tuple[int, ...]
    confirmation_seeds: tuple[int, ...]
    contestants: int

    @property
    def num_tuning(self) -> int:
        """Trainings that tune FedAvg's rate."""
        return len(self.tuning_rates) + self.finalists * len(self.tuning_seeds)

    @property
    def num_confirmation(self) -> int:
        """Trainings on fresh seeds."""
        return self.contestants * len(self.confirmation_seeds)

    @property
    def num_trainings(self) -> int:
        """All of them."""
        return 1 + self.searched + self.num_tuning + self.num_confirmation

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds, each of which divides the clients' rows anew."""
        return (self.search_seed, *self.tuning_seeds, *self.confirmation_seeds)

    def net(self) -> nn.Module:
        """Build the model from torch's current random state."""
        if self.model == "dense":
            return dense_net(self.sizes)
        channels, height, width, num_classes = self.sizes
        return lenet((channels, height, width), num_classes)


Rows = npt.NDArray[np.int64]
Split = Mapping[int, Sequence[tuple[Rows, Rows]]]
"""By seed each client's training and test rows."""


def write_study(folder: Path, plan: StudyPlan, features: npt.NDArray[np.float32], labels: Rows, split: Split) -> None:
    """Write a study's folder, which is there already."""
    (folder / PLAN_FILE).write_text(json.dumps(asdict(plan)))
    np.save(folder / FEATURES_FILE, features)
    np.save(folder / LABELS_FILE, labels)
    for seed, clients in split.items():
        arrays: dict[str, Any] = {}
        for client, (train, test) in enumerate(clients):
            arrays |= {f"train-{client}": train, f"test-{client}": test}
        np.savez(folder / f"split-{seed}.npz", **arrays)


def read_plan(folder: Path) -> StudyPlan:
    """Read a folder's plan."""
    content = json.loads((folder / PLAN_FILE).read_text())
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return StudyPlan(**fields)


def read_split(folder: Path, seed: int, clients: int) -> list[tuple[Rows, Rows]]:
    """Read every client's training and test rows under a seed."""
    with np.load(folder / f"split-{seed}.npz") as arrays:
        return [(arrays[f"train-{client}"], arrays[f"test-{client}"]) for client in range(clients)]
