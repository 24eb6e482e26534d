"""The plain loss of rows: cross-entropy of classes, or the squared error of a quantity."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss


def mean_loss(outputs: Tensor, answers: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean or sum over rows, or what each costs.

    Args:
        outputs: Of the model, shape `(rows, classes)`, or `(rows, 1)` of a quantity.
        answers: Labels, or standardised targets, which are real numbers, shape `(rows,)`.
        reduction: `mean`, `sum` or `none`.
    """
    if answers.is_floating_point():
        return mse_loss(outputs[:, 0], answers, reduction=reduction)
    return cross_entropy(outputs, answers, reduction=reduction)
