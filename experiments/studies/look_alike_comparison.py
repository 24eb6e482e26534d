"""How near a look-alike came: what detection tells of it beside what it told of the diagnosed federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict

from fedscout.detectors.report import HeterogeneityReport, name_clients, yes_no

TITLES: Mapping[str, str] = {"label_skew": "label skew", "feature_skew": "feature skew", "outliers": "outlier clients"}


class Beside(BaseModel):
    """One measure of both; None where it could not be measured."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    measure: str
    diagnosed: float | None
    look_alike: float | None


class Verdicts(BaseModel):
    """One decision on both, in words, and whether it is the same for the same clients."""

    model_config = ConfigDict(frozen=True)

    decision: str
    diagnosed: str
    look_alike: str
    same: bool


class Comparison(BaseModel):
    """A look-alike beside what it is to look like.

    Attributes:
        measures: Numbers of both.
        verdicts: Calibrated decisions on both; clients by their number in the look-alike.
        notes: What is not reproduced, or was guessed.
    """

    model_config = ConfigDict(frozen=True)

    measures: tuple[Beside, ...]
    verdicts: tuple[Verdicts, ...]
    notes: tuple[str, ...]


def compare(diagnosed: HeterogeneityReport, look_alike: HeterogeneityReport, notes: Sequence[str]) -> Comparison:
    """Compare two reports.

    Args:
        diagnosed: Of the federation that was to be reproduced.
        look_alike: Of what came out, by the same detection.
        notes: What is not reproduced, or was guessed.
    """
    ours, theirs = _measures(look_alike), _measures(diagnosed)
    numbers = {index: place for place, index in enumerate(sorted({*_indices(diagnosed)}))}
    verdicts = []
    for finding in diagnosed.calibrated:
        other = look_alike.calibrated_finding(finding.name)
        if other is None:
            continue
        flagged = [numbers[client] for client in finding.flagged_clients if client in numbers]
        then = _verdict(finding.measured, finding.detected, flagged)
        now = _verdict(other.measured, other.detected, other.flagged_clients)
        same = (finding.measured, sorted(flagged)) == (other.measured, sorted(other.flagged_clients))
        verdicts.append(Verdicts(decision=TITLES[finding.name], diagnosed=then, look_alike=now, same=same))
    return Comparison(
        measures=tuple(Beside(measure=name, diagnosed=theirs[name], look_alike=ours[name]) for name in theirs),
        verdicts=tuple(verdicts),
        notes=tuple(notes),
    )


def _indices(report: HeterogeneityReport) -> list[int]:
    return [*(own.client for own in report.clients), *report.withheld]


def _verdict(measured: bool, detected: bool, flagged: Sequence[int]) -> str:
    if not measured:
        return "not measured"
    return yes_no(detected) + (f": {name_clients(flagged)}" if flagged else "")


def _measures(report: HeterogeneityReport) -> dict[str, float | None]:
    sizes = [own.num_rows for own in report.clients]
    divergences = list(report.label_skew.client_values.values())
    feature = report.calibrated_finding("feature_skew")
    effects = [own.effect for own in feature.clients.values()] if feature else []
    return {
        "clients that told": float(len(report.clients)),
        "clients that told nothing": float(report.num_clients - len(report.clients)),
        "rows told of": float(sum(sizes)),
        "rows of the smallest client": float(min(sizes, default=0)),
        "rows of the median client": float(median(sizes)) if sizes else None,
        "rows of the largest client": float(max(sizes, default=0)),
        "Gini coefficient of rows": report.metrics.quantity_gini,
        "heterogeneity index, mean": fmean(own.heterogeneity_index for own in report.clients) if sizes else None,
        "label divergence (JS, bits), mean": fmean(divergences) if divergences else None,
        "label divergence (JS, bits), largest": max(divergences, default=None),
        "label Hellinger distance": report.metrics.label_hellinger,
        "feature shift within classes, largest": max(effects, default=None),
        "feature Wasserstein distance": report.metrics.feature_wasserstein,
        "feature Hellinger distance": report.metrics.feature_hellinger,
    }
