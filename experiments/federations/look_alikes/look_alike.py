"""Proxy rows dealt, relabelled and moved so that their clients look like those of a diagnosed federation.

What was to be reproduced and could not be is said in `facts["like"]["notes"]`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedscout.detectors.report import HeterogeneityReport, name_clients
from fedscout.engine.errors import DataError
from fedscout.engine.seeds import stream
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.look_alikes.dealt_counts import DealtCounts, dealt_counts
from fedscout.experiments.federations.look_alikes.diagnosed import KEY, Diagnosed
from fedscout.experiments.federations.look_alikes.moved_features import MovedFeatures, moved_features
from fedscout.experiments.federations.look_alikes.wrong_labels import wrong_labels
from fedscout.experiments.federations.partitions.partition_request import Deal, PartitionRequest
from fedscout.experiments.federations.scenarios.effect import ScenarioPlan


def deal_like(
    diagnosed: Diagnosed, proxy: Dataset, request: PartitionRequest, min_release: int, seed: int
) -> tuple[Deal, ScenarioPlan]:
    """Return who holds which rows of the proxy, and what is done to whom.

    Args:
        diagnosed: What is to be reproduced.
        proxy: The data set, of the diagnosed classes.
        request: Its rows, and the generator of the deal.
        min_release: Fewest rows of which a client tells.
        seed: Of the federation; draws directions and ties.

    Raises:
        DataError: If there are too few rows, or another number of clients is asked for.
    """
    if request.num_clients not in {None, diagnosed.num_clients}:
        raise DataError(
            f"federation.num_clients must be left out or be {diagnosed.num_clients}, the number of clients of {KEY}, "
            f"got {request.num_clients}"
        )
    untold_rows = max(1, min_release - 1)
    dealt = dealt_counts(diagnosed, request.class_counts, untold_rows, stream(seed, "like counts"))
    moves: dict[int, MovedFeatures] = {}
    if proxy.kind != "tokens":
        moves = moved_features(diagnosed, proxy, stream(seed, "like directions"))
    relabelled = {client: wrong_labels(confusion) for client, confusion in dealt.confusions.items()}
    notes = tuple(_notes(diagnosed, proxy, dealt, untold_rows, min_release))
    facts = {"report": diagnosed.name, "sha256": diagnosed.digest, "scale": dealt.scale, "notes": notes}
    plan = ScenarioPlan(
        transforms={**{client: (move,) for client, move in moves.items()}, **{c: (r,) for c, r in relabelled.items()}},
        affected_clients=tuple(sorted({*moves, *relabelled})),
    )
    return request.deal_counts(dealt.rows, like=facts), plan


def _notes(
    diagnosed: Diagnosed, proxy: Dataset, dealt: DealtCounts, untold_rows: int, min_release: int
) -> Iterator[str]:
    """Say what differs from the diagnosed federation, and what was guessed."""
    untold = diagnosed.num_clients - len(diagnosed.told)
    if untold:
        yield (
            f"{untold} of {diagnosed.num_clients} clients told nothing; each holds {untold_rows} rows in everyone's "
            "proportions, too few to tell of them."
        )
    if dealt.scale < 1:
        yield (
            f"Clients hold {dealt.scale:.1%} of the diagnosed rows, in proportion: {proxy.name} has no more of some "
            "class."
        )
    sizes = dealt.seen.sum(axis=1)[diagnosed.told]
    if small := int(np.count_nonzero(sizes < min_release)):
        yield (
            f"{small} clients that told of their rows hold fewer than {min_release} here (federation.min_release), and "
            "tell nothing."
        )
    if proxy.facts.get("num_classes_left_out"):
        yield f"Classes stand for the diagnosed ones by how frequent they are: {', '.join(proxy.class_names)}."
    yield from _feature_notes(diagnosed, proxy)
    yield from _notes_of_the_rest(diagnosed.report)


def _feature_notes(diagnosed: Diagnosed, proxy: Dataset) -> Iterator[str]:
    if proxy.kind == "tokens":
        yield "Feature shift is not reproduced: rows are tokens, which can't be moved."
    elif not diagnosed.features:
        yield "Feature shift is not reproduced: it is not in the report; older ones lack it, or no class is shared."
    else:
        yield "Feature shift is reproduced in size and between clients; which columns are shifted is drawn."


def _notes_of_the_rest(report: HeterogeneityReport) -> Iterator[str]:
    outliers = report.calibrated_finding("outliers")
    found = {} if outliers is None else outliers.clients
    by_models = [client for client, own in found.items() if own.flagged and own.source == "models"]
    if by_models:
        yield f"What makes the models of {name_clients(by_models)} stand out is not reproduced."
    if report.speed_skew is not None:
        yield "Speed is not reproduced; the effects devices and latency of federation.scenario set it."
    if report.settings.epsilon is not None:
        yield "The diagnosed counts hold noise, and so do the shares that are reproduced."
    yield "Step sizes are the data's own: try what is found here at a few client rates where it is to train."
