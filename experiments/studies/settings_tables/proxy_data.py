"""Proxy data of a table of client settings: labelled rows that no client ever holds.

They are the server's rows of the configuration (`federation.server_rows`, or all of `federation.server_dataset`): taken
out before anything is dealt, so that whoever trains with the same `federation.server_rows` and `federation.seed` trains
on none of them. A row that the data set holds twice may still be on both sides; such rows of the server's are left
out. Of another data set, a row that equals one of the clients' is refused: then it is no other data set.

A balanced part of them, as many rows of each class, scores every setting of every cell and trains nobody.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.seeds import stream
from fedscout.experiments.federations.datasets.dataset import DIGEST_BYTES

SCORED_SHARE = 0.25
"""Of the proxy rows, as far as they are balanced."""


@dataclass(frozen=True)
class ProxyData:
    """Rows of one federation's kind, none of which a client holds.

    Attributes:
        features: float32, shape `(num_rows, *feature_shape)`; those that train before those that score.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Of the clients' data set.
        num_scored: Rows at the end that score, as many of each class.
        num_left_out: Rows of the server's that a client holds as well.
    """

    features: FloatArray
    labels: IntArray
    num_classes: int
    num_scored: int
    num_left_out: int = 0

    @property
    def num_trained(self) -> int:
        """Rows that proxy clients train on."""
        return len(self.labels) - self.num_scored

    @property
    def class_rows(self) -> IntArray:
        """Training rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels[: self.num_trained], minlength=self.num_classes)

    def most_rows(self, held: int) -> int:
        """Return the most training rows of one client that holds so many classes: those of the most frequent ones."""
        return int(np.sort(self.class_rows)[::-1][:held].sum())

    def usual_rows(self, held: int) -> int:
        """Return the training rows that nearly any draw of so many classes has: of each as of the lower quartile."""
        rows = self.class_rows
        return int(held * np.quantile(rows[rows > 0], 0.25))

    def digest(self) -> str:
        """Return the SHA-256 of the rows and which of them score."""
        digest = hashlib.sha256(f"{self.features.dtype} {self.features.shape} {self.num_scored}".encode())
        for array in (self.features, self.labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def proxy_data(federation: Federation, seed: int, of_another: bool) -> ProxyData:
    """Return the proxy data of a federation: its server's rows.

    Args:
        federation: With labelled rows of the server's.
        seed: Draws which of them score.
        of_another: Whether they are of another data set than the clients'.

    Raises:
        DataError: If they overlap the clients' rows, or hold too few classes or rows.
    """
    server = federation.server
    assert server is not None, "the configuration must give the server rows"
    assert server.labels is not None, "and their labels"
    theirs = {*row_digests(federation.features, federation.labels)}
    is_free = np.array([row not in theirs for row in row_digests(server.features, server.labels)])
    num_shared = int(np.count_nonzero(~is_free))
    if of_another and num_shared:
        raise DataError(
            Fault(
                "proxy data",
                "hold no row of the clients",
                f"{num_shared} of {len(is_free)} rows that they hold",
                ("take them out of the clients' own data set by federation.server_rows in place of --proxy"),
            )
        )
    features, labels = server.features[is_free], server.labels[is_free]
    scored = _balanced(labels, stream(seed, "proxy-scored"))
    order = np.concatenate([np.setdiff1d(np.arange(len(labels)), scored, assume_unique=True), scored])
    return ProxyData(features[order], labels[order], federation.num_classes, len(scored), num_shared)


def row_digests(features: FloatArray, labels: IntArray) -> list[bytes]:
    """Return what tells rows apart, labels included, as `duplicate_rows` does."""
    found = []
    for row, label in zip(features, labels.tolist(), strict=True):
        digest = hashlib.blake2b((np.ascontiguousarray(row) + 0.0).data, digest_size=DIGEST_BYTES)
        digest.update(label.to_bytes(8, "little", signed=True))
        found.append(digest.digest())
    return found


def _balanced(labels: IntArray, generator: np.random.Generator) -> IntArray:
    """Return rows of which as many are of each class that is there, shape `(num_scored,)`.

    Raises:
        DataError: If there are fewer than two classes, or a single row of one.
    """
    present, counts = np.unique(labels, return_counts=True)
    if len(present) < 2:
        raise DataError(Fault("proxy data", "hold at least two classes", f"{len(present)} in {len(labels)} rows"))
    if counts.min() < 2:
        raise DataError(
            Fault(
                "proxy data",
                "hold two rows of each class or more, one to train on and one to score by",
                f"one of class {present[counts.argmin()]}",
                "a larger federation.server_rows brings more",
            )
        )
    each = int(np.clip(SCORED_SHARE * len(labels) / len(present), 1, counts.min() // 2))
    order = generator.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:each] for label in present])
