"""Sums of clients' integer vectors of which the server learns the sum alone, with the same bits as in the clear.

K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage, A. Segal and K. Seth, "Practical
Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure 4. Client u sends of its vector x_u

    y_u = x_u + PRG(b_u) + Σ_{v < u} PRG(s_uv) - Σ_{v > u} PRG(s_uv)   (mod 2^64)

where v runs over the cohort. The masks s of a pair, which only these two can compute, cancel in the sum; the server
removes its clients' own masks b by shares that the others hold of them, and for a client that dropped out the masks of
its pairs by shares of its key. No client gives both shares of one client away.

Every sum takes four exchanges: public keys; sealed shares, passed on to whom they are for; masked vectors; shares of
the masks to remove. Each client needs new `Secrets` for each sum, must answer the last exchange once, and must forget
them then.

What the server is trusted with: that it passes on the clients' public keys and not its own in their place. Of the
paper's protection from a server that lies, only the threshold above half of the cohort is here, not its signatures.

Other deviations: keys agree by X25519 and PRG is AES-256 in counter mode, where Flower's `pseudo_rand_gen` seeds a
Mersenne twister with 32 bits, few enough to try them all; a digest of b is sent with the public keys, so that shares
that don't fit are noticed. The draws are the operating system's, as nobody may repeat them.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import TrialError

MaskedArray = npt.NDArray[np.uint64]
SECRET_BYTES = 32
NODE_ID_BYTES = 8


@dataclass(frozen=True)
class PublicHalf:
    """What everybody may know of a client's secrets.

    Attributes:
        mask_key: By which pairs agree on masks.
        seal_key: By which shares are sealed.
        own_mask_digest: SHA-256 of the secret of the own mask.
    """

    mask_key: bytes
    seal_key: bytes
    own_mask_digest: bytes


Cohort = Mapping[int, PublicHalf]
"""Public halves by node id."""


@dataclass(frozen=True)
class Secrets:
    """What a client keeps to itself, for one sum; 32 bytes each.

    Attributes:
        mask_key: By which it agrees on masks with the others.
        seal_key: By which it opens shares that are for it.
        own_mask: b of the paper.
    """

    mask_key: bytes
    seal_key: bytes
    own_mask: bytes

    @classmethod
    def fresh(cls) -> Self:
        """Draw new ones."""
        return cls(*(os.urandom(SECRET_BYTES) for _ in range(3)))

    def public(self) -> PublicHalf:
        """Return what the server passes on to the cohort: the first exchange."""
        return PublicHalf(_public(self.mask_key), _public(self.seal_key), hashlib.sha256(self.own_mask).digest())


def least_threshold(num_clients: int) -> int:
    """Return how many of the cohort must be left for a sum, at least: more than half of them, and two."""
    return max(2, num_clients // 2 + 1)


def sealed_shares(own_id: int, secrets: Secrets, cohort: Cohort, threshold: int) -> dict[int, bytes]:
    """Return for each client of the cohort what only it can open: shares of two secrets. The second exchange.

    Args:
        own_id: Of the client, which is of the cohort.
        secrets: Its own.
        cohort: Everybody who sent a public half.
        threshold: How many shares tell a secret.

    Raises:
        TrialError: If fewer than two clients, or no more than half of the cohort, could tell; if the cohort does not
            hold what the client sent; or if two of it sent the same keys.
    """
    _check_cohort(own_id, secrets, cohort, threshold)
    of_mask = create_shares(secrets.own_mask, threshold, len(cohort))
    of_key = create_shares(secrets.mask_key, threshold, len(cohort))
    return {
        receiver: encrypt(
            _seal(secrets.seal_key, cohort[receiver].seal_key),
            _named(own_id, receiver) + of_mask[place] + of_key[place],
        )
        for place, receiver in enumerate(sorted(cohort))
    }


def masked(vector: IntArray, own_id: int, secrets: Secrets, cohort: Cohort) -> MaskedArray:
    """Return a vector under the masks of its client: the third exchange.

    Args:
        vector: All that the client adds in this sum, shape `(values,)`.
        own_id: Of the client.
        secrets: Its own, used for no other vector.
        cohort: Everybody whose sealed shares have arrived, the client among them.
    """
    total = vector.view(np.uint64) + _stream(secrets.own_mask, len(vector))
    for mask in _pair_masks(own_id, secrets.mask_key, cohort, cohort.keys() - {own_id}, len(vector)):
        total += mask
    return total


def opened_shares(
    own_id: int, secrets: Secrets, sealed: Mapping[int, bytes], present: Collection[int], cohort: Cohort, threshold: int
) -> dict[int, bytes]:
    """Return one share of each client: of its own mask if it is present, of its key if it dropped out.

    This is the last exchange; a second answer, about others present, would give both shares of a client away.

    Args:
        own_id: Of the client.
        secrets: Its own.
        sealed: What each client of the cohort sealed for this one, by sender, itself included.
        present: Whose masked vectors have arrived.
        cohort: As for `masked`.
        threshold: As for `sealed_shares`.

    Raises:
        TrialError: If fewer of the cohort are present than the threshold, or a share is not its sender's.
    """
    here = cohort.keys() & present
    if len(here) < threshold:
        raise TrialError(f"{threshold} clients of the cohort must be present for a sum, got {len(here)}")
    opened = {}
    for sender in cohort:
        try:
            text = decrypt(_seal(secrets.seal_key, cohort[sender].seal_key), sealed[sender])
        except (KeyError, InvalidToken) as error:
            raise TrialError(f"the share that node {sender} sealed for node {own_id} can't be opened") from error
        name, shares = text[: 2 * NODE_ID_BYTES], text[2 * NODE_ID_BYTES :]
        if name != _named(sender, own_id):
            raise TrialError(f"the share that node {sender} sealed for node {own_id} is another's")
        half = len(shares) // 2
        opened[sender] = shares[:half] if sender in here else shares[half:]
    return opened


def unmasked_sum(
    arrived: Mapping[int, MaskedArray], opened: Mapping[int, Mapping[int, bytes]], cohort: Cohort, threshold: int
) -> IntArray:
    """Return the sum of the vectors that arrived, shape `(values,)`: exact while it fits 64 bits.

    Args:
        arrived: Masked vectors of one length, by node.
        opened: The shares that each answering client opened, by node.
        cohort: As for `masked`.
        threshold: As for `sealed_shares`.

    Raises:
        TrialError: If too few vectors or shares of a client's secret came, or shares that do not fit it.
    """
    if len(arrived) < threshold:
        raise TrialError(f"{threshold} masked vectors are needed for a sum, got {len(arrived)}")
    total: MaskedArray = np.zeros_like(next(iter(arrived.values())))
    for vector in arrived.values():
        total += vector
    for client, public in sorted(cohort.items()):
        secret = _combined(client, [shares[client] for shares in opened.values() if client in shares], threshold)
        if client in arrived:
            _check_fit(client, hashlib.sha256(secret).digest(), public.own_mask_digest)
            total -= _stream(secret, len(total))
        else:
            _check_fit(client, _public(secret), public.mask_key)
            for mask in _pair_masks(client, secret, cohort, arrived.keys(), len(total)):
                total += mask  # what the others have of these masks is their negative
    return total.view(np.int64)


def _check_cohort(own_id: int, secrets: Secrets, cohort: Cohort, threshold: int) -> None:
    least = least_threshold(len(cohort))
    if not least <= threshold <= len(cohort):
        raise TrialError(
            f"the masks of {len(cohort)} clients must take {least} of them to remove, or more, and no more than there"
            f" are; got {threshold}"
        )
    if cohort.get(own_id) != secrets.public():
        raise TrialError(f"the cohort must hold the keys that node {own_id} sent; it holds others or none")
    if len({*cohort.values()}) < len(cohort):
        raise TrialError("each client of the cohort must have keys of its own; two have the same")


def _check_fit(client: int, found: bytes, expected: bytes) -> None:
    if found != expected:
        raise TrialError(f"the shares of node {client}'s secret must fit what it published; they don't")


def _combined(client: int, shares: list[bytes], threshold: int) -> bytes:
    if len(shares) < threshold:
        raise TrialError(
            f"{threshold} shares of node {client}'s secret are needed to remove its mask, got {len(shares)}"
        )
    try:
        return combine_shares(shares[:threshold])
    except ValueError:
        return b""  # fits nothing


def _pair_masks(
    client: int, mask_key: bytes, cohort: Cohort, others: Collection[int], length: int
) -> Iterator[MaskedArray]:
    """Yield what a client adds for each of the others."""
    for other in sorted(others):
        mask = _stream(_agreed(mask_key, cohort[other].mask_key, b"mask"), length)
        yield mask if other < client else np.negative(mask)


def _stream(key: bytes, length: int) -> MaskedArray:
    """Return PRG(key); the counter starts at 0, as a key makes one stream only."""
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), dtype="<u8").astype(np.uint64, copy=False)


def _agreed(private_key: bytes, public_key: bytes, purpose: bytes) -> bytes:
    shared = X25519PrivateKey.from_private_bytes(private_key).exchange(X25519PublicKey.from_public_bytes(public_key))
    return HKDF(algorithm=SHA256(), length=SECRET_BYTES, salt=None, info=b"fedscout " + purpose).derive(shared)


def _seal(private_key: bytes, public_key: bytes) -> bytes:
    return base64.urlsafe_b64encode(_agreed(private_key, public_key, b"seal"))


def _public(private_key: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def _named(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(NODE_ID_BYTES, "little") + receiver.to_bytes(NODE_ID_BYTES, "little")
