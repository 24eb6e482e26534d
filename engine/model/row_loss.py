"""What a row costs where labels may be wrong: a label's cross-entropy, a pseudo-label's, and a miss that is bounded.

With p a model's probabilities of a row with label y, and q those by which the received model, fixed in the round, tells
of it:

    L = w −log p_y + α −Σ_c q_c log p_c + m (1 − p_y)

The second term is the cross-entropy of a soft pseudo-label, the third the reverse cross-entropy −Σ_c p_c log 1[c = y]
with log 0 set to −m. By the logits, of a row,

    dL = (w + m p_y) (p − e_y) + α (p − q)

L = CE + α CE(pseudo) + β RCE with log 0 = −4, so w = 1 and m = 4 β, is the local loss of X. Chang et al., "FLASH:
Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024. The reverse term is that of Y. Wang et
al., "Symmetric Cross Entropy for Robust Learning with Noisy Labels", ICCV 2019, arXiv:1908.06112.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOG_OF_NOTHING = -4.0
"""log 0 of the reverse cross-entropy that a training may add."""


@dataclass(frozen=True)
class RowLoss:
    """How much each term counts, all >= 0; as it stands, the cross-entropy alone.

    Attributes:
        cross_entropy: w, of the label's cross-entropy, or of what an algorithm has in its place.
        pseudo_label: α, of the cross-entropy of what the received model says.
        miss: m, of the probability that is not the label's.
    """

    cross_entropy: float = 1.0
    pseudo_label: float = 0.0
    miss: float = 0.0

    def plus(self, pseudo_label: float, reverse: float) -> RowLoss:
        """Return the same with what a training adds: α CE(pseudo) + β RCE."""
        return replace(self, pseudo_label=self.pseudo_label + pseudo_label, miss=self.miss - LOG_OF_NOTHING * reverse)

    @property
    def is_plain(self) -> bool:
        """Whether it is the cross-entropy alone."""
        return self == RowLoss()

    def mean(self, first: Tensor, outputs: Tensor, labels: Tensor, told: Tensor | None) -> Tensor:
        """Return the mean over a batch, for autograd.

        Args:
            first: The mean that w is for.
            outputs: Logits, shape `(rows, classes)`.
            labels: Shape `(rows,)`.
            told: q, shape `(rows, classes)`; None where α is 0.
        """
        logs = outputs.log_softmax(dim=1)
        total = self.cross_entropy * first
        if self.miss:
            total = total + self.miss * (1 - logs.gather(1, labels[:, None]).exp()).mean()
        return total if told is None else total - self.pseudo_label * (told * logs).sum(dim=1).mean()

    def means_and_gradient(
        self, logs: Tensor, targets: Tensor, shares: Tensor, told: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each client's mean, shape `(clients,)`, and its gradient by the logits, as `logs`.

        Args:
            logs: Of p, shape `(clients, rows, classes)`; overwritten.
            targets: One-hot labels times shares, likewise.
            shares: Weight of each row, shape `(clients, rows, 1)`.
            told: q, as `logs`; None where α is 0.
        """
        means = (logs * targets).sum(dim=(1, 2)).mul_(-self.cross_entropy)
        if told is not None:
            means -= self.pseudo_label * (logs * told).mul_(shares).sum(dim=(1, 2))
        probabilities = logs.exp_()
        hit = probabilities * targets  # p_y times the share at the label, 0 elsewhere
        right = hit.sum(dim=2, keepdim=True)
        means += self.miss * (shares - right).sum(dim=(1, 2))
        gradient = (probabilities * shares).sub_(targets).mul_(self.cross_entropy)
        gradient += (probabilities * right).sub_(hit).mul_(self.miss)
        if told is not None:
            gradient += (probabilities - told).mul_(shares).mul_(self.pseudo_label)
        return means, gradient
