"""Masked sums: the plain sum's bits, whoever drops out; noise to whoever has less than the threshold's shares."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedscout.engine.errors import TrialError
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.nodes.masked_sums import (
    Cohort,
    Secrets,
    least_threshold,
    masked,
    opened_shares,
    sealed_shares,
    unmasked_sum,
)

Vectors = Mapping[int, npt.NDArray[np.int64]]
LARGEST_ID = 2**64 - 1


def secrets_of(client: int) -> Secrets:
    """Repeatable, as a test that looks at noise must be."""
    return Secrets(*(hashlib.sha256(f"{client} {part}".encode()).digest() for part in range(3)))


@dataclass
class Exchanges:
    """What clients and the server of one sum have told each other."""

    secrets: dict[int, Secrets]
    cohort: Cohort
    threshold: int
    sealed: dict[int, dict[int, bytes]]

    @classmethod
    def among(cls, clients: Sequence[int], threshold: int | None = None) -> Exchanges:
        secrets = {client: secrets_of(client) for client in clients}
        cohort = {client: own.public() for client, own in secrets.items()}
        threshold = threshold or least_threshold(len(clients))
        sealed = {client: sealed_shares(client, own, cohort, threshold) for client, own in secrets.items()}
        return cls(secrets, cohort, threshold, sealed)

    def masked(self, vectors: Vectors) -> dict[int, npt.NDArray[np.uint64]]:
        return {client: masked(vector, client, self.secrets[client], self.cohort) for client, vector in vectors.items()}

    def opened(self, client: int, present: Collection[int]) -> dict[int, bytes]:
        for_it = {sender: shares[client] for sender, shares in self.sealed.items()}
        return opened_shares(client, self.secrets[client], for_it, present, self.cohort, self.threshold)

    def sum(self, vectors: Vectors, answering: Collection[int]) -> npt.NDArray[np.int64]:
        opened = {client: self.opened(client, vectors.keys()) for client in answering}
        return unmasked_sum(self.masked(vectors), opened, self.cohort, self.threshold)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_the_sum_has_the_bits_of_the_plain_one_whoever_drops_out(data: st.DataObject) -> None:
    clients = data.draw(st.lists(st.integers(0, LARGEST_ID), min_size=2, max_size=6, unique=True))
    threshold = data.draw(st.integers(least_threshold(len(clients)), len(clients)))
    some = st.sets(st.sampled_from(clients), min_size=threshold)
    present, answering = data.draw(some), data.draw(some)
    values = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3)
    vectors = {client: np.array(data.draw(values), dtype=np.int64) for client in sorted(present)}

    total = Exchanges.among(clients, threshold).sum(vectors, answering)

    plain = np.zeros(3, dtype=np.int64)
    for vector in vectors.values():
        plain += vector
    np.testing.assert_array_equal(total, plain)


def test_a_mean_of_models_has_the_bits_of_the_one_without_masks() -> None:
    generator = np.random.default_rng(0)
    received = generator.normal(size=500).astype(np.float32)
    scale = ExactScale.of(received, max_total_weight=1000)
    weights = {11: 17, 22: 101, 33: 3, 44: 250}
    models = {client: (received + generator.normal(size=500)).astype(np.float32) for client in weights}
    units = {client: scale.total(model[None], [weights[client]]) for client, model in models.items()}
    vectors = {client: np.append(units[client], weights[client]) for client in (11, 22, 44)}

    *total, weight = Exchanges.among([*weights]).sum(vectors, answering=(11, 22, 44))

    plain = scale.total(np.stack([models[client] for client in vectors]), [weights[client] for client in vectors])
    assert weight == 17 + 101 + 250
    np.testing.assert_array_equal(scale.mean(np.array(total), weight), scale.mean(plain, weight))


def chance_of_even_bytes(vector: npt.NDArray[np.generic]) -> float:
    """Return how often uniform bytes are as uneven as those of the vector."""
    return float(chisquare(np.bincount(np.frombuffer(vector.tobytes(), np.uint8), minlength=256)).pvalue)


def test_a_masked_vector_alone_is_noise() -> None:
    vectors = {client: np.arange(2**16, dtype=np.int64) * client for client in (1, 2, 3)}
    exchanges = Exchanges.among([1, 2, 3])

    sent = exchanges.masked(vectors)

    assert all(chance_of_even_bytes(vector) < 1e-12 for vector in vectors.values())
    assert all(chance_of_even_bytes(vector) > 1e-3 for vector in sent.values())
    pair = sent[1] + sent[2]  # still under the masks with the third, and both own ones
    assert chance_of_even_bytes(pair) > 1e-3
    own_masks_removed = {client: exchanges.opened(client, vectors.keys()) for client in (1, 2)}
    with pytest.raises(TrialError, match="2 masked vectors are needed for a sum, got 1"):
        unmasked_sum({1: sent[1]}, own_masks_removed, exchanges.cohort, exchanges.threshold)


def test_what_is_left_when_all_own_masks_are_gone_hides_each_client_still() -> None:
    vectors = {client: np.zeros(2**16, dtype=np.int64) for client in (1, 2, 3)}
    exchanges = Exchanges.among([1, 2, 3])
    without_others = {1: exchanges.cohort[1]}

    bare = exchanges.masked(vectors)[1] - masked(vectors[1], 1, exchanges.secrets[1], without_others)

    assert chance_of_even_bytes(bare) > 1e-3


def test_new_secrets_give_new_masks() -> None:
    one, other = Secrets.fresh(), Secrets.fresh()
    vector = np.zeros(4, dtype=np.int64)

    assert len({*dataclasses.astuple(one), *dataclasses.astuple(other)}) == 6
    assert not np.any(masked(vector, 1, one, {1: one.public()}) == masked(vector, 1, other, {1: other.public()}))


def test_fewer_shares_than_the_threshold_remove_no_mask() -> None:
    exchanges = Exchanges.among([1, 2, 3, 4, 5], threshold=4)
    vectors = {client: np.ones(3, dtype=np.int64) for client in (1, 2, 3, 4)}
    sent = exchanges.masked(vectors)
    opened = {client: exchanges.opened(client, vectors.keys()) for client in (1, 2, 3)}

    with pytest.raises(TrialError, match="4 shares of node 1's secret are needed to remove its mask, got 3"):
        unmasked_sum(sent, opened, exchanges.cohort, threshold=4)
    with pytest.raises(TrialError, match="the shares of node 1's secret must fit what it published"):
        unmasked_sum(sent, opened, exchanges.cohort, threshold=3)


def test_a_forged_share_is_noticed() -> None:
    exchanges = Exchanges.among([1, 2, 3])
    vectors = {client: np.ones(3, dtype=np.int64) for client in (1, 2, 3)}
    opened = {client: exchanges.opened(client, vectors.keys()) for client in (1, 2)}
    opened[1][3] = opened[1][3][:-1] + bytes([opened[1][3][-1] ^ 1])

    with pytest.raises(TrialError, match="the shares of node 3's secret must fit"):
        unmasked_sum(exchanges.masked(vectors), opened, exchanges.cohort, exchanges.threshold)


def test_a_client_opens_no_share_for_too_few() -> None:
    exchanges = Exchanges.among([1, 2, 3, 4])

    for present in ({1, 2}, [1, 2, 2], {1, 2, 9, 10}):
        with pytest.raises(TrialError, match="3 clients of the cohort must be present for a sum, got 2"):
            exchanges.opened(1, present)


def test_a_share_is_opened_by_whom_it_is_for() -> None:
    exchanges = Exchanges.among([1, 2, 3])
    swapped = {sender: shares[2] for sender, shares in exchanges.sealed.items()}

    with pytest.raises(TrialError, match="the share that node 1 sealed for node 3 can't be opened"):
        opened_shares(3, exchanges.secrets[3], swapped, {1, 2, 3}, exchanges.cohort, 2)


@pytest.mark.parametrize(("num_clients", "threshold"), [(1, 1), (2, 1), (4, 2), (3, 4)])
def test_a_client_takes_part_only_where_more_than_half_must(num_clients: int, threshold: int) -> None:
    cohort = {client: secrets_of(client).public() for client in range(num_clients)}

    with pytest.raises(TrialError, match=f"the masks of {num_clients} clients must take .* got {threshold}"):
        sealed_shares(0, secrets_of(0), cohort, threshold)


def test_a_cohort_with_a_clients_keys_exchanged_or_doubled_is_refused() -> None:
    cohort = {client: secrets_of(client).public() for client in (1, 2, 3)}

    with pytest.raises(TrialError, match="must hold the keys that node 1 sent"):
        sealed_shares(1, secrets_of(1), {**cohort, 1: secrets_of(9).public()}, 2)
    with pytest.raises(TrialError, match="two have the same"):
        sealed_shares(1, secrets_of(1), {**cohort, 2: cohort[3]}, 2)
