"""From configuration to federation, with the data that come with scikit-learn, and the server's rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError

from fedscout.detectors import DetectionConfig
from fedscout.engine.data.client import Privacy, Release
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.engine.seeds import stream
from fedscout.experiments.config import load_config
from fedscout.experiments.data.dataset import Dataset, duplicate_rows
from fedscout.experiments.federation import (
    build_federation,
    data_digest,
    draw_unseen,
    sample_rows,
    without_server_rows,
    without_small_clients,
)
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.table import SCENARIOS, parse_effects
from fedscout.experiments.studies.workflow import cohort_of
from tests.experiments.data.loading import clients_of
from tests.kits.refusals import refused


def build(config: FederationConfig | None = None) -> Federation:
    return build_federation(config or FederationConfig(), ModelConfig())


def own_rows(federation: Federation, client: int, view: str = "own") -> tuple[np.ndarray, np.ndarray]:
    rows = getattr(federation.client_data(client), view)
    return rows.take(np.arange(len(rows)))


def test_demo() -> None:
    federation = build()
    assert (federation.num_clients, federation.features.shape, federation.num_classes) == (10, (1797, 64), 10)
    assert federation.partition.sizes.sum() == federation.facts["num_rows_assigned"] == 1797
    assert federation.partition.sizes.min() >= 5
    assert federation.name == "digits, dirichlet 0.1, 10 clients"


@pytest.mark.parametrize("scenario", [None, *SCENARIOS])
def test_equal_configurations_build_equal_federations(scenario: str | None) -> None:
    first, again, other = (build(FederationConfig(scenario=scenario, seed=seed)) for seed in (4, 4, 5))
    assert first.name == again.name
    np.testing.assert_array_equal(first.partition.rows, again.partition.rows)
    assert (first.partition.rows[:100] != other.partition.rows[:100]).any()
    for client in range(first.num_clients):
        for left, right in zip(own_rows(first, client), own_rows(again, client), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_only_transformed_clients_differ_from_their_clean_view(scenario: str) -> None:
    federation = build(FederationConfig(dataset="wine", scenario=scenario, num_clients=4))
    for client in range(4):
        own, clean = own_rows(federation, client), own_rows(federation, client, "clean")
        differs = any((left != right).any() for left, right in zip(own, clean, strict=True))
        assert differs == (client in federation.transforms) == federation.client_data(client).corrupted
        rows = federation.partition.client(client)
        np.testing.assert_array_equal(clean[0], federation.features[rows])
        np.testing.assert_array_equal(clean[1], federation.labels[rows])


def test_the_data_digest_depends_on_rows_labels_and_deal() -> None:
    one, same, dealt = (build(FederationConfig(dataset="wine", num_clients=3, seed=seed)) for seed in (0, 0, 1))
    assert data_digest(one) == data_digest(same)
    features, labels = one.features.copy(), one.labels.copy()
    features[0, 0] += 1
    labels[0] = (labels[0] + 1) % one.num_classes
    others = [replace(one, features=features), replace(one, labels=labels), dealt]
    assert len({data_digest(federation) for federation in [one, *others]}) == 4


def test_what_clients_let_out_is_configured() -> None:
    config = FederationConfig(dataset="wine", min_release=7, small_clients="abstain")
    privacy = DetectionConfig(epsilon=2.0, delta=1e-4, noise="secure").privacy
    assert build_federation(config, ModelConfig(), privacy).release == Release(7, "abstain", Privacy(2.0, 1e-4, True))
    assert DetectionConfig().privacy is None
    assert build().release == Release(5, "train", None)


# The federation's configuration: defaults that make the demo, and contradictions that are refused.


COUNTS = [[[5, 1], [3]], [[-1]], [[1.5]], [[True]], [], [[]], [5]]
PUBLISHED = [{"kind": "dirichlet"}, {"kind": "iid"}, {"kind": "natural"}, {"alpha": 0.5}]


@pytest.mark.parametrize(
    ("partition", "scenario", "named"),
    [
        ({"kind": "iid", "alpha": 0.5}, None, "alpha=0.5"),
        ({"class_share": 0.2}, None, "class_share=0.2"),
        ({"kind": "natural", "min_size": 6}, None, "min_size=6"),
        *(({"kind": "counts", "counts": counts}, None, r"partition\.counts") for counts in COUNTS),
        *((given, "label_skew", "with scenario=label_skew") for given in PUBLISHED),
    ],
)
def test_settings_of_another_partition_are_refused(partition: dict[str, Any], scenario: str | None, named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        FederationConfig.model_validate({"partition": partition, "scenario": scenario})


@pytest.mark.parametrize("scenario", [None, "label_skew"])
@pytest.mark.parametrize("unseen", [-1, 4, 5])
def test_unseen_clients_leave_one_to_train(scenario: str | None, unseen: int) -> None:
    assert FederationConfig(num_clients=4, scenario=scenario, unseen_clients=3).num_seen == 1
    with pytest.raises(ValidationError, match="unseen_clients"):
        FederationConfig(num_clients=4, scenario=scenario, unseen_clients=unseen)


# Who joins after the training.


def test_so_many_are_drawn_by_the_seed_and_more_hold_the_fewer() -> None:
    draws = [draw_unseen(FederationConfig(unseen_clients=count), 10) for count in range(10)]
    assert [len(draw) for draw in draws] == list(range(10))
    assert all(fewer < more for fewer, more in pairwise(draws))
    assert set().union(*(draw_unseen(FederationConfig(unseen_clients=1, seed=seed), 10) for seed in range(99))) == {
        *range(10)
    }


@pytest.mark.parametrize("dataset", ["wine", "cartpole"])
def test_the_federation_is_otherwise_the_same(dataset: str) -> None:
    config = FederationConfig(dataset=dataset, num_clients=5)
    plain, held = build(config), build(config.model_copy(update={"unseen_clients": 2}))
    assert (plain.num_clients, plain.num_seen, plain.unseen) == (5, 5, frozenset())
    assert (held.num_clients, held.num_seen, len(held.unseen)) == (5, 3, 2)
    assert np.array_equal(plain.partition.rows, held.partition.rows)
    assert plain.facts == held.facts


def test_none_left_of_natural_clients_is_refused() -> None:
    """Whose number only the data tell."""
    config = FederationConfig.model_validate({"partition": {"kind": "natural"}, "unseen_clients": 7})
    with refused(ConfigurationError, key="federation.unseen_clients", given="7"):
        build_federation(config, ModelConfig(), dataset=numbered())


# The server's rows: nobody else's, of each class in proportion, drawn by the federation's seed.


def numbered(counts: tuple[int, ...] = (60, 30, 9, 1)) -> Dataset:
    """Rows that say which they are; so many of each class, in random order."""
    labels = np.random.default_rng(5).permutation(np.repeat(np.arange(len(counts)), counts))
    return Dataset(
        name="numbered",
        features=np.arange(len(labels), dtype=np.float32)[:, None],
        labels=labels.astype(np.int64),
        class_names=tuple(map(str, range(len(counts)))),
        feature_names=("row",),
        source="here",
        client_ids=np.array([f"client {row % 7}" for row in range(len(labels))]),
    )


def cut(asked: float, seed: int = 0, labelled: bool = True, dataset: Dataset | None = None) -> tuple[Dataset, Any]:
    return without_server_rows(dataset or numbered(), asked, labelled, stream(seed, "server-rows"))


@given(st.integers(1, 96), st.integers(0, 20))
def test_every_row_is_on_one_side_with_its_label(asked: int, seed: int) -> None:
    whole = numbered()
    clients, server = cut(asked, seed)
    rows = np.concatenate([clients.features[:, 0], server.features[:, 0]]).astype(int)
    assert server.num_rows == asked
    assert sorted(rows) == list(range(100))
    np.testing.assert_array_equal(np.concatenate([clients.labels, server.labels]), whole.labels[rows])
    assert clients_of(clients) == [f"client {row % 7}" for row in clients.features[:, 0].astype(int)]
    assert clients.class_names == whole.class_names  # each class has a row left
    assert (clients.facts["num_server_rows"], clients.facts["num_rows"]) == (asked, 100 - asked)


@given(st.integers(1, 60), st.integers(0, 20))
def test_classes_have_their_share(asked: int, seed: int) -> None:
    """Within a row of it, while no class is short of rows."""
    _, server = cut(asked, seed, dataset=numbered((60, 30, 10)))
    found = np.bincount(server.labels, minlength=3)
    assert (np.abs(found - asked * np.array([0.6, 0.3, 0.1])) <= 1).all()


def test_a_share_is_of_all_rows_and_at_least_one() -> None:
    assert [cut(share)[1].num_rows for share in (0.25, 0.001, 0.96)] == [25, 1, 96]


def test_the_seed_draws_and_fewer_rows_are_part_of_more() -> None:
    rows = {size: set(cut(size)[1].features[:, 0]) for size in (10, 20, 40)}
    assert rows[10] < rows[20] < rows[40]
    assert rows[20] == set(cut(20)[1].features[:, 0])
    assert rows[20] != set(cut(20, seed=1)[1].features[:, 0])


def grouped(sizes: tuple[int, ...] = (9, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 1), num_classes: int = 2) -> Dataset:
    """The same for rows of groups, those of a group of one class, classes by turns; in random order."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    order = np.random.default_rng(2).permutation(len(groups))
    return replace(
        numbered((len(groups),)),
        labels=(groups % num_classes)[order].astype(np.int64),
        class_names=tuple(map(str, range(num_classes))),
        groups=groups[order].astype(np.int64),
    )


@given(st.integers(1, 20), st.integers(0, 20))
def test_rows_that_belong_together_are_on_one_side(asked: int, seed: int) -> None:
    """And are as many as asked for, within half of the largest group, while no class is short of groups."""
    whole = grouped()
    clients, server = cut(asked, seed, dataset=whole)
    rows = [side.features[:, 0].astype(int) for side in (clients, server)]
    assert sorted(np.concatenate(rows)) == list(range(40))
    assert not {*whole.groups[rows[0]]} & {*whole.groups[rows[1]]}
    np.testing.assert_array_equal(clients.groups, whole.groups[rows[0]])
    assert {*clients.labels} == {0, 1}
    assert clients.facts["num_server_rows"] == server.num_rows >= 1
    assert abs(server.num_rows - asked) <= 4.5


def test_a_group_that_is_too_large_is_taken_if_none_is_smaller() -> None:
    _, server = cut(1, dataset=grouped((30, 20, 25, 40)))
    assert server.num_rows == 20


def test_clients_keep_a_row_or_a_group_of_each_class() -> None:
    for asked, dataset in ((97, numbered()), (3, grouped((4, 5, 6), num_classes=3))):
        with refused(DataError, key="federation.server_rows"):
            cut(asked, dataset=dataset)


# The keys of the configuration.


def built(**settings: Any) -> Any:
    return build(FederationConfig(num_clients=5, **settings))


def test_no_client_holds_a_row_of_the_server_s() -> None:
    """Every row of the digits is the server's or a client's; they are told apart by their numbers in the whole."""
    whole, federation = built(), built(server_rows=300)
    held = federation.features[np.unique(federation.partition.rows)]
    assert len(held) + federation.server.num_rows == len(whole.features) == 1797
    together = np.concatenate([held, federation.server.features])
    assert sorted(map(bytes, together)) == sorted(map(bytes, whole.features))


def test_corruption_of_clients_does_not_reach_the_server() -> None:
    noise = parse_effects([{"kind": "feature_noise", "std": 1.0, "clients": [0, 1]}])
    one, other = built(server_rows=50, scenario=noise), built(server_rows=50)
    assert one.transforms
    np.testing.assert_array_equal(one.server.features, other.server.features)


@pytest.mark.parametrize(
    "argument",
    [
        *(f"rows={given}" for given in ("0", "1.0", "0.0", "true", ".nan")),
        *("labels=true", "dataset=digits", "dataset=cartpole", "dataset=given"),
    ],
)
def test_other_values_are_refused(argument: str) -> None:
    """What is neither a count nor a share, labels of no rows, and what is no other data set; players have no rows."""
    with refused(ConfigurationError, key=f"federation.server_{argument.partition('=')[0]}"):
        load_config([f"federation.server_{argument}"])
    with refused(ConfigurationError, key="federation.dataset", names="federation.server_rows"):
        built(dataset="cartpole", server_rows=5)


@pytest.mark.parametrize(
    ("given", "known"),
    [("rows=null", 0), ("rows=7", 7), ("rows=0.2", None), ("dataset=wine", None), ("dataset=wine server_rows=7", 7)],
)
def test_strategies_are_told_before_the_data_are_read(given: str, known: int | None) -> None:
    arguments = f"server_{given}".split()
    assert cohort_of(load_config([f"federation.{argument}" for argument in arguments]), 5).server_rows == known


# `federation.server_dataset`: rows of another data set at the server, which must look like the clients'.


def table(rows: int, classes: tuple[str, ...], shift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Two columns of numbers and a label, each class as often."""
    generator = np.random.default_rng(seed)
    labels = np.resize(np.array(classes), rows)
    pulse, age = generator.normal(shift, 3.0, rows), generator.normal(5.0 * shift, 1.0, rows)
    return pd.DataFrame({"pulse": pulse, "age": age, "state": labels})


GOOD = table(60, ("well", "ill"))


def built_with(
    folder: Path, server: pd.DataFrame | None, clients: pd.DataFrame | None = None, **settings: Any
) -> Federation:
    clients = table(200, ("ill", "odd", "well")) if clients is None else clients
    clients.to_csv(folder / "clients.csv", index=False)
    given: dict[str, Any] = {"dataset": str(folder / "clients.csv"), "label": "state", "num_clients": 4, **settings}
    if server is not None:
        server.to_csv(folder / "server.csv", index=False)
        given["server_dataset"] = str(folder / "server.csv")
    return build_federation(FederationConfig(**given), ModelConfig())


def test_all_rows_are_the_servers_and_the_clients_keep_theirs(tmp_path: Path) -> None:
    """Labels are not looked at."""
    alone, served = (built_with(tmp_path, rows) for rows in (None, table(60, ("well", "dead"), seed=1)))
    np.testing.assert_array_equal(alone.features, served.features)
    np.testing.assert_array_equal(alone.partition.rows, served.partition.rows)
    assert alone.server is None
    assert (served.server.num_rows, served.server.labels) == (60, None)
    told = {name: served.facts[name] for name in served.facts.keys() - alone.facts.keys()}
    source = {"server_dataset": "server.csv", "server_source": str(tmp_path / "server.csv")}
    assert told == {"num_server_rows": 60, "server_labels": False, **source}


def test_labels_are_matched_by_name_and_the_scale_is_the_servers_own(tmp_path: Path) -> None:
    """Its classes are numbered anew without `odd`: ill, well = 0, 1 there are 0, 2 here."""
    rows = table(60, ("well", "ill"), shift=100.0, seed=1)
    server = built_with(tmp_path, rows, server_labels=True).server
    np.testing.assert_array_equal(server.labels, np.where(rows["state"] == "well", 2, 0))
    columns = rows[["pulse", "age"]].to_numpy()
    np.testing.assert_allclose(server.features, (columns - columns.mean(0)) / columns.std(0), rtol=1e-4, atol=1e-4)


def test_the_digests_hold_it(tmp_path: Path) -> None:
    one, other = (data_digest(built_with(tmp_path, table(60, ("well", "ill"), seed=seed))) for seed in (1, 2))
    assert one != other
    assert load_config(["federation.server_dataset=wine"]).identity()["federation"]["server_labels"] is False


@pytest.mark.parametrize(
    ("rows", "settings", "key", "names"),
    [
        (GOOD.rename(columns={"age": "years"}), {}, "dataset", "'years'"),
        (GOOD.drop(columns="age"), {}, "dataset", "1 numbers"),
        (table(60, ("well", "dead")), {"server_labels": True}, "dataset", "dead"),
        (GOOD, {"server_rows": 61}, "rows", "61"),
    ],
)
def test_rows_unlike_the_clients_are_refused(
    tmp_path: Path, rows: pd.DataFrame, settings: dict[str, Any], key: str, names: str
) -> None:
    with refused(DataError, key=f"federation.server_{key}", names=names) as caught:
        built_with(tmp_path, rows, **settings)
    assert len(caught.value.faults) == 1
    with pytest.raises(DataError, match=r"^federation.server_dataset="):
        built_with(tmp_path, table(60, ("well",)))  # which make no data set


def test_rows_for_a_regression_are_refused(tmp_path: Path) -> None:
    """All strategies that use them need classes."""
    with refused(ConfigurationError, key="federation.server_dataset"):
        built_with(tmp_path, GOOD, clients=GOOD.assign(state=np.arange(60.0)), task="regression")


def test_tokens_are_refused(tmp_path: Path) -> None:
    texts = pd.DataFrame({"text": ["some words here", "other words there"] * 20, "state": ["ill", "well"] * 20})
    with refused(DataError, key="federation.server_dataset"):
        built_with(tmp_path, texts, clients=texts, text_column="text")


# Samples of rows, and the count of duplicates that goes on record.


def sample(dataset: Dataset, max_rows: int | None, seed: int = 0) -> Dataset:
    return sample_rows(dataset, max_rows, stream(seed, "rows"))


@given(st.integers(2, 99), st.integers(0, 5))
def test_rows_keep_their_order_label_and_client(max_rows: int, seed: int) -> None:
    whole = numbered()
    try:
        part = sample(whole, max_rows, seed)
    except DataError:
        return  # rows of one class: tested below
    rows = part.features[:, 0].astype(int)
    assert part.num_rows == part.facts["num_rows"] == max_rows
    assert part.facts["num_rows_not_sampled"] == 100 - max_rows
    assert (np.diff(rows) > 0).all()
    assert [part.class_names[label] for label in part.labels] == [str(label) for label in whole.labels[rows]]
    assert clients_of(part) == [f"client {row % 7}" for row in rows]
    assert part.facts["num_classes_left_out"] == 4 - part.num_classes


def test_one_class_is_too_few() -> None:
    with refused(DataError, key="data set 'numbered'", given="1: 0"):
        sample(numbered((99, 1)), 2)


# Natural clients.


def test_small_clients_go_with_all_their_rows() -> None:
    sizes = {"a": 3, "b": 10, "c": 4, "d": 33}
    whole = replace(numbered((30, 20)), client_ids=np.repeat(list(sizes), list(sizes.values())))
    part = without_small_clients(whole, 4)
    assert clients_of(part) == ["b"] * 10 + ["c"] * 4 + ["d"] * 33
    assert part.features[:, 0].tolist() == list(range(3, 50))
    assert (part.facts["num_small_clients_left_out"], part.facts["num_rows_of_small_clients"]) == (1, 3)
    assert without_small_clients(whole, 3) is whole
    with refused(DataError, key="federation.min_client_rows", given="34"):
        without_small_clients(whole, 34)


# Duplicates.

FEW = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=st.sampled_from([0, -0.0, 1])
)


@given(FEW, st.data())
def test_duplicates_are_the_rows_that_sorting_them_would_find(features: np.ndarray, data: st.DataObject) -> None:
    labels = data.draw(arrays.arrays(np.int64, len(features), elements=st.integers(0, 1)))
    table = np.column_stack([features.reshape(len(features), -1), labels])
    expected = len(table) - len(np.unique(table, axis=0))
    assert duplicate_rows(features, labels) == expected
    assert duplicate_rows(features.astype(np.float64), labels) == expected
    assert duplicate_rows(np.abs(features).astype(np.uint8), labels) == expected


def test_duplicates_are_found_across_blocks() -> None:
    features = np.arange(10_000, dtype=np.float32)[:, None] % 6000
    assert duplicate_rows(features, np.zeros(10_000, np.int64)) == 4000
