"""FedCust: settings of clients from a table by heterogeneity and quantity: tables and figures.

24 cells, each tuned by Bayesian optimisation on proxy data; the table is sent to clients, who say nothing. Published
set-ups have 10 to 192 clients and 100 to 2,000 rounds, and the best round on one balanced test set.
"""

from __future__ import annotations

from fedscout.experiments.benchmarks.client_settings.settings_battery import PARTS, PUBLISHED
from fedscout.experiments.reproduction.benchmark_cells import SettingsCells
from fedscout.experiments.reproduction.published_study import Number, Ordering, PublishedStudy, Source, numbers

GLOBAL, TABLE, BY_HAND = "global", "table", "by hand for each client"
NOTE = (
    "Groups of one client, dense nets, 40 rounds (wine 10), a quarter of the clients a round; best round, as published."
)

_LAPTOP = {"wine": "wine", "digits": "digits"}
_PUBLISHED = {"wine": "wine", "digits": "digits", "Fashion-MNIST": "fashion_mnist"}
_ROWS = tuple(row.name for row in PARTS["table"].rows)
_ELSEWHERE = tuple(name for name in PUBLISHED if name != "F-MNIST")

TABLE_1 = PublishedStudy(
    name="table1",
    also=("table3", "fig4"),
    title="one setting for all, the table, settings for each client",
    rows=_ROWS,
    columns=(*_PUBLISHED, *_ELSEWHERE),
    measurements={
        "laptop": SettingsCells("table", _LAPTOP, (GLOBAL, "shuffled table", "interpolated table"), 2),
        "published": SettingsCells("table", _PUBLISHED, None, 5),
    },
    published={
        (row, "Fashion-MNIST" if data == "F-MNIST" else data): Number(value / 100)
        for data, values in PUBLISHED.items()
        for row, value in zip((GLOBAL, TABLE, BY_HAND), values, strict=True)
    },
    orderings=tuple(
        ordering
        for column in _PUBLISHED
        for ordering in (
            Ordering((TABLE, column), (GLOBAL, column), "the table above one setting for all"),
            Ordering((BY_HAND, column), (TABLE, column), "nearly as good as by hand", "level"),
            Ordering((TABLE, column), ("interpolated table", column), "interpolated settings cost accuracy"),
        )
    ),
    notes=(
        NOTE,
        "FEMNIST, Shakespeare and CIFAR in the source's set-ups take days here: their published numbers stand alone.",
    ),
    scale_notes={"laptop": ("Two seeds; tuning by hand and for each client is left to the published scale.",)},
)


def _part(name: str, figure: str, title: str, orderings: tuple[Ordering, ...]) -> PublishedStudy:
    rows = tuple(row.name for row in PARTS[name].rows)
    return PublishedStudy(
        name=figure,
        title=title,
        rows=rows,
        columns=("wine", "digits"),
        measurements={
            "laptop": SettingsCells(name, {"wine": "wine"}, None, 3),
            "published": SettingsCells(name, {"wine": "wine", "digits": "digits"}, None, 5),
        },
        orderings=orderings,
        notes=(NOTE,),
        scale_notes={"laptop": ("Wine alone.",)},
    )


_LEARNT = (GLOBAL, "FedRL", TABLE)

TABLE_5 = PublishedStudy(
    name="table5",
    title="settings learnt on the way, and the table",
    rows=_LEARNT,
    columns=("wine", "digits", "CIFAR-10, non-IID"),
    measurements={
        "laptop": SettingsCells("table", _LAPTOP, _LEARNT[:-1], 2),
        "published": SettingsCells("table", {"wine": "wine", "digits": "digits"}, _LEARNT[:-1], 5),
    },
    published=numbers(_LEARNT, ("CIFAR-10, non-IID",), ((50.4,), (52.9,), (53.2,)), factor=0.01),
    orderings=tuple(
        ordering
        for column in ("wine", "digits")
        for ordering in (
            Ordering((TABLE, column), ("FedRL", column), "as good as settings learnt on the way", "level"),
            Ordering(("FedRL", column), (GLOBAL, column), "which are above one setting for all"),
        )
    ),
    notes=(NOTE, "The source's CIFAR-10 takes days here: its numbers stand alone."),
    scale_notes={"laptop": ("Two seeds.",)},
)

METRICS = _part(
    "metrics",
    "table4",
    "other metrics of a client: samplings of classes",
    (Ordering((TABLE, "wine"), ("dirichlet", "wine"), "the index is as good as others", "level"),),
)
CELLS = _part(
    "cells",
    "fig8",
    "fewer and more cells",
    (
        Ordering((TABLE, "wine"), ("1 cell", "wine"), "24 cells above one"),
        Ordering((TABLE, "wine"), ("finer table", "wine"), "and enough", "level"),
    ),
)
PROXIES = _part(
    "proxies",
    "fig9",
    "worse proxy data",
    (
        Ordering(
            ("a quarter of the proxy rows", "wine"), (GLOBAL, "wine"), "a bad proxy still beats one setting for all"
        ),
    ),
)

SOURCE = Source(
    "client-settings",
    "FedCust: a table of client settings by heterogeneity and quantity",
    (TABLE_1, METRICS, TABLE_5, CELLS, PROXIES),
)
