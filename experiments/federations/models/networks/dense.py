"""Fully connected layers with an activation between them, logits at the end; torch's default initialisation.

With batch normalisation, it stands between a hidden layer and its activation: S. Ioffe, C. Szegedy. Batch
normalization: accelerating deep network training by reducing internal covariate shift. ICML 2015. Dropout, of what
comes out of an activation: N. Srivastava et al. Dropout: a simple way to prevent neural networks from overfitting.
JMLR 15, 2014; what is left counts 1 / (1 − dropout) in training, where the paper scales weights afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedscout.engine.model.activations import ACTIVATIONS


def dense_net(
    widths: Sequence[int], flatten: bool, batch_norm: bool, activation: str = "relu", dropout: float = 0.0
) -> nn.Sequential:
    """Build the net.

    Args:
        widths: Features, hidden widths, classes: the layer i maps `widths[i]` to `widths[i + 1]`.
        flatten: Whether rows have more than one axis.
        batch_norm: Whether hidden layers are normalised.
        activation: By name.
        dropout: Share of each hidden layer's outputs that is left out in training.
    """
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    for index in range(len(widths) - 1):
        if index > 0:
            layers += [nn.BatchNorm1d(widths[index])] if batch_norm else []
            layers.append(ACTIVATIONS[activation].layer())
            layers += [nn.Dropout(dropout)] if dropout else []
        layers.append(nn.Linear(widths[index], widths[index + 1]))
    return nn.Sequential(*layers)
