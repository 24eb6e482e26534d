"""The server's rows: nobody else's, of each class in proportion, drawn by the federation's seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.engine.seeds import stream
from fedscout.experiments.config import load_config
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.server_rows import without_server_rows
from fedscout.experiments.description import describe_federation
from fedscout.experiments.federation import build_federation, data_digest
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.table import parse_effects
from fedscout.experiments.studies.run_folder import federation_facts
from fedscout.experiments.studies.workflow import cohort_of
from tests.experiments.data.loading import clients_of
from tests.kits.refusals import refused


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


def test_clients_keep_a_row_of_each_class() -> None:
    with refused(DataError, key="federation.server_rows", given=97, names="at most 96 of the 100"):
        cut(97)


def test_labels_are_stripped_unless_asked_for() -> None:
    assert cut(10, labelled=False)[1].labels is None
    assert len(cut(10)[1].labels) == 10


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
    assert whole.groups is not None
    assert clients.groups is not None
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


def test_groups_that_each_hold_a_class_alone_can_not_be_given_away() -> None:
    with refused(DataError, key="federation.server_rows", names="3 groups (federation.group_column)"):
        cut(3, dataset=grouped((4, 5, 6), num_classes=3))


def test_nothing_asked_for_is_the_data_set_itself() -> None:
    whole = numbered()
    assert without_server_rows(whole, None, labelled=False, generator=stream(0, "server-rows")) == (whole, None)


# The keys of the configuration.


def built(**settings: Any) -> Any:
    return build_federation(FederationConfig(num_clients=5, **settings), ModelConfig())


@pytest.mark.parametrize("partition", [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.1}])
def test_no_client_holds_a_row_of_the_server_s(partition: dict[str, Any]) -> None:
    """Every row of the digits is the server's or a client's; they are told apart by their numbers in the whole."""
    whole, federation = built(partition=partition), built(partition=partition, server_rows=300)
    held = federation.features[np.unique(federation.partition.rows)]
    assert len(held) + federation.server.num_rows == len(whole.features) == 1797
    together = np.concatenate([held, federation.server.features])
    assert sorted(map(bytes, together)) == sorted(map(bytes, whole.features))


def test_corruption_of_clients_does_not_reach_the_server() -> None:
    noise = parse_effects([{"kind": "feature_noise", "std": 1.0, "clients": [0, 1]}])
    one, other = built(server_rows=50, scenario=noise), built(server_rows=50)
    assert one.transforms
    np.testing.assert_array_equal(one.server.features, other.server.features)


def test_what_is_told() -> None:
    federation = built(server_rows=0.1, server_labels=True)
    assert federation_facts(federation)["num_server_rows"] == 180
    assert federation_facts(federation)["server_labels"] is True
    config = load_config([])
    assert describe_federation(federation, config.detection, 0).facts["num_server_rows"] == 180
    assert "num_server_rows" not in built().facts


def test_the_digest_of_the_data_holds_the_server_s_rows() -> None:
    digests = [built(server_rows=50, server_labels=labels) for labels in (True, False)]
    assert len({data_digest(federation) for federation in digests}) == 2


@pytest.mark.parametrize(
    "argument",
    [*(f"rows={given}" for given in ("0", "-2", "1.0", "0.0", "1.5", "true", "some", ".nan", "[3]")), "labels=true"],
)
def test_what_is_neither_a_count_nor_a_share_is_refused_and_so_are_labels_of_no_rows(argument: str) -> None:
    with refused(ConfigurationError, key=f"federation.server_{argument.partition('=')[0]}"):
        load_config([f"federation.server_{argument}"])


def test_players_have_no_rows_to_give() -> None:
    with refused(ConfigurationError, key="federation.dataset", names="federation.server_rows"):
        build_federation(FederationConfig(dataset="cartpole", server_rows=5), ModelConfig())


@pytest.mark.parametrize(("given", "known"), [("null", 0), ("7", 7), ("0.2", None)])
def test_strategies_are_told_before_the_data_are_read(given: str, known: int | None) -> None:
    assert cohort_of(load_config([f"federation.server_rows={given}"]), 5).server_rows == known
