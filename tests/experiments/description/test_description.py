"""What a federation is said to be: figures as detection has them, notes, changes, and what is shown of it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st

from fedscout.detectors import DetectionConfig
from fedscout.engine.data.client import Partition, Release
from fedscout.engine.data.federation import Device, Federation
from fedscout.experiments.charts import MAX_ROWS, MOST_DIFFERENT, federation_map, shades, strip_of
from fedscout.experiments.description import (
    ClientChange,
    Description,
    dependence_notes,
    describe_federation,
    near_copies_of_test_rows,
    realised,
)
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.reports.description_console import show_description, write_description
from fedscout.experiments.scenarios.effects import FeatureNoise, GaussianUpdate, ScaledUpdate
from fedscout.experiments.scenarios.labels import ShiftLabels
from tests.commands import REPOSITORY, loaded_by
from tests.detectors.federations import federation, gaussian_clients, report_of
from tests.experiments.cli.conftest import Cli, cli
from tests.experiments.description.federations import NoModel, by_counts, federation_of

# Sizes and rows


def test_rows_are_dealt_not_dealt_or_repeated() -> None:
    clients = [[0, 1, 2, 3, 4, 4], [4, 5, 6, 7, 8, 0], [10, 11, 12, 13, 14]]  # 9 and 15 to 19 nobody's
    found = realised(federation_of(np.arange(20) % 2, clients, 2))
    assert (found.num_rows, found.num_rows_assigned, found.num_rows_unassigned) == (20, 14, 6)
    assert found.num_rows_repeated == 3  # row 4 three times, row 0 twice
    assert found.num_rows_assigned + found.num_rows_repeated == 6 + 6 + 5


# Who is measured


def test_clients_too_small_to_answer_are_left_out_and_said_to_be() -> None:
    large = [[30, 10], [20, 20]]
    found = realised(by_counts([*large, [0, 4], [0, 0]]))
    alone = realised(by_counts(large))
    assert (found.num_clients, found.num_empty_clients, found.num_measured_clients) == (4, 1, 2)
    for name in ("quantity_ratio", "quantity_gini", "label_hellinger", "label_skew", "heterogeneity_index"):
        assert getattr(found, name) == getattr(alone, name)
    assert found.client_rows.smallest == 0
    assert len(found.notes) == 1
    assert realised(by_counts([*large, [0, 4]], release=Release(4))).num_measured_clients == 3


@pytest.mark.parametrize("counts", [[[30, 10]], [[30, 10], [2, 1]], [[1, 1], [2, 1]]])
def test_distances_take_two_clients(counts: list[list[int]]) -> None:
    found = realised(by_counts(counts))
    assert found.num_measured_clients < 2
    assert (found.label_hellinger, found.label_skew, found.feature_hellinger) == (None, None, None)
    assert found.num_features_compared == 0
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_of_many_clients_pairs_are_drawn_by_seed_and_the_rest_is_over_all() -> None:
    generator = np.random.default_rng(0)
    source = by_counts(generator.integers(5, 50, (30, 3)))
    settings = DetectionConfig(max_pairwise_clients=6)
    found, everyone = realised(source, settings), realised(source)
    assert (found.num_paired_clients, len(found.notes), everyone.notes) == (6, 1, ())
    assert (found.label_skew, found.quantity_gini) == (everyone.label_skew, everyone.quantity_gini)
    assert found == realised(source, settings)
    assert len({realised(source, settings, seed).label_hellinger for seed in range(4)}) == 4


# Laws


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 12))
def test_the_order_of_clients_does_not_matter(seed: int, num_clients: int) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, 300)
    owners = generator.integers(0, num_clients, 300)
    clients = [np.flatnonzero(owners == client) for client in range(num_clients)]
    order = generator.permutation(num_clients)
    one = realised(federation_of(labels, clients, 4)).model_dump()
    other = realised(federation_of(labels, [clients[client] for client in order], 4)).model_dump()
    farthest, renumbered = one.pop("label_skew_client"), other.pop("label_skew_client")
    assert (farthest is None) == (renumbered is None)
    for name, value in one.items():
        exact = value is None or name == "notes"
        assert other[name] == (value if exact else pytest.approx(value, rel=1e-9, abs=1e-9)), name


# Features


def test_moments_count_a_row_as_often_as_it_is_held() -> None:
    # Client 1 holds row 3 ten times: its value 9 then makes up a third of 30 rows, whose mean is 3 and variance 18
    # (times 30/29). Bins are placed by these: 9 is sqrt(2) deviations above the mean, 0 is 1/sqrt(2) below.
    features = np.zeros((21, 1))
    features[20] = 9.0
    found = realised(federation_of(np.zeros(21), [range(20), [20] * 10], 2, features))
    assert found.feature_hellinger == pytest.approx(1.0)
    assert found.feature_wasserstein == pytest.approx(9 / np.sqrt(18 * 30 / 29))  # of the means, without bins


def test_features_of_many_are_drawn_by_seed() -> None:
    features = np.random.default_rng(1).normal(size=(100, 4, 5))
    source = federation_of(np.arange(100) % 2, [range(50), range(50, 100)], 2, features)
    found, all_of_them = realised(source, max_features=6), realised(source, max_features=20)
    assert (found.num_features, found.num_features_compared, len(found.notes)) == (20, 6, 1)
    assert (all_of_them.num_features_compared, all_of_them.notes) == (20, ())
    assert found == realised(source, max_features=6)
    assert len({realised(source, seed=seed, max_features=6).feature_hellinger for seed in range(4)}) == 4


# Corruption


def test_what_a_corrupted_client_has_is_what_counts() -> None:
    # Both clients hold eight rows of class 0 for two of class 1; the second one's labels are all turned round.
    source = by_counts([[80, 20], [80, 20]], transforms={1: (ShiftLabels(),)})
    found, mirrored = realised(source), realised(by_counts([[80, 20], [20, 80]]))
    assert found.label_skew == mirrored.label_skew
    assert found.label_hellinger == mirrored.label_hellinger


# Other kinds of data


def test_texts_are_compared_by_their_labels_alone() -> None:
    tokens = np.array([[1, 2, 0]] * 10 + [[3, 4, 0]] * 10, float)
    halves = [range(10), range(10, 20)]
    found = realised(federation_of(np.arange(20) % 2, halves, 2, tokens, facts={"data_kind": "tokens"}))
    assert (found.feature_hellinger, found.feature_wasserstein, len(found.notes)) == (None, None, 1)
    assert found.label_hellinger == pytest.approx(0, abs=1e-7)


def test_clients_that_play_have_nothing_to_compare() -> None:
    found = realised(by_counts([[10, 0], [0, 10], [1, 0]], task=object()))
    assert found.num_clients == 3
    assert (found.quantity_ratio, found.label_skew, found.label_hellinger, found.feature_hellinger) == (None,) * 4
    assert len(found.notes) == 1


# A description and a detection of the same clients that tell all report the same figures under the same names.


ROUNDING = 1e-12
"""Figures are sums of the same numbers, not always in the same order."""

SHARED = (
    *("quantity_ratio", "quantity_variation", "quantity_gini"),
    *(f"{what}_{distance}" for what in ("label", "feature") for distance in ("hellinger", "wasserstein")),
)


def skewed(sizes: list[int], **others: Any) -> Federation:
    """Return clients whose sizes, labels and features differ."""
    clients = gaussian_clients(sizes)
    shifted = [
        (rows + 0.3 * number, np.minimum(labels + (np.arange(len(labels)) < 3 * number), 2))
        for number, (rows, labels) in enumerate(clients)
    ]
    return federation(shifted, num_classes=3, min_release=1, **others)


CASES: Mapping[str, tuple[Federation, dict[str, Any]]] = {
    "many clients": (skewed([20 + client for client in range(24)]), {}),
    "small and corrupted ones": (
        skewed([30, 3, 60, 20, 0, 41], transforms={2: (ShiftLabels(),), 5: (FeatureNoise(2.0, 0.5), ShiftLabels())}),
        {},
    ),
    "drawn pairs": (skewed([20 + client for client in range(12)]), {"max_pairwise_clients": 5}),
    "one client": (skewed([50]), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_of_detection_and_description_are_equal(case: str) -> None:
    source, given = CASES[case]
    quick = {"outlier_repetitions": 1, "outlier_min_flags": 1, "outlier_rounds": 1, **given}
    report = report_of(source, seed=3, **quick)
    description = describe_federation(source, DetectionConfig(**quick), seed=3)
    for name in SHARED:
        expected = getattr(report.metrics, name)
        assert getattr(description.realised, name) == (expected and pytest.approx(expected, rel=ROUNDING)), name
    assert description.realised.label_skew == report.label_skew.value
    measured = [client for client in description.clients if client.heterogeneity_index is not None]
    assert [client.client for client in measured] == [facts.client for facts in report.clients]
    for client, facts in zip(measured, report.clients, strict=True):
        assert (client.num_rows, client.label_counts) == (facts.num_rows, facts.label_counts)
        assert client.heterogeneity_index == facts.heterogeneity_index
        assert client.label_divergence == report.label_skew.client_values.get(client.client)
    assert len(description.clients) - len(measured) == len(report.withheld)


# `fedscout describe`: what it prints and writes, and what it does not import.


__all__ = ["cli"]

WINE = ("federation.dataset=wine", "federation.num_clients=4", "federation.partition.alpha=0.5")
POISONED = ("federation.dataset=wine", "federation.num_clients=4", "federation.scenario=label_poisoning")


def test_json_is_alone_and_has_the_documented_keys(cli: Cli) -> None:
    document = cli("describe", *POISONED, "--json").silent.document
    text = (REPOSITORY / "docs" / "describe.md").read_text()
    found = {*document, *document["realised"], *document["clients"][0], *document["changes"][0]}
    assert sorted(key for key in found if f"`{key}`" not in text) == []
    assert document["affected_clients"] == [2]
    assert [change["client"] for change in document["changes"]] == [2]
    assert document["changes"][0]["num_labels_changed"] == document["clients"][2]["num_rows"]


def test_clients_that_play_are_described_by_their_physics(cli: Cli, tmp_path: Path) -> None:
    physics = "federation.physics=[{clients: [1], gravity: 20, pole_length: 0.1}]"
    clients = ("federation.dataset=cartpole", "federation.num_clients=3", physics)
    told = cli("describe", *clients, "--out", "out").silent.out
    assert "gravity=20.0, pole_length=0.1, force=10.0): client 1" in told
    assert "classes" not in told
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["description.json"]


@pytest.mark.slow
def test_neither_torch_nor_ray_is_imported(tmp_path: Path) -> None:
    heavy = {"torch", "ray", "flwr", "optuna", "gymnasium"}
    assert loaded_by(heavy, "describe", *WINE, "--out", str(tmp_path / "out")) == set()


# What is said of rows that belong together, and of whom nothing is said.


def visits(spread: float, num_clients: int = 4) -> Federation:
    """Return 100 subjects with five visits each, dealt to clients as whole subjects."""
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(100), 5)
    features = generator.normal(size=(100, 8))[subject] + spread * generator.normal(size=(500, 8))
    return Federation(
        name="visits",
        features=features.astype(np.float32),
        labels=(subject % 2).astype(np.int64),
        num_classes=2,
        partition=Partition(np.arange(500), np.linspace(0, 500, num_clients + 1).astype(np.int64)),
        model=NoModel(),
    )


def test_near_copies_across_the_split_are_told_and_gone_with_groups() -> None:
    plain = visits(0.05)
    (note,) = dependence_notes(plain, 0, 0.2)
    assert "federation.group_column" in note
    assert dependence_notes(replace(plain, groups=np.arange(500) // 5), 0, 0.2) == ()


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer"])
def test_of_usual_data_sets_nothing_is_said(name: str) -> None:
    federation = build_federation(FederationConfig(dataset=name, partition={"kind": "iid"}), ModelConfig())
    assert dependence_notes(federation, 0, 0.2) == ()


def test_groups_that_clients_share_are_counted() -> None:
    """Clients of 125 rows each are 25 subjects; of 3, 167 rows: borders within two of the subjects."""
    groups = np.arange(500) // 5
    assert dependence_notes(replace(visits(10.0), groups=groups), 0, 0.2) == ()
    (note,) = dependence_notes(replace(visits(10.0, num_clients=3), groups=groups), 0, 0.2)
    assert "2 of 100 " in note


def test_a_series_that_is_drawn_from_is_told() -> None:
    series = replace(visits(10.0), facts={"series": "snapshots of a run to failure"})
    (note,) = dependence_notes(series, 0, 0.2)
    assert "snapshots of a run to failure" in note
    assert "federation.split=last" in note
    assert len(dependence_notes(replace(series, split="last"), 0, 0.2)) == 1


def test_many_clients_are_drawn_from() -> None:
    found = near_copies_of_test_rows(visits(0.05, num_clients=250), 0, 0.5)
    assert found.num_rows == 100  # one test row each of 100 clients of two rows


# The strip: which rows it has, and how dark its cells are.


def described(counts: npt.ArrayLike, **others: Any) -> Description:
    return describe_federation(by_counts(counts, **others), DetectionConfig(), seed=0)


def many(num_clients: int) -> Description:
    """Return clients of which the one with the larger number has labels farther from everyone's."""
    first = np.arange(num_clients) + 10
    return described(np.column_stack([first**2, np.full(num_clients, 10)]))


def shown(description: Description, width: int = 120) -> str:
    """Return what a terminal of this width shows, without colour."""
    file = io.StringIO()
    show_description(PlainConsole(file=file, width=width), description)
    return file.getvalue()


@pytest.mark.parametrize(
    ("values", "largest", "expected"),
    [
        ([0, 0.01, 0.25, 0.26, 0.5, 0.75, 0.76, 1], 1.0, [0, 1, 1, 2, 2, 3, 4, 4]),
        ([0, 1, 8], 8, [0, 1, 4]),
        ([0, 0], 0, [0, 0]),
    ],
)
def test_shades_are_equal_steps(values: list[float], largest: float, expected: list[int]) -> None:
    assert shades(values, largest).tolist() == expected


def test_of_many_the_most_different_are_shown() -> None:
    description = many(MAX_ROWS + 5)
    strip = strip_of(description, 60)
    divergences = [client.label_divergence or 0.0 for client in description.clients]
    assert [row.divergence for row in strip.rows] == sorted(divergences)[: -MOST_DIFFERENT - 1 : -1]
    assert all(f" {number} " in strip.remark for number in (MAX_ROWS + 5, MOST_DIFFERENT))
    assert strip_of(many(MAX_ROWS), 60).remark == ""


def test_neighbouring_classes_share_a_column_where_there_is_no_room() -> None:
    strip = strip_of(described([[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]), 2)
    assert strip.classes_per_column == 3
    assert [row.counts.tolist() for row in strip.rows] == [[1 + 2 + 3, 4 + 5], [60, 90]]


def test_the_strip_can_be_read_without_colour() -> None:
    text = shown(described([[40, 0, 0], [20, 20, 0], [0, 10, 30]], affected_clients=(2,)))
    lines = [line.split() for line in text.splitlines()]
    cells = {line[0]: line for line in lines if line and line[0] in {"0", "1", "2"}}
    assert cells["0"][1:3] == ["40", "██····"]
    assert cells["1"][1:3] == ["40", "▒▒▒▒··"]
    assert cells["2"][1:4] == ["*", "40", "··░░▓▓"]
    assert "* affected" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    counts = np.random.default_rng(0).integers(1, 30, (60, 150))
    named = described(counts[:3], facts={"client_names": ("a" * 90, "b", "c")})
    for description in (described(counts), named, described([[0, 0], [0, 0]]), described([[1, 0]])):
        assert max(len(line) for line in shown(description, width).splitlines()) <= width


def test_texts_of_the_users_data_are_no_markup() -> None:
    text = shown(described([[10, 0], [0, 10]], class_names=("[bold]", "[/]"), facts={"client_names": ("[red]x", "y")}))
    assert "[bold], [/]" in text
    assert "0 [red]x" in text


# The picture: what is drawn, and files that are the same for the same federation.


def test_a_cell_is_the_share_of_the_clients_rows() -> None:
    description = described([[30, 10], [5, 15], [0, 0]], class_names=("a", "b"), affected_clients=(1,))
    whole = federation_map(description).to_dict()
    tiles, bars = ({**part, "data": whole["datasets"][part["data"]["name"]]} for part in whole["hconcat"])
    shares = {(cell["client"], cell["class"]): cell["share"] for cell in tiles["data"]}
    assert shares == {("0", "a"): 0.75, ("0", "b"): 0.25, ("1 *", "a"): 0.25, ("1 *", "b"): 0.75}
    domains = {axis: tiles["encoding"][axis]["scale"]["domain"] for axis in ("x", "y", "opacity")}
    assert domains == {"x": ["a", "b"], "y": ["0", "1 *", "2"], "opacity": [0, 1]}
    assert [(bar["rows"], bar["affected"]) for bar in bars["data"]] == [(40, False), (20, True), (0, False)]


@pytest.mark.slow
def test_files_are_json_png_and_svg(tmp_path: Path) -> None:
    description = described([[30, 10], [5, 15]], class_names=("$a_$", "b" * 50))
    one, two = (write_description(description, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in one] == ["description.json", "clients.png", "clients.svg"]
    assert one[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ElementTree.parse(one[2]).getroot().tag.endswith("svg")
    assert [path.read_bytes() for path in one[:2]] == [path.read_bytes() for path in two[:2]]  # SVG numbers its clips


# What a scenario is said to have changed is what it changed.


class FirstColumnToZero:
    """A transform that is no dataclass."""

    def __call__(self, features: np.ndarray, labels: np.ndarray, *_: Any) -> tuple[np.ndarray, np.ndarray]:
        return features * (np.arange(4, dtype=np.float32) > 0), labels


def changes_of(source: Federation) -> tuple[ClientChange, ...]:
    return describe_federation(source, DetectionConfig(), seed=0).changes


def test_changes_are_told_client_by_client() -> None:
    transforms = {2: (FeatureNoise(2.0, 0.5), ShiftLabels()), 1: (ShiftLabels(),), 0: ()}
    source = by_counts([[10, 10], [20, 5], [500, 500]], transforms=transforms, facts={"feature_unit": 2.0})
    second, third = changes_of(source)
    assert (second.client, second.num_rows, second.num_labels_changed, second.steps) == (1, 25, 25, ("ShiftLabels()",))
    assert (second.share_numbers_changed, second.feature_shift, second.feature_deviation) == (0, 0, 0)
    assert (third.client, third.num_labels_changed, third.share_numbers_changed) == (2, 1000, 1)
    assert third.steps == ("FeatureNoise(mean=2.0, deviation=0.5)", "ShiftLabels()")
    # 3,000 numbers: the mean of the noise is 2/2 up to 0.25/sqrt(3000), its deviation 0.5/2 up to 0.25/sqrt(6000)
    assert third.feature_shift == pytest.approx(1.0, abs=5 * 0.25 / np.sqrt(3000))
    assert third.feature_deviation == pytest.approx(0.25, abs=5 * 0.25 / np.sqrt(6000))


def test_only_numbers_that_differ_count_as_changed() -> None:
    clients, transforms = [range(10), range(10, 20)], {1: (FirstColumnToZero(),)}
    (change,) = changes_of(federation_of(np.arange(20) % 2, clients, 2, np.ones((20, 4)), transforms))
    assert (change.share_numbers_changed, change.feature_shift) == (0.25, -0.25)
    assert change.steps == ("FirstColumnToZero",)


def test_clients_that_miss_rounds_take_long_or_attack_are_named() -> None:
    devices = {0: Device(shift_seconds=1.0, mean_seconds=2.5)}
    attacks = {1: (ScaledUpdate(-1.0), GaussianUpdate(0.5))}
    first, second = changes_of(by_counts([[10, 10], [20, 5]], dropout={1: 0.3}, devices=devices, attacks=attacks))
    assert (first.client, first.latency_shift, first.latency_mean, first.dropout) == (0, 1.0, 2.5, 0.0)
    assert (second.client, second.latency_shift, second.latency_mean, second.dropout) == (1, None, None, 0.3)
    assert (second.steps, second.num_labels_changed) == ((), 0)
    assert second.attacks == ("ScaledUpdate(factor=-1.0)", "GaussianUpdate(deviation=0.5)")
