"""What is detected, and what a detection takes: Figures 5, 6, 7 and 12."""

from __future__ import annotations

from itertools import product

from fedscout.detectors import HeterogeneityReport
from fedscout.experiments.benchmarks.engine.detection_modules import (
    FEATURES,
    LABELS,
    PUBLISHED_OUTLIERS,
    PUBLISHED_ROUND_SECONDS,
    PUBLISHED_SECONDS,
)
from fedscout.experiments.reproduction.benchmark_cells import NoiseCells
from fedscout.experiments.reproduction.published_study import (
    Number,
    Ordering,
    PublishedStudy,
    chain_of_columns,
    numbers,
)
from fedscout.experiments.reproduction.reported_cells import ReportedCells
from fedscout.experiments.reproduction.sources.choice_federations import (
    BEARING,
    BEARING_NOTE,
    BEARINGS,
    SIZES,
    at_both,
    cifar,
)
from fedscout.experiments.reproduction.timed_cells import MODULES, TimedDetections, TimedModules


def _affected_to_median(report: HeterogeneityReport) -> float | None:
    """Return how much farther the third client's model is than the others' median, as a ratio."""
    distances = report.metrics.model_distances
    others = sorted(value for client, value in distances.items() if client != 2)
    return distances[2] / others[len(others) // 2] if 2 in distances and others else None


_ROUNDS = (1, 2, 3, 5, 10)

FIGURE_5 = PublishedStudy(
    name="fig5",
    title="how far the client of flipped labels is from the others, by round",
    rows=("poisoned client",),
    columns=tuple(f"round {number}" for number in _ROUNDS),
    steps="columns",
    measurements=at_both(
        lambda seeds: ReportedCells(
            {
                f"round {number}": (*BEARINGS["label poisoning"], f"detection.outlier_rounds={number}")
                for number in _ROUNDS
            },
            {"poisoned client": _affected_to_median},
            seeds,
        ),
        5,
    ),
    orderings=tuple(
        Ordering(
            ("poisoned client", "round 2"), ("poisoned client", f"round {number}"), "largest in round 2, then fading"
        )
        for number in (1, 3, 5, 10)
    ),
    unit="times the other clients' median distance",
    notes=(BEARING_NOTE, "The source prints a curve without numbers."),
)


def _centroid_distance(report: HeterogeneityReport) -> float | None:
    """Return the largest distance of two clients' centroids on the principal axes, in the unit of the features."""
    centroids = list(report.centroids.values())
    pairs = (
        sum((one - other) ** 2 for one, other in zip(first, second, strict=True)) ** 0.5
        for first, second in product(centroids, repeat=2)
    )
    return max(pairs, default=None)


FIGURE_6 = PublishedStudy(
    name="fig6",
    title="distance of the clients' centroids on two principal axes",
    rows=("distance",),
    columns=("IID", "corrupted client", "feature skew"),
    measurements=at_both(
        lambda seeds: ReportedCells(
            {name: BEARINGS[name] for name in ("IID", "corrupted client", "feature skew")},
            {"distance": _centroid_distance},
            seeds,
        ),
        5,
    ),
    published=numbers(("distance",), ("IID", "corrupted client", "feature skew"), ((0.577, 7.435, 15.060),)),
    orderings=(
        Ordering(("distance", "feature skew"), ("distance", "corrupted client"), "feature skew lies farthest apart"),
        Ordering(("distance", "corrupted client"), ("distance", "IID"), "a corrupted client stands alone"),
    ),
    unit="standard deviations of a feature",
    notes=(BEARING_NOTE,),
)

_ALPHAS = ("IID", "10", "1", "0.5", "0.1")


FIGURE_7 = PublishedStudy(
    name="fig7",
    title="distance of the clients' centroids of embedded pictures, by Dirichlet α",
    rows=("distance",),
    columns=_ALPHAS,
    steps="columns",
    measurements=at_both(
        lambda seeds: ReportedCells(
            {alpha: cifar(alpha, "federation.num_clients=10", "federation.max_rows=4000") for alpha in _ALPHAS},
            {"distance": _centroid_distance},
            seeds,
        ),
        3,
    ),
    published={("distance", "IID"): Number(0.079), ("distance", "0.1"): Number(6.961)},
    orderings=chain_of_columns("distance", tuple(reversed(_ALPHAS)), "the smaller α, the farther apart"),
    unit="standard deviations of a feature",
    notes=(
        "The source embeds by a trained ResNet-18; here by LeNet's untrained last layer, 4,000 pictures. Its α "
        "are not known beside the strongest; 6.961 is put at 0.1.",
    ),
)

_DETECTED = {
    f"{clients} clients": cifar("0.5", f"federation.num_clients={clients}", "federation.max_rows=4000")
    for clients in SIZES
}
_COSTS = ("detection, seconds", "one round, seconds", "detection, rounds")

_NOISE = (0, 50, 200)

FEATURE_MEASURES = PublishedStudy(
    name="noise",
    title="feature skew over IID by two measures, with columns of pure noise added",
    rows=("divergence", "centroid_distance"),
    columns=tuple(f"{count} columns" for count in _NOISE),
    steps="columns",
    measurements=at_both(lambda seeds: NoiseCells(BEARING, _NOISE, seeds), 5),
    orderings=(
        *(
            Ordering(("divergence", "0 columns"), ("divergence", f"{count} columns"), "histograms mislead under noise")
            for count in _NOISE[1:]
        ),
        *(
            Ordering(
                ("centroid_distance", "0 columns"),
                ("centroid_distance", f"{count} columns"),
                "centroids do not",
                "level",
            )
            for count in _NOISE[1:]
        ),
    ),
    unit="times the value where clients are alike",
    notes=(
        "The source rejects divergences of raw feature histograms and prints no numbers. A ratio that falls is "
        "dilution; whether a decision is wrong, and where skew is in few columns, is in docs/detection.md.",
    ),
)

_MODULES = "four clients, bearing"

MODULES_ALONE = PublishedStudy(
    name="modules",
    title="what each module of a detection takes, in rounds",
    rows=MODULES,
    columns=(_MODULES,),
    measurements=at_both(lambda turns: TimedModules(BEARINGS["IID"], _MODULES, turns), 5),
    published={
        (name, _MODULES): Number(seconds / PUBLISHED_ROUND_SECONDS) for name, seconds in PUBLISHED_SECONDS.items()
    },
    orderings=(
        Ordering((PUBLISHED_OUTLIERS, _MODULES), (FEATURES, _MODULES), "outliers take most"),
        Ordering((FEATURES, _MODULES), (LABELS, _MODULES), "labels least"),
    ),
    unit="rounds of FedAvg",
    notes=("Published are 8.3, 11.2 and 54.5 s beside rounds of 1.16 s.",),
)

FIGURE_12 = PublishedStudy(
    name="fig12",
    title="what a detection takes, by clients",
    rows=_COSTS,
    columns=tuple(_DETECTED),
    measurements={
        "laptop": TimedDetections(_DETECTED, 3),
        "published": TimedDetections(
            {f"{clients} clients": cifar("0.5", f"federation.num_clients={clients}") for clients in SIZES}, 5
        ),
    },
    published=numbers(
        _COSTS,
        tuple(_DETECTED),
        ((148.7, 152.1, 168.5, 217.0), (4.859, 4.867, 5.300, 51.233), (35.0, 31.0, 34.0, 40.0)),
    ),
    orderings=chain_of_columns(
        "detection, seconds", ("100 clients", "50 clients", "10 clients", "4 clients"), "it grows with the clients"
    ),
    unit="seconds, or rounds",
    notes=(
        "A round of 51.2 s at 100 clients can't be: 40 rounds of it are no 217 s. The published seconds are another "
        "machine's; what can be compared is how they grow, and a detection's worth in rounds.",
    ),
    scale_notes={"laptop": ("4,000 pictures, so that a client holds fewer where there are more.",)},
)
