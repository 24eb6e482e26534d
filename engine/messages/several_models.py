"""Several global models in one record: a strategy may keep one for each group of clients.

| record    | one model        | several models                                                         |
| --------- | ---------------- | ---------------------------------------------------------------------- |
| `flat`    | `(params,)`      | `(models, params)`                                                     |
| `group`   | not there        | `(clients,)`, int64: client k is scored under the model `flat[group[k]]` |

A client that is in no group, as its place in `group` is -1 or not there, uses the model that most clients use.

Such a record is what `aggregate_train` returns and what the next `configure_train` is handed. No client ever sees it:
the strategy sends each group its own model, as messages of one content a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.messages.message_contents import flat_vector
from fedscout.engine.messages.message_keys import FLAT_KEY, GROUP_KEY
from fedscout.engine.messages.view_array import read_array, view_record
from fedscout.engine.model.parameter_layout import ParameterLayout


def holds_several(names: Sequence[str]) -> bool:
    """Return whether arrays of these names are several models."""
    return [*names] == [FLAT_KEY, GROUP_KEY]


def several_models(vectors: FloatArray, group: IntArray) -> ArrayRecord:
    """Return the record of several models; the arrays must not change afterwards."""
    return view_record({FLAT_KEY: vectors, GROUP_KEY: group})


def models_of(arrays: ArrayRecord, layout: ParameterLayout, num_clients: int) -> list[tuple[FloatArray, Sequence[int]]]:
    """Return each model as a flat vector, and the clients that use it, ascending.

    Args:
        arrays: One model, flat or named, of all clients; or several.
        layout: Of the model.
        num_clients: In the federation.

    Raises:
        ValueError: If these are no models of the layout, or the groups not of these clients.
    """
    if not holds_several([*arrays]):
        return [(flat_vector(arrays, layout), range(num_clients))]
    vectors = np.asarray(read_array(arrays[FLAT_KEY]), np.float32)
    told = np.asarray(read_array(arrays[GROUP_KEY]))
    if vectors.ndim != 2 or vectors.shape[1] != layout.size:
        raise ValueError(f"flat must have shape (models, {layout.size}) beside group, got {vectors.shape}")
    if told.ndim != 1 or told.dtype.kind != "i" or len(told) > num_clients:
        raise ValueError(f"group must hold an integer for each of {num_clients} clients, got {told.dtype} {told.shape}")
    if not ((told >= -1) & (told < len(vectors))).all() or not (told >= 0).any():
        most = len(vectors) - 1
        raise ValueError(f"group must be in 0 … {most}, or -1, with {most + 1} models, got {told.tolist()}")
    group = np.full(num_clients, np.bincount(told[told >= 0]).argmax())
    group[np.flatnonzero(told >= 0)] = told[told >= 0]
    return [(vector, np.flatnonzero(group == index).tolist()) for index, vector in enumerate(vectors)]


def unmoved(
    before: Sequence[tuple[FloatArray, Sequence[int]]], after: Sequence[tuple[FloatArray, Sequence[int]]]
) -> list[Sequence[int]]:
    """Return the clients of each model that is as before.

    Args:
        before: As of `models_of`.
        after: Likewise, of the same clients.
    """
    model_of = {client: vector for vector, clients in before for client in clients}
    return [clients for vector, clients in after if clients and np.array_equal(vector, model_of[clients[0]])]


def clients_text(clients: Sequence[int]) -> str:
    """Return clients, ascending, for people: `"0-3, 7"`."""
    runs: list[list[int]] = []
    for client in clients:
        if runs and client == runs[-1][-1] + 1:
            runs[-1].append(client)
        else:
            runs.append([client])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
