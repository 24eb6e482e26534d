"""What tables of client settings are compared on: the source's groups of clients at a smaller scale, and its ablations.

FedCust's clients are six quantities by four degrees of heterogeneity, equally many of each. Here each group is one
client, so that a setting for each client is a table, too. Two classes know the indices 0 and 1 only. Where the next
character is to be told, the ten most frequent are the classes, as others have too few rows for such groups; the source
puts similarity of words in their place. A quarter of each client's rows is its test part, and the union of these is
what is scored, which is near-balanced. Nets are small, and trained for some rounds in place of 500 to 2,000, a quarter
of the clients a round where the source has a tenth.

The server holds rows of the same data set, of which a quarter, balanced, scores the settings of a cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase

PUBLISHED: Mapping[str, tuple[float, float, float]] = {
    "FEMNIST": (74.14, 81.24, 81.64),
    "Shakespeare": (50.99, 54.23, 55.13),
    "CIFAR-10": (68.13, 72.32, 72.66),
    "CIFAR-100": (52.52, 56.21, 56.89),
    "F-MNIST": (73.99, 79.73, 80.03),
}
"""Percent: one setting for all, the table, tuned by hand for each client."""

PUBLISHED_DATA: Mapping[str, str] = {"fashion_mnist": "F-MNIST", "cifar10": "CIFAR-10", "shakespeare": "Shakespeare"}

TEST_SHARE = 0.25


@dataclass(frozen=True)
class SettingsData:
    """A data set of the battery.

    Attributes:
        arguments: As for `fedscout train`.
        levels: Heterogeneity of the clients' groups.
        quantities: Training rows of the clients' groups.
        needs_files: Whether it reads files that are not part of the program.
    """

    arguments: tuple[str, ...]
    levels: tuple[float, ...]
    quantities: tuple[int, ...]
    needs_files: bool = True

    def case(self, name: str) -> FederationCase:
        """Return the federation, a client for each level and quantity."""
        rows = [round(quantity / (1 - TEST_SHARE)) for quantity in self.quantities]
        dealt = (
            "federation.partition.kind=heterogeneity_index",
            f"federation.partition.levels={list(self.levels)}",
            f"federation.partition.quantities={rows}",
            f"federation.num_clients={len(self.levels) * len(rows)}",
        )
        return FederationCase(name, (*_COMMON, *self.arguments, *dealt), self.needs_files)


_COMMON = (
    "federation.server_labels=true",
    "training.fraction_train=0.25",
    f"training.test_fraction={TEST_SHARE}",
    "search.strategies=[fedavg]",
    "search.kind=gp",
    "search.budget=16",
    "search.generation_size=1",
    "search.client_ranges.learning_rate={low: 0.001, high: 0.8, log: true}",
    "search.client_ranges.batch_size={low: 8, high: 64, log: true}",
    "search.client_ranges.local_epochs={low: 1, high: 10}",
)
_DENSE = ("model.kind=dense", "model.hidden=[32]")
_LEVELS = (0.2, 0.4, 0.6, 0.8)

DATA: Mapping[str, SettingsData] = {
    "digits": SettingsData(
        ("federation.dataset=digits", "federation.server_rows=0.4", *_DENSE, "training.num_rounds=40"),
        _LEVELS,
        (9, 15, 22, 30, 38, 45),
        needs_files=False,
    ),
    "fashion_mnist": SettingsData(
        (
            *("federation.dataset=fashion_mnist", "federation.max_rows=14000", "federation.server_rows=4000"),
            *(*_DENSE, "training.num_rounds=40"),
        ),
        _LEVELS,
        (48, 96, 192, 288, 384, 480),
    ),
    "wine": SettingsData(
        (
            *("federation.dataset=wine_quality", "federation.label=color", "federation.server_rows=2000"),
            *(*_DENSE, "training.num_rounds=10"),
        ),
        (0.0, 1.0),
        (15, 30, 60, 90, 120, 150),
    ),
    "text": SettingsData(
        (
            *("federation.dataset=sentiment140", "federation.server_rows=2000", "model.kind=textcnn"),
            *("model.embedding_size=16", "federation.text.length=16", "federation.text.vocabulary_size=2000"),
            "training.num_rounds=20",
        ),
        (0.0, 1.0),
        (24, 48, 96, 144, 192, 240),
    ),
    "cifar10": SettingsData(
        (
            *("federation.dataset=cifar10", "federation.server_rows=3000"),
            *(*_DENSE, "training.num_rounds=40"),
        ),
        _LEVELS,
        (24, 48, 96, 144, 192, 240),
    ),
    "shakespeare": SettingsData(
        (
            *("federation.dataset=shakespeare", "federation.max_rows=12000", "federation.server_rows=2000"),
            *("federation.text.length=10", "federation.text.vocabulary_size=12", "model.kind=char_lstm"),
            *("model.embedding_size=8", "model.hidden=[32]", "training.num_rounds=20"),
        ),
        _LEVELS,
        (10, 20, 40, 60, 80, 100),
    ),
}
"""Quantities are in the proportions of the source's, 100 to 1,000, where digits reach so far."""


@dataclass(frozen=True)
class Row:
    """A way to obtain settings, and what trains with them.

    Attributes:
        name: In the tables.
        rival: Of `settings_rivals.RIVALS`.
        options: Its arguments.
    """

    name: str
    rival: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A table of the benchmark.

    Attributes:
        title: For people.
        rows: The last is the one that the others are compared with.
        strategies: That train with the settings, a column each.
        published: Whether the source's table stands beside it.
    """

    title: str
    rows: tuple[Row, ...]
    strategies: tuple[str, ...] = ("fedavg",)
    published: bool = False


TABLE = Row("table", "table")
GLOBAL = Row("global", "one_for_all")


SAMPLINGS = "fedscout.experiments.benchmarks.client_settings.class_samplings"


PARTS: Mapping[str, Part] = {
    "table": Part(
        "One setting, tables, and settings for each client",
        (
            GLOBAL,
            Row("random table", "random_table"),
            Row("shuffled table", "shuffled_table"),
            Row("interpolated table", "interpolated_table"),
            Row("FedRL", "reinforced"),
            Row("Bayesian for each client", "every_client"),
            Row("by hand for each client", "by_hand"),
            TABLE,
        ),
        published=True,
    ),
    "searches": Part(
        "The table by other searches",
        (
            Row("random search", "table", {"search": "random"}),
            Row("grid search", "table", {"search": "grid"}),
            TABLE,
        ),
    ),
    "cells": Part(
        "Fewer and more cells",
        (
            Row("1 cell", "table", {"grid": (1, 1)}),
            Row("4 cells", "table", {"grid": (2, 2)}),
            Row("4 cells refined", "finer_table", {"grid": (2, 2)}),
            Row("finer table", "finer_table"),
            TABLE,
        ),
    ),
    "proxies": Part(
        "Worse proxy data",
        (
            GLOBAL,
            Row("two fifths of proxy labels random", "table", {"proxies": "mislabelled"}),
            Row("all proxy labels random", "table", {"proxies": "meaningless"}),
            Row("proxy rows drawn from class means", "table", {"proxies": "synthetic"}),
            Row("a quarter of the proxy rows", "table", {"proxies": "few"}),
            TABLE,
        ),
    ),
    "metrics": Part(
        "Other metrics of a client",
        (
            *(
                Row(kind + said, "table", {"metric": f"{SAMPLINGS}:{kind}{by}"})
                for said, by in (("", ""), (" by Bhattacharyya", "_bhattacharyya"))
                for kind in ("gaussian", "poisson", "dirichlet")
            ),
            TABLE,
        ),
    ),
    "adaptive": Part("FedAdagrad with a table", (GLOBAL, TABLE), ("fedavg", "fedadagrad")),
    "families": Part(
        "A table for each strategy family, or one for all",
        (GLOBAL, Row("FedAvg's table", "table"), Row("its own table", "own_table")),
        ("fedavg", "fedadagrad", "fedprox", "scaffold"),
    ),
    "normalisation": Part("FedAvg's mean and FedNova's under unequal steps", (GLOBAL, TABLE), ("fedavg", "fednova")),
}
"""By the name of `--part`."""

OTHER_PARTS = ("cost", "steps", "threshold")
"""That compare no accuracies, see `tuning_steps`."""


def part_of(name: str, rows: Sequence[str] | None, strategies: Sequence[str] | None) -> Part:
    """Return a part, or what is asked for of it.

    Args:
        name: Of the part.
        rows: Names; None is all of the part's. What the others are compared with stays.
        strategies: Kinds; None is all of the part's.

    Raises:
        ConfigurationError: If there is no such part or row.
    """
    if name not in PARTS:
        raise ConfigurationError(Fault("--part", f"be one of {', '.join((*PARTS, *OTHER_PARTS))}", repr(name)))
    part = PARTS[name]
    named = [row.name for row in part.rows]
    if unknown := [row for row in rows or () if row not in named]:
        raise ConfigurationError(Fault("--rows", f"be of {', '.join(named)} in {name}", repr(unknown[0])))
    chosen = [row for row in part.rows[:-1] if rows is None or row.name in rows]
    return replace(part, rows=(*chosen, part.rows[-1]), strategies=tuple(strategies or part.strategies))


def case_of(name: str) -> FederationCase:
    """Return the federation of a data set.

    Raises:
        ConfigurationError: If there is none of that name.
    """
    if name not in DATA:
        raise ConfigurationError(Fault("--dataset", f"be of {', '.join(DATA)}", repr(name)))
    return DATA[name].case(name)
