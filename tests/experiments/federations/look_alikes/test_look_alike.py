"""Look-alikes: dealt shares are the diagnosed ones, verdicts are the same, and a report fixes all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedscout.engine.data.federation import Federation
from fedscout.experiments.federations.assembly.build_federation import data_digest
from tests.experiments.federations.look_alikes.reports import built, detected, report_on, written


def seen(federation: Federation) -> np.ndarray:
    """Return rows of each client by the label that it sees."""
    own = [federation.client_data(client).own for client in range(federation.num_clients)]
    return np.array([np.bincount(data.labels[data.rows], minlength=federation.num_classes) for data in own])


def like(path: Path, *arguments: str) -> Federation:
    return built(f"federation.like={path}", "federation.dataset=digits", *arguments)


DIGITS = ("federation.dataset=digits", "federation.num_clients=8")


def test_counts_that_the_proxy_has_are_dealt_as_they_are(tmp_path: Path) -> None:
    counts = ((30, 0, 5, 0, 0, 0, 0, 0, 0, 9), (0, 50, 0, 7, 0, 0, 0, 0, 40, 0))
    federation = like(written(report_on(*counts), tmp_path))
    assert_array_equal(seen(federation), counts)
    assert federation.facts["like"]["scale"] == 1
    assert len(np.unique(federation.partition.rows)) == len(federation.partition.rows)


def test_sizes_shrink_in_proportion_and_shares_stay_within_a_row(tmp_path: Path) -> None:
    counts = np.random.default_rng(3).integers(0, 900, size=(6, 10))
    federation = like(written(report_on(*map(tuple, counts.tolist())), tmp_path))
    dealt, scale = seen(federation), federation.facts["like"]["scale"]
    sizes = dealt.sum(axis=1)
    assert scale < 0.2
    assert_allclose(sizes, scale * counts.sum(axis=1), atol=0.5)
    assert np.abs(dealt - counts / counts.sum(axis=1, keepdims=True) * sizes[:, None]).max() < 1
    assert (dealt.sum(axis=0) <= np.bincount(federation.labels)).all()
    used = dealt.sum(axis=0) / np.bincount(federation.labels)
    assert used.max() > 0.95, "no smaller than it must be"
    assert "of the diagnosed rows" in " ".join(federation.facts["like"]["notes"])


def test_rows_that_are_not_told_are_of_classes_that_are_not_told(tmp_path: Path) -> None:
    counts = ((40, 0, 0), (0, 40, 0), (20, 20, 20))
    path = written(report_on(*counts, untold=(6, 0, 0)), tmp_path)
    dealt = seen(built(f"federation.like={path}", "federation.dataset=wine"))
    assert_array_equal(dealt[:, 0] > 0, [True, False, True])
    assert dealt[0, 1:].sum() in (5, 6), "wine has 48 rows of the third class"
    assert dealt[0, 1] > dealt[0, 2], "everyone told of more rows of the second class"


def test_who_told_nothing_holds_too_few_rows_again(tmp_path: Path) -> None:
    counts = ((60, 20), (20, 60))
    report = report_on(*counts, num_clients=4, withheld={3: "holds fewer rows than federation.min_release"})
    path = written(report.model_copy(update={"clients": report.clients}), tmp_path)
    federation = built(f"federation.like={path}", "federation.dataset=breast_cancer")
    assert_array_equal(seen(federation).sum(axis=1), [80, 80, 4, 4])
    again = detected(federation)
    assert sorted(again.withheld) == [2, 3]
    assert "2 of 4 clients told nothing" in federation.facts["like"]["notes"][0]
    assert_array_equal(
        seen(built(f"federation.like={path}", "federation.dataset=breast_cancer", "federation.min_release=1")).sum(
            axis=1
        )[2:],
        1,
    )


def test_a_report_and_a_seed_fix_the_federation(tmp_path: Path) -> None:
    scaled = "federation.scenario={kind: feature_scale, clients: [1, 4], factor: 3}"
    path = written(detected(built(*DIGITS, scaled, "federation.partition.alpha=1")), tmp_path)
    first, again, other = like(path), like(path), like(path, "federation.seed=1")
    assert data_digest(first) == data_digest(again) != data_digest(other)
    assert np.abs(seen(first) - seen(other)).max() <= 1, "another seed rounds ties otherwise"
    for client in range(8):
        assert_array_equal(first.client_data(client).own.features, again.client_data(client).own.features)
    (tmp_path / "other").mkdir()
    touched = written(report_on(*seen(first).tolist()), tmp_path / "other")
    assert data_digest(like(touched)) != data_digest(first), "another report with the same counts"


@pytest.mark.parametrize(
    "arguments",
    [
        ("federation.partition.kind=iid",),
        ("federation.partition.alpha=0.3",),
        ("federation.partition.kind=iid", "federation.scenario={kind: feature_noise, clients: [5], mean: 1, std: 0.5}"),
        ("federation.partition.kind=iid", "federation.scenario={kind: label_flip, clients: [1], rate: 0.8}"),
    ],
    ids=["iid", "dirichlet", "noise", "wrong labels"],
)
def test_detection_tells_the_same_of_the_look_alike(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    diagnosed = detected(built(*DIGITS, *arguments))
    again = detected(like(written(diagnosed, tmp_path)))
    for finding in diagnosed.calibrated:
        other = again.calibrated_finding(finding.name)
        assert other is not None
        assert finding.detected == other.detected, finding.sentence
        if finding.name != "label_skew":
            assert finding.flagged_clients == other.flagged_clients
    assert_allclose(
        [*again.label_skew.client_values.values()], [*diagnosed.label_skew.client_values.values()], atol=0.03
    )


def test_scaled_features_are_told_from_wrong_labels_and_scaled_alike(tmp_path: Path) -> None:
    effects = ", ".join(f"{{kind: feature_scale, clients: [{c}], factor: {f}}}" for c, f in ((0, 0.2), (1, 3)))
    diagnosed = detected(built(*DIGITS, "federation.partition.kind=iid", f"federation.scenario=[{effects}]"))
    outliers = diagnosed.calibrated_finding("outliers")
    assert outliers is not None
    assert 0 in outliers.flagged_clients, "small rows look like those of another class"
    federation = like(written(diagnosed, tmp_path))
    assert {0, 1} <= federation.transforms.keys()
    assert {type(step).__name__ for steps in federation.transforms.values() for step in steps} == {"MovedFeatures"}
    again = detected(federation).calibrated_finding("outliers")
    assert again is not None
    scaled = {0, 1}  # another client's rows are stretched so that its effect is at the least one that flags
    assert scaled.intersection(again.flagged_clients) == scaled.intersection(outliers.flagged_clients) == {0}


def test_wrong_labels_leave_the_counts_as_they_were_seen(tmp_path: Path) -> None:
    flipped = "federation.scenario={kind: label_flip, clients: [1], rate: 0.8}"
    diagnosed = detected(built(*DIGITS, "federation.partition.kind=iid", flipped))
    federation = like(written(diagnosed, tmp_path))
    data = federation.client_data(1)
    wrong = (data.own.labels[data.own.rows] != data.clean.labels[data.clean.rows]).mean()
    assert_allclose(wrong, 0.8, atol=0.1)
    dealt, wanted = seen(federation)[1], np.array(diagnosed.clients[1].label_counts)
    assert np.abs(dealt - wanted / wanted.sum() * dealt.sum()).max() < 1.5


def test_more_classes_than_diagnosed_stand_in_by_how_frequent_they_are(tmp_path: Path) -> None:
    path = written(report_on((10, 40), (5, 40)), tmp_path)
    federation = built(f"federation.like={path}", "federation.dataset=wine")
    assert federation.class_names == ("class_0", "class_1")
    assert_array_equal(np.bincount(federation.labels), [59, 71], "of 59, 71 and 48 rows, the rarest is left out")
    turned = built(f"federation.like={written(report_on((40, 10), (40, 5)), tmp_path)}", "federation.dataset=wine")
    assert turned.class_names == ("class_1", "class_0")
    assert_array_equal(np.bincount(turned.labels), [71, 59])


def test_effects_come_on_top(tmp_path: Path) -> None:
    flipped = "federation.scenario={kind: label_flip, clients: [1], rate: 0.5}"
    diagnosed = detected(built(*DIGITS, "federation.partition.kind=iid", flipped))
    path = written(diagnosed, tmp_path)
    federation = like(path, "federation.scenario={kind: feature_scale, clients: [1, 2], factor: 2}")
    names = {client: [type(step).__name__ for step in steps] for client, steps in federation.transforms.items()}
    assert names == {1: ["WrongLabels", "FeatureScale"], 2: ["FeatureScale"]}
    assert federation.affected_clients == (1, 2)
    assert federation.name == "digits, like diagnosis.json + feature_scale, 8 clients"
