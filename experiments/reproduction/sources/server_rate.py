"""MFedBN: FedBN with a server rate η, on five partitions of two data sets without added noise: tables and figures.

Four clients, 10 rounds, 2 to 12 local epochs, client rate 1e-4, a dense net 1024-512-256-128-64 with batch norm. Its
data are sensor rows of two dumpers (1,699,983 rows, five states), which were not published, and 1,623,118 network flows
of NF-UNSW-NB15 with 14 features in ten classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from fedscout.experiments.reproduction.published_study import (
    Measurement,
    Number,
    Ordering,
    PublishedStudy,
    Scale,
    Source,
)
from fedscout.experiments.reproduction.reported_cells import ReportedCells, Value
from fedscout.experiments.reproduction.trained_cells import TrainedCells, crossed

PARTITIONS = {"FDS-VOP": "fds_vop", "FDS-WGC": "fds_wgc", "LDS": "lds", "SFDL": "sfdl", "SLDF": "sldf"}
RATES = ("1e-05", "0.0001", "0.001", "0.1")
EPOCHS = ("2", "6", "12")
OPTIMISERS = ("adam", "adadelta", "sgd")

_FLOWS: Mapping[Scale, tuple[str, ...]] = {
    "laptop": (
        *("federation.dataset=unsw_nb15", "federation.label=attack_cat", "federation.max_rows=3000"),
        *("model.kind=dense", "model.hidden=[256,128,64]", "model.norm=batch"),
    ),
    "published": ("federation.dataset=nf_unsw_nb15", "model.kind=dense_large"),
}
_TRAINED = ("federation.num_clients=4", "training.num_rounds=10", "training.learning_rate=0.0001")
_SEEDS: Mapping[Scale, int] = {"laptop": 3, "published": 5}

NOTES = (
    "The dumpers' rows must be brought (federation.dataset=commercial_vehicles) and are not measured here. Several "
    "published values are quoted for two data sets; they are set beside the flows.",
)
LAPTOP_NOTES: Mapping[Scale, tuple[str, ...]] = {
    "laptop": (
        "3,000 flows of UNSW-NB15 with its own features and ten classes stand in for the 1,623,118 NetFlow records, "
        "and a net 256-128-64 with batch norm for the larger one.",
    )
}


def _flows(scale: Scale, partition: str, *settings: str) -> tuple[str, ...]:
    return (*_FLOWS[scale], f"federation.partition.kind={PARTITIONS[partition]}", *_TRAINED, *settings)


def _mfedbn(rate: str) -> tuple[str, ...]:
    return ("strategy.kind=mfedbn", f"strategy.server_learning_rate={rate}")


FEDBN = ("strategy.kind=fedbn",)
ALONE = "each alone"
_ADAM = ("training.optimizer=adam", "training.local_epochs=2")


def _trained(scale: Scale, rows: Mapping[str, tuple[str, ...]], laptop_seeds: int = 2) -> Measurement:
    columns = {partition: _flows(scale, partition) for partition in PARTITIONS}
    return TrainedCells(crossed(columns, rows), laptop_seeds if scale == "laptop" else _SEEDS[scale])


def _at_scales(make: Callable[[Scale], Measurement]) -> dict[Scale, Measurement]:
    return {scale: make(scale) for scale in _SEEDS}


_BOTH = {"FedBN": FEDBN, "MFedBN": _mfedbn("0.0001")}
_BY_RATE = {
    "FedBN": (*_ADAM, *FEDBN),
    **{f"MFedBN, η {rate}": (*_ADAM, *_mfedbn(rate)) for rate in RATES},
    ALONE: (*_ADAM, "strategy.kind=local"),
}
_BY_EPOCHS = {
    f"{row}, {epochs} epochs": ("training.optimizer=adam", f"training.local_epochs={epochs}", *strategy)
    for epochs in EPOCHS
    for row, strategy in _BOTH.items()
}
_BY_OPTIMISER = {
    f"{row}, {optimiser}": (f"training.optimizer={optimiser}", "training.local_epochs=2", *strategy)
    for optimiser in OPTIMISERS
    for row, strategy in _BOTH.items()
}

FIGURE_11 = PublishedStudy(
    name="fig11",
    also=("fig7",),
    title="FedBN and MFedBN by the server rate η",
    rows=tuple(_BY_RATE),
    columns=tuple(PARTITIONS),
    measurements=_at_scales(lambda scale: _trained(scale, _BY_RATE, _SEEDS[scale])),
    published={
        ("MFedBN, η 1e-05", "FDS-VOP"): Number(0.8147),
        ("MFedBN, η 0.0001", "FDS-VOP"): Number(0.8049),
        ("MFedBN, η 0.1", "FDS-VOP"): Number(0.5435),
        ("MFedBN, η 1e-05", "LDS"): Number(0.2507),
        ("MFedBN, η 0.1", "LDS"): Number(0.0669),
        ("MFedBN, η 0.0001", "SFDL"): Number(0.7668),
        ("MFedBN, η 0.001", "SFDL"): Number(0.3299),
    },
    orderings=(
        *(
            Ordering(("MFedBN, η 0.0001", partition), ("FedBN", partition), "MFedBN above FedBN but under SLDF")
            for partition in PARTITIONS
            if partition != "SLDF"
        ),
        Ordering(("FedBN", "SLDF"), ("MFedBN, η 0.0001", "SLDF"), "FedBN above under SLDF"),
        *(
            Ordering(("MFedBN, η 1e-05", partition), ("MFedBN, η 0.1", partition), "small η is better")
            for partition in ("FDS-VOP", "LDS")
        ),
        Ordering(("MFedBN, η 0.0001", "SFDL"), ("MFedBN, η 0.001", "SFDL"), "small η is better"),
    ),
    notes=(
        *NOTES,
        "Which η stands at the ends that the source quotes for LDS is not known: 1e-5 and 0.1 are assumed.",
        "Scored is the model that a client receives, with its own batch norm. Ten rounds at 1e-5 hardly move that "
        "model from where it began, so the published 81 % can hardly be its accuracy; clients that train alone, a "
        "control of ours, show what their own models would reach.",
    ),
    scale_notes=LAPTOP_NOTES,
)

FIGURE_10 = PublishedStudy(
    name="fig10",
    also=("fig6",),
    title="FedBN and MFedBN at η 1e-4 by local epochs",
    rows=tuple(_BY_EPOCHS),
    columns=tuple(PARTITIONS),
    measurements=_at_scales(lambda scale: _trained(scale, _BY_EPOCHS)),
    orderings=tuple(
        Ordering((f"MFedBN, {epochs} epochs", partition), (f"FedBN, {epochs} epochs", partition), "MFedBN above FedBN")
        for epochs, partition in product(EPOCHS, PARTITIONS)
        if partition != "SLDF"
    ),
    notes=NOTES,
    scale_notes=LAPTOP_NOTES,
)

OPTIMISER = PublishedStudy(
    name="optimisers",
    title="FedBN and MFedBN at η 1e-4 by the clients' optimiser",
    rows=tuple(_BY_OPTIMISER),
    columns=tuple(PARTITIONS),
    measurements=_at_scales(lambda scale: _trained(scale, _BY_OPTIMISER)),
    notes=(*NOTES, "The source explores these and prints no numbers that are at hand."),
    scale_notes=LAPTOP_NOTES,
)


def _metric(name: str) -> Value:
    return lambda report: getattr(report.metrics, name)


_DISTANCES = {
    "labels, Hellinger": _metric("label_hellinger"),
    "labels, Wasserstein": _metric("label_wasserstein"),
    "features, Hellinger": _metric("feature_hellinger"),
    "features, Wasserstein": _metric("feature_wasserstein"),
}


def _reports(scale: Scale) -> Measurement:
    return ReportedCells({partition: _flows(scale, partition) for partition in PARTITIONS}, _DISTANCES, _SEEDS[scale])


HETEROGENEITY = PublishedStudy(
    name="heterogeneity",
    title="how unlike clients are, by partition",
    rows=tuple(_DISTANCES),
    columns=tuple(PARTITIONS),
    measurements=_at_scales(_reports),
    published={("features, Wasserstein", "FDS-WGC"): Number(0.46)},
    orderings=(
        *(
            Ordering(("features, Wasserstein", "FDS-VOP"), ("features, Wasserstein", other), "features differ most")
            for other in PARTITIONS
            if other != "FDS-VOP"
        ),
        *(
            Ordering(("labels, Hellinger", "LDS"), ("labels, Hellinger", other), "labels differ most")
            for other in PARTITIONS
            if other != "LDS"
        ),
    ),
    unit="mean distance of two clients",
    notes=(
        *NOTES,
        "Densities of the feature of largest variance and classes by client are pictures of `fedscout report`.",
        "The 0.46 is the dumpers'. Of the flows the source says where features and labels differ most.",
    ),
    scale_notes=LAPTOP_NOTES,
)

SOURCE = Source(
    "server-rate",
    "MFedBN, a server rate around FedBN, under five partitions",
    (HETEROGENEITY, FIGURE_10, FIGURE_11, OPTIMISER),
)
