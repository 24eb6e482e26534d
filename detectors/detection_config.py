"""The parameters of detection, as a configuration file or the command line sets them."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.engine.data.release import Privacy

NUM_DETECTORS: Final = 3


class DetectionConfig(BaseModel):
    """Thresholds and sizes of the detectors; each detector's module says what they mean."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_threshold: float = Field(default=0.1, gt=0, le=1, description="Jensen-Shannon divergence in bits")
    feature_threshold: float = Field(
        default=0.25, gt=0, le=100, description="distance of centroids over the square root of the total variance"
    )
    feature_scale: Literal["standardised", "raw"] = Field(
        default="standardised", description="whether features are divided by their global standard deviation"
    )
    max_features: int = Field(default=4096, ge=1, description="beyond, feature skew is not measured: use embeddings")
    outlier_repetitions: int = Field(default=5, ge=1, le=1000, description="fresh initial models")
    outlier_rounds: int = Field(default=2, ge=1, le=1000, description="rounds of FedAvg before models are compared")
    outlier_percentile: float = Field(
        default=90.0, gt=0, lt=100, description="of the mean distances; flags those above"
    )
    outlier_min_flags: int = Field(default=4, ge=1, description="repetitions that make a client an outlier")
    max_pairwise_clients: int = Field(default=500, ge=2, description="beyond, pairs are sampled and models projected")
    projection_size: int = Field(default=512, ge=1, description="dimensions of projected models")
    histogram_bins: int = Field(default=32, ge=2, le=1024, description="equal bins of a feature's histogram")
    histogram_reach: float = Field(default=4.0, gt=0, description="standard deviations covered on either side")

    false_alarm_rate: float = Field(
        default=0.05,
        ge=1e-3,
        le=0.5,
        description="of the calibrated rules: probability that a federation of like clients is called anything",
    )
    label_effect: float = Field(
        default=0.1, ge=0, le=1, description="calibrated: part of a flagged client's rows of another class, at least"
    )
    feature_effect: float = Field(
        default=0.25, ge=0, description="calibrated: shift of a flagged client's features in standard deviations"
    )
    disagreement_effect: float = Field(
        default=0.2, gt=0, le=1, description="calibrated: part of a flagged client's labels that others contradict"
    )
    distance_effect: float = Field(
        default=0.5, gt=0, description="calibrated: how much farther a flagged client's model is than the median one"
    )

    epsilon: float | None = Field(
        default=None, gt=0, le=1000, description="of differentially private counts and sums; nothing adds no noise"
    )
    delta: float = Field(default=1e-6, gt=0, lt=1, description="of the private sums")
    clip: float = Field(default=3.0, gt=0, description="features are clipped to plus or minus this for private sums")
    noise: Literal["seeded", "secure"] = Field(
        default="seeded", description="seeded noise can be repeated, and protects nobody; secure noise is OpenDP's"
    )

    @property
    def privacy(self) -> Privacy | None:
        """What clients are promised for the queries; None without an epsilon."""
        return None if self.epsilon is None else Privacy(self.epsilon, self.delta, self.noise == "secure")

    @property
    def detector_rate(self) -> float:
        """One detector's share of the federation's false-alarm rate, divided equally among them (Bonferroni)."""
        return self.false_alarm_rate / NUM_DETECTORS

    @property
    def num_rounds(self) -> int:
        """How many rounds of training the comparison of models takes, over all its repetitions."""
        return self.outlier_rounds * self.outlier_repetitions

    @model_validator(mode="after")
    def _flags_are_reachable(self) -> Self:
        if self.outlier_min_flags > self.outlier_repetitions:
            raise ValueError(
                f"outlier_min_flags must not exceed outlier_repetitions ({self.outlier_repetitions}), "
                f"got {self.outlier_min_flags}"
            )
        return self
