"""What is in replies: their records, their arrays and vectors by client, whether they fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from fedscout.engine.messages.view_array import read_array


def array_record(content: RecordDict) -> ArrayRecord:
    """Return the only array record of a reply that Flower has checked."""
    return next(record for record in content.values() if isinstance(record, ArrayRecord))


def arrays_by_name(contents: Sequence[RecordDict]) -> dict[str, list[npt.NDArray[Any]]]:
    """Return each array of all replies, one a client and to be read only, keyed by the names of the first reply."""
    records = [array_record(content) for content in contents]
    return {name: [read_array(record[name]) for record in records] for name in records[0]}


def flat_vectors(contents: Sequence[RecordDict]) -> Iterator[npt.NDArray[Any]]:
    """Yield all parameters of each reply, shape `(params,)` and to be read only, its arrays in its own order."""
    for content in contents:
        vectors = [read_array(array).reshape(-1) for array in array_record(content).values()]
        yield vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def metric_record(content: RecordDict) -> MetricRecord:
    """Return the only metric record of a reply that Flower has checked."""
    return next(record for record in content.values() if isinstance(record, MetricRecord))


def alike(contents: Sequence[RecordDict], weighted_by: str) -> bool:
    """Return whether all contents pass Flower's check because the first does and all are outlined as it is.

    A reply holds exactly one array record and one metric record, the keys are those of the other replies, and the
    weight is one number. Contents that are not alike may still pass, such as with their keys in another order.
    """
    outline = _outline(contents[0])
    kinds = [kind for _, kind, _ in outline]
    return (
        kinds.count(ArrayRecord) == 1
        and kinds.count(MetricRecord) == 1
        and all(_outline(content) == outline for content in contents)
        and all(isinstance(metric_record(content).get(weighted_by), int | float) for content in contents)
    )


def _outline(content: RecordDict) -> list[tuple[str, type, list[str]]]:
    return [(name, type(record), list(record)) for name, record in content.items()]
