"""Strategies with a modified local objective: FedLC, FedRS, symmetric cross-entropy, MOON and FedSAM.

**FedLC** calibrates the logits by the number of rows of each class. With f_c the logits and n_c the client's
training rows of class c, a client minimises the cross-entropy of f_c − τ n_c^(−1/4) (Zhang, Li, Li, Xu, Wu,
Ding, Wu: Federated learning with label distribution skew via logits calibration, ICML 2022, arXiv:2209.00189,
eq. 5), so that rare classes are not suppressed. Scores use the plain logits. Deviation: the sum in the
cross-entropy is over all classes; eq. 5 omits the row's own. So τ = 0 is FedAvg.

**FedRS** does not suppress the classes that a client lacks: in a client's loss the logits of classes without
rows are multiplied by α (Li, Zhan: FedRS: Federated learning with restricted softmax for label distribution
non-IID data, KDD 2021, eq. 5). Scores use the plain logits. Deviation: the paper's last layer has no bias;
here α scales the bias, too.

**Symmetric cross-entropy** is robust to label noise. With p the model's probabilities and q the label's, a
client minimises α H(q, p) + β H(p, q) over a batch (Wang, Ma, Chen, Luo, Yi, Bailey: Symmetric cross entropy
for robust learning with noisy labels, ICCV 2019, arXiv:1908.06112, eq. 5 and 7). In the second, reverse term
q is 1 at the label and 1e-4 elsewhere, as in the authors' code, so the term is −log(1e-4) (1 − p_y): bounded,
which limits the influence of a wrong label. It is also the local loss of RHFL (`server_rows.py`).

**MOON** is model-contrastive: towards the global and away from the previous local representation. With z, z_glob and
z_prev the representations of a row (the input of the last linear layer) under the trained model, the received model and
the client's model of its last participation, a client minimises (Li, He, Song: Model-contrastive federated learning,
CVPR 2021, arXiv:2103.16257, eq. 3 and 4)

    F_i(w) − μ log( exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ)) )

sim is the cosine similarity. In a client's first participation z_prev is z_glob, and the term has no gradient. The two
other models are in evaluation mode. Deviation: the paper adds a projection head of two layers before the last one; here
the study's model is unchanged.

**FedSAM** finds flat minima by sharpness-aware minimization: each local step uses the gradient at w + ρ g/‖g‖, where a
batch's loss near w is largest, g being its gradient at w (Qu, Li, Duan, Liu, Tang, Lu: Generalized federated learning
via sharpness aware minimization, ICML 2022, arXiv:2206.02618, Algorithm 1). Batch-normalisation statistics are updated
twice per batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ContrastiveLoss, LocalRun
from fedscout.engine.models.layout import MASKED_LOGIT, Adjusted, RowLoss
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.specification import RealRange, parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CalibratedDescent(ClientAlgorithm):
    """Client algorithm of FedLC.

    Attributes:
        calibration: τ.
    """

    calibration: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train on the calibrated loss, which excludes classes without rows on the client."""
        if not self.calibration:
            return super().train(run)
        counts = run.label_counts()
        shift = (-self.calibration * counts ** (-1 / 4)).clamp(min=MASKED_LOGIT)
        trained = run.descend(run.received, adjusted=Adjusted(shift=shift))
        return ClientResults(trained, trained.vectors)


class FedLCSpec(MeanSpec):
    """FedLC: FedAvg with client logits calibrated by the number of rows of each class."""

    paper: ClassVar[str] = "Zhang et al. 2022, arXiv:2209.00189"
    requires = ("classes",)

    fedavg_at: ClassVar[Mapping[str, float]] = {"calibration": 0}
    kind: Literal["fedlc"] = "fedlc"
    algorithm = CalibratedDescent
    calibration: float = parameter(
        1.0, "τ, weight of the calibration; 0 is FedAvg", RealRange(0.1, 2.0, log=True), ge=0
    )


@dataclass(frozen=True)
class RestrictedSoftmax(ClientAlgorithm):
    """Client algorithm of FedRS.

    Attributes:
        missing_scale: α.
    """

    missing_scale: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train on the restricted loss."""
        scales = run.label_counts().clamp(max=1) * (1 - self.missing_scale) + self.missing_scale
        trained = run.descend(run.received, adjusted=Adjusted(scale=scales))
        return ClientResults(trained, trained.vectors)


class FedRSSpec(MeanSpec):
    """FedRS: FedAvg whose clients hardly change the logits of classes that they lack."""

    paper: ClassVar[str] = "Li and Zhan 2021, doi:10.1145/3447548.3467254"
    requires = ("classes",)

    fedavg_at: ClassVar[Mapping[str, float]] = {"missing_scale": 1}
    kind: Literal["fedrs"] = "fedrs"
    algorithm = RestrictedSoftmax
    missing_scale: float = parameter(
        0.5,
        "α, scale of the outputs of classes that a client does not hold; 1 is FedAvg",
        RealRange(0.0, 0.9),
        ge=0,
        le=1,
    )


LOG_OF_ZERO = math.log(1e-4)


@dataclass(frozen=True)
class SymmetricDescent(ClientAlgorithm):
    """Client algorithm with the symmetric cross-entropy.

    Attributes:
        cross_entropy_weight: α.
        reverse_weight: β.
    """

    cross_entropy_weight: float
    reverse_weight: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train on the symmetric loss (eq. 7)."""
        miss_weight = -LOG_OF_ZERO * self.reverse_weight  # eq. 5
        trained = run.descend(run.received, row_loss=RowLoss(self.cross_entropy_weight, miss=miss_weight))
        return ClientResults(trained, trained.vectors)


class SymmetricLossSpec(MeanSpec):
    """FedAvg with the symmetric cross-entropy, which is robust to label noise."""

    paper: ClassVar[str] = "Wang et al. 2019, arXiv:1908.06112"
    requires = ("classes",)

    fedavg_at: ClassVar[Mapping[str, float]] = {"cross_entropy_weight": 1, "reverse_weight": 0}
    kind: Literal["symmetric_loss"] = "symmetric_loss"
    algorithm = SymmetricDescent
    cross_entropy_weight: float = parameter(
        0.1,
        "α, weight of the cross-entropy; 1 without the reverse term is FedAvg",
        RealRange(0.01, 1.0, log=True),
        ge=0,
        le=1000,
    )
    reverse_weight: float = parameter(1.0, "β, weight of the reverse cross-entropy", ge=0, le=1000)


PREVIOUS = "previous-model"


@dataclass(frozen=True)
class ContrastiveDescent(ClientAlgorithm):
    """Client algorithm of MOON.

    Attributes:
        contrast: μ.
        temperature: τ.
    """

    contrast: float
    temperature: float

    def train(self, run: LocalRun) -> ClientResults:
        """Train on both losses, and store the resulting model."""
        previous = run.kept(PREVIOUS, run.received)
        trained = run.descend(run.received, compared=ContrastiveLoss(self.measure, [run.received, previous]))
        return ClientResults(trained, trained.vectors, {PREVIOUS: trained.vectors})

    def measure(self, own: Tensor, received: Tensor, previous: Tensor) -> Tensor:
        """Return μ times the contrastive loss of each row (eq. 3 and 4)."""
        from torch.nn.functional import cosine_similarity

        near, far = (cosine_similarity(own, other, dim=2) for other in (received, previous))
        return self.contrast * ((far - near) / self.temperature).exp().log1p()


class MoonSpec(MeanSpec):
    """MOON: FedAvg with a contrastive loss that keeps representations near the global model's."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2103.16257"
    requires = ("linear layer",)

    fedavg_at: ClassVar[Mapping[str, float]] = {"contrast": 0}
    kind: Literal["moon"] = "moon"
    algorithm = ContrastiveDescent
    contrast: float = parameter(
        1.0, "μ, weight of the contrastive term; 0 is FedAvg", RealRange(0.1, 10.0, log=True), ge=0
    )
    temperature: float = parameter(0.5, "τ, of the contrastive term", gt=0)


@dataclass(frozen=True)
class SharpnessAware(ClientAlgorithm):
    """Client algorithm of FedSAM.

    Attributes:
        sharpness_radius: ρ.
    """

    sharpness_radius: float
    one_by_one: ClassVar[bool] = True

    def train(self, run: LocalRun) -> ClientResults:
        """Train with the gradients at the perturbed weights."""
        trained = run.descend(run.received, ahead=self._uphill)
        return ClientResults(trained, trained.vectors)

    def _uphill(self, weights: Tensor, gradient: Tensor) -> Tensor:
        import torch

        length = gradient.norm()
        # A comparison in Python would wait for the GPU.
        return weights + gradient * torch.where(length > 0, self.sharpness_radius / length, 0)


class FedSAMSpec(MeanSpec):
    """FedSAM: FedAvg with sharpness-aware minimization on the clients."""

    paper: ClassVar[str] = "Qu et al. 2022, arXiv:2206.02618"

    fedavg_at: ClassVar[Mapping[str, float]] = {"sharpness_radius": 0}
    kind: Literal["fedsam"] = "fedsam"
    algorithm = SharpnessAware
    sharpness_radius: float = parameter(
        0.05, "ρ, radius of the perturbation; 0 is FedAvg", RealRange(1e-3, 0.5, log=True), ge=0
    )
