"""What detectors have multiplied of many rows, where a host trains: on a core by NumPy, on a device by PyTorch."""

from __future__ import annotations

import torch

from fedscout.engine.data.client_query import DoubleArray, RowProducts


def products_on(device: torch.device) -> RowProducts:
    """Return what gives XᵀX in float64 on a device, shape `(d, d)` from rows of shape `(rows, d)`."""

    def cross_products(rows: DoubleArray) -> DoubleArray:
        there = torch.from_numpy(rows).to(device)
        found: DoubleArray = (there.T @ there).cpu().numpy()
        return found

    return cross_products
