"""Laws of communities: what one of them is, that planted ones are found, who trains and is scored by what."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from hypothesis import given, strategies as draws

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, Privacy, Release
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import StrategyError, TrialError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import clients_text
from fedscout.engine.messages.keys import SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, FedAvgSpec, StrategySpec, parse_strategy
from fedscout.strategies.aggregation.groups import GroupedRule, sampled_of
from fedscout.strategies.methods import communities
from fedscout.strategies.methods.robust import SLAB
from tests.engine import federations
from tests.engine.choices import rounds_of
from tests.engine.federations import NUM_CLASSES, Noisy, dense, learnable_rows, linear, normalised, with_server_rows
from tests.engine.trials.test_resume import assert_going_on
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, Hand, result_of, spec_of, weights_of
from tests.strategies.rounds import played

ALL = len(SIZES)
COHORT = Cohort(num_clients=ALL, num_sampled=5, client_learning_rate=0.1)
OWN_LABELS = [[0, 2, 5], [1, 3, 4, 6, 7]]
"""Clients that hold class 0 alone, and those that hold the others."""


INSIDE = "inside of communities"
TWO_MODELS = "0, 2, 5; 1, 3-4, 6-7"


def spec(**parameters: Any) -> StrategySpec:
    return parse_strategy({"kind": "communities", **parameters})


def told_groups(trial: Trial) -> list[str]:
    """Return the clients of each model, as a trial's notes list them."""
    return [note.partition("for the clients ")[2] for note in trial.notes if " models" in note]


def asked(federation: Federation) -> ClientHost:
    return ClientHost(federation, CLIENT_QUERIES)


def planted_labels(model: Any = dense) -> Federation:
    features, labels = learnable_rows(1200)
    pools = [list(np.flatnonzero(labels == 0)), list(np.flatnonzero(labels != 0))]
    rows = [[pools[client in OWN_LABELS[1]].pop() for _ in range(size)] for client, size in enumerate(SIZES)]
    return Federation("planted", features, labels, NUM_CLASSES, Partition.from_lists(rows), model, release=Release(1))


def planted_concepts(shifted: Sequence[int]) -> Federation:
    """Eight clients of the same rows by distribution; in those that are shifted every label is the next class."""
    features, labels = learnable_rows(8 * 60)
    partition = Partition.from_lists(np.split(np.arange(480), 8))
    transforms = {client: (Noisy(0.0),) for client in shifted}
    return Federation("concepts", features, labels, NUM_CLASSES, partition, linear, transforms, release=Release(1))


@pytest.fixture(scope="module")
def planted() -> ClientHost:
    return asked(planted_labels())


def groups_of(labels: npt.NDArray[np.int64]) -> set[tuple[int, ...]]:
    return {tuple(np.flatnonzero(labels == label).tolist()) for label in labels}


# -- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fedavg", "fedadam", "fedmedian", "krum", "fedexp", "scaffold", "fednova", "ditto"])
def test_one_community_is_the_strategy_inside_to_the_bit(host: ClientHost, kind: str) -> None:
    one, plain = (result_of(host, found) for found in (spec(inside=kind, num_communities=1), parse_strategy(kind)))
    np.testing.assert_array_equal(one.vector, plain.vector)
    assert rounds_of(one) == rounds_of(plain)
    assert one.notes == plain.notes


def test_each_community_trains_and_is_scored_as_a_federation_of_its_own(planted: ClientHost) -> None:
    """Three rounds of FedAvg in each of two communities, in float64."""
    trial = result_of(planted, spec(), num_rounds=3, num_sampled=ALL)
    assert told_groups(trial) == [TWO_MODELS]
    hand = Hand(planted_labels())
    for clients, found in zip(OWN_LABELS, trial.vector, strict=True):
        vector: Any = planted.initial_vector(3).astype(np.float64)
        for server_round in (1, 2, 3):
            trained = [hand.descend(vector, client, server_round)[0] for client in clients]
            vector = weights_of(hand, clients) @ np.stack(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=1e-6)
        for client in clients:
            assert trial.clients["accuracy"][client] == hand.accuracy(found.astype(np.float64), client)


ALONE = {"communities", "dp_fedavg", "fedbuff", "local", "rhfl"}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS, "fedadam+fedprox"])
def test_whatever_is_inside_trains_two_communities(kind: str) -> None:
    if kind in ALONE:
        with refused(StrategyError, key=INSIDE, names=f"'{kind}'"):
            spec(inside=kind)
        return
    model = normalised if kind in ("fedbn", "mfedbn") else dense
    federation = with_server_rows(planted_labels(model), labelled=True)
    trial = result_of(asked(federation), spec(inside=kind), num_rounds=2, num_sampled=ALL)
    assert told_groups(trial) == [TWO_MODELS]
    assert not np.array_equal(*trial.vector)
    remarks = [note for note in trial.notes if "configurations, number" in note]
    assert len(remarks) == (2 if kind in ("fedex", "fedpop") else 0)  # of each community's strategy


def test_clients_that_take_no_part_use_the_model_of_most() -> None:
    federation = replace(planted_labels(), unseen=frozenset({2, 7}))
    trial = result_of(asked(federation), spec(), num_sampled=6)
    assert told_groups(trial) == ["0, 5; 1, 3-4, 6"]
    hand = Hand(federation)
    own = [hand.accuracy(trial.vector[1].astype(np.float64), client) for client in (2, 7)]
    rows = [len(hand._rows(client, "test")[1]) for client in (2, 7)]
    assert trial.rounds["new_client_accuracy"][-1] == pytest.approx(np.dot(own, rows) / sum(rows), rel=1e-12)


# -- by labels -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    draws.lists(draws.integers(1, 6), min_size=2, max_size=4), draws.randoms(use_true_random=False), draws.booleans()
)
def test_clients_of_disjoint_labels_are_found_exactly(sizes: list[int], random: Any, automatic: bool) -> None:
    """Whatever the sizes of the communities and of their clients."""
    group_of = [group for group, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(group_of)
    counts = np.zeros((len(group_of), 3 * len(sizes)), np.int64)
    for client, group in enumerate(group_of):
        counts[client, 3 * group : 3 * group + 3] = random.randint(1, 50) * np.array([3, 0, 1])
    similarities = communities.cosine_similarities(counts)
    if automatic:
        found = communities.affinity_propagation(similarities, 0.5, stream(random.randint(0, 99), "test"))
    else:
        found = communities.average_linkage(similarities, len(sizes))
    assert groups_of(found) == groups_of(np.array(group_of))


@pytest.mark.parametrize("num_clients", [1, 2, 7])
def test_clients_of_equal_labels_are_one_community(num_clients: int) -> None:
    similarities = communities.cosine_similarities(np.outer(np.arange(1, num_clients + 1), [4, 1, 0, 2]))
    assert not communities.affinity_propagation(similarities, 0.5, np.random.default_rng(0)).any()
    found = communities.cosine_similarities(np.array([[3, 4], [4, 3], [0, 2]]))
    np.testing.assert_allclose(found, [[1, 0.96, 0.8], [0.96, 1, 0.6], [0.8, 0.6, 1]], rtol=1e-15)


def test_a_larger_preference_opens_more_communities(planted: ClientHost) -> None:
    """Nobody is as like another as to be asked for more than any cosine short of 1."""
    found = {}
    for preference in (0.5, 0.99999):
        rule: Any = spec(preference=preference).build(COHORT)
        found[preference] = rule.first_groups(LocalGrid(planted), ConfigRecord({SEED_KEY: 3}))
    assert found[0.5] == OWN_LABELS
    assert len(found[0.99999]) > 2


def test_a_chain_of_clients_is_two_communities_by_average_linkage() -> None:
    """Each is like the next. After 0-1 (.9), 2-3 (.8) are nearer than 2 is to both of them, (.85 + .4) / 2."""
    similarities = np.array([[1, 0.9, 0.4, 0], [0.9, 1, 0.85, 0.4], [0.4, 0.85, 1, 0.8], [0, 0.4, 0.8, 1]])
    assert groups_of(communities.average_linkage(similarities, 2)) == {(0, 1), (2, 3)}


def test_clients_that_do_not_settle_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communities, "MOST_STEPS", 1)
    with pytest.raises(TrialError, match="num_communities"):
        communities.affinity_propagation(
            communities.cosine_similarities(np.eye(4) + 0.2), 0.2, np.random.default_rng(0)
        )


# -- by updates ------------------------------------------------------------------------------------------------------


@given(draws.integers(2, 6), draws.integers(0, 10**6))
def test_halves_are_the_best_of_all_bipartitions(num_clients: int, seed: int) -> None:
    directions = np.random.default_rng(seed).normal(size=(num_clients, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    similarities = directions @ directions.T
    half, cross = communities.halves(similarities)

    def largest(first: tuple[int, ...]) -> float:
        rest = [client for client in range(num_clients) if client not in first]
        return float(similarities[np.ix_(first, rest)].max())

    subsets = (chosen for size in range(1, num_clients) for chosen in itertools.combinations(range(num_clients), size))
    assert cross == min(map(largest, subsets)) == largest(tuple(np.flatnonzero(half)))


CONCEPTS = {"training": LocalTraining(local_epochs=2, batch_size=16, learning_rate=0.3), "num_sampled": 8}


@pytest.mark.parametrize("size", [53, SLAB, 2 * SLAB + 1])
def test_inner_products_of_updates(size: int) -> None:
    generator = np.random.default_rng(0)
    origin, *models = generator.normal(size=(5, size)).astype(np.float32)
    moved = np.stack(models).astype(np.float64) - origin
    found = communities.inner_products(models, origin)
    np.testing.assert_allclose(found, moved @ moved.T, rtol=0, atol=1e-12 * size)
    if size <= SLAB:
        assert np.array_equal(found, moved @ moved.T)


@pytest.mark.parametrize("shifted", [(0, 1, 2, 3), (1, 4, 6), (7, 2)], ids=str)
def test_two_concepts_are_found_exactly(shifted: tuple[int, ...]) -> None:
    host = asked(planted_concepts(shifted))
    trial, plain = (
        result_of(host, found, num_rounds=12, **CONCEPTS) for found in (spec(grouped_by="updates"), FedAvgSpec())
    )
    groups = sorted([sorted(shifted), sorted({*range(8)} - {*shifted})])
    assert told_groups(trial) == ["; ".join(map(clients_text, groups))]
    assert trial.fitness > plain.fitness


def test_one_concept_stays_whole() -> None:
    trial = result_of(asked(planted_concepts(())), spec(grouped_by="updates"), num_rounds=20, **CONCEPTS)
    assert trial.notes == ()


def test_there_are_no_more_than_asked_for() -> None:
    """With bounds that halve whatever can be halved."""
    loose = {"grouped_by": "updates", "max_mean_update_norm": 10, "min_update_norm": 0, "separation": 0}
    host = asked(planted_concepts(()))
    for most, expected in ((3, 3), (8, 8), (None, 8)):
        trial = result_of(host, spec(**loose, num_communities=most), num_rounds=7, **CONCEPTS)
        assert len(trial.vector) == expected


# -- who trains ------------------------------------------------------------------------------------------------------


@given(draws.lists(draws.integers(1, 30), min_size=1, max_size=8), draws.data())
def test_a_round_s_clients_are_dealt_in_proportion(sizes: list[int], data: draws.DataObject) -> None:
    num_sampled = data.draw(draws.integers(1, sum(sizes)))
    counts = sampled_of(sizes, num_sampled)
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sum(counts) == num_sampled or (sum(counts) > num_sampled and 1 in counts)
    shares = np.array(sizes) * num_sampled / sum(sizes)
    assert all(abs(count - share) < 1 or count == 1 for count, share in zip(counts, shares, strict=True))


class Fixed(GroupedRule):
    """Two communities."""

    min_available_nodes = 5

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        return [[0, 3], [1, 2, 4]]


def test_a_community_without_an_answer_keeps_its_model() -> None:
    rule = Fixed(parse_strategy("fedavg").build, Cohort(5, 5, 0.1))
    moves: Any = iter([[None] * 5, [3, None, None, 5, None], [None, 1, 2, 9, None]])

    def trained(_: Any) -> list[Any]:
        return [None if move is None else np.full(2, move) for move in next(moves)]

    none, first, both = played(rule, np.zeros(2), trained, 3)
    assert none[1] is None
    np.testing.assert_array_equal(first[1], [[4, 4], [0, 0]])
    np.testing.assert_array_equal(both[1], [[9, 9], [1.5, 1.5]])


# -- with any grid, through a checkpoint, with absent clients ----------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stopped_in", range(2, 10))
def test_a_trial_that_is_resumed_before_or_after_a_halving_is_an_uninterrupted_one(
    tmp_path: Path, stopped_in: int
) -> None:
    by_updates = spec(grouped_by="updates", inside="fedavgm", max_mean_update_norm=0.9)
    settings, host = spec_of(by_updates, **CONCEPTS, num_rounds=9), asked(planted_concepts((1, 4, 6)))
    assert assert_going_on(settings, host, tmp_path, stopped_in)[0].vector.ndim == 2


def test_clients_that_miss_rounds_are_left_out() -> None:
    """Merged on hosts or in the driver, the same bits."""
    absent = asked(replace(planted_labels(), dropout={0: 0.5, 2: 0.9, 5: 0.9, 7: 0.9}))
    on_hosts, found = (result_of(absent, spec(inside="scaffold"), way, num_sampled=ALL) for way in (True, False))
    assert found.dropped_clients
    np.testing.assert_array_equal(found.vector, on_hosts.vector)
    assert rounds_of(found) == rounds_of(on_hosts)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "key", "names"),
    [
        ({"num_communities": 9}, "num_communities", "9"),
        ({"grouped_by": "updates"}, "grouped_by", "5 clients a round of 8"),
        ({"separation": 0.5}, "communities.separation", "grouped_by=updates"),
        ({"preference": 0.4, "num_communities": 2}, "communities.preference", "grouped_by=labels"),
        ({"inside": "fedavgg"}, INSIDE, "'fedavgg'"),
        ({"inside": {"eta": 1}}, INSIDE, "{'eta': 1}"),
        ({"inside": {"kind": "fedavg", "client_batch_size": 3}}, INSIDE, "{'client_batch_size': 3}"),
        ({"inside": {"kind": "fedadam", "eta": -1}}, INSIDE, "-1"),
        ({"inside": {"kind": "krum", "num_malicious_nodes": 4}}, "num_malicious_nodes", "4"),
        ({"inside": "scaffold", "grouped_by": "updates"}, INSIDE, "grouped_by=updates"),
    ],
)
def test_what_can_t_be_is_refused(parameters: dict[str, Any], key: str, names: str) -> None:
    with refused(StrategyError, key=key, names=names):
        parse_strategy({"kind": "communities", **parameters}, COHORT)


def failed(federation: Federation, strategy: StrategySpec | None = None, **changes: Any) -> str:
    settings = spec_of(strategy or spec(), **changes)
    trial = run_trial(settings, LocalGrid(asked(federation), session=settings.session))
    assert (trial.status, trial.num_rounds) == ("failed", 0)
    return str(trial.error)


@pytest.mark.parametrize(
    ("release", "client", "reason"),
    [
        (Release(20), 1, "federation.min_release"),
        (Release(6), 6, "class"),
        (Release(1, privacy=Privacy(1.0)), 0, "detection.epsilon"),
    ],
)
def test_clients_that_withhold_their_labels_fail_the_trial(release: Release, client: int, reason: str) -> None:
    """Client 1 holds 17 rows, client 6 nine of two classes."""
    error = failed(replace(planted_labels(), release=release))
    assert f", client {client} " in error
    assert reason in error


# -- the specification -----------------------------------------------------------------------------------------------


def test_a_document_says_all_of_it_and_one_community_is_the_strategy_inside() -> None:
    found = spec(inside={"kind": "fedadam", "eta": 0.05}, num_communities=3)
    assert parse_strategy(json.dumps({"kind": "communities", **found.parameters()})) == found
    one = spec(inside="fedadam", num_communities=1, client_batch_size=4)
    assert one.simplest(COHORT) == parse_strategy({"kind": "fedadam", "client_batch_size": 4})
    assert one.digest(COHORT) == one.simplest(COHORT).digest(COHORT) != spec(inside="fedadam").digest(COHORT)


def test_a_community_that_is_too_small_for_its_strategy_fails_the_trial_and_so_do_clients_with_a_task() -> None:
    error = failed(planted_labels(), spec(inside={"kind": "krum", "num_malicious_nodes": 1}), num_sampled=ALL)
    assert "num_malicious_nodes of krum" in error
    assert ", client 0 holds no rows" in failed(federations.guessing_federation())
